"""Attention to the keys that an indexer chooses, its own or an earlier layer's: which attentions it goes with, what it hides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from anyformer.layers.context import ForwardContext
from anyformer.layers.indexer import INDEX
from anyformer.layers.mask import Causal, Everything, Mask, ignores_heads, visible
from anyformer.layers.rotary import Rotation
from anyformer.layers.tokens import Tokens
from anyformer.spec import MixerSpec, Place

if TYPE_CHECKING:
    from anyformer.layers.attention import Attention, AttentionSpec


def heads_of(spec: AttentionSpec) -> tuple[int, int]:
    """How many heads it has of queries, and of keys and values."""
    n = getattr(spec.projection, "n_heads", 1)
    return n, getattr(spec.projection, "kv_heads", n)


def choice_misfit(spec: AttentionSpec) -> tuple[str, str] | None:
    """("indexer", why it does not go with this attention); None where it does, or there is none."""
    indexer, (n_heads, _) = spec.indexer, heads_of(spec)
    why = None
    if indexer is None:
        return None
    if spec.reads not in ("self", "layer"):
        why = f"chooses among a text's own keys, and it reads {spec.reads!r}; leave one out"
    elif not ignores_heads(spec.mask):
        why = "chooses for heads alike, and the mask differs by head; leave one out"
    elif indexer.mean_of > 1 and spec.mask not in (Causal(), Everything()):
        why = "chooses whole blocks, and the mask hides some of what they are of; take Causal or Everything"
    elif n_heads % indexer.choices:
        why = f"makes {indexer.choices} choices, which do not divide {n_heads} heads; change n_heads of one"
    return None if why is None else ("indexer", why)


def unread(spec: AttentionSpec, what: str, lender: MixerSpec, place: Place) -> str | None:
    """Why attention cannot read the choice or the keys that another mixer lends, or None."""
    if what == "choice":
        assert spec.indexer is not None
        if not isinstance(lender, type(spec)) or lender.indexer != spec.indexer.but(reads="self"):
            return "that is of an indexer with other fields"
        return None if lender.mask == spec.mask else "that is of other keys; give both attentions one mask"
    own, its = spec.projection.cache_shapes(place), lender.cache_shapes(place) or {}
    if not own.items() <= its.items():
        return f"those are of {its}, and its projection reads {own}"
    mine, there = spec.mask.reach(), lender.reach()
    if spec.indexer is not None and mine != there:
        return "they are not those that its choice is of; give all of them one mask"
    if there is not None and (mine is None or mine > there):
        return f"its mask sees {'all' if mine is None else mine}, and the last {there} tokens are kept"
    return None


def index_rotation(attention: Attention) -> Rotation | None:
    """How the indexer's queries and keys turn."""
    return attention.index_rotary and Rotation(attention.index_rotary, attention.projection.frequencies)


def index_keys(attention: Attention, x: Tensor, context: ForwardContext) -> Mapping[str, Tensor]:
    """What its own indexer scores of the tokens x [batch, token, d_model], by name; nothing without one, or of one of blocks."""
    if attention.indexer is None or attention.compressor is not None:
        return {}
    return {INDEX: attention.indexer.keys(x, index_rotation(attention), context)}


def choice(
    attention: Attention,
    narrow: Tensor,
    x: Tensor,
    stored: Mapping[str, Tensor],
    keys: Tokens,
    context: ForwardContext,
    mask: Mask,
) -> Tensor | None:
    """What hides the keys that are not chosen, [batch, 1 or heads, query, key]; None where there is no choice.

    `narrow` and x [batch, query, …] are what attention makes queries of, and reads; `stored` is of the tokens `keys`.
    """
    spec = attention.spec.indexer
    if spec is None:
        return None
    if attention.indexer is None:
        chosen: Tensor | None = context.memo.found[f"choice {spec.choice}"]
    else:
        seen = context.once(f"shown {mask.key} {keys.name}", lambda: visible(mask, context.tokens, keys, 1))
        read = attention.projection.indexed(narrow)
        chosen = attention.indexer(read, x, stored[INDEX], keys, seen, index_rotation(attention), context)
        if spec.choice is not None:
            context.memo.found[f"choice {spec.choice}"] = chosen
    if chosen is None or spec.choices == 1:
        return chosen
    return chosen.repeat_interleave(attention.n_heads // spec.choices, 1)
