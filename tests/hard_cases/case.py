"""What a hard case is: an executable specification, its published size, an independent count, and what it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anyformer.layers import GELU, GQASpec, LinearSpec
from anyformer.spec import Count, HeadSpec, MapSpec, ModelSpec, Spec, TableSpec, Width

Split = Callable[[Tensor], tuple[Tensor, ...]]
Rows = Mapping[str, str | tuple[tuple[str, ...], Split]]  # theirs → ours; "{i}" stands for every layer


@dataclass(frozen=True)
class Parity:
    """A small model of transformers, ours of the same sizes, and how its weights become ours."""

    theirs: Callable[[], Any]
    ours: Callable[[], ModelSpec]
    rows: Rows
    unused: tuple[str, ...] = ()  # their tensors that repeat others or compute nothing
    n_tokens: int = 24
    segments: bool = False  # the tokens are of two
    marked: str | None = None  # their name for the marks that some tokens bear
    outputs: Mapping[str, str] = field(
        default_factory=lambda: {"lm": "logits"}
    )  # by head; what has no token axis is the first's


@dataclass(frozen=True)
class Case:
    """One architecture."""

    name: str
    spec: Callable[[], ModelSpec]
    published: str  # parameters, with the digits that facts or the source print
    theirs: Callable[[], Any] | None = None  # the same sizes in transformers, built on the meta device
    headless: bool = False  # the published figure leaves the heads out
    surplus: int = 0  # of their parameters that compute nothing
    missing: str | None = None  # the kind of the first part that has no module yet; None: it builds
    parity: Parity | None = None


def attention_heads(
    n_heads: int, n_kv_heads: int | None = None, head_dim: int | None = None, *, bias: bool = False
) -> GQASpec:
    """Return a projection with all four biases or none."""
    return GQASpec(
        n_heads=Count(n_heads),
        n_kv_heads=None if n_kv_heads is None else Count(n_kv_heads),
        head_dim=None if head_dim is None else Width(head_dim),
        bias_query=bias,
        bias_key=bias,
        bias_value=bias,
        bias_output=bias,
    )


def masked_words(
    table: TableSpec, norm: MapSpec, activation: MapSpec | None = None, width: int | None = None
) -> HeadSpec:
    """Return BERT's head: a layer, an activation (GELU) and a norm, then the tied table of rows that wide, and a bias."""
    layer = LinearSpec(d_out=None if width is None else Width(width), bias=True)
    return HeadSpec(name="mlm", transform=(layer, activation or GELU(), norm), table=table, bias=True)


def of_transformers(model: str, config: str, **options: Any) -> Any:
    """Return a model of transformers, random."""
    import transformers

    return getattr(transformers, model)(getattr(transformers, config)(**options))


def translate(rows: Rows, theirs: Mapping[str, Tensor], unused: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Return our state dict. Raises KeyError for a tensor of theirs that the table does not name."""
    ours: dict[str, Tensor] = {}
    for name, tensor in theirs.items():
        parts = name.split(".")
        layer = next((part for part in parts if part.isdigit()), "")
        known = ".".join("{i}" if part.isdigit() and k == _first(parts) else part for k, part in enumerate(parts))
        if known in unused:
            continue
        row = rows[known]
        targets, split = ((row,), lambda t: (t,)) if isinstance(row, str) else row
        ours |= {t.replace("{i}", layer): value for t, value in zip(targets, split(tensor), strict=True)}
    return ours


def _first(parts: list[str]) -> int:
    return next(k for k, part in enumerate(parts) if part.isdigit())


def randomise(model: torch.nn.Module, seed: int = 0) -> None:
    """Give every parameter, norms and biases too, numbers that spread the logits and the attention."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            width = parameter.shape[-1] if parameter.dim() > 1 else 4
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 1.5 / width**0.5)


def mutated(spec: Any, kind: str, by: Spec | None = None, **changes: Any) -> Any:
    """Return the specification with every part of a kind replaced, or with some fields of it changed."""
    if isinstance(spec, tuple):
        return tuple(mutated(item, kind, by, **changes) for item in spec)
    if not isinstance(spec, Spec):
        return spec
    if spec.kind == kind:
        return by or spec.but(**changes)
    return spec.but(**{name: mutated(value, kind, by, **changes) for name, value in spec.values().items()})
