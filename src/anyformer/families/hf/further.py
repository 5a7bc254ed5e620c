"""DeepSeek-V3's layers for further tokens as its released files hold them: after the last layer, numbered on.

The class of transformers passes over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from anyformer.families.deepseek import predicting_further
from anyformer.families.hf.layout import link, rows_of
from anyformer.families.hf.mapping import Family, Files, TensorRow, Tensors
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.table import Pair
from anyformer.spec import ModelSpec

OURS = {"norm_token": "enorm", "norm_hidden": "hnorm", "norm": "shared_head.norm"}
REPEATED = {"model.embed_tokens.weight": "embed_tokens.weight", "lm_head.weight": "shared_head.head.weight"}


def further() -> Pair:
    """How many further tokens are predicted; the class calls the setting by two names, and needs neither."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        n = settings.take("num_nextn_predict_layers", int, settings.take("num_mtp_layers", int, 0))
        if n < 0:
            raise settings.refusal("num_nextn_predict_layers", "must be at least 0")
        return predicting_further(spec, n)

    def write(spec: ModelSpec) -> dict[str, Any]:
        return {"num_nextn_predict_layers": len(spec.ahead)} if spec.ahead else {}

    return Pair(read, write)


def further_rows(family: Family) -> Family:
    """The family with the rows of the layers for further tokens beside its own.

    Files decide whether there are such layers: transformers leaves them out and the setting in.
    """

    def beside(rows: Callable[[ModelSpec], list[TensorRow]]) -> Callable[[ModelSpec], list[TensorRow]]:
        return lambda spec: [*_deepened(rows, spec), *_own_rows(spec)] if spec.ahead else rows(spec)

    files = family.files and beside(family.files)
    return family._replace(rows=beside(family.rows), files=files, of_files=_where_held)


def _where_held(spec: ModelSpec, files: Files) -> ModelSpec:
    """The model without the modules where no tensor of them is in the files, as in those that transformers writes."""
    held = any(name in files for row in _own_rows(spec) for name in row.theirs)
    return spec if held else spec.but(ahead=())


def _deepened(rows: Callable[[ModelSpec], list[TensorRow]], spec: ModelSpec) -> Iterator[TensorRow]:
    """The rows of the stack with the modules' blocks at its end; files hold its tables again with each module."""
    n = spec.n_layers
    blocks = (*spec.stack.blocks, *(module.block for module in spec.ahead))
    for row in rows(spec.but(stack=spec.stack.but(blocks=blocks), ahead=())):
        repeated = REPEATED.get(row.theirs[0]) if row.theirs else None
        again = tuple(f"model.layers.{n + k}.{repeated}" for k in range(len(spec.ahead))) if repeated else ()
        yield row._replace(ours=tuple(_placed(name, n) for name in row.ours), also=(*row.also, *again))


def _placed(name: str, n_layers: int) -> str:
    """What a tensor of a deeper stack is called where its layers beyond `n_layers` are the modules' blocks."""
    first, second, number, *rest = [*name.split("."), "", ""][:3] + name.split(".")[3:]
    if (first, second) != ("stack", "blocks") or int(number) < n_layers:
        return name
    return ".".join(("ahead", str(int(number) - n_layers), "block", *rest))


def _own_rows(spec: ModelSpec) -> Iterator[TensorRow]:
    for k in range(len(spec.ahead)):
        ours, theirs = f"ahead.{k}", f"model.layers.{spec.n_layers + k}"
        yield from rows_of(spec, (link(f"{ours}.{own}", f"{theirs}.{name}") for own, name in OURS.items()))
        yield TensorRow(
            (f"{ours}.token.weight", f"{ours}.hidden.weight"), (f"{theirs}.eh_proj.weight",), _columns, _side_by_side
        )


def _columns(one: Tensors) -> Tensors:
    (whole,) = one
    return tuple(half.contiguous() for half in whole.chunk(2, 1))


def _side_by_side(pair: Tensors) -> Tensors:
    return (torch.cat(pair, 1),)
