"""GPT to and from transformers' OpenAIGPTLMHeadModel: matrices are (in, out), queries, keys and values one matrix."""

from __future__ import annotations

from typing import Any

from anyformer.families.hf.layout import Link, deviation, link, places, rows_of, starts, table_rows, tied
from anyformer.families.hf.mapping import Family, TensorRow, dropped, one
from anyformer.families.hf.settings import Settings
from anyformer.families.openai_gpt import openai_gpt
from anyformer.layers import (
    GELU,
    ActivationSpec,
    FeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    ReLU,
    SiLU,
)
from anyformer.spec import ModelSpec

# What this class means by the names, which is not what the others mean: its "gelu" is the tanh form.
ACTIVATIONS: dict[str, ActivationSpec] = {"gelu": GELU(form="tanh"), "relu": ReLU(), "silu": SiLU(), "swish": SiLU()}


def to_spec(settings: Settings) -> ModelSpec:
    """The model that a configuration describes. Raises CheckpointError."""
    activation = settings.take("afn", str, "gelu")
    if activation not in ACTIVATIONS:
        raise settings.refusal("afn", f"is none of the activations {', '.join(ACTIVATIONS)}")
    settings.ignore("n_ctx", "n_special", "predict_special_tokens")  # n_ctx repeats n_positions; the others are past
    spec = openai_gpt(
        n_layers=settings.take("n_layer", int),
        d_model=settings.take("n_embd", int),
        n_heads=settings.take("n_head", int),
        vocab_size=settings.take("vocab_size", int),
        activation=ACTIVATIONS[activation],
        eps=settings.take("layer_norm_epsilon", float, 1e-5),
        tied=settings.take("tie_word_embeddings", bool, True),
        context=settings.take("n_positions", int, 512),
    ).but(init=starts(settings))
    settings.close()
    return spec


def to_config(spec: ModelSpec) -> dict[str, Any]:
    """The nearest configuration. Raises SpecError for a model that lacks a whole part of GPT."""
    activation = one(spec.stack, FeedForwardSpec, "feed-forward without a gate").activation
    return {
        "vocab_size": spec.vocab_size,
        "n_positions": one(spec.stack, LearnedPositionsSpec, "learned positions").n_positions,
        "n_embd": spec.stack.d_model,
        "n_layer": spec.n_layers,
        "n_head": one(spec.stack, GQASpec, "multi-head attention").n_heads,
        "afn": next((name for name, known in ACTIVATIONS.items() if known == activation), "gelu"),
        "layer_norm_epsilon": one(spec.stack, LayerNormSpec, "layer norm").eps,
        "initializer_range": deviation(spec),
        "tie_word_embeddings": tied(spec),
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }


def rows(spec: ModelSpec) -> list[TensorRow]:
    """The table of tensors."""
    links = [link("stack.embedding.terms.1", "transformer.positions_embed")]
    found = table_rows(spec, "transformer.tokens_embed", "lm_head")
    for i in range(spec.n_layers):
        place, theirs = places(spec, i), f"transformer.h.{i}"
        found.append(dropped(f"{theirs}.attn.bias"))  # old files: the causal mask
        links += [link(ours, f"{theirs}.{x}") for ours, x in zip(place.norms, ("ln_1", "ln_2"), strict=True)]
        links += [
            Link(place.qkv(), f"{theirs}.attn.c_attn", turned=True),
            link(f"{place.projection}.o", f"{theirs}.attn.c_proj", turned=True),
            link(f"{place.feed}.up", f"{theirs}.mlp.c_fc", turned=True),
            link(f"{place.feed}.down", f"{theirs}.mlp.c_proj", turned=True),
        ]
    return [*found, dropped("transformer.position_ids"), *rows_of(spec, links)]


OPENAI_GPT = Family("openai-gpt", "OpenAIGPTLMHeadModel", "transformer.", to_spec, to_config, rows)
