"""Sentences with a tokenizer of their own, encoded in memory, for objectives that hide something."""

import random
from functools import cache

import numpy as np

from anyformer.text import EncodedCorpus, Tokenizer
from anyformer.training.data.text import TextData
from anyformer.training.objectives.denoising import UL2
from anyformer.training.objectives.infilling import FillInTheMiddle
from anyformer.training.objectives.specification import MASK

ANIMALS, PLACES = ("cat", "dog", "owl", "fox"), ("mat", "roof", "hill")


def sentences(n: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [
        " ".join(f"The {rng.choice(ANIMALS)} sits on a {rng.choice(PLACES)}." for _ in range(rng.randint(1, 5)))
        for _ in range(n)
    ]


@cache
def plain_tokenizer() -> Tokenizer:
    return Tokenizer.train(sentences(50, 0), 272)


@cache
def tokenizer() -> Tokenizer:
    return plain_tokenizer().with_specials((*UL2.specials, *FillInTheMiddle.specials), MASK)


def encoded(texts: list[str], by: Tokenizer) -> EncodedCorpus:
    end = by.end_of_text
    documents = [np.array([end, *by.encode(text), end], dtype=np.uint16) for text in texts]
    nbytes = np.array([len(text.encode()) for text in texts])
    name = f"{len(texts)} {by.fingerprint}"
    return EncodedCorpus(np.concatenate(documents), np.cumsum([0, *map(len, documents)]), nbytes, by.vocab_size, name)


def text_data(by: Tokenizer | None = None) -> TextData:
    by = by or tokenizer()
    return TextData(encoded(sentences(60, 1), by), encoded(sentences(8, 2), by), by)
