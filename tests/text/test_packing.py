"""Packing against plain re-implementations, token by token."""

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyformer.errors import TextError
from anyformer.text import (
    NOT_PREDICTED,
    Batch,
    Corpus,
    EncodedCorpus,
    Packed,
    Tokenizer,
    encode_corpus,
    pack,
    pack_whole,
)
from anyformer.text.sources import Document

DOCUMENTS = st.lists(st.lists(st.integers(1, 500), max_size=30), min_size=1, max_size=12)


def encoded(documents: list[list[int]]) -> EncodedCorpus:
    whole = [[0, *ids, 0] for ids in documents]
    return EncodedCorpus(
        tokens=np.array([token for ids in whole for token in ids], dtype=np.uint16),
        offsets=np.cumsum([0, *map(len, whole)]),
        document_nbytes=np.array([len(ids) for ids in documents]),
        vocab_size=501,
        fingerprint="",
    )


def rows_of(packed: Packed) -> Iterator[list[tuple[int, ...]]]:
    """Each row as (input, label, document, position, source) per column."""
    batch = packed.batch(np.arange(packed.n_rows))
    for fields in zip(*(field.tolist() for field in batch), strict=True):
        yield list(zip(*fields, strict=True))


def plain_rows(pieces: list[list[tuple[int, list[int], list[int]]]], seq_len: int) -> list[list[tuple[int, ...]]]:
    rows = []
    for row in pieces:
        cells: list[tuple[int, ...]] = []
        for number, (source, inputs, labels) in enumerate(row, start=1):
            cells += [(i, j, number, at, source) for at, (i, j) in enumerate(zip(inputs, labels, strict=True))]
        rows.append(cells + [(0, NOT_PREDICTED, 0, 0, -1)] * (seq_len - len(cells)))
    return rows


@given(documents=DOCUMENTS, seq_len=st.integers(1, 40), seed=st.integers(0, 3))
def test_training_rows(documents: list[list[int]], seq_len: int, seed: int) -> None:
    packed = pack(encoded(documents), seq_len, seed=seed)
    rows = list(rows_of(packed))
    order = list(dict.fromkeys(cell[4] for row in rows for cell in row if cell[4] >= 0))
    assert sorted(order) == list(range(len(documents)))
    # One document after another, token by token, a new row whenever one is full.
    expected: list[list[tuple[int, list[int], list[int]]]] = [[]]
    room = seq_len
    for source in order:
        whole, new = [0, *documents[source], 0], True
        for token, label in pairwise(whole):
            if room == 0:
                expected.append([])
                room, new = seq_len, True
            if new:
                expected[-1].append((source, [], []))
                new = False
            expected[-1][-1][1].append(token)
            expected[-1][-1][2].append(label)
            room -= 1
    assert rows == plain_rows(expected, seq_len)
    assert encoded(documents).predictions == sum(len(ids) + 1 for ids in documents)


@given(documents=DOCUMENTS, seq_len=st.integers(1, 40))
def test_validation_rows(documents: list[list[int]], seq_len: int) -> None:
    packed = pack_whole(encoded(documents), seq_len)
    rows = list(rows_of(packed))
    windows = []
    for source, ids in enumerate(documents):
        whole = [0, *ids, 0]
        for begin in range(0, len(whole) - 1, seq_len):
            end = min(begin + seq_len, len(whole) - 1)
            windows.append((source, tuple(whole[begin:end]), tuple(whole[begin + 1 : end + 1])))
    found = []
    for row in rows:
        assert len(row) == seq_len
        numbers = [cell[2] for cell in row]
        pieces = []
        for number in range(1, max(numbers) + 1):
            cells = [cell for cell in row if cell[2] == number]
            pieces.append((cells[0][4], [cell[0] for cell in cells], [cell[1] for cell in cells]))
        found += [(source, tuple(inputs), tuple(labels)) for source, inputs, labels in pieces]
        assert plain_rows([pieces], seq_len) == [row]
    assert Counter(found) == Counter(windows)
    # No two rows could have been one.
    used = sorted(sum(cell[2] > 0 for cell in row) for row in rows)
    assert len(used) < 2 or used[0] + used[1] > seq_len


@given(lengths=st.lists(st.integers(1, 90), min_size=1, max_size=40), seq_len=st.integers(1, 40))
def test_validation_rows_are_best_fit_decreasing(lengths: list[int], seq_len: int) -> None:
    """Written out: each piece, the longest first, into the fullest row that has room, the earlier one of two."""
    windows = [
        (source, begin, min(seq_len, n - begin)) for source, n in enumerate(lengths) for begin in range(0, n, seq_len)
    ]
    rows: list[list[tuple[int, int, int]]] = []
    for window in sorted(windows, key=lambda window: -window[2]):
        left = [seq_len - sum(n for *_, n in row) for row in rows]
        fitting = [i for i, room in enumerate(left) if room >= window[2]]
        if fitting:
            rows[min(fitting, key=lambda i: left[i])].append(window)
        else:
            rows.append([window])
    packed = pack_whole(encoded([[1] * (n - 1) for n in lengths]), seq_len)
    assert packed.row_offsets.tolist() == [sum(map(len, rows[:i])) for i in range(len(rows) + 1)]
    assert list(zip(packed.source.tolist(), packed.length.tolist(), strict=True)) == [
        (s, n) for row in rows for s, _, n in row
    ]


@given(texts=st.lists(st.text(min_size=1), min_size=1, max_size=6), seq_len=st.integers(1, 20), whole=st.booleans())
def test_every_byte_is_predicted_once(
    texts: list[str], seq_len: int, whole: bool, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What bits per byte divides by: the bytes of all predicted tokens are the bytes of the documents."""
    corpus = Corpus.of(tuple(Document(f"{i}", text) for i, text in enumerate(texts)))
    made = encode_corpus(corpus, tokenizer, tmp_path_factory.getbasetemp() / "packing")
    packed = pack_whole(made, seq_len) if whole else pack(made, seq_len, seed=0)
    batch = packed.batch(np.arange(packed.n_rows))
    predicted: list[list[int]] = [[] for _ in texts]
    for source, label in zip(batch.source.ravel().tolist(), batch.labels.ravel().tolist(), strict=True):
        assert (source == -1) == (label == NOT_PREDICTED)
        if source >= 0:
            predicted[source].append(label)
    sizes = {token: len(tokenizer.spelling(token) or "") for ids in predicted for token in ids}  # a character a byte
    for text, ids, nbytes in zip(texts, predicted, made.document_nbytes.tolist(), strict=True):
        assert ids.count(0) == 1
        assert sum(sizes[token] for token in ids if token) == nbytes == len(text.encode())
    assert made.nbytes == corpus.nbytes


def test_rows_in_any_order_and_the_dtypes() -> None:
    packed = pack(encoded([[1, 2, 3], [4], [5, 6, 7, 8]]), 4, seed=1)
    all_rows, some = packed.batch(np.arange(packed.n_rows)), packed.batch(np.array([2, 0, 2]))
    for field in Batch._fields:
        assert getattr(some, field).dtype == np.int64
        assert np.array_equal(getattr(some, field), getattr(all_rows, field)[[2, 0, 2]])


def test_the_seed_draws_the_order() -> None:
    documents = encoded([[i] * 3 for i in range(1, 30)])
    orders = [[pack(documents, 8, seed=seed).order.tolist() for seed in range(5)] for _ in range(2)]
    assert orders[0] == orders[1]
    assert len(set(map(tuple, orders[0]))) == 5


def test_a_long_document_takes_no_memory_for_its_rows() -> None:
    n = 2_000_000_000
    tokens = np.broadcast_to(np.uint16(7), n)  # one number, whatever the length
    text = EncodedCorpus(tokens, np.array([0, n]), np.array([n]), vocab_size=501, fingerprint="")
    tracemalloc.start()
    packed = pack(text, 64, seed=0)
    last = packed.batch(np.array([0, packed.n_rows - 1]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert packed.n_rows == -(-(n - 1) // 64)
    assert last.document.sum() == 64 + (n - 1) % 64
    assert peak < 1_000_000


def test_little_padding_in_validation() -> None:
    lengths = np.random.default_rng(0).integers(1, 700, size=300)
    packed = pack_whole(text := encoded([[1] * int(n) for n in lengths]), 256)
    assert text.predictions / (packed.n_rows * 256) > 0.98


@pytest.mark.parametrize("seq_len", [0, -1])
def test_rows_that_hold_nothing(seq_len: int) -> None:
    with pytest.raises(TextError, match="hold nothing"):
        pack(encoded([[1]]), seq_len, seed=0)
    with pytest.raises(TextError, match="hold nothing"):
        pack_whole(encoded([[1]]), seq_len)
    with pytest.raises(TextError, match="a seed of -1 is negative"):
        pack(encoded([[1]]), 4, seed=-1)


def test_tinyshakespeare(material: Path, tmp_path: Path) -> None:
    from anyformer.text import read_corpus

    corpus = read_corpus(material / "tinyshakespeare" / "input.txt")
    raw = (material / "tinyshakespeare" / "input.txt").read_bytes()
    training, validation = corpus.split(0.1)
    (before,), (after,) = training.texts(), validation.texts()
    held_out = after.encode()
    assert raw.endswith(held_out)
    assert raw[: -len(held_out)] == before.encode()
    assert 0.0995 < len(held_out) / len(raw) <= 0.1
    tokenizer = Tokenizer.train(training.texts(), 1024)
    made = encode_corpus(validation, tokenizer, tmp_path)
    batch = pack_whole(made, 128).batch(np.arange(5))
    first = batch.labels[(batch.document == 1) & (batch.positions == 0)]
    assert (made.tokens[0], made.tokens[-1]) == (0, 0)
    assert tokenizer.decode(made.document(0)) == held_out.decode()
    assert first[0] == made.tokens[1]
