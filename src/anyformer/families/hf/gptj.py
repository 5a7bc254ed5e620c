"""GPT-J to and from transformers' GPTJForCausalLM: separate matrices, a number of features that rotate in pairs."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.gptj import gptj
from anyformer.families.hf import table
from anyformer.families.hf.gpt2 import D_MODEL, EPS, MASKS, N_HEADS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.layers import FeedForwardSpec, GQASpec, RotarySpec
from anyformer.spec import ModelSpec


def _read(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """How many features rotate; a head with a bias, which a tied one of this class would lose, is refused where tied."""
    d_model, n_heads = spec.stack.d_model, settings.take("n_head", int)
    if n_heads < 1 or d_model % n_heads:
        raise settings.refusal("n_head", f"does not divide n_embd = {d_model}, which this class refuses")
    settings.require("tie_word_embeddings", False)
    return changed(spec, RotarySpec, fraction=settings.take("rotary_dim", int, 64) / (d_model // n_heads))


def _write(spec: ModelSpec) -> dict[str, Any]:
    heads, rotary = one(spec, GQASpec, "multi-head attention"), one(spec, RotarySpec, "rotary positions")
    return {"rotary_dim": rotary.dims(heads.head_dim or spec.stack.d_model // heads.n_heads)}


GPTJ = table.family(
    "gptj",
    "GPTJForCausalLM",
    gptj(n_layers=1, d_model=8, n_heads=1, vocab_size=8),
    (
        table.VOCABULARY,
        table.context("n_positions", 2048),
        D_MODEL,
        table.Pair(_read, _write),
        N_HEADS,
        table.d_ff("n_inner"),
        table.activation("activation_function", "gelu_new", FeedForwardSpec),
        EPS,
        table.starts(),
        table.fixed(tie_word_embeddings=False),
        table.layers("n_layer"),
    ),
    {
        **table.norms("ln_1", "ln_1"),
        **{f"{table.PROJECTION}.{x}": f"attn.{x}_proj" for x in "qkv"},
        f"{table.PROJECTION}.o": "attn.out_proj",
        **table.feeds(up="mlp.fc_in", down="mlp.fc_out"),
    },
    stack="transformer",
    layer="h",
    tokens="wte",
    norm="ln_f",
    buffers=MASKS,
    ignored=("n_ctx",),
)
