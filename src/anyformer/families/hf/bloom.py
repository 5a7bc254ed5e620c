"""BLOOM to and from transformers' BloomForCausalLM: queries, keys and values are fused head by head."""

from __future__ import annotations

from typing import Any

from anyformer.families.bloom import bloom
from anyformer.families.hf.layout import Link, deviation, link, places, rows_of, starts, table_rows, tied
from anyformer.families.hf.mapping import Family, TensorRow, one
from anyformer.families.hf.settings import Settings
from anyformer.layers import GQASpec, LayerNormSpec
from anyformer.spec import ModelSpec


def to_spec(settings: Settings) -> ModelSpec:
    """The model that a configuration describes. Raises CheckpointError."""
    settings.require("apply_residual_connection_post_layernorm", False)
    # How their product was cut among processors, the order of a sum, and what older files say of themselves.
    settings.ignore("slow_but_exact", "masked_softmax_fusion", "skip_bias_add", "skip_bias_add_qkv", "offset_alibi")
    settings.ignore("bias_dropout_fusion", "attention_softmax_in_fp32", "unk_token_id")
    older = settings.optional("n_embed", int)
    context = settings.take("seq_length", int, 2048)
    spec = bloom(
        n_layers=settings.take("n_layer", int),
        d_model=settings.take("hidden_size", int, 64) if older is None else older,
        n_heads=settings.take("n_head", int),
        vocab_size=settings.take("vocab_size", int),
        eps=settings.take("layer_norm_epsilon", float, 1e-5),
        tied=settings.take("tie_word_embeddings", bool, True),
        context=context,
    ).but(init=starts(settings))
    settings.close()
    return spec


def to_config(spec: ModelSpec) -> dict[str, Any]:
    """The nearest configuration. Raises SpecError for a model that lacks a whole part of BLOOM."""
    return {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.stack.d_model,
        "n_layer": spec.n_layers,
        "n_head": one(spec.stack, GQASpec, "multi-head attention").n_heads,
        "layer_norm_epsilon": one(spec.stack, LayerNormSpec, "layer norm").eps,
        "initializer_range": deviation(spec),
        "seq_length": spec.context or 2048,  # what its files call it; ALiBi needs no longest length
        "tie_word_embeddings": tied(spec),
    }


def rows(spec: ModelSpec) -> list[TensorRow]:
    """The table of tensors."""
    heads = one(spec.stack, GQASpec, "multi-head attention").n_heads
    links = [
        link("stack.norm", "transformer.ln_f"),
        link("stack.embedding.norm", "transformer.word_embeddings_layernorm"),
    ]
    for i in range(spec.n_layers):
        place, theirs = places(spec, i), f"transformer.h.{i}"
        norms = ("input_layernorm", "post_attention_layernorm")
        links += [link(ours, f"{theirs}.{name}") for ours, name in zip(place.norms, norms, strict=True)]
        links += [
            Link(place.qkv(), f"{theirs}.self_attention.query_key_value", groups=heads),
            link(f"{place.projection}.o", f"{theirs}.self_attention.dense"),
            link(f"{place.feed}.up", f"{theirs}.mlp.dense_h_to_4h"),
            link(f"{place.feed}.down", f"{theirs}.mlp.dense_4h_to_h"),
        ]
    return [*table_rows(spec, "transformer.word_embeddings", "lm_head"), *rows_of(spec, links)]


BLOOM = Family("bloom", "BloomForCausalLM", "transformer.", to_spec, to_config, rows)
