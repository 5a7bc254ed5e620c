"""What is done to a text so that restoring it teaches something: each a pure function of tokens and a random generator.

Token ids are int64 [token], one document; nothing here pads or batches. The generator is the caller's, so that what a step sees
is a function of the seed, the step and the row alone. Of sentences: runs end where sentences do, as far as `ends`, bool [id],
can tell; where it cannot, between any two tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from anyformer.errors import TextError
from anyformer.text.packing import NOT_PREDICTED


def masked(
    ids: np.ndarray,
    rng: np.random.Generator,
    *,
    mask: int,
    replacements: np.ndarray,
    rate: float,
    mask_share: float,
    random_share: float,
    groups: np.ndarray | None = None,
    spared: np.ndarray | None = None,
    max_ngram: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """(inputs, labels): of the chosen tokens, some masked, some random, the rest left, and all to be predicted.

    Devlin et al. 2019 (BERT), arXiv:1810.04805, section 3.1; masks drawn anew each time, as in Liu et al. 2019 (RoBERTa),
    arXiv:1907.11692, section 4.1; n-grams, as in Lan et al. 2019 (ALBERT), arXiv:1909.11942, section 4.1.

    round(rate · n) tokens are chosen, at least one where there is any to choose: single ones, or whole groups (`groups`
    numbers them in order, see `whole_words`) until no further group fits. `spared` tokens, special ones, are never chosen.
    A random token is one of `replacements`. With a `max_ngram` above 1, as many neighbours as drawn go together, n of them
    with a probability in proportion to 1 / n, fewer where one is spared, chosen already, or one too many.
    """
    free = np.ones(len(ids), dtype=bool) if spared is None else ~spared
    numbers = np.arange(len(ids)) if groups is None else groups
    wanted = min(int(free.sum()), max(1, round(rate * free.sum())))
    candidates, chosen_numbers = np.unique(numbers[free]), list[int]()
    sizes = dict(zip(candidates.tolist(), np.bincount(numbers[free])[candidates].tolist(), strict=True))
    fenced = set(numbers[~free].tolist())  # neighbours of what is spared; nothing goes together across it
    left = wanted
    for first in rng.permutation(candidates).tolist():
        if left <= 0:
            break
        for number in range(first, first + (_drawn_length(rng, max_ngram) if max_ngram > 1 else 1)):
            size = sizes.get(number)
            if size is None or (size > left and left < wanted) or (number > first and number in fenced):
                break
            chosen_numbers.append(number)
            left -= size
            del sizes[number]
    chosen = free & np.isin(numbers, chosen_numbers)
    inputs, labels = ids.copy(), np.where(chosen, ids, NOT_PREDICTED)
    fate = rng.random(len(ids))
    inputs[chosen & (fate < mask_share)] = mask
    swapped = chosen & (fate >= mask_share) & (fate < mask_share + random_share)
    inputs[swapped] = rng.choice(replacements, int(swapped.sum()))
    return inputs, labels


def _drawn_length(rng: np.random.Generator, most: int) -> int:
    """A number n from 1 to `most`, with a probability in proportion to 1 / n."""
    upto = np.cumsum(1 / np.arange(1, most + 1))
    return 1 + int(np.searchsorted(upto, rng.random() * upto[-1], side="right"))


def whole_words(ids: np.ndarray, begins_word: np.ndarray) -> np.ndarray:
    """The number of the word that each token is of; `begins_word` says of every id whether it begins one."""
    starts = begins_word[ids].copy()
    starts[:1] = True
    return np.cumsum(starts)


class Example(NamedTuple):
    """What is read, and what is to be written; each int64 [token]."""

    source: np.ndarray
    target: np.ndarray


def span_corrupted(
    ids: np.ndarray, rng: np.random.Generator, *, sentinels: Sequence[int], rate: float, mean_length: float
) -> Example:
    """The text with each noise span as one sentinel, and the spans, each after its sentinel, then one sentinel more.

    Raffel et al. 2020 (T5), arXiv:1910.10683, section 3.1.4 and figure 2. Raises TextError where there are fewer sentinels
    than spans and the one that ends the target.
    """
    noise = noise_spans(len(ids), rng, rate=rate, mean_length=mean_length)
    spans = int((np.diff(noise.astype(int), prepend=0) == 1).sum())
    if spans >= len(sentinels):
        raise TextError(
            f"a text of {len(ids)} tokens needs {spans + 1} sentinels and the vocabulary has {len(sentinels)}; "
            "give shorter rows, longer spans, or a tokenizer with more sentinels"
        )
    source, target = (_with_sentinels(ids, part, sentinels) for part in (noise, ~noise))
    return Example(source, np.append(target, sentinels[spans]) if noise[-1] else target)


def noise_spans(n: int, rng: np.random.Generator, *, rate: float, mean_length: float) -> np.ndarray:
    """Which of n tokens are noise: bool [n], round(rate · n) of them in round(that / mean_length) spans.

    A text of two tokens or more begins with one that is kept; where the spans are is drawn from all ways to place them so
    that no two touch.
    """
    if n < 2:
        return np.ones(n, dtype=bool)
    noisy = min(n - 1, max(1, round(rate * n)))
    spans = min(noisy, n - noisy, max(1, round(noisy / mean_length)))
    between = _divided(n - noisy + 1, spans + 1, rng)
    between[-1] -= 1  # nothing need stand after the last span
    lengths = np.zeros(2 * spans + 1, dtype=np.int64)
    lengths[::2], lengths[1::2] = between, _divided(noisy, spans, rng)
    return np.repeat(np.arange(2 * spans + 1) % 2 == 1, lengths)


def prefix(ids: np.ndarray, rng: np.random.Generator) -> Example:
    """A text cut in two where both parts have a token: T5's prefix language model, section 3.2.1."""
    at = int(rng.integers(1, len(ids))) if len(ids) > 1 else 0
    return Example(ids[:at], ids[at:])


class InfillingParts(NamedTuple):
    """A text in three parts, each int64 [token]."""

    prefix: np.ndarray
    middle: np.ndarray
    suffix: np.ndarray


def cut_in_three(ids: np.ndarray, rng: np.random.Generator) -> InfillingParts:
    """A text cut at two places between its tokens; any part may be empty."""
    return InfillingParts(*np.split(ids, two_places(len(ids), rng)))


def two_places(n: int, rng: np.random.Generator) -> tuple[int, int]:
    """Two places from 0 to n in order, each drawn evenly: where a text of n tokens, or characters, is cut in three."""
    one, other = rng.integers(0, n + 1, 2).tolist()
    return min(one, other), max(one, other)


def middle_last(cut: InfillingParts, marks: tuple[int, int, int], *, spm: bool) -> np.ndarray:
    """The parts of a text with the middle last, behind the `marks` of prefix, suffix and middle.

    Bavarian et al. 2022, arXiv:2207.14255: section 3 (PSM), or appendix D, variant 2, where the prefix stands behind the
    suffix as if it were a part of the middle (SPM), so that both can be learnt together.
    """
    prefix, suffix, middle = ([mark] for mark in marks)
    if spm:
        parts = [prefix, suffix, cut.suffix, middle, cut.prefix, cut.middle]
    else:
        parts = [prefix, cut.prefix, suffix, cut.suffix, middle, cut.middle]
    return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])


def _divided(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Positive lengths that add up to the total, all such divisions alike likely."""
    cuts = np.sort(rng.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


def _with_sentinels(ids: np.ndarray, hidden: np.ndarray, sentinels: Sequence[int]) -> np.ndarray:
    """The ids with every run of what is hidden as one sentinel, in order."""
    starts = hidden & ~np.concatenate([[False], hidden[:-1]])
    result = ids.copy()
    result[starts] = np.asarray(sentinels[: int(starts.sum())], dtype=ids.dtype)
    return result[~hidden | starts]


def denoised(
    ids: np.ndarray,
    rng: np.random.Generator,
    *,
    sentinels: Sequence[int],
    rate: float,
    mean_length: float | None,
    mode: int | None = None,
) -> Example:
    """A text by one of UL2's denoisers: Tay et al. 2022, arXiv:2205.05131, section 3.1 and table 1.

    Spans of a mean length at a rate; without a mean length, one span at the end, a prefix language model. `mode` is a token
    that says at the start of the source which denoiser it was.
    """
    if mean_length is None:
        # The mean of the tail's length is rate · n: drawn evenly from 1 to twice that.
        kept = len(ids) - int(rng.integers(1, max(2, round(2 * rate * len(ids)))))
        found = Example(np.append(ids[:kept], sentinels[0]), np.append(sentinels[0], ids[kept:]))
    else:
        found = span_corrupted(ids, rng, sentinels=sentinels, rate=rate, mean_length=mean_length)
    return found if mode is None else Example(np.append(mode, found.source).astype(ids.dtype), found.target)


def infilled(ids: np.ndarray, rng: np.random.Generator, *, mask: int, rate: float, mean_length: float) -> np.ndarray:
    """The text with spans, their lengths Poisson-distributed, each replaced by one mask: text infilling.

    Lewis et al. 2020 (BART), arXiv:1910.13461, section 2.2, as are the noises below it.
    About rate · n tokens go, fewer where so many spans would touch; a span of no tokens inserts a mask. Each mask stands for
    one span.
    """
    budget, lengths = round(rate * len(ids)), list[int]()
    while budget > 0:
        length = min(int(rng.poisson(mean_length)), budget)
        lengths.append(length)
        budget -= max(1, length)  # what is inserted counts too, or it would go on for ever
    kept = len(ids) - sum(lengths)
    while len(lengths) > kept + 1:
        kept += lengths.pop()
    # Which gaps between kept tokens have a span: each at most one.
    gaps = np.sort(rng.choice(kept + 1, len(lengths), replace=False))
    pieces, at = list[np.ndarray](), 0
    for i, (gap, length) in enumerate(zip(gaps.tolist(), lengths, strict=True)):
        before = gap - (int(gaps[i - 1]) if i else 0)
        pieces += [ids[at : at + before], np.array([mask], dtype=ids.dtype)]
        at += before + length
    return np.concatenate([*pieces, ids[at:]])


def deleted(ids: np.ndarray, rng: np.random.Generator, *, rate: float) -> np.ndarray:
    """The text without some of its tokens; the model must find where they were. One token at least stays."""
    keep = rng.random(len(ids)) >= rate
    if len(ids) and not keep.any():
        keep[rng.integers(len(ids))] = True
    return ids[keep]


def permuted_sentences(ids: np.ndarray, rng: np.random.Generator, *, ends: np.ndarray) -> np.ndarray:
    """The sentences in random order; `ends` says of each token whether a sentence ends with it."""
    cuts = np.flatnonzero(ends[:-1]) + 1
    sentences = np.split(ids, cuts)
    return np.concatenate([sentences[i] for i in rng.permutation(len(sentences))])


def rotated(ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The text begun at a token drawn at random, what stood before it at the end: document rotation."""
    return np.roll(ids, -int(rng.integers(len(ids)))) if len(ids) else ids.copy()


class Permuted(NamedTuple):
    """A factorisation order of a text, each [token]."""

    order: np.ndarray  # int64: when a token comes in the order; a token is predicted from those that come before it
    predicted: np.ndarray  # bool: the last of the order


def permuted(n: int, rng: np.random.Generator, *, share: float, mean_length: float) -> Permuted:
    """A random order of n tokens whose last round(share · n), in runs of neighbours, are to be predicted.

    Yang et al. 2019 (XLNet), arXiv:1906.08237: partial prediction with 1 / K = share (section 2.3; K of 6 or 7). Runs of
    neighbours are predicted one token after the other from left to right or in any order: which is the permutation's matter.
    """
    predicted = noise_spans(n, rng, rate=share, mean_length=mean_length)
    first, last = (rng.permutation(np.flatnonzero(part)) for part in (~predicted, predicted))
    order = np.empty(n, dtype=np.int64)
    order[np.concatenate([first, last])] = np.arange(n)
    return Permuted(order, predicted)


class SegmentPair(NamedTuple):
    """Two runs of tokens of one text, as (start, length) in it, the first then the second.

    Devlin et al. 2019 (BERT), arXiv:1810.04805, appendix A.2; Lan et al. 2019 (ALBERT), arXiv:1909.11942, section 3.1.
    """

    first: tuple[int, int]
    second: tuple[int, int]


def passages(ids: np.ndarray, ends: np.ndarray, room: int) -> Iterator[tuple[int, int]]:
    """(start, length) of the passages that a document is cut into, each of 2 to `room` tokens, one after the other.

    A passage ends with the last sentence that has an end in it, unless that left it less than half full. A single token
    left over belongs to none.
    """
    at, ending = 0, np.flatnonzero(ends[ids]) + 1  # where sentences end, exclusive
    while len(ids) - at >= 2:
        stop = min(at + room, len(ids))
        if stop < len(ids):
            last = int(np.searchsorted(ending, stop, side="right")) - 1
            if last >= 0 and 2 * (ending[last] - at) >= room and ending[last] - at >= 2:
                stop = int(ending[last])
        yield at, stop - at
        at = stop


def shortened(ids: np.ndarray, rng: np.random.Generator, ends: np.ndarray) -> int:
    """A length for a passage: drawn evenly from 2 on, then up to the end of the sentence that it would cut."""
    n = int(rng.integers(2, len(ids) + 1))
    ending = np.flatnonzero(ends[ids[n - 1 :]])
    return n + int(ending[0]) if len(ending) else n


def neighbours(ids: np.ndarray, rng: np.random.Generator, ends: np.ndarray) -> SegmentPair:
    """A passage of two tokens or more cut in two, between sentences drawn at random where there are several."""
    ending = np.flatnonzero(ends[ids[:-1]]) + 1
    cut = int(rng.choice(ending)) if len(ending) else int(rng.integers(1, len(ids)))
    return SegmentPair((0, cut), (cut, len(ids) - cut))


def elsewhere(ids: np.ndarray, rng: np.random.Generator, ends: np.ndarray, most: int) -> tuple[int, int]:
    """(start, length) of a run of at most `most` tokens of a document, from the start of one of its sentences."""
    starts = np.append(0, np.flatnonzero(ends[ids[:-1]]) + 1)
    start = int(rng.choice(starts))
    run = ids[start : start + most]
    if start + most >= len(ids):
        return start, len(run)
    ending = np.flatnonzero(ends[run])
    return start, int(ending[-1]) + 1 if len(ending) else len(run)
