"""LLaMA to and from transformers' LlamaForCausalLM: separate matrices, rotary features in the half layout already."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import block, language_model, pre_norm, repeat
from anyformer.families.mapping import Family, Row, dropped, one, same
from anyformer.families.settings import Settings, spelling
from anyformer.layers import (
    AttentionSpec,
    ByRole,
    Causal,
    GatedFeedForwardSpec,
    GQASpec,
    LinearScaling,
    Llama3Scaling,
    Normal,
    RMSNormSpec,
    RotaryScalingSpec,
    RotarySpec,
)
from anyformer.spec import Count, Length, ModelSpec, Width


def to_spec(settings: Settings) -> ModelSpec:
    """Return the model that a configuration describes. Raises CheckpointError."""
    d_model, n_heads = settings.take("hidden_size", int), settings.take("num_attention_heads", int)
    if n_heads < 1 or d_model % n_heads:
        raise settings.refusal(
            "num_attention_heads", f"does not divide hidden_size = {d_model}, which this class refuses"
        )
    kv_heads = settings.take("num_key_value_heads", int, n_heads)
    head_dim = settings.take("head_dim", int, d_model // n_heads)
    context = settings.take("max_position_embeddings", int, 2048)
    bias = settings.take("attention_bias", bool, False)
    mlp_bias = settings.take("mlp_bias", bool, False)
    norm = RMSNormSpec(eps=settings.take("rms_norm_eps", float, 1e-6))
    heads = GQASpec(
        n_heads=Count(n_heads),
        n_kv_heads=None if kv_heads == n_heads else Count(kv_heads),
        head_dim=None if head_dim * n_heads == d_model else Width(head_dim),
        bias_query=bias,
        bias_key=bias,
        bias_value=bias,
        bias_output=bias,
        rotary=rotary(settings, context),
    )
    feed = GatedFeedForwardSpec(
        d_ff=Width(settings.take("intermediate_size", int)),
        activation=settings.activation("hidden_act", "silu"),
        bias_in=mlp_bias,
        bias_out=mlp_bias,
    )
    layer = block(pre_norm(norm, AttentionSpec(projection=heads, mask=Causal())), pre_norm(norm, feed))
    deviation = Normal(scale=settings.take("initializer_range", float, 0.02))
    spec = language_model(
        vocab_size=settings.take("vocab_size", int),
        d_model=d_model,
        blocks=repeat(layer, settings.take("num_hidden_layers", int)),
        norm=norm,
        tied=settings.take("tie_word_embeddings", bool, False),
        init=ByRole(table=deviation, matrix=deviation),
        context=context,
    )
    settings.close()
    return spec


def rotary(settings: Settings, context: int) -> RotarySpec:
    """Return the rotary positions, spelled as in transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters)."""
    settings.require("partial_rotary_factor", 1.0)
    theta = settings.take("rope_theta", float, 10_000.0)
    old, new = settings.section("rope_scaling"), settings.section("rope_parameters")
    inner = old or new
    if inner is None:
        return RotarySpec(theta=theta)
    inner.require("partial_rotary_factor", 1.0)
    theta = inner.take("rope_theta", float, theta)
    older = inner.take("type", str, "default")
    kind = inner.take("rope_type", str, older)
    scaling: RotaryScalingSpec | None = None
    if kind == "linear":
        scaling = LinearScaling(factor=inner.take("factor", float))
    elif kind == "llama3":
        scaling = Llama3Scaling(
            factor=inner.take("factor", float),
            low_frequency_factor=inner.take("low_freq_factor", float),
            high_frequency_factor=inner.take("high_freq_factor", float),
            original_context=Length(inner.take("original_max_position_embeddings", int, context)),
        )
    elif kind != "default":
        raise inner.refusal("rope_type", "is no scaling of rotary positions known here; default, linear and llama3 are")
    inner.close()
    return RotarySpec(theta=theta, scaling=scaling)


def to_config(spec: ModelSpec) -> dict[str, Any]:
    """Return the nearest configuration. Raises SpecError for a model that lacks a whole part of LLaMA."""
    heads = one(spec.stack, GQASpec, "grouped-query attention")
    feed = one(spec.stack, GatedFeedForwardSpec, "gated feed-forward")
    matrix = spec.init.matrix if isinstance(spec.init, ByRole) else None
    rotary = heads.rotary or RotarySpec()
    n_heads, d_model = heads.n_heads, spec.stack.d_model
    return {
        "vocab_size": spec.vocab_size,
        "hidden_size": d_model,
        "intermediate_size": feed.d_ff,
        "num_hidden_layers": spec.n_layers,
        "num_attention_heads": n_heads,
        "num_key_value_heads": heads.kv_heads,
        "head_dim": heads.head_dim or d_model // n_heads,
        "hidden_act": spelling(feed.activation) or "silu",
        "max_position_embeddings": spec.context or 2048,
        "initializer_range": matrix.scale if isinstance(matrix, Normal) and not matrix.fan_in_power else 0.02,
        "rms_norm_eps": one(spec.stack, RMSNormSpec, "RMSNorm").eps,
        "rope_theta": rotary.theta,
        "rope_scaling": _scaling(rotary.scaling),
        "attention_bias": heads.bias_query,
        "attention_dropout": 0.0,
        "mlp_bias": feed.bias_in,
        "tie_word_embeddings": any(head.table.shared for head in spec.heads),
    }


def _scaling(scaling: RotaryScalingSpec | None) -> dict[str, Any] | None:
    if isinstance(scaling, LinearScaling):
        return {"rope_type": "linear", "factor": scaling.factor}
    if isinstance(scaling, Llama3Scaling):
        return {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_frequency_factor,
            "high_freq_factor": scaling.high_frequency_factor,
            "original_max_position_embeddings": scaling.original_context,
        }
    return None


def rows(spec: ModelSpec) -> list[Row]:
    """Return the table of tensors."""
    shared = spec.heads[0].table.shared
    table = f"shared.{shared}.weight" if shared else "stack.embedding.terms.0.table.weight"
    found = [same(table, "model.embed_tokens.weight", *(["lm_head.weight"] if shared else []))]
    if not shared:
        found.append(same("heads.0.table.weight", "lm_head.weight"))
    attention_bias = one(spec.stack, GQASpec, "grouped-query attention").bias_query
    mlp_bias = one(spec.stack, GatedFeedForwardSpec, "gated feed-forward").bias_in
    for i in range(spec.n_layers):
        theirs, sublayers = f"model.layers.{i}", f"stack.blocks.{i}.sublayers"
        projection, mixer = f"{sublayers}.0.branches.0.mixer.projection", f"{sublayers}.1.branches.0.mixer"
        found += [
            dropped(f"{theirs}.self_attn.rotary_emb.inv_freq"),  # old files: the rotary frequencies
            same(f"{sublayers}.0.norm_in.weight", f"{theirs}.input_layernorm.weight"),
            same(f"{sublayers}.1.norm_in.weight", f"{theirs}.post_attention_layernorm.weight"),
        ]
        for end in ("weight", *(["bias"] if attention_bias else [])):
            found += [same(f"{projection}.{x}.{end}", f"{theirs}.self_attn.{x}_proj.{end}") for x in "qkvo"]
        for end in ("weight", *(["bias"] if mlp_bias else [])):
            found += [same(f"{mixer}.{x}.{end}", f"{theirs}.mlp.{x}_proj.{end}") for x in ("gate", "up", "down")]
    return [*found, same("stack.norm.weight", "model.norm.weight")]


LLAMA = Family("llama", "LlamaForCausalLM", "model.", to_spec, to_config, rows)
