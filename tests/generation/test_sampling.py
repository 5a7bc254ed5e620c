"""Sampling: each function against its definition written out in plain Python, draws against their probabilities."""

import math
import re
from collections import Counter
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from anyformer.errors import InputError, RunFailed
from anyformer.generation import sampling
from anyformer.generation.sampling import Sampling, generators, pick, top_k, top_p

# Multiples of 1/8, so that equal logits occur and the order of additions does not matter.
numbers = st.lists(st.integers(-24, 24).map(lambda n: n / 8), min_size=1, max_size=12)


def kept(logits: Tensor) -> set[int]:
    return {i for i, value in enumerate(logits[0].tolist()) if value != -math.inf}


@given(numbers, st.integers(1, 14))
def test_top_k_keeps_what_fewer_than_k_others_exceed(row: list[float], k: int) -> None:
    expected = {i for i, value in enumerate(row) if sum(other > value for other in row) < k}
    found = top_k(torch.tensor([row]), k)
    assert kept(found) == expected
    assert all(found[0, i] == row[i] for i in expected)


@given(numbers, st.floats(0.01, 1.0), st.sampled_from([1, 2, 1024]))
def test_top_p_keeps_the_fewest_likeliest_that_reach_p(row: list[float], p: float, few: int) -> None:
    """Among however few tokens it looks first; of equals the first."""
    weights = [math.exp(value) for value in row]
    order = sorted(range(len(row)), key=lambda i: -row[i])
    sums = [sum(weights[i] for i in order[:n]) / sum(weights) for n in range(len(row) + 1)]
    if any(abs(total - p) < 1e-9 for total in sums):
        return  # rounding decides
    fewest = next((n for n, total in enumerate(sums) if total >= p), len(row))
    beside = torch.linspace(0, 1, len(row), dtype=torch.float64)  # a row that is looked at as long as the other needs
    with patch.object(sampling, "FEW", few):
        found = top_p(torch.stack([torch.tensor(row, dtype=torch.float64), beside]), p)
    assert kept(found) == set(order[:fewest])


def test_draws_follow_the_probabilities() -> None:
    weights = torch.tensor([0.5, 0.25, 0.0, 0.2, 0.05])
    (generator,) = generators(7, 1)
    counts = Counter(int(pick(weights[None].double(), [generator])) for _ in range(4000))
    assert 2 not in counts
    observed = [counts[i] for i in (0, 1, 3, 4)]
    # A right sampler fails at this level for one seed in a thousand, and this seed is fixed.
    assert chisquare(observed, [2000, 1000, 800, 200]).pvalue > 1e-3


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**40), st.integers(1, 5))
def test_a_row_draws_what_it_draws_alone(seed: int, n_rows: int) -> None:
    logits = torch.randn(n_rows, 50, generator=torch.Generator().manual_seed(seed))
    way = Sampling(temperature=0.8, top_k=20, top_p=0.9)
    together, alone = generators(seed, n_rows), [generators(seed + row, 1) for row in range(n_rows)]
    for _ in range(3):
        batch = way(logits, together).tolist()
        assert batch == [int(way(logits[row : row + 1], alone[row])) for row in range(n_rows)]


def test_temperature_sharpens_and_zero_is_the_likeliest() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0]])

    def share_of_the_likeliest(temperature: float) -> float:
        (generator,) = generators(3, 1)
        draws = [int(Sampling(temperature=temperature)(logits, [generator])) for _ in range(3000)]
        return draws.count(1) / len(draws)

    for temperature in (0.5, 1.0, 2.0):
        expected = math.exp(2 / temperature) / sum(math.exp(x / temperature) for x in (1.0, 2.0, 0.0))
        # 4 standard deviations of a share of 3000 draws
        assert share_of_the_likeliest(temperature) == pytest.approx(expected, abs=4 * 0.5 / 3000**0.5)
    for temperature in (0.0, 5e-324, 1e-307):
        assert share_of_the_likeliest(temperature) == 1.0


@pytest.mark.parametrize(
    "numbers",
    [
        *({"temperature": -1.0}, {"temperature": math.nan}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}),
        *({"top_k": 1.5}, {"min_new_tokens": 2.0}, {"temperature": None}, {"presence_penalty": [1]}),
    ],
    ids=str,
)
def test_numbers_that_leave_nothing_are_refused(numbers: dict[str, float]) -> None:
    (name,) = numbers
    with pytest.raises(InputError, match=re.escape(f"{name} = {next(iter(numbers.values()))}")):
        Sampling(**numbers)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [2**64 - 1, -(2**63) - 1])
def test_a_seed_of_more_than_64_bits_is_refused(seed: int) -> None:
    """Rows draw by the numbers from the seed on; the last that there is does for one row."""
    assert len(generators(2**64 - 2, 2)) == 2
    with pytest.raises(InputError, match=f"seed = {seed} of 2 rows"):
        generators(seed, 2)


@pytest.mark.parametrize("bad", [math.nan, math.inf, "nothing"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, top_k=2, top_p=0.9)])
def test_logits_that_are_no_numbers_are_refused(sampling: Sampling, bad: float | str) -> None:
    """Of one row of two, or a row in which nothing is possible; some that are -inf are tokens that cannot be."""
    logits = torch.tensor([[0.0, 1.0, -math.inf], [2.0, 1.0, 0.0]])
    assert sampling(logits, generators(1, 2)).shape == (2,)
    logits[1] = torch.full((3,), -math.inf) if isinstance(bad, str) else torch.tensor([2.0, bad, 0.0])
    for ask in (lambda: sampling(logits, generators(1, 2)), lambda: sampling.probabilities(logits)):
        with pytest.raises(RunFailed, match=r"logits are no numbers.*load it in float32"):
            ask()
