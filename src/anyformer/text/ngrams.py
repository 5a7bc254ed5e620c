"""N-grams with interpolated modified Kneser–Ney smoothing, without pruning. Chen & Goodman 1999, doi:10.1006/csla.1999.0128.

As KenLM estimates it (Heafield et al. 2013): an n-gram below the highest order counts by how many different tokens stand before
it, one that begins a document by how often it occurs; where the counts give no discounts these are .5, 1 and 1.5. KenLM takes
the last n-gram of each lower order into its statistics by the other count, which is no rule and is not done here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyformer.errors import TextError
from anyformer.text.encoded import EncodedCorpus

FALLBACK = (0.5, 1.0, 1.5)
CHUNK = 2**20  # tokens that are counted at once
MOST = 2**26  # different n-grams of one order: about 2 GB
Integers, Floats = NDArray[np.int64], NDArray[np.float64]


class Order(NamedTuple):
    """The n-grams of one length, sorted: by the place of their history among those one shorter, then by their last token."""

    keys: Integers  # place of the history · (vocab_size + 1) + the last token
    direct: Floats  # the discounted share of the last token behind its history
    left: Floats  # behind the n-gram as a history, the share that goes to what the shorter one says; 1 where nothing followed

    def places(self, keys: Integers) -> Integers:
        """Where these keys are; -1 for those that are not. Negative ones are not."""
        ways = np.argsort(keys)  # in order they are found without leaving a processor's cache
        at = np.empty(len(keys), dtype=np.int64)
        at[ways] = np.minimum(np.searchsorted(self.keys, keys[ways]), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, at, -1)


@dataclass(frozen=True, eq=False)
class NGrams:
    """Probabilities of a token behind up to `len(orders) - 1` others of its document."""

    vocab_size: int  # every one of these may be predicted; the beginning of a document is one more, and is not
    orders: tuple[Order, ...]
    discounts: tuple[tuple[float, float, float], ...]  # of counts 1, 2 and from 3 on, an order each
    fell_back: tuple[bool, ...]  # whether these are `FALLBACK`
    root: float  # what the uniform distribution gets

    def nats(self, corpus: EncodedCorpus) -> Floats:
        """-ln p of each token that is predicted: all but the first of each document, in their order."""
        found = [np.zeros(0)]
        for words, here in _chunks(corpus, None, len(self.orders)):
            found.append(-np.log(self._of(words)[(here > 0) & (words < self.vocab_size)]))
        return np.concatenate(found)

    def _of(self, words: Integers) -> Floats:
        """The probability of each token behind those before it in its document, which begins with `vocab_size`."""
        p = np.full(len(words), 1.0 / self.vocab_size)
        shorter = np.zeros(len(words), dtype=np.int64)  # the place of each token's history, among those of one order
        left = np.full(len(words), self.root)
        for order in self.orders:
            places = order.places(np.where(shorter < 0, -1, shorter * (self.vocab_size + 1) + words))
            p = np.where(shorter < 0, p, left * p + np.where(places < 0, 0.0, order.direct[places]))
            shorter = np.concatenate(([-1], places[:-1]))
            left = order.left[shorter]
        return p


def fit_ngrams(corpus: EncodedCorpus, order: int = 5, *, most_tokens: int | None = None, most: int = MOST) -> NGrams:
    """The n-grams up to `order` of a corpus, or of its first `most_tokens`. Memory grows with different n-grams alone.

    Raises TextError for an order below 1, a corpus of which nothing is predicted, and more than `most` n-grams of one order.
    """
    if order < 1:
        raise TextError(f"order = {order} is no length of n-grams; give 1 or more")
    base = corpus.vocab_size + 1
    keys: list[Integers] = []
    counts: list[Integers] = []
    for _ in range(order):
        new, n = _counted(corpus, keys, base, most_tokens, most)
        if not len(new):
            break  # no document is so long
        keys.append(new)
        counts.append(n)
    if not keys or len(keys[0]) < 2:
        raise TextError("the text has no token that is predicted, so there is nothing to count; give more text")
    begins = [keys[0] % base == corpus.vocab_size]
    suffixes = [np.zeros(len(keys[0]), dtype=np.int64)]
    for n in range(1, len(keys)):
        history, last = np.divmod(keys[n], base)
        begins.append(begins[n - 1][history])
        suffixes.append(np.searchsorted(keys[n - 1], suffixes[n - 1][history] * base + last))
        before = np.bincount(suffixes[n], minlength=len(keys[n - 1]))
        counts[n - 1] = np.where(begins[n - 1], counts[n - 1], before)
    counts[0][begins[0]] = 0  # the beginning is not predicted
    return _smoothed(keys, counts, base)


def _smoothed(keys: list[Integers], counts: list[Integers], base: int) -> NGrams:
    discounts, fell_back, direct, shares = [], [], [], []
    for n, count in enumerate(counts):
        found = _discounts(count)
        discounts.append(found or FALLBACK)
        fell_back.append(found is None)
        each = np.array([0.0, *discounts[-1]])[np.minimum(count, 3)]
        history = keys[n] // base
        places = len(keys[n - 1]) if n else 1
        total = np.bincount(history, weights=count, minlength=places)
        taken = np.bincount(history, weights=each, minlength=places)
        followed = total > 0
        shares.append(np.where(followed, taken / np.where(followed, total, 1.0), 1.0))
        direct.append((count - each) / total[history])
    shares.append(np.ones(len(keys[-1])))
    orders = (Order(*each) for each in zip(keys, direct, shares[1:], strict=True))
    return NGrams(base - 1, tuple(orders), tuple(discounts), tuple(fell_back), float(shares[0][0]))


def _discounts(counts: Integers) -> tuple[float, float, float] | None:
    """What is taken from counts of 1, 2 and from 3 on (equation 26); None where the counts do not say."""
    n = np.bincount(np.minimum(counts, 5), minlength=6)[1:5]
    if not n[:3].all():
        return None
    y = n[0] / (n[0] + 2 * n[1])
    d1, d2, d3 = (float(j - (j + 1) * y * n[j] / n[j - 1]) for j in (1, 2, 3))
    return (d1, d2, d3) if 0 <= d1 <= 1 and 0 <= d2 <= 2 and 0 <= d3 <= 3 else None


def _documents(corpus: EncodedCorpus, most_tokens: int | None) -> Iterator[Integers]:
    """Each document with its beginning as `vocab_size`, up to so many predicted tokens."""
    left = corpus.predictions if most_tokens is None else most_tokens
    for i in range(corpus.n_documents):
        if left <= 0:
            return
        words = corpus.document(i)[: left + 1].astype(np.int64)
        words[0] = corpus.vocab_size
        left -= len(words) - 1
        yield words


def _chunks(corpus: EncodedCorpus, most_tokens: int | None, before: int) -> Iterator[tuple[Integers, Integers]]:
    """(tokens, 1 where they are counted here) of some documents, or of a piece of one and `before` tokens ahead of it."""
    held: list[Integers] = []
    n = 0
    for words in _documents(corpus, most_tokens):
        for start in range(0, len(words), CHUNK):
            ahead = min(before, start)
            piece = words[start - ahead : start + CHUNK]
            held.append(np.stack((piece, (np.arange(len(piece)) >= ahead).astype(np.int64))))
            n += len(piece)
            if n >= CHUNK:
                yield tuple(np.concatenate(held, 1))  # type: ignore[misc]
                held, n = [], 0
    if held:
        yield tuple(np.concatenate(held, 1))  # type: ignore[misc]


def _counted(
    corpus: EncodedCorpus, shorter: list[Integers], base: int, most_tokens: int | None, most: int
) -> tuple[Integers, Integers]:
    """(keys, counts) of the n-grams one longer than those in `shorter`."""
    keys, counts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    empty = np.zeros(0)
    for words, _ in _chunks(corpus, most_tokens, len(shorter)):
        history = np.zeros(len(words), dtype=np.int64)
        for each in shorter:  # a token that is there for others' histories alone has too short a one of its own
            places = Order(each, empty, empty).places(np.where(history < 0, -1, history * base + words))
            history = np.concatenate(([-1], places[:-1]))
        here = (history >= 0) & ((words < base - 1) | (len(shorter) == 0))
        new, n = np.unique(history[here] * base + words[here], return_counts=True)
        keys, where = np.unique(np.concatenate((keys, new)), return_inverse=True)
        counts = np.bincount(where, weights=np.concatenate((counts, n)), minlength=len(keys)).astype(np.int64)
        if len(keys) > most:
            raise TextError(
                f"the text has more than {most:,} different {len(shorter) + 1}-grams; count fewer tokens, or a lower order"
            )
    return keys, counts
