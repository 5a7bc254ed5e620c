"""WordPiece by score against an implementation that counts everything anew before each merge."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anyformer.text.wordpiece import wordpieces


def slowly(words: dict[str, int], vocab_size: int, min_count: int) -> list[str]:
    split = {word: [c if i == 0 else "##" + c for i, c in enumerate(word)] for word in words}
    letters: Counter[str] = Counter()
    for word, pieces in split.items():
        for piece in pieces:
            letters[piece] += words[word]
    kept = sorted(letters, key=lambda piece: (-letters[piece], piece))[:vocab_size]
    found = dict.fromkeys(sorted(kept))
    while len(found) < vocab_size:
        count: Counter[str] = Counter()
        pairs: Counter[tuple[str, str]] = Counter()
        for word, pieces in split.items():
            for piece in pieces:
                count[piece] += words[word]
            for i in range(len(pieces) - 1):
                pairs[pieces[i], pieces[i + 1]] += words[word]
        frequent = [pair for pair in pairs if pairs[pair] >= min_count]
        if not frequent:
            break
        a, b = min(frequent, key=lambda p: (-Fraction(pairs[p], count[p[0]] * count[p[1]]), -pairs[p], p))
        joined = a + b.removeprefix("##")
        for word, pieces in split.items():
            merged: list[str] = []
            for piece in pieces:
                # Left to right: what was just joined is no longer an a.
                if merged and merged[-1] == a and piece == b:
                    merged[-1] = joined
                else:
                    merged.append(piece)
            split[word] = merged
        found[joined] = None
    return list(found)


letters = st.text(alphabet="ab", min_size=1, max_size=8) | st.text(alphabet="abcde", min_size=1, max_size=7)


@given(
    words=st.dictionaries(letters, st.integers(1, 9), min_size=1, max_size=12),
    vocab_size=st.integers(1, 60),
    min_count=st.sampled_from([1, 1, 2, 4]),
)
@example(words={"aeccad": 7, "ae": 3, "addcdda": 5}, vocab_size=60, min_count=4)  # a tie of scores, not of counts
@example(words={"dddee": 4, "cdddabb": 4}, vocab_size=27, min_count=1)  # a run: joined from the left
def test_equal_to_counting_everything_anew(words: dict[str, int], vocab_size: int, min_count: int) -> None:
    assert wordpieces(words, vocab_size, min_count) == slowly(words, vocab_size, min_count)


def test_by_score_is_not_by_frequency() -> None:
    """ "##gs" has 5 / (20 · 5), more than "ug", the most frequent, with 20 / (36 · 20); then all have 1 / 36, "pu" most often."""
    words = {"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5}
    assert wordpieces(words, 7) == ["##g", "##n", "##s", "##u", "b", "h", "p"]
    assert wordpieces(words, 9)[7:] == ["##gs", "pu"]


@pytest.mark.parametrize("vocab_size", [1, 3])
def test_the_rarest_letters_are_left_out(vocab_size: int) -> None:
    assert wordpieces({"ab": 5, "cb": 2}, vocab_size) == sorted(["##b", "a", "c"][:vocab_size])
