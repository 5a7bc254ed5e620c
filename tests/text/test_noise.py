"""Noise, by what the papers say of it: what is kept, what can be restored, and how much is touched."""

import itertools
from collections import Counter
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyformer.errors import TextError
from anyformer.recipe import UL2, Denoiser
from anyformer.text import NOT_PREDICTED
from anyformer.text.noise import (
    InfillingParts,
    cut_in_three,
    deleted,
    denoised,
    infilled,
    masked,
    middle_last,
    noise_spans,
    permuted,
    permuted_sentences,
    prefix,
    rotated,
    span_corrupted,
    two_places,
    whole_words,
)

MASK, WORDS = 3, np.arange(10, 1000)
MARKS = (3000, 3001, 3002)
SENTINELS = list(range(2000, 2100))
masked_as_bert = partial(masked, mask_share=0.8, random_share=0.1)
seeds, sizes = st.integers(0, 2**32), st.integers(2, 300)


def text(n: int) -> np.ndarray:
    return np.arange(10, 10 + n, dtype=np.int64)  # every token another, so that what became of each can be seen


class TestMasking:
    @given(n=sizes, seed=seeds, rate=st.floats(0.01, 1.0))
    def test_what_is_not_chosen_stays_and_is_not_predicted(self, n: int, seed: int, rate: float) -> None:
        ids = text(n)
        inputs, labels = masked_as_bert(ids, np.random.default_rng(seed), mask=MASK, replacements=WORDS, rate=rate)
        chosen = labels != NOT_PREDICTED
        assert chosen.sum() == max(1, round(rate * n))
        assert (labels[chosen] == ids[chosen]).all()
        assert (inputs[~chosen] == ids[~chosen]).all()

    def test_eighty_ten_ten(self) -> None:
        ids = text(200_000)
        words = np.arange(10**6, 10**6 + 50)  # none of the text's
        inputs, labels = masked_as_bert(ids, np.random.default_rng(0), mask=MASK, replacements=words, rate=0.5)
        chosen = labels != NOT_PREDICTED
        became = {
            "mask": (inputs[chosen] == MASK).mean(),
            "random": np.isin(inputs[chosen], words).mean(),
            "left": (inputs[chosen] == ids[chosen]).mean(),
        }
        # Of 100,000 the standard deviation of a share is below 0.0013.
        assert became == pytest.approx({"mask": 0.8, "random": 0.1, "left": 0.1}, abs=0.006)
        places = np.flatnonzero(chosen)
        assert places.mean() == pytest.approx(100_000, rel=0.01)

    @given(n=sizes, seed=seeds)
    def test_whole_words_and_special_tokens(self, n: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        ids = text(n)
        begins = np.zeros(ids.max() + 1, dtype=bool)
        begins[ids[rng.random(n) < 0.4]] = True
        spared = rng.random(n) < 0.2
        spared[rng.integers(n)] = False
        groups = whole_words(ids, begins)
        _, labels = masked_as_bert(ids, rng, mask=MASK, replacements=WORDS, rate=0.3, groups=groups, spared=spared)
        chosen = labels != NOT_PREDICTED
        assert chosen.any()
        assert not (chosen & spared).any()
        for word in np.unique(groups):
            of_word = (groups == word) & ~spared
            assert chosen[of_word].all() or not chosen[of_word].any()
        single = [np.sum((groups == word) & ~spared) for word in np.unique(groups)]
        assert chosen.sum() <= max(max(1, round(0.3 * (~spared).sum())), max(single))

    def test_words_begin_where_the_vocabulary_says(self) -> None:
        begins = np.array([True, False, True])
        assert whole_words(np.array([1, 0, 1, 1, 2, 0, 1]), begins).tolist() == [1, 2, 2, 2, 3, 4, 4]

    def test_nothing_to_mask(self) -> None:
        ids = text(4)
        inputs, labels = masked_as_bert(
            ids,
            np.random.default_rng(0),
            mask=MASK,
            replacements=WORDS,
            rate=0.15,
            spared=np.ones(4, dtype=bool),
        )
        assert inputs.tolist() == ids.tolist()
        assert set(labels.tolist()) == {NOT_PREDICTED}


def restored(source: np.ndarray, target: np.ndarray) -> list[int]:
    """Put each span of the target where its sentinel stands in the source."""
    spans: dict[int, list[int]] = {}
    for token in target.tolist():
        if token >= SENTINELS[0]:
            spans[token] = []
        else:
            spans[list(spans)[-1]].append(token)
    return [piece for token in source.tolist() for piece in (spans.get(token, [token]))]


class TestSpans:
    @given(n=sizes, seed=seeds, rate=st.floats(0.05, 0.6), mean=st.floats(1.0, 20.0))
    def test_the_target_restores_the_source(self, n: int, seed: int, rate: float, mean: float) -> None:
        ids = text(n)
        if round(rate * n) / mean > 90:
            return
        rng = np.random.default_rng(seed)
        source, target = span_corrupted(ids, rng, sentinels=SENTINELS, rate=rate, mean_length=mean)
        assert restored(source, target) == ids.tolist()
        marks = [token for token in source.tolist() if token >= SENTINELS[0]]
        assert marks == SENTINELS[: len(marks)]
        assert [token for token in target.tolist() if token >= SENTINELS[0]] == SENTINELS[: len(marks) + 1]
        assert target[-1] == SENTINELS[len(marks)]

    @given(n=sizes, seed=seeds, rate=st.floats(0.01, 0.9), mean=st.floats(1.0, 9.0))
    def test_as_many_as_asked_for(self, n: int, seed: int, rate: float, mean: float) -> None:
        noise = noise_spans(n, np.random.default_rng(seed), rate=rate, mean_length=mean)
        noisy = min(n - 1, max(1, round(rate * n)))
        assert noise.sum() == noisy
        assert not noise[0]
        starts = int((noise[1:] & ~noise[:-1]).sum())
        assert starts == min(noisy, n - noisy, max(1, round(noisy / mean)))

    def test_figure_2(self) -> None:
        """ "Thank you <X> me to your party <Y> week." and "<X> for inviting <Y> last <Z>"."""
        words = np.array([10, 11, 12, 13, 14, 15, 16, 17, 18, 19])  # Thank you for inviting me to your party last week
        for seed in range(10_000):
            source, target = span_corrupted(
                words, np.random.default_rng(seed), sentinels=SENTINELS, rate=0.3, mean_length=1.5
            )
            if target.tolist()[:3] == [2000, 12, 13] and 18 in target.tolist():
                assert source.tolist() == [10, 11, 2000, 14, 15, 16, 17, 2001, 19]
                assert target.tolist() == [2000, 12, 13, 2001, 18, 2002]
                return
        raise AssertionError("the example of the paper was never drawn")

    def test_every_division_is_as_likely(self) -> None:
        drawn = [
            tuple(noise_spans(6, np.random.default_rng(seed), rate=0.5, mean_length=1.5).tolist())
            for seed in range(4000)
        ]
        counts = np.array([drawn.count(each) for each in set(drawn)])
        # Spans of 1 and 2 or 2 and 1; of the three tokens kept one is first, one between, and the third at any of three places.
        assert len(counts) == 6
        assert counts.min() > 560  # 667 each; the standard deviation is 24

    def test_too_few_sentinels(self) -> None:
        with pytest.raises(TextError, match=r"a text of 200 tokens needs \d+ sentinels and the vocabulary has 2"):
            span_corrupted(text(200), np.random.default_rng(0), sentinels=SENTINELS[:2], rate=0.15, mean_length=3.0)

    @given(n=sizes, seed=seeds)
    def test_prefix(self, n: int, seed: int) -> None:
        source, target = prefix(text(n), np.random.default_rng(seed))
        assert len(source)
        assert len(target)
        assert [*source, *target] == text(n).tolist()


class TestDenoising:
    @given(n=sizes, seed=seeds, rate=st.floats(0.0, 0.7))
    def test_infilling_leaves_what_it_does_not_hide(self, n: int, seed: int, rate: float) -> None:
        ids = text(n)
        found = infilled(ids, np.random.default_rng(seed), mask=MASK, rate=rate, mean_length=3.0)
        kept = found[found != MASK]
        assert np.isin(kept, ids).all()
        assert (np.diff(kept) > 0).all()  # in their order
        assert n - len(kept) <= round(rate * n)
        both = np.concatenate([[0], found]) == MASK
        assert not (both[1:] & both[:-1]).any()  # no two masks side by side

    @pytest.mark.parametrize(("n", "rate", "mean"), [(100, 0.9, 3.0), (100, 0.5, 1.0), (7, 0.9, 1.0)])
    def test_much_infilling_hides_as_much_as_there_are_gaps_for(self, n: int, rate: float, mean: float) -> None:
        for seed in range(100):
            found = infilled(text(n), np.random.default_rng(seed), mask=MASK, rate=rate, mean_length=mean)
            spans = int((found == MASK).sum())
            assert 0 < spans <= len(found) - spans + 1

    def test_infilling_hides_its_share_in_spans_of_three(self) -> None:
        rng, hidden, masks = np.random.default_rng(0), 0, 0
        for _ in range(200):
            found = infilled(text(500), rng, mask=MASK, rate=0.3, mean_length=3.0)
            masks += int((found == MASK).sum())
            hidden += 500 - int((found != MASK).sum())
        # A span of no tokens counts one: the mean is e^-3 more than 3.
        assert hidden / 200 == pytest.approx(150 * 3 / (3 + np.exp(-3)), rel=0.02)
        assert hidden / masks == pytest.approx(3.0, rel=0.05)

    @given(n=st.integers(1, 300), seed=seeds)
    def test_nothing_is_lost_by_moving(self, n: int, seed: int) -> None:
        ids, rng = text(n), np.random.default_rng(seed)
        turned = rotated(ids, rng)
        assert sorted(turned.tolist()) == ids.tolist()
        assert ((np.diff(turned) == 1) | (np.diff(turned) == 1 - n)).all()
        ends = rng.random(n) < 0.2
        moved = permuted_sentences(ids, rng, ends=ends)
        assert sorted(moved.tolist()) == ids.tolist()
        for first, second in itertools.pairwise(moved):
            assert second == first + 1 or ends[first - 10] or first == ids[-1]

    @given(n=st.integers(1, 300), seed=seeds)
    def test_deletion(self, n: int, seed: int) -> None:
        found = deleted(text(n), np.random.default_rng(seed), rate=0.9)
        assert len(found)
        assert np.isin(found, text(n)).all()
        assert (np.diff(found) > 0).all()


class TestPermutation:
    @given(n=sizes, seed=seeds, share=st.floats(0.05, 0.6))
    def test_the_last_of_the_order_are_predicted(self, n: int, seed: int, share: float) -> None:
        order, predicted = permuted(n, np.random.default_rng(seed), share=share, mean_length=3.0)
        assert sorted(order.tolist()) == list(range(n))
        assert predicted.sum() == min(n - 1, max(1, round(share * n)))
        assert order[predicted].min() > order[~predicted].max()

    def test_any_order(self) -> None:
        firsts = {
            int(permuted(5, np.random.default_rng(seed), share=0.4, mean_length=3.0).order[0]) for seed in range(200)
        }
        assert firsts == {0, 1, 2}  # the first token is never predicted, the other two of the three come in any order


class TestUL2:
    @given(n=st.integers(20, 300), seed=seeds, which=st.sampled_from(UL2().denoisers))
    def test_every_denoiser_can_be_undone(self, n: int, seed: int, which: Denoiser) -> None:
        ids = text(n)
        rng, (rate, mean_length) = np.random.default_rng(seed), (which.rate, which.mean_length)
        source, target = denoised(ids, rng, sentinels=SENTINELS, rate=rate, mean_length=mean_length, mode=5)
        assert source[0] == 5
        assert restored(source[1:], target) == ids.tolist()

    def test_sequential_takes_a_quarter_on_average(self) -> None:
        (rate,) = (each.rate for each in UL2().denoisers if each.mode == "S")
        rngs = map(np.random.default_rng, range(2000))
        found = (denoised(text(400), rng, sentinels=SENTINELS, rate=rate, mean_length=None) for rng in rngs)
        tails = [len(one.target) - 1 for one in found]
        assert np.mean(tails) == pytest.approx(100, rel=0.05)


class TestFilling:
    @given(n=st.integers(0, 60), seed=seeds, spm=st.booleans())
    def test_parts_stand_behind_their_marks(self, n: int, seed: int, spm: bool) -> None:
        """Against lists: arXiv:2207.14255, section 3, and its appendix D for the suffix first."""
        ids = text(n)
        one, other = two_places(n, np.random.default_rng(seed))
        found = middle_last(cut_in_three(ids, np.random.default_rng(seed)), MARKS, spm=spm)
        before, middle, behind = list(ids[:one]), list(ids[one:other]), list(ids[other:])
        wanted = [MARKS[0], MARKS[1], *behind, MARKS[2], *before, *middle]
        assert found.tolist() == (wanted if spm else [MARKS[0], *before, MARKS[1], *behind, MARKS[2], *middle])
        assert found.dtype == np.int64

    def test_nothing_before_the_gap_is_written_alike(self) -> None:
        """So that one model learns both."""
        cut = InfillingParts(text(0), text(3), text(4))
        assert middle_last(cut, MARKS, spm=True).tolist() == middle_last(cut, MARKS, spm=False).tolist()

    def test_places_are_drawn_evenly(self) -> None:
        """Two of 0 to 3: each pair of unlike ones with 2/16, of like ones with 1/16."""
        rng = np.random.default_rng(0)
        counts = Counter(two_places(3, rng) for _ in range(16_000))
        assert len(counts) == 10
        for (one, other), n in counts.items():
            assert n == pytest.approx(1000 * (1 + (one < other)), rel=0.15)
