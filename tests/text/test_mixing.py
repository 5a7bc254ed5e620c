"""Several texts in one stream: their shares, their order, and where the stream goes on."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyformer.errors import TextError
from anyformer.text import Corpus, MixedRows, MixtureSampler, Sampler, Tokenizer, encode_corpus, pack
from anyformer.text.sources import Document

WEIGHTS = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def counted(rows: np.ndarray, n_rows: list[int]) -> list[int]:
    """How many rows are of each text."""
    ends = np.cumsum(n_rows)
    return [int(((rows >= end - n) & (rows < end)).sum()) for n, end in zip(n_rows, ends, strict=True)]


@settings(max_examples=25)
@given(weights=WEIGHTS, batch=st.integers(1, 30), data=st.data())
def test_shares_hold_at_every_step(weights: list[int], batch: int, data: st.DataObject) -> None:
    """Not on average: after any step each text has given its share, by exact arithmetic, but for a few rows."""
    n_rows = data.draw(st.lists(st.integers(1, 50), min_size=len(weights), max_size=len(weights)))
    sampler = MixtureSampler(n_rows, batch, 3, [(10, weights)])
    drawn = [0] * len(weights)
    for step in range(1, 40):
        now = counted(next(sampler), n_rows)
        assert sum(now) == batch
        drawn = [a + b for a, b in zip(drawn, now, strict=True)]
        for n, weight in zip(drawn, weights, strict=True):
            assert abs(n - Fraction(step * batch * weight, sum(weights))) < len(weights)


@settings(max_examples=25)
@given(weights=WEIGHTS, batch=st.integers(1, 30), data=st.data())
def test_each_text_is_read_evenly(weights: list[int], batch: int, data: st.DataObject) -> None:
    """No row of a text comes for the second time before each has come once."""
    n_rows = data.draw(st.lists(st.integers(1, 20), min_size=len(weights), max_size=len(weights)))
    sampler = MixtureSampler(n_rows, batch, 1, [(10, weights)])
    rows = np.concatenate([next(sampler) for _ in range(15)])
    ends = np.cumsum(n_rows)
    for n, end in zip(n_rows, ends, strict=True):
        own = rows[(rows >= end - n) & (rows < end)]
        times = Counter(own.tolist())
        assert {*times.values()} <= {len(own) // n, -(-len(own) // n)}


def test_one_text_alone_is_as_without_a_mixture() -> None:
    alone, mixed = Sampler(37, 5, 8), MixtureSampler([37], 5, 8, [(3, [0.2])])
    assert alone.epochs(74) == mixed.epochs(74) == 10
    assert MixtureSampler([37, 3], 5, 8, [(3, [0.2, 0.8])]).epochs(74) is None
    for _ in range(30):
        assert next(alone).tolist() == next(mixed).tolist()


@settings(max_examples=25)
@given(jumps=st.lists(st.integers(0, 30), max_size=6))
def test_a_step_is_a_function_of_its_number(jumps: list[int]) -> None:
    """Skipped to, restored, drawn by another process or after a later one: a step is the same."""
    given = ([11, 7, 30], 4, 5, [(6, [1, 2, 3]), (9, [5, 0, 1])], [None, 9.0, None])
    stream = MixtureSampler(*given)
    wanted = [next(stream).tolist() for _ in range(31)]
    sampler = MixtureSampler(*given)
    for step in jumps:
        assert sampler.rows(step).tolist() == wanted[step]
        other = MixtureSampler(*given)
        other.restore({**other.state(), "step": step})
        assert next(other).tolist() == wanted[step]
        other.skip(2)
        assert other.state()["step"] == step + 3
    assert MixtureSampler([11, 7, 30], 4, 6, [(6, [1, 2, 3])]).rows(0).tolist() != wanted[0]


def test_a_curriculum() -> None:
    sampler = MixtureSampler([100, 100, 100], 10, 0, [(4, [1, 1, 0]), (6, [0, 1, 4])])
    found = [counted(next(sampler), [100] * 3) for _ in range(12)]
    assert found == [[5, 5, 0]] * 4 + [[0, 2, 8]] * 8  # the last stage goes on


def test_a_text_that_is_used_up_gives_its_share_to_the_others() -> None:
    sampler = MixtureSampler([10, 100, 100], 10, 0, [(1, [4, 4, 2])], [1.5, None, None])
    found = np.array([counted(next(sampler), [10, 100, 100]) for _ in range(9)])
    assert found[:3].tolist() == [[4, 4, 2]] * 3
    assert found[:, 0].sum() == 15  # one and a half times its 10 rows
    assert abs(found[4:, 1].sum() - 50 * 4 / 6) < 2
    assert (found.sum(1) == 10).all()


def test_texts_that_do_not_last_are_refused_by_their_step() -> None:
    sampler = MixtureSampler([10, 20], 10, 0, [(2, [1, 1]), (9, [1, 0])], [1.0, None])
    with pytest.raises(TextError, match="the texts are used up at step 3"):
        sampler.counts(5)
    assert sum(MixtureSampler([10, 20], 10, 0, [(9, [1, 1])], [1.0, 2.0]).counts(5)) == 50
    with pytest.raises(TextError, match="the texts are used up at step 6"):
        MixtureSampler([10, 20], 10, 0, [(9, [1, 1])], [1.0, 2.0]).counts(6)


def test_rows_are_those_of_their_texts(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> None:
    texts = [["one two three " * 9, "four"], ["five six seven eight " * 30]]
    parts = []
    for documents in texts:
        corpus = Corpus.of(Document(f"{i}", text) for i, text in enumerate(documents))
        parts.append(pack(encode_corpus(corpus, tokenizer, tmp_path_factory.mktemp("cache")), 8, seed=1))
    n = parts[0].n_rows
    assert n > 2
    numbers = np.array([n + 1, 0, n, 2, 1])
    found = MixedRows(parts).batch(numbers)
    for i, number in enumerate(numbers.tolist()):
        own = parts[0].batch(np.array([number])) if number < n else parts[1].batch(np.array([number - n]))
        for name in found._fields:
            assert getattr(found, name)[i].tolist() == getattr(own, name)[0].tolist()
