"""Loading: the model is built without memory and filled tensor by tensor, so that it is never held twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from anyformer.errors import CheckpointError
from anyformer.families import Family
from anyformer.families.hf.mapping import Row, ours_of, shapes, their_shapes
from anyformer.hub.gguf import GGUF, SUFFIX, opened
from anyformer.hub.source import find
from anyformer.hub.weights import Weights
from anyformer.model import Transformer, build
from anyformer.spec import ModelSpec
from anyformer.text import Tokenizer


def load(
    path: str | Path, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> tuple[Transformer, Tokenizer | None]:
    """Return the model and the tokenizer, if there is one, of a directory (Hugging Face's, ours, a run's) or GGUF file.

    `dtype` None keeps that of the files (the widest, should they differ; float32 for quantised GGUF); `device` None is
    the CPU. Of a run the latest checkpoint is loaded; a checkpoint's own directory does for another.
    Raises CheckpointError, naming the file, setting or tensor.
    """
    source = find(path)
    packed = opened(source.weights) if source.weights.suffix.lower() == SUFFIX else None
    weights = packed or Weights(source.weights)
    names, tensors = _foreign(source.spec, source.family, weights) if source.family else _own(source.spec, weights)
    kept = dtype or weights.dtype(names)
    model = build(source.spec, seed=None, device="meta")
    filled = {name: tensor.to(device=device or "cpu", dtype=kept) for name, tensor in tensors}
    model.load_state_dict(filled, assign=True)
    if packed is not None:
        return model, packed.tokenizer()
    return model, Tokenizer.load(source.tokenizer) if source.tokenizer else None


Named = tuple[
    list[str], Iterator[tuple[str, Tensor]]
]  # what the files call the tensors that are needed, and ours by name


def _own(spec: ModelSpec, weights: Weights | GGUF) -> Named:
    expected = shapes(spec)
    weights.match(expected, "the model")
    return list(expected), ((name, weights.read(name)) for name in expected)


def _foreign(spec: ModelSpec, family: Family, weights: Weights | GGUF) -> Named:
    rows = _layout(spec, family, weights)
    spelled = weights.spelling(rows, family.prefix)
    expected = {spelled(name): shape for name, shape in their_shapes(rows, spec).items()}
    duplicates = {spelled(row.theirs[0]): [spelled(name) for name in row.also] for row in rows if row.theirs}
    spare = {spelled(name) for row in rows for name in row.also}
    weights.match(expected, family.architecture, spare)
    for name, others in duplicates.items():
        for other in others:
            if other in weights and other != name and not torch.equal(weights.read(name), weights.read(other)):
                raise CheckpointError(
                    f"{weights.directory}: {name} and {other} differ, but the configuration ties them; "
                    "set tie_word_embeddings to false"
                )
    return list(expected), ours_of(rows, lambda name: weights.read(spelled(name)))


def _layout(spec: ModelSpec, family: Family, weights: Weights | GGUF) -> list[Row]:
    """Return the rows of the layout that the files are in: that of files, or that of memory, which some write too."""
    held = family.rows(spec)
    if family.files is None:
        return held
    filed = family.files(spec)
    names = {name for row in held for name in row.theirs} - {name for row in filed for name in row.theirs}
    spelled = weights.spelling(held, family.prefix)
    return held if any(spelled(name) in weights for name in names) else filed
