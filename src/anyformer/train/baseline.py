"""What a prediction costs that knows nothing but how often each token is predicted: the loss that any training must beat."""

from __future__ import annotations

import numpy as np

from anyformer.text import NOT_PREDICTED
from anyformer.train.data import Feed, Validation

MOST_LABELS = 2**18  # of the training rows that are counted
BATCH_TOKENS = 4096


def unigram_loss(feed: Feed, batches: int, validation: Validation, vocab_size: int) -> float:
    """Return nats a label of the validation rows, by the frequencies of the labels in the first `batches` of a fresh feed.

    Counting ends at `MOST_LABELS`; one more of each token is counted, so that none is impossible.
    """
    counts, n = np.ones(vocab_size), 0
    for _ in range(batches):
        labels = next(feed).labels
        found = np.bincount(labels[labels != NOT_PREDICTED], minlength=vocab_size)
        counts += found
        n += int(found.sum())
        if n >= MOST_LABELS:
            break
    nats = np.log(counts.sum()) - np.log(counts)
    total, predicted = 0.0, 0
    for rows, _ in validation.batches(BATCH_TOKENS):
        real = rows.labels[rows.labels != NOT_PREDICTED]
        total += float(nats[real].sum())
        predicted += len(real)
    return total / predicted
