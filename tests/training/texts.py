"""Encoded texts without a tokenizer: documents of random ids."""

import numpy as np

from anyformer.text import EncodedCorpus
from anyformer.training.data.text import TextData
from tests.training.models import VOCAB


def encoded(n_documents: int, seed: int = 0, longest: int = 60) -> EncodedCorpus:
    """Documents that a small model can learn: each token is the one before plus a step of the document's own."""
    rng = np.random.default_rng(seed)
    documents = []
    for _ in range(n_documents):
        n = int(rng.integers(5, longest))
        ids = (rng.integers(1, VOCAB) + np.arange(n) * rng.integers(1, 3)) % (VOCAB - 1) + 1
        documents.append(np.concatenate(([0], ids, [0])).astype(np.uint16))
    offsets = np.cumsum([0, *map(len, documents)])
    nbytes = np.array([3 * len(document) - 6 for document in documents])
    return EncodedCorpus(np.concatenate(documents), offsets, nbytes, VOCAB, f"random {n_documents} {seed} {longest}")


def text_data() -> TextData:
    return TextData(encoded(60), encoded(7, seed=1), None)
