"""Pairs of runs of text, and n-grams of words that are hidden together: what is taken from where, and how often."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyformer.text import NOT_PREDICTED
from anyformer.text.noise import elsewhere, masked, neighbours, passages, shortened, whole_words

N = 400  # ids; a text here is a run of numbers, so that every token is another
masked_as_bert = partial(masked, mask_share=0.8, random_share=0.1)
seeds = st.integers(0, 2**32)


@st.composite
def documents(draw: st.DrawFn, least: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return (ids, which ids end a sentence): sentences of any length, or none that can be told."""
    n = draw(st.integers(least, 120))
    ends = np.zeros(N, dtype=bool)
    ends[sorted(draw(st.sets(st.integers(0, 119), max_size=60)))] = True
    return np.arange(n, dtype=np.int64), ends


@given(text=documents(), room=st.integers(2, 50))
def test_passages_are_the_whole_text_one_after_the_other(text: tuple[np.ndarray, np.ndarray], room: int) -> None:
    ids, ends = text
    at = 0
    for start, length in passages(ids, ends, room):
        assert start == at
        assert 2 <= length <= room
        at += length
        longest = ids[start : start + room]
        told = [i + 1 for i in range(len(longest)) if ends[longest[i]] and i + 1 >= max(2, room / 2)]
        if len(longest) == room and start + room < len(ids):
            assert length == (told[-1] if told else room)
        else:
            assert length == len(longest)
    assert len(ids) - at <= 1


@given(text=documents(least=2), seed=seeds)
def test_a_passage_is_cut_between_sentences_where_there_are_several(
    text: tuple[np.ndarray, np.ndarray], seed: int
) -> None:
    ids, ends = text
    (start, n), (then, m) = neighbours(ids, np.random.default_rng(seed), ends)
    assert (start, n, n + m) == (0, then, len(ids))
    assert min(n, m) >= 1
    assert ends[ids[n - 1]] or not ends[ids[:-1]].any()


def test_every_cut_is_as_likely() -> None:
    ids, ends = np.arange(30), np.zeros(N, dtype=bool)
    ends[[4, 9, 19, 29]] = True
    cuts = [neighbours(ids, np.random.default_rng(seed), ends).second[0] for seed in range(3000)]
    assert {cut: cuts.count(cut) for cut in set(cuts)} == pytest.approx({5: 1000, 10: 1000, 20: 1000}, abs=130)  # 5 σ


@given(text=documents(least=2), seed=seeds)
def test_a_shorter_passage_ends_with_a_sentence_if_one_ends_after_it(
    text: tuple[np.ndarray, np.ndarray], seed: int
) -> None:
    ids, ends = text
    n = shortened(ids, np.random.default_rng(seed), ends)
    assert 2 <= n <= len(ids)
    drawn = int(np.random.default_rng(seed).integers(2, len(ids) + 1))
    assert n == next((i + 1 for i in range(drawn - 1, len(ids)) if ends[i]), drawn)


@given(text=documents(least=1), most=st.integers(1, 40), seed=seeds)
def test_a_run_of_another_document_starts_with_a_sentence(
    text: tuple[np.ndarray, np.ndarray], most: int, seed: int
) -> None:
    ids, ends = text
    start, n = elsewhere(ids, np.random.default_rng(seed), ends, most)
    assert start == 0 or ends[ids[start - 1]]
    assert 1 <= n <= most
    assert start + n <= len(ids)
    if start + n < len(ids):
        told = [i + 1 for i in range(most) if ends[ids[start + i]]]
        assert n == (told[-1] if told else most)


class TestNGrams:
    def test_lengths_fall_as_one_by_n(self) -> None:
        ids = np.arange(20_000, dtype=np.int64)
        counts = np.zeros(4)
        for seed in range(6):
            # So few are hidden that two of them seldom touch.
            _, labels = masked_as_bert(
                ids, np.random.default_rng(seed), mask=1, replacements=ids, rate=0.02, max_ngram=3
            )
            edges = np.flatnonzero(np.diff(np.concatenate([[0], labels != NOT_PREDICTED, [0]]).astype(int)))
            lengths = edges[1::2] - edges[::2]
            counts += [np.sum(lengths == n) for n in (1, 2, 3, 4)]
        # 1 : 1/2 : 1/3; touching runs add up to longer ones, and the last of a text is cut short.
        assert counts[:3] / counts.sum() == pytest.approx(np.array([6, 3, 2]) / 11, abs=0.04)
        assert counts.sum() > 1200

    @given(n=st.integers(2, 200), seed=seeds, most=st.integers(1, 5), rate=st.floats(0.05, 0.9))
    def test_words_go_together_and_never_across_a_special_token(
        self, n: int, seed: int, most: int, rate: float
    ) -> None:
        rng, ids = np.random.default_rng(seed), np.arange(n, dtype=np.int64)
        begins, spared = rng.random(n) < 0.5, rng.random(n) < 0.15
        spared[rng.integers(n)] = False
        groups = whole_words(ids, begins | spared)
        _, labels = masked_as_bert(
            ids, rng, mask=1, replacements=ids, rate=rate, groups=groups, spared=spared, max_ngram=most
        )
        chosen = labels != NOT_PREDICTED
        assert chosen.any()
        assert not (chosen & spared).any()
        whole = [chosen[(groups == word) & ~spared] for word in np.unique(groups[~spared])]
        assert all(word.all() or not word.any() for word in whole)
        wanted = max(1, round(rate * int((~spared).sum())))
        assert chosen.sum() <= max(wanted, *map(len, whole))
        if all(len(word) == 1 for word in whole):
            assert chosen.sum() == wanted

    def test_a_fence_stops_a_run(self) -> None:
        """A run that begins in the middle of a word stands behind a special token: nothing goes together with what is before."""
        ids, spared = np.arange(4000), np.arange(4000) % 2 == 1
        given = {"mask": 1, "replacements": ids, "rate": 0.01, "spared": spared, "max_ngram": 3}
        for groups in (None, whole_words(ids, spared)):
            _, labels = masked_as_bert(ids, np.random.default_rng(0), groups=groups, **given)  # type: ignore[arg-type]
            places = np.flatnonzero(labels != NOT_PREDICTED)
            assert len(places) == 20
            assert (np.diff(places) == 2).mean() < 0.2  # both drawn
