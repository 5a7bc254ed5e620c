"""Falcon to and from transformers' FalconForCausalLM: each key/value head is fused with the queries that read it."""

from __future__ import annotations

from typing import Any

from anyformer.families.falcon import Wiring, falcon
from anyformer.families.hf import table
from anyformer.families.hf.gpt_neox import DENSE
from anyformer.families.hf.layout import Theirs, deviation, starts, tied
from anyformer.families.hf.mapping import one
from anyformer.families.hf.rotary import rotary, rotary_settings
from anyformer.families.hf.settings import Settings, spelling
from anyformer.layers import ALiBiSpec, FeedForwardSpec, GQASpec, LayerNormSpec
from anyformer.spec import ModelSpec


def _read(settings: Settings, template: ModelSpec) -> ModelSpec:
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
    return falcon(
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


def wiring(spec: ModelSpec) -> Wiring:
    """How the first layer puts its branches."""
    block = spec.stack.blocks[0]
    if len(block.sublayers) > 1:
        return "serial"
    return "one norm" if any(sublayer.norm_in for sublayer in block.sublayers) else "two norms"


def _write(spec: ModelSpec) -> dict[str, Any]:
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


FALCON = table.family(
    "falcon",
    "FalconForCausalLM",
    falcon(1, 8, 1, 1),
    (table.Pair(_read, _write),),
    {
        **table.norms("input_layernorm", "post_attention_layernorm"),
        "0.branches.0.norm_in": "ln_attn",
        "0.branches.1.norm_in": "ln_mlp",
        table.QKV: Theirs("self_attention.query_key_value", by_head=True),
        f"{table.PROJECTION}.o": "self_attention.dense",
        **DENSE,
    },
    stack="transformer",
    layer="h",
    tokens="word_embeddings",
    norm="ln_f",
    buffers=("self_attention.rotary_emb.inv_freq",),
    ignored=("apply_residual_connection_post_layernorm",),  # old files write it, this class never reads it
)
