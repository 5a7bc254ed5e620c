"""BLOOM to and from transformers' BloomForCausalLM: queries, keys and values are fused head by head."""

from __future__ import annotations

from anyformer.families.bloom import bloom
from anyformer.families.compose import changed
from anyformer.families.hf import table
from anyformer.families.hf.gpt2 import EPS, N_HEADS
from anyformer.families.hf.gpt_neox import DENSE
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.settings import Settings
from anyformer.layers import FeedForwardSpec
from anyformer.spec import ModelSpec, StackSpec


def _read(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The width, which older files call n_embed, and feed-forwards four times as wide."""
    settings.require("apply_residual_connection_post_layernorm", False)
    older = settings.optional("n_embed", int)
    width = settings.take("hidden_size", int, 64) if older is None else older
    return changed(changed(spec, StackSpec, d_model=width), FeedForwardSpec, d_ff=4 * width)


BLOOM = table.family(
    "bloom",
    "BloomForCausalLM",
    bloom(1, 8, 1),
    (
        table.VOCABULARY,
        table.Pair(_read, lambda spec: {"hidden_size": spec.stack.d_model}),
        N_HEADS,
        EPS,
        table.context("seq_length", 2048),  # what its files call it; ALiBi needs no longest length
        table.tables(tied=True),
        table.layers("n_layer"),
    ),
    {
        **table.norms("input_layernorm", "post_attention_layernorm"),
        table.QKV: Theirs("self_attention.query_key_value", by_head=True),
        f"{table.PROJECTION}.o": "self_attention.dense",
        **DENSE,
    },
    stack="transformer",
    layer="h",
    tokens="word_embeddings",
    norm="ln_f",
    outside={"stack.embedding.norm": "word_embeddings_layernorm"},
    buffers=(),
    # How their product was cut among processors, the order of a sum, and what older files say of themselves.
    ignored=(
        *("slow_but_exact", "masked_softmax_fusion", "skip_bias_add", "skip_bias_add_qkv", "offset_alibi"),
        *("bias_dropout_fusion", "attention_softmax_in_fp32", "unk_token_id"),
    ),
)
