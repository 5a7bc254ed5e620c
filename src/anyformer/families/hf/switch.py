"""Switch to and from transformers' SwitchTransformersForConditionalGeneration: T5's layout, each expert by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anyformer.families.hf.experts import each_alone, router_rows
from anyformer.families.hf.layout import Link, link
from anyformer.families.hf.mapping import Family, TensorRow, one
from anyformer.families.hf.settings import Settings, spelling
from anyformer.families.hf.stacks import Placed, feeds, placed, sides
from anyformer.families.hf.t5 import depths, rows_with, sizes, written
from anyformer.families.switch import CAPACITY, sparse
from anyformer.families.t5 import t5
from anyformer.layers import FeedForwardSpec, FixedCapacity, MoESpec
from anyformer.spec import HeadSpec, MixerSpec, ModelSpec, StackSpec, Width

# Rates of dropout and of noise, and losses: they belong to a recipe.
HARMLESS = ("router_jitter_noise", "router_z_loss_coef", "router_aux_loss_coef", "add_router_probs")
NAMES = {"up": "wi", "down": "wo"}


def which(n_layers: int, n_sparse: int) -> tuple[bool, ...]:
    """Which layers are sparse: those whose number leaves 1 when divided by the step; all where the step is 1."""
    step = n_layers // n_sparse if n_sparse > 0 else n_layers
    return tuple(step == 1 or (step > 0 and i % step == 1) for i in range(n_layers))


def to_spec(settings: Settings) -> ModelSpec:
    """The model that a configuration describes. Raises CheckpointError."""
    settings.ignore(*HARMLESS)
    settings.require("router_dtype", "float32")
    settings.require("router_ignore_padding_tokens", False)
    settings.require("add_cross_attention", False)
    activation, d_ff = settings.activation("dense_act_fn", "relu"), Width(settings.take("d_ff", int, 2048))
    dense = FeedForwardSpec(d_ff=d_ff, activation=activation, bias_in=False, bias_out=False)
    n_experts = settings.take("num_experts", int, 8)
    mixture = sparse(dense, n_experts, settings.take("expert_capacity", int, CAPACITY))
    if settings.take("router_bias", bool, False):
        mixture = mixture.but(router=mixture.router.but(bias=True))

    def stack(name: str, n_layers: int) -> tuple[MixerSpec, ...]:
        n_sparse = settings.take(f"num_sparse_{name}_layers", int, 3)
        settings.ignore(f"{name}_sparse_step")  # follows
        return tuple(mixture if is_sparse else dense for is_sparse in which(n_layers, n_sparse))

    n_encoder, n_decoder = depths(settings)
    encoder, decoder = stack("encoder", n_encoder), stack("decoder", n_decoder)
    tied = settings.take("tie_word_embeddings", bool, True)
    found = sizes(settings, 32_128)
    spec = t5(**found, encoder=encoder, decoder=decoder, tied=tied, scaled=tied)
    settings.close()
    return spec


def to_config(spec: ModelSpec) -> dict[str, Any]:
    """The nearest configuration. Raises SpecError for a model that lacks a whole part of Switch."""
    mixture = one(spec, MoESpec, "mixture of experts")
    capacity, expert = one(mixture, FixedCapacity, "fixed capacity"), one(mixture, FeedForwardSpec, "plain expert")
    encoder, decoder = sides(spec)
    return written(spec) | {
        "d_ff": expert.d_ff,
        "dense_act_fn": spelling(expert.activation) or "relu",
        "num_experts": mixture.router.n_experts,
        "expert_capacity": capacity.tokens,
        "router_bias": mixture.router.bias,
        "router_jitter_noise": 0.0,
        "num_sparse_encoder_layers": _n_sparse(encoder.stack),
        "num_sparse_decoder_layers": _n_sparse(decoder.stack),
        "tie_word_embeddings": bool(one(spec, HeadSpec, "head").tied),
    }


def rows(spec: ModelSpec) -> list[TensorRow]:
    """The table of tensors."""
    return [*rows_with(spec, _dense), *_experts(spec)]


def _n_sparse(stack: StackSpec) -> int:
    """The number that makes the layers sparse that are; any where none does."""
    wanted = tuple(isinstance(feed, MoESpec) for feed in feeds(stack))
    return next((n for n in range(len(wanted) + 1) if which(len(wanted), n) == wanted), sum(wanted))


def _dense(at: Placed, theirs: str) -> Iterator[Link]:
    if not isinstance(at.mixer, MoESpec):
        yield from (link(f"{at.path}.{ours}", f"{theirs}.mlp.{name}") for ours, name in NAMES.items())


def _experts(spec: ModelSpec) -> Iterator[TensorRow]:
    for side in sides(spec):
        for at in placed(side):
            if isinstance(at.mixer, MoESpec):
                theirs = f"{side.theirs}.block.{at.layer}.layer.{at.number}.mlp"
                yield from router_rows(spec, f"{at.path}.router", f"{theirs}.router.classifier")
                for ours, name in NAMES.items():
                    each = (f"{theirs}.experts.expert_{i}.{name}.weight" for i in range(at.mixer.router.n_experts))
                    yield each_alone(f"{at.path}.experts.{ours}.weight", tuple(each))


SWITCH = Family("switch_transformers", "SwitchTransformersForConditionalGeneration", "", to_spec, to_config, rows)
