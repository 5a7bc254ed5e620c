"""A model of ours and transformers' of the same weights, by way of a directory: what `anyformer convert` gives their users."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from anyformer.hub import save
from anyformer.model import Transformer, build
from anyformer.spec import ModelSpec


def twins(spec: ModelSpec) -> tuple[Transformer, Any]:
    """Return ours and theirs, with the weights of seed 0; theirs with its default attention."""
    import transformers

    ours = build(spec, seed=0)
    with TemporaryDirectory() as folder:
        directory = Path(folder) / "twin"
        save(ours, directory, form="hf")
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        kind: Any = getattr(transformers, config["architectures"][0])
        return ours, kind.from_pretrained(directory, dtype=torch.float32)
