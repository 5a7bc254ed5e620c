"""What predictors that learn nothing from context reach on the validation text: the floor under every model."""

from __future__ import annotations

import math

import numpy as np

from anyformer.study.results import Baseline
from anyformer.text import EncodedCorpus


def baselines(train: EncodedCorpus, held_out: EncodedCorpus) -> tuple[Baseline, ...]:
    """Return bits per byte of the unigram (training counts plus one) and of the uniform guess, over what models predict."""
    counts = np.bincount(predicted(train), minlength=train.vocab_size) + 1.0
    bits = -np.log2(counts / counts.sum())
    tokens = predicted(held_out)
    unigram = float(bits[tokens].sum()) / held_out.nbytes
    uniform = len(tokens) * math.log2(train.vocab_size) / held_out.nbytes
    return Baseline(name="unigram", bits_per_byte=unigram), Baseline(name="uniform", bits_per_byte=uniform)


def predicted(corpus: EncodedCorpus) -> np.ndarray:
    """Return the tokens that are predicted: all but the first of each document."""
    first = np.zeros(len(corpus.tokens), dtype=bool)
    first[corpus.offsets[:-1]] = True
    return np.asarray(corpus.tokens)[~first].astype(np.int64)
