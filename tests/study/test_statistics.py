"""Intervals and tests against hand-worked numbers, the delta method, slow bootstraps, and simulated coverage."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from anyformer.study.paired import Interval, difference, holm, spread_of_pairs
from anyformer.study.results import BITS, DocumentLoss, RunResult, Study
from anyformer.study.statistics import analyse, bootstrap_ratio, paired_documents, t_interval
from anyformer.study.verdict import ONE_SEED
from tests.study.studies import one_seed, run, three_seeds


def interval(documents: Sequence[DocumentLoss]) -> Interval:
    return bootstrap_ratio(*BITS.parts(documents))


def documents(n: int, seed: int, *, rate: float = 2.0, spread: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Numerators and denominators whose expected ratio of sums is `rate`."""
    rng = np.random.default_rng(seed)
    size = rng.gamma(4.0, 250.0, n) + 50
    return size * (rate + spread * rng.normal(size=n)), size


def of(documents: list[DocumentLoss]) -> RunResult:
    return replace(run("gpt2", 0), documents=tuple(documents))


def slow_percentiles(above: list[float], below: list[float], n_resamples: int = 4000) -> tuple[float, float]:
    draw, n, ratios = random.Random(11), len(above), []
    for _ in range(n_resamples):
        chosen = draw.choices(range(n), k=n)
        ratios.append(sum(above[i] for i in chosen) / sum(below[i] for i in chosen))
    ratios.sort()
    return ratios[int(0.025 * n_resamples)], ratios[int(0.975 * n_resamples)]


def ends(interval: Interval) -> tuple[float, float]:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


def test_bootstrap_agrees_with_a_slow_one_and_with_the_delta_method() -> None:
    above, below = documents(300, seed=1)
    interval = bootstrap_ratio(above.tolist(), below.tolist())
    assert interval.value == pytest.approx(above.sum() / below.sum(), rel=1e-12)
    error = np.std(above - interval.value * below, ddof=1) * math.sqrt(300) / below.sum()
    delta = (interval.value - 1.96 * error, interval.value + 1.96 * error)
    for oracle in (slow_percentiles(above.tolist(), below.tolist()), delta):
        assert ends(interval) == pytest.approx(oracle, abs=0.06 * (oracle[1] - oracle[0]))


def test_bits_per_byte_weighs_documents_by_their_bytes() -> None:
    bits = math.log(2)
    texts = [
        DocumentLoss(100 * bits, 10, 100),
        DocumentLoss(3 * bits, 1, 1),
    ]  # 1 bit a byte and 3: not 2, but 103 / 101
    assert interval(texts).value == pytest.approx(103 / 101, rel=1e-12)


def test_differences_are_paired_document_by_document() -> None:
    rng = np.random.default_rng(2)
    size = rng.integers(200, 2000, 150)
    hard = rng.normal(2.0, 0.5, 150) * size * math.log(2)
    gain = 0.05 * size * math.log(2) * rng.normal(1, 0.5, 150)
    ours = [DocumentLoss(float(h - g), 1, int(s)) for h, s, g in zip(hard, size, gain, strict=True)]
    theirs = [DocumentLoss(float(h), 1, int(s)) for h, s in zip(hard, size, strict=True)]
    together = paired_documents(BITS, of(ours), of(theirs))
    gaps = [(a.nats - b.nats) / math.log(2) for a, b in zip(ours, theirs, strict=True)]
    oracle = slow_percentiles(gaps, [float(a.nbytes) for a in ours])
    assert ends(together) == pytest.approx(oracle, abs=0.08 * (oracle[1] - oracle[0]))
    assert together.value == pytest.approx(interval(ours).value - interval(theirs).value, abs=1e-12)
    alone = ends(interval(ours))
    assert (ends(together)[1] - ends(together)[0]) < 0.2 * (alone[1] - alone[0])
    assert together.excludes_zero()


def test_bootstrap_covers_the_truth_about_95_times_in_100() -> None:
    covered = 0
    for case in range(300):
        above, below = documents(40, seed=1000 + case)
        low, high = ends(bootstrap_ratio(above.tolist(), below.tolist(), seed=case))
        covered += low <= 2.0 <= high
    assert 0.915 <= covered / 300 <= 0.98  # 95 %, three standard errors of 300 cases to each side


def test_t_interval_covers_the_truth_about_95_times_in_100() -> None:
    values = np.random.default_rng(5).normal(1.9, 0.02, (2000, 3))
    covered = sum(low <= 1.9 <= high for low, high in (ends(t_interval(row.tolist())) for row in values))
    assert 0.935 <= covered / 2000 <= 0.965


def test_t_interval_by_hand() -> None:
    # mean 2, standard deviation 1, t(0.975; 2) = 4.30265 from the table
    interval = t_interval([1.0, 2.0, 3.0])
    assert interval.value == 2.0
    assert ends(interval) == pytest.approx((2 - 4.30265 / math.sqrt(3), 2 + 4.30265 / math.sqrt(3)), abs=1e-5)
    assert t_interval([1.5]) == Interval(1.5)


def test_paired_t_test() -> None:
    ours, theirs = [1.91, 1.95, 1.88, 1.90], [1.97, 1.99, 1.95, 1.93]
    gaps = np.asarray(ours) - np.asarray(theirs)  # -0.06 -0.04 -0.07 -0.03: mean -0.05, deviation 0.018257, t = -5.4772
    assert gaps.mean() / (gaps.std(ddof=1) / 2) == pytest.approx(-5.4772, abs=1e-4)

    def p_value(pairs: Sequence[float]) -> float:
        return difference(pairs, spread_of_pairs(pairs)).p_value

    assert p_value(gaps.tolist()) == pytest.approx(2 * stats.t.cdf(-5.4772256, 3), rel=1e-5)
    assert p_value([0.0] * 4) == 1.0
    assert p_value([-1.0, -1.0]) == 0.0


def test_equal_differences_do_not_vary() -> None:
    """Whose mean, rounded, is another number: 0.1 + 0.1 + 0.1 is more than 0.3."""
    pairs = [0.1, 0.1, 0.1]
    assert np.std(pairs, ddof=1) > 0
    found = difference(pairs, spread_of_pairs(pairs))
    assert (found.p_value, found.effect) == (0.0, None)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.001, 0.6]) == pytest.approx([1.0, 0.003, 1.0])
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_degenerate_texts() -> None:
    assert bootstrap_ratio([3.0], [2.0]) == Interval(1.5)
    assert bootstrap_ratio([0.0, 0.0, 0.0], [1.0, 2.0, 3.0]) == Interval(0.0, 0.0, 0.0)
    low, high = ends(bootstrap_ratio([1.0, 1.0, 1.0, 9.0], [1.0, 1.0, 1.0, 1.0]))  # BCa has hardly a jackknife here
    assert 1.0 <= low <= 3.0 <= high <= 9.0


def test_above_the_limit_of_bca_the_percentile_interval_is_as_good() -> None:
    above, below = documents(2500, seed=4)
    interval = bootstrap_ratio(above.tolist(), below.tolist())
    error = np.std(above - interval.value * below, ddof=1) * math.sqrt(2500) / below.sum()
    assert ends(interval) == pytest.approx(
        (interval.value - 1.96 * error, interval.value + 1.96 * error), abs=0.3 * error
    )


def test_one_seed_claims_nothing_about_training() -> None:
    analysis = analyse(one_seed())
    assert analysis.method == "documents"
    assert analysis.sentences[0] == ONE_SEED
    assert not any(finding.claim for finding in analysis.findings)
    llama, gpt2 = analysis.of("llama2"), analysis.of("gpt2")
    assert llama.difference is not None
    assert llama.difference.excludes_zero()
    assert llama.verdict.endswith("one seed, no claim about training")
    assert "fewer bits than transformer-lm" in llama.verdict
    assert (gpt2.n_seeds, gpt2.score, gpt2.verdict) == (0, None, "no run finished")
    assert analysis == analyse(one_seed())  # deterministic


def test_same_model_twice_cannot_be_told_apart() -> None:
    first = run("gpt2", 0)
    analysis = analyse(replace(one_seed(), runs=(first, replace(first, architecture="copy"))))
    assert analysis.of("copy").difference == Interval(0.0, 0.0, 0.0)
    assert "cannot be told from gpt2" in analysis.of("copy").verdict


def test_first_that_failed_leaves_nothing_to_compare_to() -> None:
    study = one_seed()
    analysis = analyse(replace(study, runs=(study.runs[1], study.runs[2])))
    assert analysis.of("llama2").difference is None
    assert analysis.of("llama2").verdict == "no comparison: gpt2 did not finish"


def test_where_nothing_finished_nothing_is_said() -> None:
    study = one_seed()
    failed = [replace(each, documents=(), failure="not finite") for each in study.runs]
    for runs in (failed, [replace(each, seed=seed) for seed in range(2) for each in failed]):
        analysis = analyse(replace(study, runs=tuple(runs)))
        assert analysis.sentences == ("No run finished, so that nothing can be compared.",)
        assert {(each.n_seeds, each.score, each.verdict) for each in analysis.findings} == {
            (0, None, "no run finished")
        }


@pytest.mark.parametrize(("kept", "words"), [(1, "One validation document"), (5, "5 documents are few")])
def test_few_documents_are_named(kept: int, words: str) -> None:
    study = one_seed()
    runs = tuple(replace(one, documents=one.documents[:kept]) for one in study.runs)
    analysis = analyse(replace(study, runs=runs))
    assert any(words in sentence for sentence in analysis.sentences)
    score = analysis.of("llama2").score
    assert score is not None
    assert (score.low is None) == (kept == 1)


def of_scores(**scores: list[float]) -> Study:
    """A study whose run number i of an architecture has exactly the i-th of its scores, in bits per byte."""
    runs = [
        replace(run("gpt2", seed), architecture=name, documents=(DocumentLoss(1000 * score * math.log(2), 300, 1000),))
        for name, of_seed in scores.items()
        for seed, score in enumerate(of_seed)
    ]
    return replace(one_seed(), runs=tuple(runs), tuning=())


def test_several_seeds_with_a_difference_and_without() -> None:
    first, clear, noise = [2.0, 2.1, 2.2, 2.05], [1.8, 1.91, 2.0, 1.84], [1.9, 2.3, 2.1, 2.0]
    analysis = analyse(of_scores(first=first, clear=clear, noise=noise))
    assert analysis.method == "seeds"
    raw = [float(stats.ttest_rel(other, first).pvalue) for other in (clear, noise)]
    assert analysis.of("clear").p_value == pytest.approx(raw[0], rel=1e-9)
    assert analysis.of("clear").p_holm == pytest.approx(2 * raw[0], rel=1e-9)
    assert analysis.of("noise").p_holm == pytest.approx(raw[1], rel=1e-9)
    assert analysis.of("clear").claim
    assert analysis.of("clear").verdict.startswith("better than first, trained this way on this data (−0.2")
    assert not analysis.of("noise").claim
    assert analysis.of("noise").verdict.startswith("no difference to first can be claimed")
    oracle = stats.ttest_1samp(np.asarray(clear) - np.asarray(first), 0).confidence_interval(0.95)
    gap = analysis.of("clear").difference
    assert gap is not None
    assert ends(gap) == pytest.approx((oracle.low, oracle.high), rel=1e-9)
    worse = analyse(of_scores(clear=clear, first=first)).of("first")
    assert worse.verdict.startswith("worse than clear")


def test_correction_can_take_a_claim_back() -> None:
    first, close = [2.0, 2.1, 2.2], [1.985, 2.08, 2.19]
    p = float(stats.ttest_rel(close, first).pvalue)
    assert 0.025 < p < 0.05
    assert analyse(of_scores(first=first, close=close)).of("close").claim
    three = analyse(of_scores(first=first, close=close, other=[2.0, 2.2, 2.1]))
    assert not three.of("close").claim


def test_two_seeds_are_said_to_be_few() -> None:
    two = analyse(of_scores(first=[2.0, 2.1], other=[1.9, 2.05])).sentences
    three = analyse(of_scores(first=[2.0, 2.1, 2.0], other=[1.9, 2.05, 1.9])).sentences
    assert any("very wide" in sentence for sentence in two)
    assert not any("very wide" in sentence for sentence in three)
    assert stats.t.ppf(0.975, 1) == pytest.approx(12.7, abs=0.01)  # the number in the sentence


def test_only_shared_seeds_are_compared() -> None:
    analysis = analyse(three_seeds())
    gpt2 = analysis.of("gpt2")
    scores = {one.name: one.bits_per_byte or 0.0 for one in three_seeds().runs}
    gaps = [scores[f"gpt2, seed {seed}"] - scores[f"transformer-lm, seed {seed}"] for seed in (0, 1)]
    assert gpt2.n_seeds == 2
    assert gpt2.difference is not None
    assert gpt2.difference.value == pytest.approx(sum(gaps) / 2, rel=1e-9)
    assert any(sentence.startswith("gpt2 finished 2 of 3 runs") for sentence in analysis.sentences)


def test_a_single_shared_seed_allows_no_claim() -> None:
    other = analyse(of_scores(first=[2.0, 2.1, 2.2], other=[1.0])).of("other")
    assert other.difference is not None
    assert other.difference.value == pytest.approx(-1.0)
    assert other.difference.low is None
    assert other.p_value is None
    assert other.verdict == "no difference can be claimed: it shares 1 finished seed with first"


def test_seeds_that_only_the_other_finished_are_left_out_of_the_difference() -> None:
    gap = analyse(of_scores(first=[2.0, 2.1], other=[1.9, 2.1, 0.5])).of("other").difference
    assert gap is not None
    assert gap.value == pytest.approx(-0.05)
