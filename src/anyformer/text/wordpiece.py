"""WordPiece as published: merge the pair whose count is largest beside the counts of its two halves.

Schuster & Nakajima 2012, doi:10.1109/ICASSP.2012.6289079; Wu et al. 2016, arXiv:1609.08144, section 4.1. The score
count(ab) / (count(a) · count(b)) is what a merge adds to the likelihood of a unigram model, in logarithms, per occurrence.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

CONTINUES = "##"  # written before a piece that does not begin its word


def wordpieces(words: Mapping[str, int], vocab_size: int, min_count: int = 1) -> list[str]:
    """At most `vocab_size` pieces learned from words and their counts: the letters, sorted, then the merges.

    Of equal scores the pair of the larger count is merged first, then the one whose halves come first as text. Pairs seen
    fewer than `min_count` times are never merged. Where the letters alone are more than `vocab_size`, the rarest are left out.
    """
    state = _Pieces(words, min_count)
    letters = sorted(state.known, key=lambda piece: (-state.count[state.known[piece]], piece))[:vocab_size]
    found = dict.fromkeys(sorted(letters))
    while len(found) < vocab_size and (pair := state.best()) is not None:
        found[state.merge(*pair)] = None  # one spelling may come of two merges
    return list(found)


class _Pieces:
    """Words as pieces, with the counts of pieces and of neighbours, and the score of every pair of neighbours.

    A pair has a slot in the arrays. The best score is found by scanning them, pairs of equal score and count by a heap that
    is good for as long as the best score stays what it is.
    """

    def __init__(self, words: Mapping[str, int], min_count: int) -> None:
        self.spelling: list[str] = []
        self.known: dict[str, int] = {}
        self.count: list[int] = []  # of a piece
        self.min_count = min_count
        self.times = [times for _, times in sorted(words.items())]
        self.words = [[self._piece(c if i == 0 else CONTINUES + c) for i, c in enumerate(w)] for w in sorted(words)]
        self.slot: dict[tuple[int, int], int] = {}
        self.pair: list[tuple[int, int]] = []
        self.slots_of: defaultdict[int, set[int]] = defaultdict(set)  # of a piece, as either half
        self.words_of: defaultdict[int, set[int]] = defaultdict(set)  # of a slot; some may hold its pair no longer
        self.pair_count = np.zeros(1024, np.int64)
        self.score = np.zeros(1024, np.float64)
        self.level = (-1.0, -1)  # the score and count of the pairs in the heap
        self.heap: list[tuple[str, str, int]] = []
        for word in range(len(self.words)):
            self._add(word, self.times[word])
        self._rescore(range(len(self.pair)))

    def best(self) -> tuple[int, int] | None:
        """The pair to merge; None where no pair is left."""
        highest = float(self.score[: len(self.pair)].max(initial=0.0))
        if highest <= 0:
            return None
        if highest != self.level[0] or not self._settled():
            ties = np.flatnonzero(self.score[: len(self.pair)] == highest)
            counts = self.pair_count[ties]
            self.level = (highest, int(counts.max()))
            self.heap = [self._entry(int(slot)) for slot in ties[counts == self.level[1]]]
            heapq.heapify(self.heap)
        return self.pair[self.heap[0][2]]

    def merge(self, a: int, b: int) -> str:
        """Join the pair wherever it stands, and return the spelling of what it became."""
        joined = self._piece(self.spelling[a] + self.spelling[b].removeprefix(CONTINUES))
        slot, changed = self.slot[a, b], set[int]()
        for word in self.words_of.pop(slot):
            if (merged := _joined(self.words[word], a, b, joined)) is not None:
                changed |= self._add(word, -self.times[word])
                self.words[word] = merged
                changed |= self._add(word, self.times[word])
        self._rescore(changed | self.slots_of[a] | self.slots_of[b] | self.slots_of[joined])
        return self.spelling[joined]

    def _piece(self, spelling: str) -> int:
        if spelling not in self.known:
            self.known[spelling] = len(self.spelling)
            self.spelling.append(spelling)
            self.count.append(0)
        return self.known[spelling]

    def _add(self, word: int, times: int) -> set[int]:
        """Count a word's pieces and pairs `times` more often; return the slots of its pairs."""
        pieces, slots = self.words[word], set[int]()
        for piece in pieces:
            self.count[piece] += times
        for pair in itertools.pairwise(pieces):
            slot = self.slot[pair] if pair in self.slot else self._new_slot(pair)
            self.pair_count[slot] += times
            if times > 0:
                self.words_of[slot].add(word)
            slots.add(slot)
        return slots

    def _new_slot(self, pair: tuple[int, int]) -> int:
        slot = self.slot[pair] = len(self.pair)
        self.pair.append(pair)
        for piece in pair:
            self.slots_of[piece].add(slot)
        if slot == len(self.score):
            self.pair_count = np.concatenate([self.pair_count, np.zeros_like(self.pair_count)])
            self.score = np.concatenate([self.score, np.zeros_like(self.score)])
        return slot

    def _rescore(self, slots: Iterable[int]) -> None:
        """Compute the scores of these slots anew, and forget pairs that are gone."""
        for slot in slots:
            a, b = self.pair[slot]
            count = int(self.pair_count[slot])
            if not count:
                self.slots_of[a].discard(slot)
                self.slots_of[b].discard(slot)
            score = count / (self.count[a] * self.count[b]) if count >= max(1, self.min_count) else 0.0
            self.score[slot] = score
            if score == self.level[0] and count > self.level[1]:
                self.level = (-1.0, -1)  # a better one of the same score: the ties are gathered anew
            elif (score, count) == self.level:
                heapq.heappush(self.heap, self._entry(slot))

    def _settled(self) -> bool:
        """Drop what is no longer of the heap's level from its top; return whether anything is left."""
        while self.heap:
            slot = self.heap[0][2]
            if (float(self.score[slot]), int(self.pair_count[slot])) == self.level:
                return True
            heapq.heappop(self.heap)
        return False

    def _entry(self, slot: int) -> tuple[str, str, int]:
        a, b = self.pair[slot]
        return self.spelling[a], self.spelling[b], slot


def _joined(pieces: list[int], a: int, b: int, joined: int) -> list[int] | None:
    """The pieces with the pair joined from left to right; None where it does not stand there."""
    merged: list[int] = []
    at = 0
    while at < len(pieces):
        here = pieces[at] == a and at + 1 < len(pieces) and pieces[at + 1] == b
        merged.append(joined if here else pieces[at])
        at += 2 if here else 1
    return merged if len(merged) < len(pieces) else None
