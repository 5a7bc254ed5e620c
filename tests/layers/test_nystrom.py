"""Attention through landmarks: which token is of which, against a loop; texts beside each other; the inverse; what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anyformer.costs import cost
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import GQASpec, NystromAttentionSpec, RotarySpec, ValueConvolutionSpec
from anyformer.layers.causality import later_tokens_seen
from anyformer.layers.nystrom import landmarks, pseudo_inverse
from anyformer.layers.tokens import Tokens, plain_tokens
from anyformer.layers.value_convolution import ValueConvolution
from anyformer.resizing import shrink
from anyformer.spec import Count, Place, Window
from tests.laws.models import randomised
from tests.laws.tolerance import close

MOST = 4
SPEC = changed(shrink(preset("nystromformer-4096").spec), NystromAttentionSpec, n_landmarks=Count(MOST))
ATTENTION = next(SPEC.nested(NystromAttentionSpec))


def by_hand(document: list[int]) -> set[tuple[int, ...]]:
    """Return which tokens of a row each landmark is of: stretches of a text that differ by a token at most."""
    found: set[tuple[int, ...]] = set()
    for one in {*document} - {0}:
        own = [i for i, each in enumerate(document) if each == one]
        found |= {tuple(int(i) for i in part) for part in torch.tensor(own).tensor_split(min(MOST, len(own)))}
    return found


ROWS = [
    [1] * 12,
    [1] * 8,
    [1] * 3,
    [0, 0, 0, *[1] * 8],
    [*[1] * 9, 0, 0, 0],
    [*[1] * 4, *[2] * 8, *[3] * 2],
    [2, 1, 2, 1, 1, 2, 2, 1, 0, 0],
]


@pytest.mark.parametrize("document", ROWS)
def test_each_token_is_of_a_landmark(document: list[int]) -> None:
    told = torch.tensor([document])
    found = landmarks(Tokens(torch.zeros_like(told), told), MOST)
    of = found.of[0].tolist()
    each = [tuple(i for i, one in enumerate(of) if one == k) for k in range(found.n)]
    assert {part for part in each if part} == by_hand(document)
    assert found.size[0].tolist() == [max(1, len(part)) for part in each]
    assert all(of[i] == found.n for i, one in enumerate(document) if one == 0)
    if len({*document}) == 1:
        plain = landmarks(plain_tokens(len(document), torch.device("cpu")), MOST)
        assert plain.of[0].tolist() == of


def test_stretches_of_a_text_differ_by_a_token_at_most() -> None:
    for n in range(1, 40):
        sizes = landmarks(plain_tokens(n, torch.device("cpu")), MOST).size[0]
        assert int(sizes.sum()) == n
        assert int(sizes.max() - sizes.min()) <= 1
        assert len(sizes) == min(n, MOST)


@pytest.mark.parametrize(
    "document", ROWS[:-1]
)  # a convolution goes by the row, where texts that take turns have no neighbours
def test_texts_of_a_row_do_not_touch(document: list[int]) -> None:
    """Packed and padded; beside a longer row too, whose landmarks are more."""
    model, told = randomised(SPEC), torch.tensor(document)
    ids = torch.randint(0, SPEC.vocab_size, (1, len(document)), generator=torch.Generator().manual_seed(0))
    both = torch.stack((told, torch.arange(len(document)) // 2 + 1))
    with torch.no_grad():
        packed = model(ids, told[None]).logits[0]
        beside = model(ids.expand(2, -1), both).logits[0]
        for one in {*document} - {0}:
            alone = model(ids[:, told == one]).logits[0]
            close(packed[told == one], alone)
            close(beside[told == one], alone)


def test_the_inverse_is_torchs_in_the_end() -> None:
    scores = torch.randn(1, 2, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a = (3 * torch.eye(5) + scores).softmax(-1)
    assert torch.allclose(pseudo_inverse(a, None, 30), torch.linalg.pinv(a), atol=1e-8)
    assert not torch.allclose(pseudo_inverse(a, None, 1), torch.linalg.pinv(a), atol=1e-2)


def test_a_text_costs_in_proportion_to_its_length() -> None:
    spec = changed(preset("nystromformer-4096").spec, NystromAttentionSpec, n_landmarks=Count(64))
    one, two = (cost(spec, seq_len=n).forward_flops for n in (2048, 4096))
    m, d, layers = 64, 768, 12
    between = {"scores": 2 * m * m * d * layers, "values": 2 * m * m * d * layers}
    for term, n in between.items():
        assert two[term] - n == 2 * (one[term] - n)
    assert one["inverse"] == two["inverse"] == 6 * 4 * 2 * m**3 * 12 * layers


def test_it_sees_later_tokens() -> None:
    assert later_tokens_seen(ATTENTION) == "NystromAttention"
    assert later_tokens_seen(preset("nystromformer-512").spec.stack) == "Everything"


def convolved(v: Tensor, document: Tensor | None, size: int) -> tuple[Tensor, Tensor]:
    """Return what the part makes of values, and what a loop over tokens does."""
    module = ValueConvolutionSpec(size=Window(size)).build(Place(8, (2, 3)))
    assert isinstance(module, ValueConvolution)
    torch.nn.init.normal_(module.weight, generator=torch.Generator().manual_seed(1))
    n, by_loop = v.shape[2], torch.zeros_like(v)
    texts = torch.ones(1, n, dtype=torch.long) if document is None else document
    for i in range(n):
        for j in range(max(0, i - size // 2), min(n, i + size // 2 + 1)):
            if texts[0, i] == texts[0, j] > 0:
                by_loop[:, :, i] += module.weight[:, j - i + size // 2, None] * v[:, :, j]
    return module(v, document), by_loop


@pytest.mark.parametrize("size", [1, 3, 9])
@pytest.mark.parametrize("document", [None, [[1, 1, 1, 2, 2, 0, 0]]])
def test_values_are_convolved_within_their_text(size: int, document: list[list[int]] | None) -> None:
    v = torch.randn(1, 2, 7, 3, generator=torch.Generator().manual_seed(0))
    found, expected = convolved(v, None if document is None else torch.tensor(document), size)
    assert torch.allclose(found, expected, atol=1e-6)


def test_what_it_does_not_go_with_is_refused() -> None:
    heads = ATTENTION.projection
    for other in (heads.but(n_kv_heads=Count(1)), heads.but(rotary=RotarySpec())):
        with pytest.raises(SpecError, match=r"NystromAttention\.projection = .* as many heads of keys, without rotary"):
            ATTENTION.but(projection=other)
    with pytest.raises(SpecError, match=r"ValueConvolution\.size = 4 must be odd"):
        ValueConvolutionSpec(size=Window(4))
    attention = next(v for v in preset("nystromformer-512").spec.nested() if v.kind == "Attention")
    with pytest.raises(SpecError, match=r"Attention\.convolution = .* as many heads of keys"):
        changed(attention, GQASpec, n_kv_heads=Count(1))
    with pytest.raises(SpecError, match=r"Attention\.convolution = .* leave what adds to them out"):
        attention.but(keys="k")
