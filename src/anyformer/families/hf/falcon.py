"""Falcon, BLOOM and MPT to and from transformers' FalconForCausalLM, BloomForCausalLM and MptForCausalLM: queries, keys and
values in one matrix, which the first two lay out by heads."""

from __future__ import annotations

from typing import Any

from anyformer.families.bloom import bloom, mpt
from anyformer.families.compose import changed
from anyformer.families.falcon import Wiring, falcon
from anyformer.families.hf import table
from anyformer.families.hf.gpt2 import EPS, FOURFOLD, N_HEADS, gpt_family
from anyformer.families.hf.gpt_neox import DENSE
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.mapping import one
from anyformer.families.hf.rotary import rotary, rotary_settings
from anyformer.families.hf.settings import Settings
from anyformer.layers import ALiBiSpec, AttentionSpec, FeedForwardSpec, GQASpec
from anyformer.spec import Count, ModelSpec, ScaleSpec, StackSpec


def _read(settings: Settings, template: ModelSpec) -> ModelSpec:
    d_model = settings.positive("hidden_size", int, 4544)
    n_heads = settings.positive("num_attention_heads", int)
    context = settings.positive("max_position_embeddings", int, 2048)
    grouped = settings.take("new_decoder_architecture", bool, False)
    kv_heads = settings.positive("num_kv_heads", int, n_heads)
    one_head, beside = settings.take("multi_query", bool, True), settings.take("parallel_attn", bool, True)
    norms = settings.take("num_ln_in_parallel_attn", int, 2 if grouped else 1)
    if norms not in (1, 2) or (norms == 2 and beside and not grouped) or (grouped and not beside):
        raise settings.refusal("num_ln_in_parallel_attn", "is not computed with this new_decoder_architecture")
    turning = rotary(settings, context, fraction=None)
    return falcon(
        1,
        d_model,
        n_heads,
        n_kv_heads=kv_heads if grouped else 1 if one_head else n_heads,
        wiring="serial" if not beside else "one norm" if norms == 1 else "two norms",
        rotary=None if settings.take("alibi", bool, False) else turning,
        context=context,
    )


def wiring(spec: ModelSpec) -> Wiring:
    """How the first layer puts its branches."""
    block = spec.stack.blocks[0]
    if len(block.sublayers) > 1:
        return "serial"
    return "one norm" if any(sublayer.norm_in for sublayer in block.sublayers) else "two norms"


def _write(spec: ModelSpec) -> dict[str, Any]:
    heads = one(spec.stack, GQASpec)
    wired = wiring(spec)
    grouped = wired == "two norms" or heads.kv_heads not in (1, heads.n_heads)
    return {
        "hidden_size": spec.stack.d_model,
        "num_attention_heads": heads.n_heads,
        "num_kv_heads": heads.kv_heads,
        "multi_query": heads.kv_heads == 1,
        "new_decoder_architecture": grouped,
        "parallel_attn": wired != "serial",
        "num_ln_in_parallel_attn": {"serial": None, "one norm": 1, "two norms": 2}[wired],
        "alibi": any(spec.stack.nested(ALiBiSpec)),
        **rotary_settings(heads.rotary, fraction=None),
        "max_position_embeddings": spec.context or 2048,
    }


MODULES = {
    **table.norms("input_layernorm", "post_attention_layernorm"),
    table.QKV: Theirs("self_attention.query_key_value", by="head"),
    f"{table.PROJECTION}.o": "self_attention.dense",
    **DENSE,
}
FALCON = gpt_family(
    "falcon",
    "FalconForCausalLM",
    falcon(1, 8, 1, 1),
    (
        table.renamed(n_embed="hidden_size"),
        table.Pair(_read, _write),
        table.VOCABULARY,
        table.d_ff("ffn_hidden_size"),
        table.activation("activation", "gelu", FeedForwardSpec),
        table.at("bias", bool, FeedForwardSpec, "bias_in", "bias_out", default=False),
        table.at("bias", bool, GQASpec, *table.ALL_BIASES, default=False),
        EPS,
        table.tables(tied=True),
        table.layers(),
    ),
    {**MODULES, "0.branches.0.norm_in": "ln_attn", "0.branches.1.norm_in": "ln_mlp"},
    tokens="word_embeddings",
    buffers=("self_attention.rotary_emb.inv_freq",),
    ignored=("apply_residual_connection_post_layernorm",),  # old files write it, this class never reads it
)


BLOOM = gpt_family(
    "bloom",
    "BloomForCausalLM",
    bloom(1, 8, 1),
    (
        table.renamed(n_embed="hidden_size", num_attention_heads="n_head", num_hidden_layers="n_layer"),
        table.VOCABULARY,
        table.only(apply_residual_connection_post_layernorm=False),
        table.at("hidden_size", int, StackSpec, "d_model", default=64),
        FOURFOLD,
        N_HEADS,
        EPS,
        table.context("seq_length", 2048),  # what its files call it; ALiBi needs no longest length
        table.tables(tied=True),
        table.layers("n_layer"),
    ),
    MODULES,
    tokens="word_embeddings",
    outside={"stack.embedding.norm": "word_embeddings_layernorm"},
    # How their product was cut among processors, the order of a sum, and what older files say of themselves.
    ignored=(
        *("slow_but_exact", "masked_softmax_fusion", "skip_bias_add", "skip_bias_add_qkv", "offset_alibi"),
        *("bias_dropout_fusion", "attention_softmax_in_fp32", "unk_token_id"),
    ),
)


COMPUTED = {
    "attn_type": "multihead_attention",
    "alibi": True,
    "alibi_bias_max": 8,
    "prefix_lm": False,
    "qk_ln": False,
}


def _read_attention(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The heads, and what their own table says: what they are clamped to, and a number for attention's scale."""
    inner, n_heads = settings.inner("attn_config"), settings.positive("n_heads", int, 16)
    for name, computed in COMPUTED.items():
        inner.require(name, computed)
    inner.ignore("attn_impl", "attn_uses_sequence_id")  # how it was computed, and rows of several texts
    clip, factor = inner.optional("clip_qkv", float), inner.optional("softmax_scale", float)
    inner.close()
    scale = ScaleSpec(power=-0.5) if factor is None else ScaleSpec(factor=factor)
    return changed(changed(spec, GQASpec, n_heads=Count(n_heads), clip=clip or None), AttentionSpec, scale=scale)


def _write_attention(spec: ModelSpec) -> dict[str, Any]:
    heads, scale = one(spec, GQASpec), one(spec, AttentionSpec).scale
    factor = None if scale == ScaleSpec(power=-0.5) else scale.factor
    return {"n_heads": heads.n_heads, "attn_config": {"clip_qkv": heads.clip, "softmax_scale": factor}}


MPT = table.family(
    "mpt",
    "MptForCausalLM",
    mpt(1, 8, 1),
    (
        table.renamed(num_attention_heads="n_heads", hidden_size="d_model", num_hidden_layers="n_layers"),
        table.VOCABULARY,
        table.at("d_model", int, StackSpec, "d_model", default=2048),
        table.only(expansion_ratio=4, no_bias=True, logit_scale=None),
        FOURFOLD,
        table.Pair(_read_attention, _write_attention),
        table.EVEN,
        EPS,
        table.context("max_seq_len", 2048),
        table.tables(tied=True),
        table.layers("n_layers"),
    ),
    {
        "0.norm_in": "norm_1",
        "1.norm_in": "norm_2",
        table.QKV: "attn.Wqkv",
        f"{table.PROJECTION}.o": "attn.out_proj",
        **table.feeds(up="ffn.up_proj", down="ffn.down_proj"),
    },
    stack="transformer",
    layer="blocks",
    tokens="wte",
    norm="norm_f",
    # How it was made, trained and computed; its class has no learned positions whatever that says.
    ignored=("learned_pos_emb", "init_device", "embedding_fraction", "norm_type", "verbose", "init_config"),
)
