"""Interpolated modified Kneser–Ney smoothing as dictionaries of tuples, a probability at a time; nothing of ours is imported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

BEGIN = -1


class KneserNey:
    """Of documents of tokens, each ending in one that ends it; their beginnings are put before them here."""

    def __init__(self, documents: Sequence[Sequence[int]], order: int, vocab_size: int) -> None:
        texts = [(BEGIN, *document) for document in documents]
        raw = [
            Counter(text[i : i + n] for text in texts for i in range(len(text) - n + 1)) for n in range(1, order + 1)
        ]
        self.size, self.order = vocab_size, order
        self.counts: list[dict[tuple[int, ...], int]] = []
        for n, grams in enumerate(raw):
            if n < order - 1:
                left = Counter(longer[1:] for longer in raw[n + 1])
                grams = Counter({gram: c if gram[0] == BEGIN else left[gram] for gram, c in grams.items()})
            self.counts.append({gram: c for gram, c in grams.items() if gram != (BEGIN,)})
        self.discounts = [self._discounts(list(counts.values())) for counts in self.counts]
        self.behind: list[dict[tuple[int, ...], list[int]]] = []
        for counts in self.counts:
            found: dict[tuple[int, ...], list[int]] = {}
            for gram, c in counts.items():
                found.setdefault(gram[:-1], []).append(c)
            self.behind.append(found)

    @staticmethod
    def _discounts(counts: list[int]) -> tuple[float, ...]:
        n = [0, *(counts.count(j) for j in (1, 2, 3, 4))]
        if 0 in n[1:4]:
            return (0.0, 0.5, 1.0, 1.5)
        y = n[1] / (n[1] + 2 * n[2])
        found = (0.0, *(j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3)))
        return found if all(0 <= d <= j for j, d in enumerate(found)) else (0.0, 0.5, 1.0, 1.5)

    def probability(self, history: tuple[int, ...], token: int) -> float:
        history = history[-(self.order - 1) :] if self.order > 1 else ()
        shorter = self.probability(history[1:], token) if history else 1 / self.size
        n = len(history)
        counts = self.behind[n].get(history)
        if counts is None:
            return shorter
        d = self.discounts[n]
        c = self.counts[n].get((*history, token), 0)
        return (c - d[min(c, 3)] + sum(d[min(each, 3)] for each in counts) * shorter) / sum(counts)
