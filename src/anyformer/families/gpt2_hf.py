"""GPT-2 to and from transformers' GPT2LMHeadModel: matrices are (in, out), queries, keys and values one matrix."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import block, language_model, pre_norm
from anyformer.families.mapping import Family, Row, dropped, fused, one, same, transposed
from anyformer.families.settings import Settings, spelling
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
    """Return the model that a configuration describes. Raises CheckpointError."""
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
    """Return the nearest configuration. Raises SpecError for a model that lacks a whole part of GPT-2."""
    attentions = [value for value in spec.stack.nested() if isinstance(value, AttentionSpec)]
    heads = one(spec.stack, GQASpec, "multi-head attention")
    feed = one(spec.stack, FeedForwardSpec, "feed-forward without a gate")
    positions = one(spec.stack, LearnedPositionsSpec, "learned positions")
    tables = [head.table for head in spec.heads]
    matrix = spec.init.matrix if isinstance(spec.init, ByRole) else None
    return {
        "vocab_size": spec.vocab_size,
        "n_positions": positions.n_positions,
        "n_embd": spec.stack.d_model,
        "n_layer": spec.n_layers,
        "n_head": heads.n_heads,
        "n_inner": feed.d_ff,
        "activation_function": spelling(feed.activation) or "gelu_new",
        "layer_norm_epsilon": one(spec.stack, LayerNormSpec, "layer norm").eps,
        "initializer_range": matrix.scale if isinstance(matrix, Normal) and not matrix.fan_in_power else 0.02,
        "scale_attn_weights": attentions[0].scale.power != 0,
        "scale_attn_by_inverse_layer_idx": len(attentions) > 1 and attentions[1].scale.factor == 0.5,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
        "tie_word_embeddings": bool(tables and tables[0].shared),
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }


def rows(spec: ModelSpec) -> list[Row]:
    """Return the table of tensors."""
    shared = spec.heads[0].table.shared
    table = f"shared.{shared}.weight" if shared else "stack.embedding.terms.0.table.weight"
    head = () if shared else (same("heads.0.table.weight", "lm_head.weight"),)
    found = [
        same(table, "transformer.wte.weight", *(["lm_head.weight"] if shared else [])),
        *head,
        same("stack.embedding.terms.1.weight", "transformer.wpe.weight"),
    ]
    for i in range(spec.n_layers):
        attention, feed = (f"stack.blocks.{i}.sublayers.{j}" for j in range(2))
        theirs, projection = f"transformer.h.{i}", f"{attention}.branches.0.mixer.projection"
        mixer = f"{feed}.branches.0.mixer"
        found += [dropped(f"{theirs}.attn.bias", f"{theirs}.attn.masked_bias")]  # old files: the causal mask
        for end in ("weight", "bias"):
            turn = transposed if end == "weight" else same
            q, k, v = (f"{projection}.{name}.{end}" for name in "qkv")
            found += [
                same(f"{attention}.norm_in.{end}", f"{theirs}.ln_1.{end}"),
                fused((q, k, v), f"{theirs}.attn.c_attn.{end}", turned=end == "weight"),
                turn(f"{projection}.o.{end}", f"{theirs}.attn.c_proj.{end}"),
                same(f"{feed}.norm_in.{end}", f"{theirs}.ln_2.{end}"),
                turn(f"{mixer}.up.{end}", f"{theirs}.mlp.c_fc.{end}"),
                turn(f"{mixer}.down.{end}", f"{theirs}.mlp.c_proj.{end}"),
            ]
    return found + [same(f"stack.norm.{end}", f"transformer.ln_f.{end}") for end in ("weight", "bias")]


GPT2 = Family("gpt2", "GPT2LMHeadModel", "transformer.", to_spec, to_config, rows)
