"""What GGUF files of Gemma 3n hold otherwise: maps of streams in one tensor, tables as long as the vocabulary, keys that
nobody reads; and how its activations are sparse, as the quantile of a normal distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from anyformer.families.compose import changed
from anyformer.families.gguf.dialect import LAYER, Adapted, Block, Keys
from anyformer.families.gguf.keys import only
from anyformer.families.hf import gemma3n
from anyformer.families.hf.layout import Laid, rows_of, within
from anyformer.families.hf.mapping import TensorRow, constant, one, width_of_head
from anyformer.layers import GQASpec, PerLayerEmbeddingSpec
from anyformer.spec import ModelSpec, TableSpec

Said = Mapping[str, Any]
WIDTHS, SPARSE = "feed_forward_length", "activation_sparsity_scale"
PER_LAYER = "embedding_length_per_layer_input"
DIGITS = 6  # of a share that its quantile in 32 bits gives back


def _shares(said: Said, _: Said) -> Said:
    scales = said[SPARSE]
    if not isinstance(scales, list) or not all(isinstance(each, float) for each in scales):
        raise ValueError("is no list of quantiles")
    return {gemma3n.SPARSITY: [round(NormalDist().cdf(each), DIGITS) for each in scales]}


def _quantiles(config: Said) -> Said:
    shares = torch.tensor(config[gemma3n.SPARSITY], dtype=torch.float32)
    return {SPARSE: (torch.erfinv(2 * shares - 1) * math.sqrt(2)).tolist()}


KEYS = (
    Keys((SPARSE,), _shares, _quantiles),
    Keys(
        (WIDTHS,),
        lambda said, _: {"intermediate_size": said[WIDTHS]},
        lambda config: {WIDTHS: config["intermediate_size"]},
    ),
    only("altup.active_idx", 0),
    Keys(
        (PER_LAYER,),
        lambda said, config: {
            "hidden_size_per_layer_input": said[PER_LAYER],
            "vocab_size_per_layer_input": config["vocab_size"],
        },
        lambda config: {PER_LAYER: config["hidden_size_per_layer_input"]},
    ),
)
LAYERS: Block = {
    **LAYER,
    "0.branches.1.mixer.down": "laurel_l",
    "0.branches.1.mixer.up": "laurel_r",
    "0.branches.1.mixer.norm": "laurel_post_norm",
    "2.norm_in": "altup_correct_scale",
    "2.branches.0.mixer.gate": "inp_gate",
    "2.branches.0.mixer.up": "proj",
    "2.branches.0.norm_out": "post_norm",
}
ALTUP = {
    "norm": "altup_router_norm",
    "router": "altup_router",
    "predict": "altup_predict_coef",
    "correct": "altup_correct_coef",
}


def rows(spec: ModelSpec) -> Iterator[TensorRow]:
    """The rows of the streams, of what all layers have in one tensor, and of keys and values that are there and not read."""
    links: Laid = {}
    for i in range(spec.n_layers):
        links |= within(ALTUP, f"stack.blocks.{i}.connection.", f"blk.{i}.")
    yield from rows_of(spec, links)
    yield from gemma3n.side_by_side(spec, ("per_layer_token_embd", "per_layer_model_proj", "per_layer_proj_norm"))
    n = spec.stack.residual.n_streams - 1
    for ours, theirs in (("begin", "altup_proj"), ("end", "altup_unembd_proj")):
        names = tuple(f"stack.residual.{ours}.{i}.weight" for i in range(n))
        yield TensorRow(names, (f"{theirs}.weight",), lambda one: one[0].unbind(0), lambda each: (torch.stack(each),))
    width = width_of_head(spec)
    matrix = (one(spec, GQASpec).kv_heads * width, spec.stack.d_model)
    for i, block in enumerate(spec.stack.blocks):
        if gemma3n.borrows(block):
            yield _unread(f"blk.{i}.attn_k.weight", matrix)
            yield _unread(f"blk.{i}.attn_v.weight", matrix)
            yield _unread(f"blk.{i}.attn_k_norm.weight", (width,))


def _unread(name: str, shape: tuple[int, ...]) -> TensorRow:
    """The row of a tensor that llama.cpp asks for and does not read."""
    return constant(name, lambda: torch.zeros(shape))


def padded(spec: ModelSpec) -> Adapted:
    """The model whose layers' tables are as long as the tokens'; ids beyond, of pictures and sounds, read their first row."""
    tokens = one(spec.stack.embedding, TableSpec).rows
    own = one(spec, PerLayerEmbeddingSpec)
    more = tokens - own.table.rows
    if more <= 0:
        return Adapted(spec)

    def longer(weight: Tensor) -> Tensor:
        return torch.cat((weight, weight[:1].expand(more, -1)))

    names = (f"stack.blocks.{i}.sublayers.2.branches.0.mixer.table.weight" for i in range(spec.n_layers))
    longest = changed(spec, PerLayerEmbeddingSpec, table=own.table.but(rows=tokens))
    note = f"its layers' tables have {more} rows more, copies of the first"
    return Adapted(longest, dict.fromkeys(names, longer), note)
