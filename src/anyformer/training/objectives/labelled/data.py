"""Labelled text as a run reads it: batches of like length to train on without end, and examples to validate on."""

from __future__ import annotations

from typing import ClassVar

from anyformer.recipe import Reads, Recipe
from anyformer.spec import Workload
from anyformer.text import LabelledCorpus, Tokenizer
from anyformer.text.labelled import EncodedLabelled
from anyformer.training.data.examples import ExampleValidation, FramedData, cuts, fed_by_length
from anyformer.training.data.feed import Feed


class LabelledValidation(ExampleValidation[EncodedLabelled]):
    """Examples, each a document: the bytes are those of its texts."""


class LabelledData(FramedData[LabelledCorpus, EncodedLabelled]):
    """Texts, or pairs of texts, with a class or a number each; or words with a class each.

    `labels` are the classes, in the order of the rows of the model's head; none where numbers are said. They are those of
    `known` where that is given, else what the training examples say, sorted. Raises TextError as `LabelledCorpus.names` does.
    """

    reads: ClassVar[Reads] = "labelled"

    def __init__(
        self,
        train: LabelledCorpus,
        held_out: LabelledCorpus | None,
        tokenizer: Tokenizer,
        known: tuple[str, ...] | None = None,
    ) -> None:
        if held_out is not None and held_out.kind != train.kind:
            held_out = held_out.as_kind(train.kind)
        super().__init__(train, held_out, tokenizer)
        self._labels = () if train.kind == "numbers" else train.names(known)
        if held_out is not None and self._labels:
            held_out.check(self._labels)

    @property
    def labels(self) -> tuple[str, ...]:
        return self._labels

    def identity(self) -> tuple[str, ...]:
        return (*super().identity(), repr(self.labels))

    def encode(self, corpus: LabelledCorpus, recipe: Recipe) -> EncodedLabelled:
        return EncodedLabelled(corpus, self.tokenizer, self.labels, recipe.seq_len, truncate=cuts(recipe))

    def feed(self, recipe: Recipe) -> Feed:
        return fed_by_length(self.encoded(recipe), recipe, self.train.where, [row.line for row in self.train.rows])

    def validation(self, recipe: Recipe) -> LabelledValidation | None:
        unseen = self.unseen(recipe)
        return None if unseen is None else LabelledValidation(unseen)

    def load(self, recipe: Recipe) -> Workload:
        n = self.mean_length(recipe)
        return Workload(batch=1, query=n, memory=n)

    def predicted_share(self, recipe: Recipe) -> float:
        examples = self.encoded(recipe)
        words = sum(place >= 0 for each in examples.inputs for place in each.firsts)
        return (words or len(examples)) / int(examples.lengths.sum())
