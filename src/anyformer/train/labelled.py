"""Labelled text as a run reads it: batches of like length to train on without end, and examples to validate on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from anyformer.errors import TextError
from anyformer.recipe import Labelled, Reads, Recipe
from anyformer.spec import Load
from anyformer.text import LabelledCorpus, PairSampler, Tokenizer, length_batches
from anyformer.text.encoded_labelled import EncodedLabelled, LabelledRows
from anyformer.train.data import Feed


class LabelledFeed:
    """Examples of like length in shuffled batches."""

    def __init__(self, examples: EncodedLabelled, sampler: PairSampler) -> None:
        self._examples, self._sampler = examples, sampler
        self.skip, self.state, self.restore = sampler.skip, sampler.state, sampler.restore

    def __next__(self) -> LabelledRows:
        return self._examples.batch(next(self._sampler))


class LabelledValidation:
    """Examples, each a document: the bytes are those of its texts."""

    def __init__(self, examples: EncodedLabelled) -> None:
        self.examples = examples
        self.document_nbytes = np.array([sum(len(t.encode()) for t in row.texts) for row in examples.corpus.rows])

    def batches(self, batch_tokens: int, most_tokens: int | None = None) -> Iterator[tuple[LabelledRows, np.ndarray]]:
        batches = length_batches(self.examples.lengths, max(batch_tokens, int(self.examples.lengths.max())))
        if most_tokens is not None:
            wanted = min(len(batches), max(1, most_tokens // batch_tokens))
            batches = [batches[i * len(batches) // wanted] for i in range(wanted)]
        for numbers in batches:
            rows = self.examples.batch(numbers)
            yield rows, np.broadcast_to(numbers[:, None], rows.labels.shape)


class LabelledData:
    """Texts, or pairs of texts, with a class or a number each; or words with a class each.

    `labels` are the classes, in the order of the rows of the model's head; none where numbers are said. They are those of
    `known` where that is given, else what the training examples say, sorted. A tokenizer whose own rules put nothing beside
    a text gets some: what opens a text, the text, what closes it. Raises TextError as `LabelledCorpus.names` does.
    """

    def __init__(
        self,
        train: LabelledCorpus,
        held_out: LabelledCorpus | None,
        tokenizer: Tokenizer,
        known: tuple[str, ...] | None = None,
    ) -> None:
        self.train, self.held_out, self._tokenizer = train, held_out, tokenizer.with_frame()
        self.labels: tuple[str, ...] = () if train.kind == "numbers" else train.names(known)
        if held_out is not None and held_out.kind != train.kind:
            self.held_out = held_out.as_kind(train.kind)
        if self.held_out is not None and self.labels:
            self.held_out.check(self.labels)
        self._encoded: dict[tuple[int, bool, bool], EncodedLabelled] = {}

    @property
    def reads(self) -> Reads:
        return "labelled"

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.vocab_size

    @property
    def fingerprint(self) -> str:
        held_out = self.held_out.fingerprint if self.held_out else ""
        parts = (self.train.fingerprint, held_out, self._tokenizer.fingerprint, repr(self.labels))
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def feed(self, recipe: Recipe) -> Feed:
        examples = self._of(recipe)
        n_tokens = int(examples.lengths.sum())
        if n_tokens < recipe.batch_tokens:
            raise TextError(
                f"the {len(examples)} examples of {self.train.where} hold {n_tokens:,} tokens, less than one batch of "
                f"{recipe.batch_tokens:,}; give more of them or a smaller --batch-tokens"
            )
        if int(examples.lengths.max()) > recipe.batch_tokens:
            row = self.train.rows[int(examples.lengths.argmax())]
            raise TextError(
                f"{self.train.where}, line {row.line}: it is {int(examples.lengths.max())} tokens long, but a batch holds "
                f"{recipe.batch_tokens}; make the batch larger (--batch-tokens) or rows shorter (--seq-len, --truncate)"
            )
        return LabelledFeed(examples, PairSampler(examples.lengths, recipe.batch_tokens, recipe.seed))

    def validation(self, recipe: Recipe) -> LabelledValidation | None:
        return None if self.held_out is None else LabelledValidation(self._of(recipe, held_out=True))

    def longest(self, recipe: Recipe) -> int:
        found = [self._of(recipe)] + ([self._of(recipe, held_out=True)] if self.held_out else [])
        return max(int(each.lengths.max()) for each in found)

    def load(self, recipe: Recipe) -> Load:
        n = int(np.ceil(self._of(recipe).lengths.mean()))
        return Load(batch=1, query=n, memory=n)

    def predicted_share(self, recipe: Recipe) -> float:
        examples = self._of(recipe)
        words = sum(place >= 0 for each in examples.inputs for place in each.firsts)
        return (words or len(examples)) / int(examples.lengths.sum())

    def cut(self, recipe: Recipe) -> int:
        """Return how many examples, those to validate on included, are cut to the length of a row."""
        return self._of(recipe).cut + (self._of(recipe, held_out=True).cut if self.held_out else 0)

    def _of(self, recipe: Recipe, *, held_out: bool = False) -> EncodedLabelled:
        said = recipe.objective
        key = (recipe.seq_len, isinstance(said, Labelled) and said.truncate, held_out)
        if key not in self._encoded:
            corpus = self.held_out if held_out else self.train
            assert corpus is not None
            self._encoded[key] = EncodedLabelled(corpus, self._tokenizer, self.labels, key[0], truncate=key[1])
        return self._encoded[key]
