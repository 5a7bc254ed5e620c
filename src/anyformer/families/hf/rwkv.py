"""RWKV-4 to and from transformers' RwkvForCausalLM, which halves the stream every few layers where it is not trained."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, with_layers
from anyformer.families.hf import table
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.rwkv import rwkv
from anyformer.layers import ChannelMixSpec, LayerNormSpec, WKVSpec
from anyformer.spec import ModelSpec

LAST = 1e-5  # eps of the last norm, whatever is said of the others


def _halved(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The eps of norms, four times as large for each time that the stream, and what is added to it, was halved before them."""
    eps, every = settings.take("layer_norm_epsilon", float, 1e-5), settings.take("rescale_every", int, 6)

    def times(layer: int) -> float:
        return 4.0 ** (layer // every) if every else 1.0

    layers = [changed(layer, LayerNormSpec, eps=eps * times(i)) for i, layer in enumerate(spec.stack.blocks)]
    last, first = LayerNormSpec(eps=LAST * times(len(layers))), LayerNormSpec(eps=eps)
    spec = with_layers(spec, layers)
    return spec.but(stack=spec.stack.but(norm=last, embedding=spec.stack.embedding.but(norm=first)))


def _every(spec: ModelSpec) -> dict[str, Any]:
    """What the eps say; 0 where none differs."""
    each = [one(layer, LayerNormSpec).eps for layer in spec.stack.blocks]
    last = spec.stack.norm.eps / LAST if isinstance(spec.stack.norm, LayerNormSpec) else 1.0
    every = next((i for i, eps in enumerate((*each, each[0] * last)) if eps != each[0]), 0)
    return {"layer_norm_epsilon": each[0], "rescale_every": every}


def _width(settings: Settings, spec: ModelSpec) -> ModelSpec:
    width = settings.nullable("attention_hidden_size", int, None)
    return changed(spec, WKVSpec, width=None if width == spec.stack.d_model else width)


def _written(spec: ModelSpec) -> dict[str, int]:
    return {"attention_hidden_size": one(spec, WKVSpec).width or spec.stack.d_model}


def _shifts(ours: str, theirs: str, *names: str) -> dict[str, Theirs]:
    return {f"{ours}.shift_{x}.weight": Theirs(f"{theirs}.time_mix_{x}", by=(1, 1, -1)) for x in names}


RWKV = table.family(
    "rwkv",
    "RwkvForCausalLM",
    rwkv(1, 8),
    (
        *table.STREAM,
        table.Pair(_width, _written),
        table.d_ff("intermediate_size", ChannelMixSpec),
        table.context("context_length", 1024),
        table.tables(tied=False),
        table.layers(),
        table.Pair(_halved, _every),
    ),
    {
        **table.norms("ln1", "ln2"),
        **{f"{table.MIXER}.{x}": f"attention.{x}" for x in ("key", "value", "receptance")},
        f"{table.MIXER}.out": "attention.output",
        f"{table.MIXER}.decay": "attention.time_decay",
        f"{table.MIXER}.bonus": "attention.time_first",
        **_shifts(table.MIXER, "attention", "key", "value", "receptance"),
        f"{table.FEED}.up": "feed_forward.key",
        f"{table.FEED}.receptance": "feed_forward.receptance",
        f"{table.FEED}.down": "feed_forward.value",
        **_shifts(table.FEED, "feed_forward", "key", "receptance"),
    },
    stack="rwkv",
    layer="blocks",
    tokens="embeddings",
    norm="ln_out",
    outside={"stack.embedding.norm": "blocks.0.pre_ln"},
    heads=("head",),
)
