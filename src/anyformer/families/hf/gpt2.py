"""GPT-2 to and from transformers' GPT2LMHeadModel: matrices are (in, out), queries, keys and values one matrix."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import block, language_model, pre_norm
from anyformer.families.hf.classifiers import ClassificationHead, classifying
from anyformer.families.hf.layout import Link, deviation, link, places, rows_of, table_rows, tied
from anyformer.families.hf.mapping import Family, TensorRow, dropped, one
from anyformer.families.hf.settings import Settings, spelling
from anyformer.layers import (
    AttentionSpec,
    ByRole,
    Causal,
    FeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    Normal,
)
from anyformer.spec import Count, Length, ModelSpec, ScaleSpec, Width


def to_spec(settings: Settings) -> ModelSpec:
    """The model that a configuration describes. Raises CheckpointError."""
    d_model, n_layers = settings.take("n_embd", int), settings.take("n_layer", int)
    norm = LayerNormSpec(eps=settings.take("layer_norm_epsilon", float, 1e-5))
    heads = GQASpec(
        n_heads=Count(settings.take("n_head", int)), bias_query=True, bias_key=True, bias_value=True, bias_output=True
    )
    d_ff = Width(settings.take("n_inner", int, 4 * d_model))
    feed = FeedForwardSpec(d_ff=d_ff, activation=settings.activation("activation_function", "gelu_new"))
    power = -0.5 if settings.take("scale_attn_weights", bool, True) else 0.0
    by_layer = settings.take("scale_attn_by_inverse_layer_idx", bool, False)
    scales = [ScaleSpec(factor=1 / (i + 1) if by_layer else 1.0, power=power) for i in range(n_layers)]
    deviation = settings.take("initializer_range", float, 0.02)
    context = settings.take("n_positions", int, 1024)
    # n_ctx repeats n_positions; scores are computed in float32 here whatever reorder_and_upcast_attn says.
    settings.ignore("n_ctx", "reorder_and_upcast_attn")
    spec = language_model(
        vocab_size=settings.take("vocab_size", int),
        d_model=d_model,
        blocks=tuple(
            block(
                pre_norm(norm, AttentionSpec(projection=heads, mask=Causal(), scale=scale)),
                pre_norm(norm, feed),
            )
            for scale in scales
        ),
        norm=norm,
        tied=settings.take("tie_word_embeddings", bool, True),
        positions=(LearnedPositionsSpec(n_positions=Length(context)),),
        init=ByRole(
            table=Normal(scale=deviation),
            matrix=Normal(scale=deviation),
            output=Normal(scale=deviation, depth_power=-0.5),
        ),
        context=context,
    )
    settings.close()
    return spec


def to_config(spec: ModelSpec) -> dict[str, Any]:
    """The nearest configuration. Raises SpecError for a model that lacks a whole part of GPT-2."""
    attentions = [value for value in spec.stack.nested() if isinstance(value, AttentionSpec)]
    heads = one(spec.stack, GQASpec, "multi-head attention")
    feed = one(spec.stack, FeedForwardSpec, "feed-forward without a gate")
    positions = one(spec.stack, LearnedPositionsSpec, "learned positions")
    return {
        "vocab_size": spec.vocab_size,
        "n_positions": positions.n_positions,
        "n_embd": spec.stack.d_model,
        "n_layer": spec.n_layers,
        "n_head": heads.n_heads,
        "n_inner": feed.d_ff,
        "activation_function": spelling(feed.activation) or "gelu_new",
        "layer_norm_epsilon": one(spec.stack, LayerNormSpec, "layer norm").eps,
        "initializer_range": deviation(spec),
        "scale_attn_weights": attentions[0].scale.power != 0,
        "scale_attn_by_inverse_layer_idx": len(attentions) > 1 and attentions[1].scale.factor == 0.5,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
        "tie_word_embeddings": tied(spec),
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }


def rows(spec: ModelSpec) -> list[TensorRow]:
    """The table of tensors."""
    links = [link("stack.norm", "transformer.ln_f"), link("stack.embedding.terms.1", "transformer.wpe")]
    found = table_rows(spec, "transformer.wte", "lm_head")
    for i in range(spec.n_layers):
        place, theirs = places(spec, i), f"transformer.h.{i}"
        found.append(dropped(f"{theirs}.attn.bias", f"{theirs}.attn.masked_bias"))  # old files: the causal mask
        links += [link(ours, f"{theirs}.{x}") for ours, x in zip(place.norms, ("ln_1", "ln_2"), strict=True)]
        links += [
            Link(place.qkv(), f"{theirs}.attn.c_attn", turned=True),
            link(f"{place.projection}.o", f"{theirs}.attn.c_proj", turned=True),
            link(f"{place.feed}.up", f"{theirs}.mlp.c_fc", turned=True),
            link(f"{place.feed}.down", f"{theirs}.mlp.c_proj", turned=True),
        ]
    return [*found, *rows_of(spec, links)]


GPT2 = classifying(
    Family("gpt2", "GPT2LMHeadModel", "transformer.", to_spec, to_config, rows),
    {
        "GPT2ForSequenceClassification": ClassificationHead("classes"),
        "GPT2ForTokenClassification": ClassificationHead("token_classes", "classifier"),
    },
)
