"""BART: post-norm, a norm on each embedding, positions with two wasted rows. Lewis et al. 2019, arXiv:1910.13461."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import block, embedding, post_norm, repeat
from anyformer.layers import (
    GELU,
    AddSpec,
    AttentionSpec,
    ByRole,
    Causal,
    Everything,
    FeedForwardSpec,
    LayerNormSpec,
    LearnedPositionsSpec,
)
from anyformer.spec import BlockSpec, HeadSpec, Length, ModelSpec, StackSpec, TableSpec, Vocab, Width
from tests.hard_cases.case import Case, Parity, attention_heads, of_transformers

NORM = LayerNormSpec(eps=1e-5)


def bart(
    *,
    n_layers: int = 6,
    d_model: int = 768,
    n_heads: int = 12,
    d_ff: int = 3072,
    n_positions: int = 1024,
    vocab_size: int = 50_265,
) -> ModelSpec:
    """Return the architecture; sizes of base: the paper, section 2.1 and the released config."""
    table = TableSpec(rows=Vocab(vocab_size), shared="tokens")
    heads = attention_heads(n_heads, bias=True)
    feed = post_norm(NORM, FeedForwardSpec(d_ff=Width(d_ff), activation=GELU()))
    seen = post_norm(NORM, AttentionSpec(projection=heads, mask=Everything()))
    past = post_norm(NORM, AttentionSpec(projection=heads, mask=Causal()))
    memory = post_norm(NORM, AttentionSpec(projection=heads, mask=Everything(), reads="memory"))

    def stack(layer: BlockSpec) -> StackSpec:
        terms = embedding(table, LearnedPositionsSpec(n_positions=Length(n_positions), offset=2), norm=NORM)
        return StackSpec(d_model=Width(d_model), embedding=terms, blocks=repeat(layer, n_layers), residual=AddSpec())

    return ModelSpec(
        encoder=stack(block(seen, feed)),
        stack=stack(block(past, memory, feed)),
        heads=(HeadSpec(table=table),),
        init=ByRole(),
        context=Length(n_positions),
    )


def theirs(**sizes: Any) -> Any:
    """Return the model of transformers."""
    layers = {"encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072}
    heads = {"encoder_attention_heads": 12, "decoder_attention_heads": 12}
    every = {"vocab_size": 50265, "d_model": 768, "max_position_embeddings": 1024, **layers, **heads, **sizes}
    return of_transformers("BartForConditionalGeneration", "BartConfig", **every, attn_implementation="eager")


def rows() -> dict[str, Any]:
    """Return the table of both stacks."""
    table: dict[str, Any] = {"model.shared.weight": "shared.tokens.weight"}
    for side, stack in (("encoder", "encoder"), ("decoder", "stack")):
        layer, ours = f"model.{side}.layers.{{i}}", f"{stack}.blocks.{{i}}.sublayers"
        attentions = ["self_attn"] if side == "encoder" else ["self_attn", "encoder_attn"]
        table[f"model.{side}.embed_positions.weight"] = f"{stack}.embedding.terms.1.weight"
        for w in ("weight", "bias"):
            table[f"model.{side}.layernorm_embedding.{w}"] = f"{stack}.embedding.norm.{w}"
            for k, name in enumerate(attentions):
                table[f"{layer}.{name}_layer_norm.{w}"] = f"{ours}.{k}.norm_sum.{w}"
                for n, o in (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("out_proj", "o")):
                    table[f"{layer}.{name}.{n}.{w}"] = f"{ours}.{k}.branches.0.mixer.projection.{o}.{w}"
            last = f"{ours}.{len(attentions)}"
            table[f"{layer}.fc1.{w}"] = f"{last}.branches.0.mixer.up.{w}"
            table[f"{layer}.fc2.{w}"] = f"{last}.branches.0.mixer.down.{w}"
            table[f"{layer}.final_layer_norm.{w}"] = f"{last}.norm_sum.{w}"
    return table


LAYERS = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 56, "decoder_ffn_dim": 56}

CASE = Case(
    "bart-base",
    bart,
    "139M",
    theirs,
    parity=Parity(
        lambda: theirs(
            **LAYERS,
            vocab_size=96,
            d_model=40,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            max_position_embeddings=64,
        ),
        lambda: bart(vocab_size=96, d_model=40, n_heads=4, d_ff=56, n_layers=2, n_positions=64),
        rows(),
        unused=(
            "lm_head.weight",
            "model.encoder.embed_tokens.weight",
            "model.decoder.embed_tokens.weight",
            "final_logits_bias",
        ),
    ),
)
