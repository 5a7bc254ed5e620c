"""Kneser–Ney n-grams equal KenLM's on a text whose ARPA file stands here, and a plain implementation on random ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from anyformer.errors import TextError
from anyformer.text import EncodedCorpus, ngrams
from anyformer.text.ngrams import NGrams, fit_ngrams
from tests.oracles.kneser_ney import BEGIN, KneserNey

END, UNKNOWN, SIZE = 5, 6, 7
IDS = {**{word: i for i, word in enumerate("abcde")}, "</s>": END, "<unk>": UNKNOWN}
LINES = ("a b c", "a b d", "a c", "b c d", "a b c d", "e")


def corpus(documents: Sequence[Sequence[int]], size: int = SIZE, end: int = END) -> EncodedCorpus:
    texts = [[end, *document, end] for document in documents]
    offsets = np.cumsum([0, *map(len, texts)])
    tokens = np.array([token for text in texts for token in text], dtype=np.uint16)
    return EncodedCorpus(tokens, offsets, np.ones(len(texts), dtype=np.int64), size, "")


def words(line: str) -> list[int]:
    return [IDS[word] for word in line.split()]


@pytest.fixture(scope="module")
def toy() -> NGrams:
    return fit_ngrams(corpus([words(line) for line in LINES]), 3)


# Of `lmplz -o 3 --discount_fallback` (KenLM) on LINES: log10 p, and of histories the back-off weight.
ARPA = """
<unk> -.9444826
</s> -.9444826
a -.74036264 -.30103
b -.8653014 -.30103
c -.8653014 -.30103
d -.8653014 -.30103
e -.74036264 -.30103
c </s> -.4087667
d </s> -.2542866
e </s> -.2542866
<s> a -.30766058 -.053245526
<s> b -.85340214 -.26884535
<s> e -.7983546 -.26884535
a b -.49732465 -.17609124
a c -.49732465 -.26884535
b c -.39629802 -.17609124
b d -.6292122 -.26884535
c d -.6292122 -.13621975
a c </s> -.17287634
b c </s> -.3830551
b d </s> -.11840788
<s> e </s> -.11840788
c d </s> -.1699657
<s> a b -.5505702
<s> a c -.40137017
<s> b c -.16893755
a b c -.34953317
a b d -.50806177
b c d -.47359246
"""


def probability(model: NGrams, history: Sequence[int], token: int, *, begins: bool = False) -> float:
    """P(token | history); `begins`: the history begins a document."""
    words = np.array([*([model.vocab_size] if begins else []), *history, token], dtype=np.int64)
    return float(model._of(words)[-1])


@pytest.mark.parametrize("line", ARPA.strip().splitlines())
def test_entries_of_an_arpa_file(toy: NGrams, line: str) -> None:
    gram = [field for field in line.split() if field[0] not in "-."]
    numbers = [float(field) for field in line.split() if field[0] in "-."]
    begins = gram[0] == "<s>"
    ids = [IDS[word] for word in gram if word != "<s>"]
    assert math.log10(probability(toy, ids[:-1], ids[-1], begins=begins)) == pytest.approx(numbers[0], abs=1e-6)
    if len(numbers) == 2:  # behind this history, what was never seen: the back-off times the shorter history's
        unseen = math.log10(probability(toy, ids, UNKNOWN, begins=begins))
        shorter = math.log10(probability(toy, ids if begins else ids[1:], UNKNOWN))
        assert unseen - shorter == pytest.approx(numbers[1], abs=1e-6)


def test_discounts_and_where_they_fall_back(toy: NGrams) -> None:
    assert toy.discounts[0] == pytest.approx((0.25, 1.75, 3.0))
    assert toy.discounts[1] == (0.5, 1.0, 1.5)
    assert toy.discounts[2] == pytest.approx((0.538462, 1.461538, 3.0), abs=1e-6)
    assert toy.fell_back == (False, True, False)


@pytest.mark.parametrize(
    ("text", "order", "log10"),
    [("a b c", 3, -1.590819), ("d a e", 3, -3.5825846), ("d a <unk>", 3, -4.4769007), ("a b c", 2, -1.5276156)],
)
def test_texts_as_kenlm_scores_them(text: str, order: int, log10: float) -> None:
    model = fit_ngrams(corpus([words(line) for line in LINES]), order)
    nats = model.nats(corpus([words(text)]))
    assert len(nats) == 4
    assert -nats.sum() / math.log(10) == pytest.approx(log10, abs=1e-6)


def drawn(n: int, size: int, seed: int, longest: int = 40) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [(rng.zipf(1.5, rng.integers(0, longest)) % size).tolist() for _ in range(n)]


@pytest.mark.parametrize("chunk", [7, 10**6])
@pytest.mark.parametrize(("order", "size"), [(1, 12), (2, 12), (3, 5), (5, 30)])
def test_a_plain_implementation_agrees(order: int, size: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where documents are cut into chunks, and for tokens, documents and histories that were never seen."""
    monkeypatch.setattr(ngrams, "CHUNK", chunk)
    train, unseen = drawn(60, size, 0), drawn(20, size + 3, 1)
    model = fit_ngrams(corpus(train, size + 4, size + 3), order)
    oracle = KneserNey([(*text, size + 3) for text in train], order, size + 4)
    expected = []
    for text in unseen:
        whole = (BEGIN, *text, size + 3)
        expected += [
            -math.log(oracle.probability(whole[max(0, i - order + 1) : i], whole[i])) for i in range(1, len(whole))
        ]
    np.testing.assert_allclose(model.nats(corpus(unseen, size + 4, size + 3)), expected, rtol=1e-10)


def test_probabilities_of_all_tokens_add_up_to_one() -> None:
    model = fit_ngrams(corpus(drawn(50, 9, 3), 11, 10), 4)
    for history in ([], [1], [1, 2], [1, 1, 1], [8, 8, 8], [3, 1, 4, 1, 5]):
        for begins in (True, False):
            assert sum(probability(model, history, token, begins=begins) for token in range(11)) == pytest.approx(1)


def test_the_first_tokens_alone_are_read() -> None:
    texts = drawn(30, 9, 4)
    n, cut = 0, []
    for text in texts:
        taken = [*text, 10][: 100 - n]
        n += len(taken)
        cut.append(taken)
        if n == 100:
            break
    model = fit_ngrams(corpus(texts, 11, 10), 3, most_tokens=100)
    oracle = KneserNey(cut, 3, 11)
    for history in ((1, 1), (1, 2), (2,)):
        assert probability(model, history, 1) == pytest.approx(oracle.probability(history, 1), rel=1e-10)


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(TextError, match="order = 0 is no length of n-grams; give 1 or more"):
        fit_ngrams(corpus([[1]]), 0)
    with pytest.raises(TextError, match="the text has no token that is predicted"):
        fit_ngrams(corpus([]), 2)
    with pytest.raises(
        TextError, match="the text has more than 3 different 1-grams; count fewer tokens, or a lower order"
    ):
        fit_ngrams(corpus([[1, 2, 3, 4]]), 2, most=3)
