"""What a model can continue: which models write, of which prompts, and which read a prompt in parts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.cache import KVCache
from anyformer.errors import InputError
from anyformer.layers.causality import has_prefix, later_tokens_seen
from anyformer.layers.embedding import learned_positions
from anyformer.layers.lsh import LSHAttentionSpec
from anyformer.layers.moe import MoESpec
from anyformer.layers.rope_scaling import ScalingByLength
from anyformer.model import Transformer
from anyformer.spec import ModelSpec, StackSpec, TableSpec


def padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """(ids, mask) [batch, token] of prompts, padded on the left; None where none is."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(each)) + [*each] for each in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in prompts], device=device)
    return ids, None if bool(mask.all()) else mask


def check_prompts(
    model: Transformer, ids: Tensor, mask: Tensor | None, decoder_ids: Tensor | None, max_new_tokens: int
) -> None:
    """Raise InputError for prompts that the model cannot continue by so many tokens."""
    check_writes(model.spec)
    if max_new_tokens < 0:
        raise InputError(f"max_new_tokens = {max_new_tokens} must be 0 or more")
    if ids.dim() != 2 or not ids.numel():
        raise InputError(f"input_ids have shape {tuple(ids.shape)}; give [batch, token] with at least one token a row")
    if mask is not None and mask.shape != ids.shape:
        raise InputError(f"attention_mask has shape {tuple(mask.shape)}; input_ids have {tuple(ids.shape)}")
    for stack, given in zip(model.spec.stacks.values(), (ids, decoder_ids), strict=False):
        _check_ids(stack, given)
    if mask is not None and not bool((mask > 0).any(-1).all()):
        raise InputError("a prompt without a token cannot be continued; every row of attention_mask needs a 1")
    if model.encoder is not None:
        if decoder_ids is None:
            raise InputError("a model with an encoder needs decoder_input_ids [batch, token] that start its answer")
        if decoder_ids.dim() != 2 or decoder_ids.shape[0] != ids.shape[0] or not decoder_ids.numel():
            raise InputError(
                f"decoder_input_ids have shape {tuple(decoder_ids.shape)}; they must be [{len(ids)}, token]"
            )
        n_prompt = decoder_ids.shape[1]
    else:
        if decoder_ids is not None:
            raise InputError("decoder_input_ids were given to a model without an encoder; pass them as input_ids")
        if mask is not None and not bool((mask[:, -1] > 0).all()):
            raise InputError("prompts of different lengths must be padded on the left: attention_mask ends with a 0")
        n_prompt = ids.shape[1] if mask is None else int((mask > 0).sum(-1).max())
    limit = learned_positions(model.spec.stack)
    if limit is not None and n_prompt + max_new_tokens > limit <= n_prompt:
        raise InputError(
            f"a prompt of {n_prompt} tokens leaves no room for new ones among the {limit} learned positions of this model; "
            f"cut it to {limit - 1} at most"
        )
    if limit is not None and n_prompt + max_new_tokens > limit:
        raise InputError(
            f"a prompt of {n_prompt} tokens and {max_new_tokens} new ones go beyond the {limit} learned positions of "
            f"this model; ask for at most {limit - n_prompt} new tokens or cut the prompt"
        )


def check_writes(spec: ModelSpec) -> None:
    """Raise InputError for a model that is no one to continue a text: it sees what it would have to write, or says no token."""
    if kind := later_tokens_seen(spec.stack, *spec.heads, after_prefix=True):
        raise InputError(
            f"this model cannot generate text: it lets a token see later ones ({kind}), as encoders do; take a decoder, "
            "whose masks are causal, or use it as what it is: `evaluate` its predictions, `embed` or `classify` texts"
        )
    head = spec.heads[0] if spec.heads else None
    if head is None:
        raise InputError("this model has no head, so it gives no next token; `embed` makes vectors of texts with it")
    if head.pool is not None or not (spec.n_scored == spec.vocab_size or reads_more(spec)):
        raise InputError(
            f"this model gives no next token: its first head, {head.name!r}, does not choose among its {spec.vocab_size} "
            "tokens; `classify` or `embed` texts with it"
        )


def check_begun(spec: ModelSpec, cache: KVCache, ids: Tensor) -> None:
    """Raise InputError where prompts [batch, token] do not go on behind what a cache holds."""
    rows, n = ids.shape
    if cache.batch != rows or cache.n >= n:
        raise InputError(
            f"the cache holds {cache.n} tokens of {cache.batch} rows, and input_ids have {n} of {rows}; they begin with what it "
            "holds, and have one more at least"
        )
    if why := parting(spec, n):
        raise InputError(f"the model reads no prompt in parts: it has {why}; give no cache")


def parting(spec: ModelSpec, n: int) -> str | None:
    """What of a model makes another thing of n tokens where the first of them are read before, in words; None: nothing does."""
    if spec.encoder is not None:
        return "an encoder"
    if has_prefix(spec):
        return "a prefix, which is seen from both sides"
    scaling = rotating_by_length(spec, 1, n)
    return competing(spec) if scaling is None else f"{scaling.kind}, which rotates a text by its length"


def competing(spec: ModelSpec) -> str | None:
    """What of a model makes another thing of tokens that it reads together, in words; None: nothing does."""
    for value in spec.nested():
        if isinstance(value, MoESpec) and value.capacity is not None:
            return "experts of a capacity, for which tokens read together compete"
        if isinstance(value, LSHAttentionSpec):
            return "hashed attention, which sorts tokens read together into chunks"
    return None


def rotating_by_length(spec: ModelSpec, first: int, last: int) -> ScalingByLength | None:
    """What rotates texts from `first` to `last` tokens by their length, so that it matters where a pass ends."""
    lengths = torch.tensor([[[first], [last]]])
    scalings = (value for part in (spec.stack, *spec.heads) for value in part.nested())
    return next((each for each in scalings if isinstance(each, ScalingByLength) and not each.alike(lengths)), None)


def reads_more(spec: ModelSpec) -> bool:
    """Whether a model reads tokens that it never writes, such as codes of images (Apertus 1.5)."""
    return 0 < spec.n_scored < spec.vocab_size and spec.heads[0].name == "lm"


def prompt_types(spec: ModelSpec, ids: Tensor) -> Tensor | None:
    """The token_type_ids that make a prompt [batch, token] the prefix of a decoder that sees one from both sides.

    What is written after it is of type 1. None for models whose masks have no prefix, or one of a size of its own.
    """
    return torch.zeros_like(ids) if has_prefix(spec) else None


def _check_ids(stack: StackSpec, ids: Tensor | None) -> None:
    """Raise InputError for ids [batch, token] that a stack has no vectors for: on a GPU they would end the process."""
    rows = next((each.rows for each in stack.embedding.nested() if isinstance(each, TableSpec)), 0)
    if ids is not None and len(wrong := ids[(ids < 0) | (ids >= rows)]):
        raise InputError(f"there is no token {int(wrong[0])}; this model has those from 0 to {rows - 1}")
