"""Falcon to and from transformers' FalconForCausalLM: each key/value head is fused with the queries that read it."""

from __future__ import annotations

from typing import Any

from anyformer.families.falcon import Wiring, falcon
from anyformer.families.hf.layout import Link, deviation, link, places, rows_of, starts, table_rows, tied
from anyformer.families.hf.mapping import Family, TensorRow, dropped, one
from anyformer.families.hf.rotary import rotary, rotary_settings
from anyformer.families.hf.settings import Settings, spelling
from anyformer.layers import ALiBiSpec, FeedForwardSpec, GQASpec, LayerNormSpec
from anyformer.spec import ModelSpec

NORMS: dict[Wiring, tuple[str, ...]] = {
    "serial": ("input_layernorm", "post_attention_layernorm"),
    "one norm": ("input_layernorm",),
    "two norms": ("ln_attn", "ln_mlp"),
}


def to_spec(settings: Settings) -> ModelSpec:
    """The model that a configuration describes. Raises CheckpointError."""
    older = settings.optional("n_embed", int)
    d_model = settings.take("hidden_size", int, 4544) if older is None else older
    n_heads, context = settings.take("num_attention_heads", int), settings.take("max_position_embeddings", int, 2048)
    grouped = settings.take("new_decoder_architecture", bool, False)
    kv_heads = settings.take("num_kv_heads", int, n_heads)
    one_head, beside = settings.take("multi_query", bool, True), settings.take("parallel_attn", bool, True)
    norms = settings.take("num_ln_in_parallel_attn", int, 2 if grouped else 1)
    if norms not in (1, 2) or (norms == 2 and beside and not grouped) or (grouped and not beside):
        raise settings.refusal("num_ln_in_parallel_attn", "is not computed with this new_decoder_architecture")
    turning = rotary(settings, context, fraction=None)
    spec = falcon(
        n_layers=settings.take("num_hidden_layers", int),
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=kv_heads if grouped else 1 if one_head else n_heads,
        vocab_size=settings.take("vocab_size", int),
        d_ff=settings.take("ffn_hidden_size", int, 4 * d_model),
        wiring="serial" if not beside else "one norm" if norms == 1 else "two norms",
        rotary=None if settings.take("alibi", bool, False) else turning,
        activation=settings.activation("activation", "gelu"),
        bias=settings.take("bias", bool, False),
        eps=settings.take("layer_norm_epsilon", float, 1e-5),
        tied=settings.take("tie_word_embeddings", bool, True),
        context=context,
    ).but(init=starts(settings))
    settings.ignore("apply_residual_connection_post_layernorm")  # old files write it, this class never reads it
    settings.close()
    return spec


def wiring(spec: ModelSpec) -> Wiring:
    """How the first layer puts its branches."""
    block = spec.stack.blocks[0]
    if len(block.sublayers) > 1:
        return "serial"
    return "one norm" if any(sublayer.norm_in for sublayer in block.sublayers) else "two norms"


def to_config(spec: ModelSpec) -> dict[str, Any]:
    """The nearest configuration. Raises SpecError for a model that lacks a whole part of Falcon."""
    heads = one(spec.stack, GQASpec, "grouped-query attention")
    feed = one(spec.stack, FeedForwardSpec, "feed-forward without a gate")
    wired = wiring(spec)
    grouped = wired == "two norms" or heads.kv_heads not in (1, heads.n_heads)
    return {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.stack.d_model,
        "num_hidden_layers": spec.n_layers,
        "num_attention_heads": heads.n_heads,
        "num_kv_heads": heads.kv_heads,
        "multi_query": heads.kv_heads == 1,
        "new_decoder_architecture": grouped,
        "parallel_attn": wired != "serial",
        "num_ln_in_parallel_attn": {"serial": None, "one norm": 1, "two norms": 2}[wired],
        "alibi": any(isinstance(part, ALiBiSpec) for part in spec.stack.nested()),
        **rotary_settings(heads.rotary, fraction=None),
        "ffn_hidden_size": feed.d_ff,
        "activation": spelling(feed.activation) or "gelu",
        "bias": heads.bias_query,
        "max_position_embeddings": spec.context or 2048,
        "layer_norm_epsilon": one(spec.stack, LayerNormSpec, "layer norm").eps,
        "initializer_range": deviation(spec),
        "tie_word_embeddings": tied(spec),
    }


def rows(spec: ModelSpec) -> list[TensorRow]:
    """The table of tensors."""
    heads = one(spec.stack, GQASpec, "grouped-query attention")
    group = heads.n_heads // heads.kv_heads
    links = [link("stack.norm", "transformer.ln_f")]
    found = table_rows(spec, "transformer.word_embeddings", "lm_head")
    for i in range(spec.n_layers):
        place, theirs = places(spec, i), f"transformer.h.{i}"
        found.append(dropped(f"{theirs}.self_attention.rotary_emb.inv_freq"))  # old files: the rotary frequencies
        links += [link(ours, f"{theirs}.{x}") for ours, x in zip(place.norms, NORMS[wiring(spec)], strict=True)]
        links += [
            Link(place.qkv(), f"{theirs}.self_attention.query_key_value", (group, 1, 1), heads.kv_heads),
            link(f"{place.projection}.o", f"{theirs}.self_attention.dense"),
            link(f"{place.feed}.up", f"{theirs}.mlp.dense_h_to_4h"),
            link(f"{place.feed}.down", f"{theirs}.mlp.dense_4h_to_h"),
        ]
    return [*found, *rows_of(spec, links)]


FALCON = Family("falcon", "FalconForCausalLM", "transformer.", to_spec, to_config, rows)
