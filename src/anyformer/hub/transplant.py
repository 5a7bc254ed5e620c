"""Weights of one architecture under another: what both have alike is carried over, all else is drawn anew."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch

from anyformer.errors import CheckpointError
from anyformer.hub.labels import judge_of
from anyformer.hub.loading import load
from anyformer.model import Transformer, build
from anyformer.spec import Architecture, specification
from anyformer.text import Tokenizer

NAMED = 6  # kinds of tensors that are told of one by one


class Transplant(NamedTuple):
    """A model that starts from another's weights, and that one's tokenizer."""

    model: Transformer
    tokenizer: Tokenizer | None
    new: tuple[str, ...]  # its tensors that are drawn

    def __str__(self) -> str:
        sizes = {name: each.numel() for name, each in self.model.state_dict().items()}
        n, drawn = sum(sizes.values()), sum(sizes[name] for name in self.new)
        said = f"{n - drawn:,} of {n:,} numbers are carried over"
        kinds = list(dict.fromkeys(re.sub(r"^.*\.\d+\.", "", name) for name in self.new))  # the same of all layers
        more = [f"{len(kinds) - NAMED} more"] if len(kinds) > NAMED else []
        return f"{said}; new: {', '.join([*kinds[:NAMED], *more])}" if kinds else f"{said}: all"


def transplant(architecture: Architecture, path: str | Path, *, seed: int = 0) -> Transplant:
    """A model of the architecture in float32, drawn from the seed, with what it has alike from what `load` takes.

    A tensor is carried over where both models have one of its name, in a part of one kind that declares it alike: shape, axes,
    role, start. So of a mixer of another kind nothing is, and all of a layer where the norm alone is another. Raises
    CheckpointError where nothing is, and what `load` does.
    """
    spec = specification(architecture)
    donor, tokenizer = load(path, dtype=torch.float32)
    model = build(spec, seed)
    theirs, names = donor.state_dict(), list(model.state_dict())
    carried = {
        name: theirs[name] for name in names if name in theirs and _declared(model, name) == _declared(donor, name)
    }
    if not carried:
        raise CheckpointError(
            f"nothing in {path} is alike in that architecture; give a variant of it, such as {path}+norm=LayerNorm"
        )
    model.load_state_dict(carried, strict=False)
    model.labels = donor.labels if judge_of(spec) == judge_of(donor.spec) else None
    return Transplant(model, tokenizer, tuple(name for name in names if name not in carried))


def _declared(model: Transformer, name: str) -> tuple[type, Any]:
    """The kind of part that a tensor is of, and how it declares it."""
    place, _, own = name.rpartition(".")
    part: Any = model.get_submodule(place)
    return type(part), part.spec.weights(part.place)[own]
