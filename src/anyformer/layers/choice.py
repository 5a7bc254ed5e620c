"""Attention to the keys that an indexer chooses, its own or an earlier layer's: which attentions it goes with, what it hides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from anyformer.layers.indexer import INDEX
from anyformer.layers.mask import Causal, Everything, Mask, ignores_heads, visible
from anyformer.layers.tokens import ForwardContext, Tokens

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
    elif spec.chooses and spec.reads == "layer":
        why = "scores keys that are not stored for it; let it read the choice of a layer too"
    elif not ignores_heads(spec.mask):
        why = "chooses for heads alike, and the mask differs by head; leave one out"
    elif indexer.mean_of > 1 and spec.mask not in (Causal(), Everything()):
        why = "chooses whole blocks, and the mask hides some of what they are of; take Causal or Everything"
    elif n_heads % indexer.choices:
        why = f"makes {indexer.choices} choices, which do not divide {n_heads} heads; change n_heads of one"
    return None if why is None else ("indexer", why)


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
        chosen = attention.indexer(narrow, x, stored[INDEX], keys, seen, attention.index_rotation, context)
        if spec.choice is not None:
            context.memo.found[f"choice {spec.choice}"] = chosen
    return (
        chosen
        if chosen is None or spec.choices == 1
        else chosen.repeat_interleave(attention.n_heads // spec.choices, 1)
    )
