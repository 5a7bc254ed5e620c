"""Whether tokens see later ones, asked of masks themselves: what tells a decoder from an encoder, whatever it is called."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from anyformer.layers.attention import AttentionSpec
from anyformer.layers.embedding import TokensSpec
from anyformer.layers.mask import Mask, Prefix, visible
from anyformer.layers.token_dropout import TokenDropoutSpec
from anyformer.layers.tokens import Tokens
from anyformer.layers.value_convolution import ValueConvolutionSpec
from anyformer.spec import MixerSpec, ModelSpec, Spec

# Neighbours, and tokens so far on that blocks and windows of any usual size lie between them.
POSITIONS = (*range(16), *(2**power for power in range(4, 21)))
BEYOND = 2**32  # further than any prefix of a fixed size
HEADS = 16  # enough for a pattern over heads to come round
BESIDE = (TokensSpec, TokenDropoutSpec, ValueConvolutionSpec)  # what may show later tokens and is no mixer


@lru_cache(maxsize=1024)
def sees_later_tokens(mask: Mask, *, after_prefix: bool = False) -> bool:
    """Whether some head shows some token a key that comes after it, in a text whose tokens nobody marks or reorders.

    A prefix is seen from both sides by design: `after_prefix` asks of the tokens behind it alone, otherwise the whole text is
    one. Raises InputError for a mask that goes by what plain tokens do not have.
    """
    if (band := mask.band()) is not None:
        return band[1] > 0
    with unset_fake_temporarily(), torch.device("cpu"):  # wherever a model is being made
        positions = torch.tensor([POSITIONS]) + BEYOND * after_prefix
        tokens = Tokens(positions, segment=torch.full_like(positions, after_prefix))
        seen = visible(mask, tokens, tokens, HEADS)
        return seen is None or bool(seen.expand(1, -1, len(POSITIONS), len(POSITIONS)).triu(1).any())


def later_tokens_seen(*parts: Spec, after_prefix: bool = False) -> str | None:
    """The kind of the first part of a stack, a head, … that shows a token later ones; None: it can be a decoder.

    Cross-attention reads another text and is left out. With `after_prefix` a prefix may be seen from both sides, as generation
    and caches allow.
    """
    for value in (value for part in parts for value in part.nested(MixerSpec, *BESIDE)):
        if value.shows_later():
            return value.kind
        if not isinstance(value, AttentionSpec) or value.reads == "memory":
            continue
        if value.transient is not None:
            return value.transient.kind
        if sees_later_tokens(value.mask, after_prefix=after_prefix):
            return value.mask.kind
    return None


def own_masks(stack: Spec) -> list[Mask]:
    """The masks by which a stack's tokens see each other, attention by attention."""
    return [each.mask for each in stack.nested(AttentionSpec) if each.reads != "memory"]


def has_prefix(spec: ModelSpec) -> bool:
    """Whether a decoder sees a prefix from both sides: of any length, the tokens whose token_type_ids is 0."""
    prefixes = (part for mask in own_masks(spec.stack) for part in mask.nested(Prefix))
    return spec.encoder is None and any(part.size is None for part in prefixes)
