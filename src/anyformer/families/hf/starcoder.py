"""StarCoder and StarCoder2 to and from transformers' GPTBigCodeForCausalLM and Starcoder2ForCausalLM.

The one's queries, keys and values are one matrix: side by side where there is one key for all heads, head by head where not.
"""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.hf import table, windows
from anyformer.families.hf.gpt2 import D_MODEL, EPS, MASKS, N_HEADS, NO_DROPOUT, RENAMED, gpt_family
from anyformer.families.hf.layout import Laid, Theirs, within
from anyformer.families.hf.llama import ATTENTION, NORMS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.starcoder import starcoder, starcoder2
from anyformer.layers import AttentionSpec, FeedForwardSpec, GQASpec
from anyformer.spec import Count, ModelSpec, ScaleSpec

TANH = "gelu_pytorch_tanh"
SCALES = {True: ScaleSpec(power=-0.5), False: ScaleSpec()}


def _shared_key(spec: ModelSpec) -> bool:
    return one(spec, GQASpec).n_kv_heads == 1


def _read_sharing(settings: Settings, spec: ModelSpec) -> ModelSpec:
    shared = settings.take("multi_query", bool, True)
    settings.ignore("num_key_value_heads")  # which follows from it
    return changed(spec, GQASpec, n_kv_heads=Count(1) if shared else None)


def _modules(spec: ModelSpec) -> Laid:
    places = {
        **table.norms("ln_1", "ln_2"),
        table.QKV: Theirs("attn.c_attn", by=None if _shared_key(spec) else "head"),
        f"{table.PROJECTION}.o": "attn.c_proj",
        **table.feeds(up="mlp.c_fc", down="mlp.c_proj"),
    }
    return within(places)


GPT_BIGCODE = gpt_family(
    "gpt_bigcode",
    "GPTBigCodeForCausalLM",
    starcoder(1, 8, 1, vocab_size=1, context=1),
    (
        RENAMED,
        table.VOCABULARY,
        table.learned("n_positions", 1024),
        D_MODEL,
        N_HEADS,
        table.Pair(_read_sharing, lambda spec: {"multi_query": _shared_key(spec)}),
        table.d_ff("n_inner"),
        table.activation("activation_function", TANH, FeedForwardSpec),
        EPS,
        table.layers("n_layer"),
        table.choice("scale_attn_weights", AttentionSpec, "scale", SCALES, True),
        table.tables(tied=True),
        table.fixed(add_cross_attention=False),
        NO_DROPOUT,
    ),
    _modules,
    outside={"stack.embedding.terms.1": "wpe"},
    buffers=MASKS,
    # Precisions of the softmax, and how old files were to be run.
    ignored=(
        "attention_softmax_in_fp32",
        "scale_attention_softmax_in_fp32",
        "inference_runner",
        "validate_runner_input",
        "pre_allocate_kv_cache",
        "max_sequence_length",
        "max_batch_size",
        "pad_key_length",
    ),
)
STARCODER2 = table.family(
    "starcoder2",
    "Starcoder2ForCausalLM",
    starcoder2(1, 8, 1, 1.0, n_kv_heads=1),
    (
        *table.STREAM,
        table.at("intermediate_size", int, FeedForwardSpec, "d_ff"),
        table.heads(n_kv_heads=2),
        table.at("use_bias", bool, FeedForwardSpec, "bias_in", "bias_out", default=True),
        table.at("use_bias", bool, GQASpec, *table.ALL_BIASES, default=True),
        table.activation("hidden_act", TANH, FeedForwardSpec),
        table.eps(1e-5, "norm_epsilon"),
        table.positions(context=4096),
        windows.window(None),
        table.tables(tied=True, start=0.018042),
        table.layers(),
    ),
    {**NORMS, **ATTENTION, **table.feeds(up="mlp.c_fc", down="mlp.c_proj")},
    ignored=("mlp_type", "norm_type"),
)
