"""A Fourier transform is its definition's sums, over each document of a row."""

from __future__ import annotations

import cmath

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.layers import FourierSpec
from anyformer.layers.causality import later_tokens_seen
from anyformer.layers.context import ForwardContext, Store
from anyformer.layers.tokens import Tokens


def by_sums(x: Tensor) -> Tensor:
    """Return the real part of the transform of x [token, width], term by term."""
    n, width = x.shape
    found = torch.zeros_like(x)
    for a in range(n):
        for b in range(width):
            terms = (
                x[i, j].item() * cmath.exp(-2j * cmath.pi * (a * i / n + b * j / width))
                for i in range(n)
                for j in range(width)
            )
            found[a, b] = sum(terms).real
    return found


def transformed(x: Tensor, document: Tensor | None) -> Tensor:
    """Return what the part makes of x [batch, token, width]."""
    position = torch.arange(x.shape[1])[None]
    context = ForwardContext(Tokens(position, document), {})
    return FourierSpec().build(af.spec.Place(x.shape[2]))(x, context, Store())[0]


@pytest.mark.parametrize("document", [None, [1] * 7, [1, 1, 2, 2, 2, 3, 0], [0, 0, 1, 2, 1, 2, 2]])
def test_each_document_is_its_sums(document: list[int] | None) -> None:
    x = torch.randn(2, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    facts = torch.tensor([document or [1] * 7])
    found = transformed(x, None if document is None else facts)
    for number in facts.unique().tolist():
        for row in range(2):
            here = facts[0] == number
            torch.testing.assert_close(found[row, here], by_sums(x[row, here]))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_it_is_taken_in_float32_at_least(kind: torch.dtype) -> None:
    x = torch.randn(1, 5, 4).to(kind)
    found = transformed(x, None)
    assert found.dtype == kind
    torch.testing.assert_close(found, transformed(x.double(), None).to(kind))


def test_a_later_token_is_seen() -> None:
    assert later_tokens_seen(af.preset("fnet-base").spec.stack) == "Fourier"
