"""GPT-J to and from transformers' GPTJForCausalLM: separate matrices, a number of features that rotate in pairs."""

from __future__ import annotations

from typing import Any

from anyformer.families.gptj import INTERLEAVED, gptj
from anyformer.families.hf.layout import deviation, link, places, rows_of, starts, table_rows
from anyformer.families.hf.mapping import Family, TensorRow, dropped, one
from anyformer.families.hf.settings import Settings, spelling
from anyformer.layers import FeedForwardSpec, GQASpec, LayerNormSpec
from anyformer.spec import ModelSpec


def to_spec(settings: Settings) -> ModelSpec:
    """The model that a configuration describes. Raises CheckpointError."""
    d_model, n_heads = settings.take("n_embd", int), settings.take("n_head", int)
    if n_heads < 1 or d_model % n_heads:
        raise settings.refusal("n_head", f"does not divide n_embd = {d_model}, which this class refuses")
    turning = settings.take("rotary_dim", int, 64)
    settings.require("tie_word_embeddings", False)  # its head has a bias that a tied one of this class would lose
    settings.ignore("n_ctx")
    spec = gptj(
        n_layers=settings.take("n_layer", int),
        d_model=d_model,
        n_heads=n_heads,
        vocab_size=settings.take("vocab_size", int),
        d_ff=settings.take("n_inner", int, 4 * d_model),
        activation=settings.activation("activation_function", "gelu_new"),
        rotary=INTERLEAVED.but(fraction=turning / (d_model // n_heads)),
        eps=settings.take("layer_norm_epsilon", float, 1e-5),
        context=settings.take("n_positions", int, 2048),
    ).but(init=starts(settings))
    settings.close()
    return spec


def to_config(spec: ModelSpec) -> dict[str, Any]:
    """The nearest configuration. Raises SpecError for a model that lacks a whole part of GPT-J."""
    heads = one(spec.stack, GQASpec, "multi-head attention")
    feed = one(spec.stack, FeedForwardSpec, "feed-forward without a gate")
    rotary = heads.rotary or INTERLEAVED
    return {
        "vocab_size": spec.vocab_size,
        "n_positions": spec.context or 2048,
        "n_embd": spec.stack.d_model,
        "n_layer": spec.n_layers,
        "n_head": heads.n_heads,
        "n_inner": feed.d_ff,
        "rotary_dim": rotary.dims(heads.head_dim or spec.stack.d_model // heads.n_heads),
        "activation_function": spelling(feed.activation) or "gelu_new",
        "layer_norm_epsilon": one(spec.stack, LayerNormSpec, "layer norm").eps,
        "initializer_range": deviation(spec),
        "tie_word_embeddings": False,
    }


def rows(spec: ModelSpec) -> list[TensorRow]:
    """The table of tensors."""
    links = [link("stack.norm", "transformer.ln_f")]
    found = table_rows(spec, "transformer.wte", "lm_head")
    for i in range(spec.n_layers):
        place, theirs = places(spec, i), f"transformer.h.{i}"
        found.append(dropped(f"{theirs}.attn.bias", f"{theirs}.attn.masked_bias"))  # old files: the causal mask
        links += [link(ours, f"{theirs}.ln_1") for ours in place.norms]
        links += [link(f"{place.projection}.{x}", f"{theirs}.attn.{x}_proj") for x in "qkv"]
        links += [
            link(f"{place.projection}.o", f"{theirs}.attn.out_proj"),
            link(f"{place.feed}.up", f"{theirs}.mlp.fc_in"),
            link(f"{place.feed}.down", f"{theirs}.mlp.fc_out"),
        ]
    return [*found, *rows_of(spec, links)]


GPTJ = Family("gptj", "GPTJForCausalLM", "transformer.", to_spec, to_config, rows)
