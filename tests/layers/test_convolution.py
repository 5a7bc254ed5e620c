"""The convolution beside DeBERTa's first layer against torch's, text by text, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from anyformer.errors import SpecError
from anyformer.layers import ConvolutionSpec, ForwardContext, RelativeTableSpec, Store, Tanh, Tokens
from anyformer.layers.tokens import plain_tokens
from anyformer.spec import Count, Length, Place


@pytest.mark.parametrize("size", [1, 3, 5])
def test_it_is_torchs_convolution_of_each_document(size: int) -> None:
    torch.manual_seed(0)
    conv = ConvolutionSpec(size=size, activation=Tanh()).build(Place(6, (6,)))
    for parameter in conv.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 9, 6)
    document = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 2, 3, 3, 0, 0]])

    def by_torch(text: torch.Tensor) -> torch.Tensor:
        return F.conv1d(text.mT[None], conv.weight, conv.bias, padding=size // 2)[0].mT.tanh()

    packed, _ = conv(x, ForwardContext(Tokens(torch.arange(9)[None], document), {}, input=x), Store())
    for row in range(2):
        for number in range(1, 4):
            here = document[row] == number
            if here.any():
                torch.testing.assert_close(packed[row, here], by_torch(x[row, here]))
    plain, _ = conv(x, ForwardContext(plain_tokens(9, x.device), {}, input=x), Store())
    torch.testing.assert_close(plain[0], by_torch(x[0]))


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(SpecError, match="size = 4 must be odd"):
        ConvolutionSpec(size=4, activation=Tanh())
    with pytest.raises(SpecError, match="n_buckets = 5 must be an even number"):
        RelativeTableSpec(farthest=Length(9), n_buckets=Count(5))


def test_distances_share_rows_as_the_paper_says() -> None:
    """Half of the buckets are exact; the farthest distance has the last row of its side, and so have those beyond."""
    table = RelativeTableSpec(farthest=Length(64), n_buckets=Count(16))
    rows = table.rows(torch.arange(-80, 81))
    middle = 80
    assert rows[middle - 8 : middle + 9].tolist() == list(range(8, 25))
    assert rows.diff().min() >= 0
    assert rows[middle + 63] == 31
    assert rows[-1] == 31
    assert rows[middle - 63] == 1
    assert rows[0] == 0
    one_each = RelativeTableSpec(farthest=Length(4)).rows(torch.arange(-6, 7))
    assert one_each.tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7]
