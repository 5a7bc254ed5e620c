"""T5: buckets shared by a stack, unscaled scores, a scaled head. Raffel et al. 2019, arXiv:1910.10683."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.families.compose import block, embedding, pre_norm
from anyformer.layers import (
    AddSpec,
    AttentionSpec,
    ByRole,
    Causal,
    Everything,
    FeedForwardSpec,
    Mask,
    RelativeBucketsSpec,
    ReLU,
    RMSNormSpec,
)
from anyformer.spec import (
    BlockSpec,
    HeadSpec,
    MixerSpec,
    ModelSpec,
    ScaleSpec,
    StackSpec,
    SublayerSpec,
    TableSpec,
    Vocab,
    Width,
)
from tests.hard_cases.case import Case, Parity, attention_heads, of_transformers

NORM = RMSNormSpec(eps=1e-6)


def t5(
    *,
    n_layers: int = 12,
    d_model: int = 768,
    n_heads: int = 12,
    head_dim: int = 64,
    d_ff: int = 3072,
    vocab_size: int = 32_128,
    feed: Callable[[int, int], MixerSpec] | None = None,
) -> ModelSpec:
    """Return the architecture; sizes of base: the paper, section 3.1.2; `feed(layer, d_ff)` gives another mixer."""
    table = TableSpec(rows=Vocab(vocab_size), shared="tokens")

    def attend(mask: Mask, name: str | None) -> SublayerSpec:
        scores = (
            () if name is None else (RelativeBucketsSpec(bidirectional=name == "encoder", shared=f"{name}_buckets"),)
        )
        heads, unscaled = attention_heads(n_heads, head_dim=head_dim), ScaleSpec(factor=1.0)
        reads = "memory" if name is None else "self"
        return pre_norm(NORM, AttentionSpec(projection=heads, mask=mask, scores=scores, scale=unscaled, reads=reads))

    def layer(i: int, *attentions: SublayerSpec) -> BlockSpec:
        dense = FeedForwardSpec(d_ff=Width(d_ff), activation=ReLU(), bias_in=False, bias_out=False)
        return block(*attentions, pre_norm(NORM, feed(i, d_ff) if feed else dense))

    def stack(*attentions: SublayerSpec) -> StackSpec:
        blocks = tuple(layer(i, *attentions) for i in range(n_layers))
        return StackSpec(
            d_model=Width(d_model), embedding=embedding(table), blocks=blocks, residual=AddSpec(), norm=NORM
        )

    return ModelSpec(
        encoder=stack(attend(Everything(), "encoder")),
        stack=stack(attend(Causal(), "decoder"), attend(Everything(), None)),
        heads=(HeadSpec(table=table, scale=ScaleSpec(power=-0.5)),),
        init=ByRole(),
    )


def theirs(**sizes: Any) -> Any:
    """Return the model of transformers."""
    published = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "vocab_size": 32128}
    return of_transformers("T5ForConditionalGeneration", "T5Config", **{**published, **sizes})


def rows() -> dict[str, Any]:
    """Return the table of both stacks."""
    table: dict[str, Any] = {"shared.weight": "shared.tokens.weight"}
    for side, stack in (("encoder", "encoder"), ("decoder", "stack")):
        sublayers = f"{stack}.blocks.{{i}}.sublayers"
        kinds = ["SelfAttention", *(["EncDecAttention"] if side == "decoder" else []), "DenseReluDense"]
        for k, kind in enumerate(kinds):
            layer = f"{side}.block.{{i}}.layer.{k}"
            table[f"{layer}.layer_norm.weight"] = f"{sublayers}.{k}.norm_in.weight"
            if kind == "DenseReluDense":
                table[f"{layer}.{kind}.wi.weight"] = f"{sublayers}.{k}.branches.0.mixer.up.weight"
                table[f"{layer}.{kind}.wo.weight"] = f"{sublayers}.{k}.branches.0.mixer.down.weight"
                continue
            for n in "qkvo":
                table[f"{layer}.{kind}.{n}.weight"] = f"{sublayers}.{k}.branches.0.mixer.projection.{n}.weight"
        table[f"{side}.block.{{i}}.layer.0.SelfAttention.relative_attention_bias.weight"] = (
            f"shared.{side}_buckets.weight"
        )
        table[f"{side}.final_layer_norm.weight"] = f"{stack}.norm.weight"
    return table


SMALL = {"vocab_size": 96, "d_model": 40, "d_ff": 56}

CASE = Case(
    "t5-base",
    t5,
    "223M",
    theirs,
    parity=Parity(
        lambda: theirs(**SMALL, d_kv=12, num_heads=4, num_layers=2),
        lambda: t5(vocab_size=96, d_model=40, d_ff=56, head_dim=12, n_heads=4, n_layers=2),
        rows(),
        unused=("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
        n_tokens=170,  # beyond the last bucket's distance
    ),
)
