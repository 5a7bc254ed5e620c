"""Small labelled texts that are easy to learn, and the models and recipe that learn them."""

from __future__ import annotations

import random

from anyformer.recipe import AdamW, Classification, Constant, Labelled, Recipe
from anyformer.text import LabelledCorpus, LabelledRow, Tokenizer, split_labelled
from anyformer.text.labelled import Kind
from anyformer.training.objectives.labelled.data import LabelledData

WORDS = ["cat", "dog", "owl", "sun", "sky", "sea"]
LABELS = {"bad": "neg", "good": "pos", "fair": "so-so"}


def corpus(kind: Kind = "classes", n: int = 48, seed: int = 0) -> LabelledCorpus:
    """One word of each text decides its class, or its number; of words, which are good."""
    rng, rows = random.Random(seed), []
    for i in range(n):
        words = rng.choices(WORDS, k=rng.randint(2, 6))
        told = list(LABELS)[i % 3]
        words.insert(rng.randrange(len(words)), told)
        if kind == "words":
            rows.append(LabelledRow(tuple(words), tuple(LABELS.get(word, "none") for word in words), i + 1))
        elif i % 2:
            label = LABELS[told] if kind == "classes" else 2.0 * list(LABELS).index(told) - 1.5
            rows.append(LabelledRow((" ".join(words), "which of them"), label, i + 1))
        else:
            label = LABELS[told] if kind == "classes" else 2.0 * list(LABELS).index(told) - 1.5
            rows.append(LabelledRow((" ".join(words),), label, i + 1))
    return LabelledCorpus(tuple(rows), kind, "test.jsonl")


def labelled(kind: Kind = "classes", n: int = 48, share: float | None = 0.25) -> LabelledData:
    given = corpus(kind, n)
    train, held_out = (given, None) if share is None else split_labelled(given, share)
    tokenizer = Tokenizer.train(given.texts(), 280).with_specials((), Labelled.roles)
    return LabelledData(train, held_out, tokenizer)


RECIPE = Recipe(
    objective=Classification(),
    tokens=4 * 128,
    batch_tokens=128,
    seq_len=32,
    optimizer=AdamW(lr=3e-3),
    schedule=(Constant(),),
    label_smoothing=0.0,
)
