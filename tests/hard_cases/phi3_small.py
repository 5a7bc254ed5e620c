"""Phi-3-small: sparse blocks, others for each head; gegelu; muP. Abdin et al. 2024, arXiv:2404.14219, section 2.

The block size, the stride, the limit of gegelu and muP's constants are those of the released config.
"""

from __future__ import annotations

from torch import Tensor

from anyformer.families.compose import block, embedding, pre_norm, repeat
from anyformer.layers import (
    GELU,
    AddSpec,
    AttentionSpec,
    ByRole,
    Causal,
    GatedFeedForwardSpec,
    LayerNormSpec,
    Mask,
    RotarySpec,
    Tokens,
)
from anyformer.spec import BlockSpec, HeadSpec, Length, ModelSpec, ScaleSpec, StackSpec, TableSpec, Vocab, Width, Window
from tests.hard_cases.case import Case, attention_heads

NORM = LayerNormSpec(eps=1e-5)


class LocalAndVertical(Mask):
    """Blocks of `size` keys: the last `near` ones, and every `stride`-th, which are others for each head."""

    size: Window
    near: int
    stride: int

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        q, k = query.position // self.size, key.position // self.size
        return (q - k < self.near) | ((k + head + 1) % self.stride == 0)


def phi3_small(
    *,
    n_layers: int = 32,
    d_model: int = 4096,
    n_heads: int = 32,
    n_kv_heads: int = 8,
    head_dim: int = 128,
    d_ff: int = 14_336,
    vocab_size: int = 100_352,
    block_size: int = 64,
    near: int = 16,
) -> ModelSpec:
    """Return the architecture; sizes: the paper, section 2, and the released config."""
    table = TableSpec(rows=Vocab(vocab_size), shared="tokens")

    def layer(mask: Mask) -> BlockSpec:
        heads = attention_heads(n_heads, n_kv_heads, head_dim, bias=True).but(rotary=RotarySpec(theta=1e6))
        attend = AttentionSpec(projection=heads, mask=mask, scale=ScaleSpec(power=-1.0))
        feed = GatedFeedForwardSpec(
            d_ff=Width(d_ff), activation=GELU(form="quick"), bias_in=True, bias_out=True, limit=20.0, up_offset=1.0
        )
        return block(pre_norm(NORM, attend), pre_norm(NORM, feed))

    sparse = layer(Causal() & LocalAndVertical(size=Window(block_size), near=near, stride=8))
    stack = StackSpec(
        d_model=Width(d_model),
        embedding=embedding(table, scale=ScaleSpec(factor=10.0)),
        blocks=repeat([sparse, layer(Causal())], n_layers),
        residual=AddSpec(),
        norm=NORM,
    )
    head = HeadSpec(table=table, scale=ScaleSpec(factor=1 / 8))
    return ModelSpec(stack=stack, heads=(head,), init=ByRole(), context=Length(8192))


CASE = Case("phi3-small", phi3_small, "7.4B")
