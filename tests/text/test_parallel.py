"""Parallel text against pairs written out one by one."""

import gzip
import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyformer.errors import TextError
from anyformer.text import (
    NOT_PREDICTED,
    EncodedPairs,
    PairSampler,
    ParallelCorpus,
    Tokenizer,
    length_batches,
    read_parallel,
)
from tests.text.samples import llama_like

LENGTHS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=60).map(np.array)


def test_lines_are_paired(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress("eins\u2028\r\n\nzwei\ndrei\x0c\n".encode()))
    (tmp_path / "b").write_text("one\ntwo\n \nthree", newline="")
    corpus = read_parallel(tmp_path / "a.gz", tmp_path / "b")
    assert corpus.pairs == (("eins\u2028", "one"), ("drei\x0c", "three"))
    assert corpus.dropped == 2
    assert list(corpus.texts()) == ["eins\u2028", "one", "drei\x0c", "three"]
    assert corpus.fingerprint != ParallelCorpus((corpus.pairs[1], corpus.pairs[0])).fingerprint


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ("a\nb\n", "a\n", "left has 2 lines but .*right has 1"),
        ("a\nb", "a\n\n\n", "left has 2 lines but .*right has 3"),
        ("\nb\n", "a\n\n", "hold no pair of lines with text on both sides"),
        ("", "", "left is empty; give a file with a text a line"),
        (None, "a", "no parallel text at .*left"),
    ],
)
def test_what_is_refused(left: str | None, right: str, message: str, tmp_path: Path) -> None:
    if left is not None:
        (tmp_path / "left").write_text(left)
    (tmp_path / "right").write_text(right)
    with pytest.raises(TextError, match=message):
        read_parallel(tmp_path / "left", tmp_path / "right")


@pytest.mark.parametrize("begin", [1, 2])
def test_a_batch(begin: int) -> None:
    config = {"eos_token": "</s>"} | ({"bos_token": "<s>"} if begin == 1 else {})
    tokenizer = Tokenizer(llama_like(), config)
    pairs = EncodedPairs(ParallelCorpus((("the cat", "cat"), ("at", "the cat at the cat"), ("c", "t"))), tokenizer)
    batch = pairs.batch(np.array([1, 0]))
    lines = [("at", "the cat at the cat"), ("the cat", "cat")]
    for row, (left, right) in enumerate(lines):
        source, target = tokenizer.encode(left), tokenizer.encode(right)
        real = batch.source_mask[row]
        assert batch.source_ids[row][real].tolist() == [*source, 2]
        assert not batch.source_ids[row][~real].any()
        real = batch.target_mask[row]
        assert batch.target_ids[row][real].tolist() == [begin, *target]
        assert batch.labels[row][real].tolist() == [*target, 2]
        assert not batch.target_ids[row][~real].any()
        assert set(batch.labels[row][~real].tolist()) <= {NOT_PREDICTED}
        assert all(np.all(np.diff(mask[row].astype(int)) <= 0) for mask in (batch.source_mask, batch.target_mask))
    widths = [max(len(tokenizer.encode(line[side])) + 1 for line in lines) for side in (0, 1)]
    assert [batch.source_ids.shape, batch.target_ids.shape] == [(2, widths[0]), (2, widths[1])]
    assert {field.dtype.name for field in batch} == {"int64", "bool"}


@given(lengths=LENGTHS, batch_tokens=st.integers(20, 100), seed=st.none() | st.integers(0, 9))
def test_every_pair_once_and_no_batch_too_large(lengths: np.ndarray, batch_tokens: int, seed: int | None) -> None:
    batches = length_batches(lengths, batch_tokens, *([] if seed is None else [seed]))
    assert Counter(pair for batch in batches for pair in batch.tolist()) == Counter(range(len(lengths)))
    for batch in batches:
        assert len(batch) * lengths[batch].max() <= batch_tokens
    if seed is None:
        longest = [int(lengths[batch].max(axis=1).max()) for batch in batches]
        assert longest == sorted(longest)
        for one, two in itertools.pairwise(batches):  # as few batches as this order allows
            assert (len(one) + 1) * lengths[two[:1]].max() > batch_tokens


@given(lengths=LENGTHS, seed=st.integers(0, 9), drawn=st.integers(0, 40))
def test_a_restart_goes_on_where_it_stopped(lengths: np.ndarray, seed: int, drawn: int) -> None:
    straight, stopped, started = (PairSampler(lengths, 40, seed) for _ in range(3))
    expected = [next(straight).tolist() for _ in range(drawn + 20)]
    for _ in range(drawn):
        next(stopped)
    started.restore(json.loads(json.dumps(stopped.state())))
    assert [next(started).tolist() for _ in range(20)] == expected[drawn:]


@given(lengths=LENGTHS, seed=st.integers(0, 9))
def test_every_pair_once_an_epoch(lengths: np.ndarray, seed: int) -> None:
    sampler = PairSampler(lengths, 40, seed)
    for _ in range(3):
        seen: list[int] = []
        while len(seen) < len(lengths):
            seen += next(sampler).tolist()
        assert sorted(seen) == list(range(len(lengths)))


def test_epochs_are_batched_anew() -> None:
    lengths = np.full((60, 2), 10)
    sampler = PairSampler(lengths, 40, 0)
    epochs = [frozenset(frozenset(next(sampler).tolist()) for _ in range(15)) for _ in range(3)]
    assert len(set(epochs)) == 3
    assert sampler.epochs(45) == 3


def test_errors_of_the_sampler() -> None:
    lengths = np.array([[3, 4], [3, 41]])
    with pytest.raises(TextError, match="pair 2 is 41 tokens long, but a batch holds 40"):
        PairSampler(lengths, 40, 0)
    state = PairSampler(lengths, 50, 0).state()
    for name in ("seed", "n_pairs", "batch_tokens"):
        with pytest.raises(TextError, match=f"saved with {name}=77 but is {name}="):
            PairSampler(lengths, 50, 0).restore(state | {name: 77})
    with pytest.raises(TextError, match="lacks 'epoch'"):
        PairSampler(lengths, 50, 0).restore({"index": 0})


def test_multi30k(material: Path) -> None:
    corpus = read_parallel(material / "multi30k" / "train.de.gz", material / "multi30k" / "train.en.gz")
    assert (len(corpus.pairs), corpus.dropped) == (29_000, 0)
    tokenizer = Tokenizer.train(corpus.texts(), 4096)
    pairs = EncodedPairs(corpus, tokenizer)
    batches = length_batches(pairs.lengths, 4096, 0, 0)
    used = sum(int(pairs.lengths[batch].sum()) for batch in batches)
    room = sum(len(batch) * int(pairs.lengths[batch].max(axis=0).sum()) for batch in batches)
    assert used / room > 0.8  # most of what is computed is text
    assert max(len(batch) * int(pairs.lengths[batch].max()) for batch in batches) <= 4096
    batch = pairs.batch(batches[0])
    for row, pair in enumerate(batches[0][:5].tolist()):
        assert tokenizer.decode(batch.source_ids[row][batch.source_mask[row]]) == corpus.pairs[pair][0]
        assert tokenizer.decode(batch.target_ids[row][batch.target_mask[row]]) == corpus.pairs[pair][1]
    with pytest.raises(TextError, match=r"train.de.gz has 29000 lines but .*val.en.gz has 1014"):
        read_parallel(material / "multi30k" / "train.de.gz", material / "multi30k" / "val.en.gz")
