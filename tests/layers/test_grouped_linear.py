"""A linear map in groups is one whose matrix has blocks along its diagonal."""

from __future__ import annotations

import pytest
import torch

import anyformer as af
from anyformer.errors import SpecError
from anyformer.families.compose import changed
from anyformer.layers import FeedForwardSpec, GroupedLinearSpec
from anyformer.layers.grouped_linear import GroupedLinear
from anyformer.spec import Count, Place, Width


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_it_is_a_matrix_of_blocks(groups: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    part = GroupedLinearSpec(groups=Count(groups), d_out=Width(12), bias=bias).build(Place(6).at(6))
    assert isinstance(part, GroupedLinear)
    for parameter in part.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(2, 5, 6, generator=generator)
    expected = x @ torch.block_diag(*part.weight).T + (0.0 if part.bias is None else part.bias)
    torch.testing.assert_close(part(x), expected)


def test_what_does_not_divide_is_refused() -> None:
    spec = changed(af.preset("convbert-base").spec, FeedForwardSpec, groups=Count(5))
    with pytest.raises(SpecError, match="groups = 5 must divide what it reads, 768, and what it writes, 3072"):
        af.parameters(spec)


def test_groups_save_weights() -> None:
    small = af.preset("convbert-medium-small").spec
    plain = changed(small, FeedForwardSpec, groups=Count(1))
    saved = 12 * 2 * 384 * 1536 // 2
    assert af.parameters(plain).total - af.parameters(small).total == saved
