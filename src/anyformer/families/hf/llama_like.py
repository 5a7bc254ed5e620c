"""Classes of transformers that are LLaMA's but for a switch or two: SmolLM3, Seed-OSS, ERNIE 4.5, Arcee, Helium, CWM.

InternLM3 and IQuest-Coder are LLaMA's own, with sizes of their own where nothing is said.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, with_layers
from anyformer.families.hf import table, windows
from anyformer.families.hf.apertus import own_table
from anyformer.families.hf.experts import UNWINDOWED
from anyformer.families.hf.llama import ATTENTION, EPS, LAYER, MLP_BIAS, NORMS, TEMPLATE, WIDTHS, settings_of
from anyformer.families.hf.llama4 import ROTATING, rotating
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.llama_like import arcee, cwm, ernie4_5, helium, seed_oss, smollm3
from anyformer.layers import FeedForwardSpec, GatedFeedForwardSpec, GQASpec, Llama3Scaling, RotarySpec
from anyformer.spec import ModelSpec

EPS_1E5 = table.rms_eps(1e-5)


def _alike(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Refuse biases of attention without those of feed-forwards, or the other way round, as the class does."""
    if settings.take("attention_bias", bool, False) != settings.take("mlp_bias", bool, False):
        raise settings.refusal("attention_bias", "differs from mlp_bias, which this class refuses")
    return spec


INTERNLM3 = table.family(
    "internlm3",
    "LlamaForCausalLM",
    TEMPLATE,
    (
        table.renamed(qkv_bias="attention_bias", bias="mlp_bias"),
        *settings_of(table.heads(n_kv_heads=2, head_dim=128), EPS_1E5, context=32_768),
        table.Pair(_alike),
    ),
    LAYER,
)
IQUEST_CODER = table.family(
    "iquestcoder",
    "LlamaForCausalLM",
    TEMPLATE,
    (
        *settings_of(table.heads(n_kv_heads=8, head_dim=128), EPS_1E5, context=131_072),
        table.only(clip_qkv=None),
        UNWINDOWED,
    ),
    LAYER,
)


def _read_turning(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The depth, and the layers that rotate nothing: those with a 0 in the list, or by default every fourth."""
    turning = spec.stack.blocks[0]
    kinds = changed(turning, GQASpec, rotary=None), turning
    return with_layers(spec, (kinds[turns] for turns in rotating(settings, settings.take("num_hidden_layers", int))))


def _write_turning(spec: ModelSpec) -> dict[str, Any]:
    turns = [int(one(block, GQASpec).rotary is not None) for block in spec.stack.blocks]
    return {"num_hidden_layers": spec.n_layers, ROTATING: turns}


SMOLLM3 = table.family(
    "smollm3",
    "SmolLM3ForCausalLM",
    smollm3(1, 8, 1, 8),
    (
        *WIDTHS,
        table.heads(n_kv_heads=4),
        table.BIASES,
        MLP_BIAS,
        EPS,
        table.positions(RotarySpec(theta=2e6), context=32_768),
        table.tables(tied=True),
        table.Pair(_read_turning, _write_turning),
        UNWINDOWED,
    ),
    LAYER,
)
SEED_OSS = table.family(
    "seed_oss",
    "SeedOssForCausalLM",
    seed_oss(1, 8, 1, 8),
    (
        *WIDTHS,
        table.heads(n_kv_heads=8, head_dim=128),
        table.at("attention_bias", bool, GQASpec, *table.QKV_BIASES, default=True),
        table.at("attention_out_bias", bool, GQASpec, "bias_output", default=False),
        MLP_BIAS,
        EPS,
        table.positions(context=524_288),
        table.tables(tied=False),
        table.layers(),
    ),
    LAYER,
)


ERNIE = table.family(
    "ernie4_5",
    "Ernie4_5ForCausalLM",
    ernie4_5(1, 8, 1, 8),
    (
        *WIDTHS,
        table.heads(n_kv_heads=2, head_dim=128),
        table.at("use_bias", bool, GatedFeedForwardSpec, "bias_in", "bias_out", default=False),
        table.at("use_bias", bool, GQASpec, *table.ALL_BIASES, default=False),
        EPS_1E5,
        table.positions(RotarySpec(theta=500_000.0, layout="interleaved"), context=131_072),
        table.tables(tied=True),
        table.layers(),
    ),
    LAYER,
    ignored=("compression_ratio", "fuse_rms_norm"),
)
ARCEE = table.family(
    "arcee",
    "ArceeForCausalLM",
    arcee(1, 8, 1, 8),
    (
        *table.STREAM,
        table.at("intermediate_size", int, FeedForwardSpec, "d_ff", default=18_432),
        table.activation("hidden_act", "relu2", FeedForwardSpec),
        table.heads(),
        table.EVEN,
        table.BIASES,
        table.at("mlp_bias", bool, FeedForwardSpec, "bias_in", "bias_out", default=False),
        EPS_1E5,
        table.positions(context=4096),
        table.tables(tied=False),
        table.layers(),
    ),
    {**NORMS, **ATTENTION, **table.feeds(up="mlp.up_proj", down="mlp.down_proj")},
)
HELIUM = table.family(
    "helium",
    "HeliumForCausalLM",
    helium(1, 8, 1, 8),
    (
        *WIDTHS,
        table.heads(n_kv_heads=20, head_dim=128),
        table.only(head_dim=lambda spec: spec.stack.d_model // one(spec, GQASpec).n_heads),
        table.at("attention_bias", bool, GQASpec, *table.QKV_BIASES, default=False),
        MLP_BIAS,
        table.rms_eps(1e-8),
        table.positions(RotarySpec(theta=1e5, layout="interleaved"), context=4096),
        table.tables(tied=False),
        table.layers(),
    ),
    LAYER,
)


STRETCHED = RotarySpec(theta=1e6, scaling=Llama3Scaling(factor=16.0))  # where nothing is said
CWM = table.family(
    "cwm",
    "CwmForCausalLM",
    windows.two_kinds(cwm(4, 8, 1, 8)),
    (
        *WIDTHS,
        table.heads(n_kv_heads=8, head_dim=128),
        MLP_BIAS,
        EPS_1E5,
        table.positions(STRETCHED, context=131_072),
        own_table(STRETCHED),
        table.tables(tied=False),
        windows.layer_types(lambda settings, n: [i % 4 == 0 for i in range(n)], 8192),
        table.fixed(bos_token_id=lambda spec: min(128_000, spec.vocab_size - 1)),  # no null there
    ),
    LAYER,
)
