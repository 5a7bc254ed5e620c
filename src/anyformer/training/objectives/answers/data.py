"""Conversations as a run reads them: batches of like length to train on without end, and all of them to validate on."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from anyformer.recipe import Reads, Recipe
from anyformer.spec import Workload
from anyformer.text.conversations import ExchangeCorpus
from anyformer.training.data.examples import ExampleData, fed_by_length
from anyformer.training.data.feed import Feed
from anyformer.training.objectives.answers.encoded import EncodedConversations, EncodedExchanges

X = TypeVar("X", bound=EncodedExchanges)


class ExchangeData(ExampleData[ExchangeCorpus, X]):
    """Exchanges, as the tokenizer's chat template writes them."""

    def identity(self) -> tuple[str, ...]:
        return (*super().identity(), self.tokenizer.chat_template or "")

    def feed(self, recipe: Recipe) -> Feed:
        found = self.encoded(recipe)
        return fed_by_length(found, recipe, self.train.where, found.lines)


class ConversationData(ExchangeData[EncodedConversations]):
    """Conversations, and prompts with completions, whose answers are learnt."""

    reads: ClassVar[Reads] = "conversations"

    def encode(self, corpus: ExchangeCorpus, longest: int, truncate: bool) -> EncodedConversations:
        return EncodedConversations(corpus, self.tokenizer, longest, truncate=truncate)

    def load(self, recipe: Recipe) -> Workload:
        return Workload(batch=1, query=self.mean_length(recipe))

    def predicted_share(self, recipe: Recipe) -> float:
        found = self.encoded(recipe)
        return found.learned / int(found.lengths.sum())
