"""Apertus and the text model of 1.5 to and from transformers' ApertusForCausalLM and Apertus1p5TextForCausalLM, whose files hold
the constants of their activation too."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from anyformer.errors import CheckpointError
from anyformer.families.apertus import apertus
from anyformer.families.compose import changed
from anyformer.families.hf import table
from anyformer.families.hf.llama import ATTENTION, QK_NORMS
from anyformer.families.hf.mapping import TensorRow, one
from anyformer.families.hf.rotary import THETA
from anyformer.families.hf.settings import Settings
from anyformer.layers import XIELU, FeedForwardSpec, Llama3Scaling, RotarySpec
from anyformer.spec import HeadSpec, ModelSpec, TableSpec

ACTIVATION, THEIRS = f"{table.FEED}.activation", "mlp.act_fn"
USUAL = RotarySpec(theta=12_000_000.0, scaling=Llama3Scaling(factor=8.0))  # where no table is given, or an empty one


def own_table(usual: RotarySpec) -> table.Pair:
    """Refuse a theta beside no table, of a class that then takes a table of its own."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        if not settings.section("rope_scaling") and not settings.section("rope_parameters"):
            settings.require(THETA, usual.theta)
        return spec

    return table.Pair(read)


def _unscaled(spec: ModelSpec) -> dict[str, dict[str, str]]:
    found = one(spec, RotarySpec).scaling
    return {} if found else {"rope_scaling": {"rope_type": "default"}}


def _constants(spec: ModelSpec) -> Iterator[TensorRow]:
    """The rows of each layer's beta and eps, which are ours by their specification."""
    found = one(spec, XIELU)

    def load(held: tuple[Tensor, ...], layer: int) -> tuple[Tensor, ...]:
        for value, name, own in zip(held, ("beta", "eps"), (found.beta, found.eps), strict=True):
            if not value.is_meta and abs(value.item() - own) > 2e-2 * abs(own):  # files may hold them in 16 bits
                raise CheckpointError(f"layer {layer} has {name} = {value.item():g}; only {own:g} is computed here")
        return ()

    for i in range(spec.n_layers):
        names = tuple(f"model.layers.{i}.{THEIRS}.{name}" for name in ("beta", "eps"))
        yield TensorRow(
            (), names, partial(load, layer=i), lambda _: (torch.tensor(found.beta), torch.tensor(found.eps))
        )


def _pruned(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """A head of the first rows alone, of tokens that are written."""
    rows, n = settings.nullable(WRITTEN, int, None), spec.vocab_size
    if rows is None or rows == n:
        return spec
    if rows > n or spec.heads[0].tied:
        raise settings.refusal(WRITTEN, f"must be at most vocab_size = {n}, in a table of the head's own")
    return spec.but(heads=tuple(changed(head, TableSpec, rows=rows) for head in spec.heads))


def _written(spec: ModelSpec) -> dict[str, int | None]:
    rows = one(one(spec, HeadSpec), TableSpec).rows
    return {WRITTEN: None if rows == spec.vocab_size else rows}


WRITTEN = "output_vocab_size"
PAIRS = (
    *table.STREAM,
    table.at("intermediate_size", int, FeedForwardSpec, "d_ff", default=14_336),
    table.only(hidden_act="xielu"),
    table.heads(),
    table.EVEN,
    table.BIASES,
    table.rms_eps(1e-5),
    table.positions(USUAL, context=65_536),
    own_table(USUAL),
    table.Pair(write=_unscaled),
    table.tables(tied=False),
    table.layers(),
)
LAYER = {
    "0.norm_in": "attention_layernorm",
    "1.norm_in": "feedforward_layernorm",
    **ATTENTION,
    **QK_NORMS,
    **table.feeds(up="mlp.up_proj", down="mlp.down_proj"),
    f"{ACTIVATION}.positive": f"{THEIRS}.alpha_p",
    f"{ACTIVATION}.negative": f"{THEIRS}.alpha_n",
}
TEMPLATE = apertus(1, 8, 1, 8)
APERTUS = table.family("apertus", "ApertusForCausalLM", TEMPLATE, PAIRS, LAYER, further=_constants)
APERTUS_1_5 = table.family(
    "apertus1p5_text",
    "Apertus1p5TextForCausalLM",
    TEMPLATE,
    (*PAIRS, table.Pair(_pruned, _written)),
    LAYER,
    further=_constants,
)
