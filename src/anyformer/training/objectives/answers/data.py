"""Conversations as a run reads them: batches of like length to train on without end, and all of them to validate on."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from anyformer.recipe import Reads, Recipe
from anyformer.spec import Workload
from anyformer.text.conversations import ExchangeCorpus
from anyformer.training.data.examples import Encoded, ExampleData, cuts, fed_by_length
from anyformer.training.data.feed import Feed
from anyformer.training.objectives.answers.encoded import EncodedConversations

X = TypeVar("X", bound=Encoded)


class ExchangeData(ExampleData[ExchangeCorpus, X]):
    """Exchanges, as the tokenizer's chat template writes them."""

    def identity(self) -> tuple[str, ...]:
        return (*super().identity(), self.tokenizer.chat_template or "")

    def feed(self, recipe: Recipe) -> Feed:
        return fed_by_length(self.encoded(recipe), recipe, self.train.where, self.lines(recipe))

    def lines(self, recipe: Recipe) -> list[int]:
        """Of its file, of each example to train on."""
        return [self.train.rows[number].line for number in self.encoded(recipe).sources]


class ConversationData(ExchangeData[EncodedConversations]):
    """Conversations, and prompts with completions, whose answers are learnt."""

    reads: ClassVar[Reads] = "conversations"

    def encode(self, corpus: ExchangeCorpus, recipe: Recipe) -> EncodedConversations:
        return EncodedConversations(corpus, self.tokenizer, recipe.seq_len, truncate=cuts(recipe))

    def load(self, recipe: Recipe) -> Workload:
        return Workload(batch=1, query=self.mean_length(recipe))

    def predicted_share(self, recipe: Recipe) -> float:
        found = self.encoded(recipe)
        return found.learned / int(found.lengths.sum())
