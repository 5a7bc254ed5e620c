"""GPT-NeoX, Pythia and GPT-NeoX-Japanese to and from transformers' classes: queries, keys and values are fused head by head."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import block, changed, pre_norm, with_layers
from anyformer.families.gpt_neox import biased_last, gpt_neox, gpt_neox_japanese
from anyformer.families.hf import table
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.layers import FeedForwardSpec, GQASpec, RotarySpec
from anyformer.spec import ModelSpec


def _read(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Attention beside the feed-forward, as in the template, or before it."""
    if settings.take("use_parallel_residual", bool, True):
        return spec
    branches = spec.stack.blocks[0].sublayers[0].branches
    layer = block(*(pre_norm(branch.norm_in, branch.mixer) for branch in branches if branch.norm_in is not None))
    return with_layers(spec, (layer,))


def _write(spec: ModelSpec) -> dict[str, Any]:
    return {"use_parallel_residual": len(spec.stack.blocks[0].sublayers) == 1}


DENSE = table.feeds(up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h")
FUSED = {table.QKV: Theirs("attention.query_key_value", by="head")}
# Old files hold the causal mask and the rotary frequencies.
BUFFERS = tuple(f"attention.{name}" for name in ("bias", "masked_bias", "rotary_emb.inv_freq"))
GPT_NEOX = table.family(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    gpt_neox(n_layers=1, d_model=8, n_heads=1, vocab_size=8),
    (
        *table.STREAM,
        table.at("intermediate_size", int, FeedForwardSpec, "d_ff", default=24_576),
        table.at("num_attention_heads", int, GQASpec, "n_heads"),
        table.activation("hidden_act", "gelu", FeedForwardSpec),
        table.eps(1e-5),
        table.positions(RotarySpec(fraction=0.25), theta="rotary_emb_base", fraction="rotary_pct"),
        table.at("attention_bias", bool, GQASpec, *table.ALL_BIASES, default=True),
        table.Pair(_read, _write),
        table.tables(tied=False),
        table.layers(),
    ),
    {
        **table.norms("input_layernorm", "post_attention_layernorm"),
        **FUSED,
        f"{table.PROJECTION}.o": "attention.dense",
        **DENSE,
    },
    stack="gpt_neox",
    tokens="embed_in",
    norm="final_layer_norm",
    buffers=BUFFERS,
    heads=("lm_head", "embed_out"),
)


def _read_width(settings: Settings, spec: ModelSpec) -> ModelSpec:
    times = settings.positive("intermediate_multiple_size", int, 4)
    return changed(spec, FeedForwardSpec, d_ff=times * spec.stack.d_model)


def _write_width(spec: ModelSpec) -> dict[str, Any]:
    found = one(spec, FeedForwardSpec).d_ff
    return {"intermediate_multiple_size": max(1, found // spec.stack.d_model)}


GPT_NEOX_JAPANESE = table.family(
    "gpt_neox_japanese",
    "GPTNeoXJapaneseForCausalLM",
    gpt_neox_japanese(2, 8, 1, 8),
    (
        *table.STREAM,
        table.Pair(_read_width, _write_width),
        table.at("num_attention_heads", int, GQASpec, "n_heads"),
        table.EVEN,
        table.activation("hidden_act", "gelu", FeedForwardSpec),
        table.eps(1e-5),
        table.positions(theta="rotary_emb_base", fraction="rotary_pct"),
        table.tables(tied=True),
        table.Pair(
            lambda settings, spec: biased_last(spec, settings.positive("num_hidden_layers", int)),
            lambda spec: {"num_hidden_layers": spec.n_layers},
        ),
    ),
    {
        **table.norms("input_layernorm", "post_attention_layernorm"),
        **FUSED,
        f"{table.PROJECTION}.o.weight": "attention.dense.weight",
        f"{table.PROJECTION}.o.bias": "attention.dense_bias",
        **DENSE,
    },
    stack="gpt_neox_japanese",
    tokens="embed_in",
    norm="final_layer_norm",
    buffers=BUFFERS,
    heads=("embed_out",),
)
