"""Texts in pieces: the ids of the whole, the vocabulary of the whole, and no more in memory than the pieces."""

import gzip
import json
import re
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFace
from tokenizers import decoders, models, normalizers, pre_tokenizers

from anyformer.errors import TextError
from anyformer.text import SCHEMES, Corpus, Tokenizer, learning, pieces, places, read_corpus, scheme, sources
from anyformer.text.learning import Lesson
from anyformer.text.pieces import ids_of, parts_of
from anyformer.text.sources import Document
from tests.text.samples import TEXT, TEXTS, llama_like

BAR = 400_000_000  # bytes above the interpreter


def whole_text_bpe() -> HuggingFace:
    """Merges that go across words, as no pre-tokenizer parts them, after rules that change the text."""
    learned = json.loads(Tokenizer.train(TEXTS, 420)._inner.to_str())["model"]
    inner = HuggingFace(models.BPE(vocab=learned["vocab"], merges=[tuple(pair) for pair in learned["merges"]]))
    inner.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Prepend("x"), normalizers.Strip()])
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return inner


OWN = {name: scheme(name, 400).train(TEXTS) for name in SCHEMES}
KINDS = {**OWN, "llama": Tokenizer(llama_like(), {}), "whole": Tokenizer(whole_text_bpe(), {})}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"SHARE": 400, "CONTEXT": 60, "AGREED": 8, "WHOLE": 100_000}.items():
        monkeypatch.setattr(pieces, name, size)


def encode_pieces(tokenizer: Tokenizer, pieces: Iterable[str], name: str) -> Iterator[np.ndarray]:
    return (ids_of(tokenizer, part) for part in parts_of(tokenizer, pieces, name))


def cut_up(text: str, places: list[int]) -> Iterator[str]:
    ends = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return (text[a:b] for a, b in pairwise(ends))


@pytest.mark.parametrize("kind", KINDS)
@given(
    parts=st.lists(st.one_of(st.sampled_from([text[:600] for text in TEXTS]), TEXT), min_size=2, max_size=8),
    places=st.lists(st.integers(0, 10_000), max_size=6),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_ids_are_those_of_the_whole(small: None, kind: str, parts: list[str], places: list[int]) -> None:
    tokenizer, text = KINDS[kind], " and\n".join(parts)
    found = list(encode_pieces(tokenizer, cut_up(text, places), "a.txt"))
    assert np.concatenate(found).tolist() == tokenizer.encode(text)
    assert {ids.dtype for ids in found} == {tokenizer.dtype}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text", [*TEXTS[1:], "日本語のテキスト、そして。" * 90, "\n \t" * 600, "x;" * 800, "日本。\n" * 300], ids=range(7)
)
def test_long_texts_are_cut(small: None, kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    found = list(encode_pieces(tokenizer, [text], "a.txt"))
    assert np.concatenate(found).tolist() == tokenizer.encode(text)
    if text.strip() and "word" not in kind:  # what those don't know is one token
        assert len(found) > 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("letters", ["a", "ab", "abcdefgh"])
def test_one_huge_word(small: None, kind: str, letters: str) -> None:
    tokenizer, text = KINDS[kind], letters * (3000 // len(letters))
    assert np.concatenate(list(encode_pieces(tokenizer, [text], "a"))).tolist() == tokenizer.encode(text)


def test_a_word_that_cannot_be_parted_is_refused(small: None) -> None:
    with pytest.raises(TextError, match=r"^a\.txt has no place within 400 characters where .*; divide it into several"):
        list(encode_pieces(OWN["words"], ["a" * 70_000] * 2, "a.txt"))


@pytest.mark.parametrize("kind", SCHEMES)
def test_pieces_teach_what_the_whole_does(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "PIECE", 1000)
    texts = [*TEXTS, *[". ".join(TEXTS)] * 2, "a.b." * 40]
    lesson = Lesson(Corpus.of(Document(f"{i}", text) for i, text in enumerate(texts)), SCHEMES[kind](300).table)
    assert max(map(len, lesson.pieces())) <= 1000
    if kind == "unigram":  # of which the library makes another vocabulary each time
        words = [Counter(re.findall(r" ?\S+|\s+", text)) for text in lesson.pieces()]
        assert sum(words, Counter()) == sum((Counter(re.findall(r" ?\S+|\s+", text)) for text in texts), Counter())
        return
    assert scheme(kind, 400).train(lesson.pieces()).fingerprint == scheme(kind, 400).train(texts).fingerprint


def test_words_that_are_too_many_are_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "PIECE", 100)
    corpus = Corpus.of([Document("a", " ".join(f"w{i:05d}" for i in range(20_000)))])
    lesson = Lesson(corpus, 20_000)
    learnt = " ".join(lesson.pieces()).split()
    assert lesson.stride == 8
    assert 10_000 < sum(map(len, learnt)) <= 20_000
    assert [int(word[1:]) < 10_000 for word in learnt].count(True) == pytest.approx(len(learnt) / 2, rel=0.05)
    assert Lesson(corpus, None).stride == Lesson(corpus, 200_000).stride == 1
    monkeypatch.setattr(learning, "NBYTES", corpus.nbytes // 3)
    assert Lesson(corpus, None).stride == 4
    monkeypatch.setattr(learning, "NBYTES", corpus.nbytes)
    assert Lesson(corpus, None).stride == 1


def test_how_much_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that counts: no piece that was given out is still there when the next but one is asked for."""

    class Piece(str):
        __slots__ = ("__weakref__",)

    alive, most = weakref.WeakSet(), [0]  # type: ignore[var-annotated]
    read = sources.decoded

    def counted(file: BinaryIO, where: str) -> Iterator[str]:
        for text in read(file, where):
            piece = Piece(text)
            alive.add(piece)
            most[0] = max(most[0], len(alive))
            yield piece

    (tmp_path / "a.txt").write_text("some words and more of them\n" * 20_000, encoding="utf-8")
    monkeypatch.setattr(places, "BLOCK", 1 << 12)
    monkeypatch.setattr(sources, "decoded", counted)
    corpus = read_corpus(tmp_path)
    train, _ = corpus.split(0.1)
    assert len(train.fingerprint) == 64
    assert sum(map(len, Lesson(train, 1000).pieces())) == train.nbytes
    assert most[0] <= 3


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
CHILD = r"""
import re, sys
from anyformer.text import Tokenizer, encode_corpus, read_corpus
from anyformer.text.trained import tokenizer
# Not ru_maxrss: that begins with what the process that started this one had.
peak = lambda: 1024 * int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1])
Tokenizer.train(["warm up"], 260).encode("warm up")
before = peak()
own = tokenizer(sys.argv[1], vocab_size=300).tokenizer
for part in read_corpus(sys.argv[1]).split(0.1):
    encode_corpus(part, own)
print(peak() - before)
"""


def written(folder: Path, layout: str, nbytes: int) -> Path:
    """A text whose words differ more and more: about `nbytes`."""
    path = folder / {"gz": "text.txt.gz", "jsonl": "text.jsonl"}.get(layout, "text.txt")
    lines = (" ".join(f"w{i * j % (i // 10 + 1):x}" for j in range(1, 40)) for i in range(nbytes // 180))
    if layout == "line":
        lines = (" ".join(lines), "and the end")  # type: ignore[assignment]
    if layout == "jsonl":
        lines = (json.dumps({"text": line}) for line in lines)
    content = "\n".join(lines).encode()
    if layout == "gz":
        content = gzip.compress(content, 1)
    path.write_bytes(content)
    return path


def above_the_interpreter(text: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("ANYFORMER_CACHE", str(cache))
    child = [sys.executable, "-W", "ignore", "-c", CHILD, str(text)]
    return int(subprocess.run(child, check=True, capture_output=True, timeout=550).stdout)


@LINUX
def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single line: the library's tables of a text given whole take some sixty times its size."""
    assert above_the_interpreter(written(tmp_path, "line", 3_000_000), tmp_path / "cache", monkeypatch) < 110_000_000


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["file", "line", "jsonl", "gz"])
def test_memory_stays_flat(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert above_the_interpreter(written(tmp_path, layout, 50_000_000), tmp_path / "cache", monkeypatch) < BAR
