"""A checkpoint here and in transformers, layer by layer: where they first differ, measured by transformers' own kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import UsageError
from anyformer.hub import load
from anyformer.hub.source import Source, find
from anyformer.model import Transformer
from anyformer.text import Tokenizer

N_TOKENS = 256
TIMES = 10.0  # as far apart as their own kernels, and so many times more, is still rounding
LEAST = 1e-6  # relative; below this float32 has nothing to say
FEWEST = 16  # tokens: fewer would not show windows and positions


@dataclass(frozen=True)
class Place:
    """One tensor on the way through the model; distances are the largest, relative to the largest number there."""

    name: str
    ours: float  # we from transformers' eager attention
    theirs: float  # transformers' sdpa from its eager attention

    @property
    def agrees(self) -> bool:
        """Whether the distance is rounding."""
        return self.ours <= max(TIMES * self.theirs, LEAST)  # false for NaN


@dataclass(frozen=True)
class Verification:
    """What was compared."""

    architecture: str  # transformers' class
    transformers: str  # its version
    n_tokens: int
    places: tuple[Place, ...]
    same_next_tokens: float  # share of places where both find the same token likeliest

    @property
    def first_difference(self) -> Place | None:
        """The first place where the two differ by more than rounding."""
        return next((place for place in self.places if not place.agrees), None)


def verify(path: str | Path, text: str | None = None, n_tokens: int = N_TOKENS) -> Verification:
    """Run the model of a directory or GGUF file on `n_tokens` of a text, here and in transformers, in float32 on the CPU.

    Without a text, or without a tokenizer, random tokens are read. Raises UsageError where transformers is not installed
    or has no class for the model, and for a text that is too short; CheckpointError as `load` does.
    """
    source = find(path)
    if source.family is None:
        raise UsageError(
            f"{path} is a directory of ours, which transformers cannot open; "
            "`anyformer convert` makes one that it can, where it has a class for the model"
        )
    try:
        import transformers
    except ImportError:
        raise UsageError(
            "verify compares with transformers, which is not installed; pip install transformers"
        ) from None
    ours, tokenizer = load(path, dtype=torch.float32)
    ids = _ids(ours, tokenizer, text, n_tokens)
    eager, sdpa = (_theirs(transformers, source, kernel, ids) for kernel in ("eager", "sdpa"))
    here = _here(ours, ids)
    places = tuple(
        Place(name, _distance(mine, first), _distance(second, first))
        for (name, mine), (_, first), (_, second) in zip(here, eager, sdpa, strict=True)
    )
    same = (here[-1][1].argmax(-1) == eager[-1][1].argmax(-1)).float().mean()
    return Verification(source.family.architecture, transformers.__version__, ids.shape[1], places, float(same))


Places = list[tuple[str, Tensor]]


def _ids(model: Transformer, tokenizer: Tokenizer | None, text: str | None, n_tokens: int) -> Tensor:
    n_tokens = min(n_tokens, model.spec.context or n_tokens)
    if text is None or tokenizer is None:
        return torch.randint(0, model.spec.vocab_size, (1, n_tokens), generator=torch.Generator().manual_seed(0))
    ids = tokenizer.encode(text)[:n_tokens]
    if len(ids) < FEWEST:
        raise UsageError(f"the text has {len(ids)} tokens; give one of at least {FEWEST}")
    return torch.tensor([ids])


def _here(model: Transformer, ids: Tensor) -> Places:
    model.kernel = "eager"
    with torch.no_grad():
        out = model(ids, output_hidden_states=True)
    assert out.hidden_states is not None
    return list(_named(out.hidden_states, out.logits))


def _theirs(library: Any, source: Source, kernel: str, ids: Tensor) -> Places:
    assert source.family is not None
    path = source.weights
    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": kernel, "local_files_only": True}
    if not path.is_dir():
        path, options["gguf_file"] = path.parent, path.name
    with redirect_stderr(StringIO()):  # bars of progress, which not all of its readers let one switch off
        model = getattr(library, source.family.architecture).from_pretrained(path, **options)
    with torch.no_grad():
        out = model.eval()(ids, output_hidden_states=True, use_cache=False)
    return list(_named(out.hidden_states, out.logits))


def _named(states: tuple[Tensor, ...], logits: Tensor) -> Iterator[tuple[str, Tensor]]:
    last = len(states) - 1
    for i, state in enumerate(states):
        yield "embedding" if i == 0 else f"layer {i - 1}" + (" and final norm" if i == last else ""), state
    yield "logits", logits


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())
