"""Loading: the model is built without memory and filled tensor by tensor, so that it is never held twice."""

from __future__ import annotations

from pathlib import Path

import torch

from anyformer.errors import CheckpointError
from anyformer.families.hf.mapping import computed
from anyformer.hub.contents import contents
from anyformer.hub.gguf import opened
from anyformer.hub.source import Source, find
from anyformer.model import Transformer, build
from anyformer.spec import first_difference, short
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
    held = contents(source)
    kept = dtype or held.dtype()
    model = build(source.spec, seed=None, device="meta")
    filled = {name: tensor.to(device=device or "cpu", dtype=kept) for name, tensor in held.ours()}
    model.load_state_dict(filled, assign=True)
    return model, tokenizer_of(source)


def load_tokenizer(path: str | Path) -> Tokenizer | None:
    """Return the tokenizer of what `load` takes, if there is one. Raises CheckpointError, TextError."""
    return tokenizer_of(find(path))


def tokenizer_of(source: Source) -> Tokenizer | None:
    """Return the tokenizer that lies with a checkpoint, or inside its GGUF file, if there is one. Raises TextError."""
    if source.tokenizer is None:
        return None
    return Tokenizer.load(source.tokenizer) if source.tokenizer.is_dir() else opened(source.tokenizer).tokenizer()


def load_into(model: Transformer, path: str | Path) -> None:
    """Copy the weights of a directory into a model that computes the same, however either's specification spells it.

    Raises CheckpointError, naming the first field that differs.
    """
    other = load(path)[0]
    found = first_difference(computed(other.spec), computed(model.spec))
    if found is not None:
        field, there, here = found
        raise CheckpointError(
            f"the weights in {path} are of another architecture: {field} is {short(there)} there and {short(here)} here"
        )
    # Shared parts may have other names; the order of the tensors follows from the architecture.
    model.load_state_dict(dict(zip(model.state_dict(), other.state_dict().values(), strict=True)))
