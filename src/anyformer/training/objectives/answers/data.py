"""Conversations as a run reads them: batches of like length to train on without end, and all of them to validate on."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from anyformer.recipe import Examples, Reads, Recipe
from anyformer.spec import Workload
from anyformer.text import Tokenizer
from anyformer.text.conversations import ExchangeCorpus
from anyformer.training.data.examples import Encoded, ExampleData, fed_by_length
from anyformer.training.data.feed import Feed
from anyformer.training.objectives.answers.encoded import EncodedExchanges
from anyformer.training.objectives.objective import Objective, loss_of

X = TypeVar("X", bound=Encoded)
S = TypeVar("S", bound=Examples)


class ExchangeData(ExampleData[ExchangeCorpus, X]):
    """Exchanges, as the tokenizer's chat template writes them."""

    def identity(self) -> tuple[str, ...]:
        return (*super().identity(), self.tokenizer.chat_template or "")

    def feed(self, recipe: Recipe) -> Feed:
        return fed_by_length(self.encoded(recipe), recipe, self.train.where, self.lines(recipe))

    def lines(self, recipe: Recipe) -> list[int]:
        """Of its file, of each example to train on."""
        return [self.train.rows[number].line for number in self.encoded(recipe).sources]


class AnswerObjective(Objective[S]):
    """A way to learn from answers that are given."""

    encoded: ClassVar[type[EncodedExchanges]]  # what its rows are made of


def encoded_answers(
    said: Examples, corpus: ExchangeCorpus, tokenizer: Tokenizer, longest: int | None
) -> EncodedExchanges:
    """The examples that an objective reads, of so many tokens at most. Raises TextError as `EncodedExchanges` does."""
    kind = loss_of(type(said))
    assert issubclass(kind, AnswerObjective)
    return kind.encoded(corpus, tokenizer, longest, truncate=said.truncate)


class AnswerData(ExchangeData[EncodedExchanges]):
    """What was said, with answers to it."""

    def encode(self, corpus: ExchangeCorpus, recipe: Recipe) -> EncodedExchanges:
        assert isinstance(recipe.objective, Examples)
        return encoded_answers(recipe.objective, corpus, self.tokenizer, recipe.seq_len)


class ConversationData(AnswerData):
    """Conversations, and prompts with completions, whose answers are learnt."""

    reads: ClassVar[Reads] = "conversations"

    def load(self, recipe: Recipe) -> Workload:
        return Workload(batch=1, query=self.mean_length(recipe))

    def predicted_share(self, recipe: Recipe) -> float:
        found = self.encoded(recipe)
        return found.learned / int(found.lengths.sum())
