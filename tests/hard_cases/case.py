"""What a hard case is: an executable specification, its published size, and an independent count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from anyformer.layers import GQASpec
from anyformer.spec import Count, ModelSpec, Spec, Width


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


def of_transformers(model: str, config: str, **options: Any) -> Any:
    """Return a model of transformers, random."""
    import transformers

    return getattr(transformers, model)(getattr(transformers, config)(**options))


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
