"""Tokenising on one core: documents to stored ids as `anyformer train` does, beside tiktoken alone with the same merges.

    python -m benchmarks.tokenising --quick

The docstrings and comments of Python's standard library, byte-level BPE of 4,096 tokens. Ours also opens and closes documents,
sums what it reads and writes it into the cache; the ids are compared first.
"""

from __future__ import annotations

import os
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from anyformer.text import Corpus, Tokenizer, encode_corpus, read_corpus
from benchmarks import measure

VOCAB, N_DOCUMENTS = 4096, 200


def main() -> None:
    given = measure.arguments("Tokenising beside tiktoken.")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    documents = list(islice(read_corpus("stdlib").documents(), N_DOCUMENTS))
    corpus, texts = Corpus.of(documents), [document.text for document in documents]
    tokenizer = Tokenizer.train(texts, VOCAB)
    encoding = tokenizer.fast
    assert encoding is not None

    def theirs() -> np.ndarray:
        return np.concatenate([np.asarray(encoding.encode_ordinary(text), dtype=np.uint16) for text in texts])

    with TemporaryDirectory() as folder:
        turn = count()

        def ours() -> np.ndarray:
            return encode_corpus(corpus, tokenizer, Path(folder) / str(next(turn))).tokens

        made, plain = ours(), theirs()
        assert np.array_equal(made[made != tokenizer.end_of_text], plain)
        work = {"ours": lambda: measure.cpu_seconds(ours), "tiktoken": lambda: measure.cpu_seconds(theirs)}
        taken = measure.turns(work, 5 if given.quick else 15)
    speed = measure.speed_ratio(taken, theirs="tiktoken")
    rows = [measure.row("tokenising, x tiktoken", speed, least=1.0, cpu_seconds=measure.rounded(taken))]
    measure.record("tokenising", given.out, rows, {"nbytes": sum(len(text.encode()) for text in texts)})


if __name__ == "__main__":
    main()
