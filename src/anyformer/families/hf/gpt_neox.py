"""GPT-NeoX and Pythia to and from transformers' GPTNeoXForCausalLM: queries, keys and values are fused head by head."""

from __future__ import annotations

from typing import Any

from anyformer.families.gpt_neox import gpt_neox
from anyformer.families.hf.layout import Link, deviation, link, places, rows_of, starts, table_rows, tied
from anyformer.families.hf.mapping import Family, TensorRow, dropped, one
from anyformer.families.hf.rotary import rotary, rotary_settings
from anyformer.families.hf.settings import Settings, spelling
from anyformer.layers import FeedForwardSpec, GQASpec, LayerNormSpec, RotarySpec
from anyformer.spec import ModelSpec


def to_spec(settings: Settings) -> ModelSpec:
    """The model that a configuration describes. Raises CheckpointError."""
    context = settings.take("max_position_embeddings", int, 2048)
    d_model = settings.take("hidden_size", int)
    spec = gpt_neox(
        n_layers=settings.take("num_hidden_layers", int),
        d_model=d_model,
        n_heads=settings.take("num_attention_heads", int),
        vocab_size=settings.take("vocab_size", int),
        d_ff=settings.take("intermediate_size", int, 24_576),
        activation=settings.activation("hidden_act", "gelu"),
        serial=not settings.take("use_parallel_residual", bool, True),
        tied=settings.take("tie_word_embeddings", bool, False),
        bias=settings.take("attention_bias", bool, True),
        eps=settings.take("layer_norm_eps", float, 1e-5),
        rotary=rotary(
            settings, context, plain=RotarySpec(fraction=0.25), theta="rotary_emb_base", fraction="rotary_pct"
        ),
        context=context,
    ).but(init=starts(settings))
    settings.close()
    return spec


def to_config(spec: ModelSpec) -> dict[str, Any]:
    """The nearest configuration. Raises SpecError for a model that lacks a whole part of GPT-NeoX."""
    heads = one(spec.stack, GQASpec, "multi-head attention")
    feed = one(spec.stack, FeedForwardSpec, "feed-forward without a gate")
    return {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.stack.d_model,
        "intermediate_size": feed.d_ff,
        "num_hidden_layers": spec.n_layers,
        "num_attention_heads": heads.n_heads,
        "hidden_act": spelling(feed.activation) or "gelu",
        "max_position_embeddings": spec.context or 2048,
        "initializer_range": deviation(spec),
        "layer_norm_eps": one(spec.stack, LayerNormSpec, "layer norm").eps,
        **rotary_settings(heads.rotary, theta="rotary_emb_base", fraction="rotary_pct"),
        "attention_bias": heads.bias_query,
        "use_parallel_residual": len(spec.stack.blocks[0].sublayers) == 1,
        "tie_word_embeddings": tied(spec),
    }


def rows(spec: ModelSpec) -> list[TensorRow]:
    """The table of tensors."""
    heads = one(spec.stack, GQASpec, "multi-head attention").n_heads
    links = [link("stack.norm", "gpt_neox.final_layer_norm")]
    found = table_rows(spec, "gpt_neox.embed_in", "lm_head", "embed_out")
    for i in range(spec.n_layers):
        place, theirs = places(spec, i), f"gpt_neox.layers.{i}"
        # Old files hold the causal mask and the rotary frequencies.
        constants = ("bias", "masked_bias", "rotary_emb.inv_freq")
        found.append(dropped(*(f"{theirs}.attention.{name}" for name in constants)))
        norms = ("input_layernorm", "post_attention_layernorm")
        links += [link(ours, f"{theirs}.{name}") for ours, name in zip(place.norms, norms, strict=True)]
        links += [
            Link(place.qkv(), f"{theirs}.attention.query_key_value", groups=heads),
            link(f"{place.projection}.o", f"{theirs}.attention.dense"),
            link(f"{place.feed}.up", f"{theirs}.mlp.dense_h_to_4h"),
            link(f"{place.feed}.down", f"{theirs}.mlp.dense_4h_to_h"),
        ]
    return [*found, *rows_of(spec, links)]


GPT_NEOX = Family("gpt_neox", "GPTNeoXForCausalLM", "gpt_neox.", to_spec, to_config, rows)
