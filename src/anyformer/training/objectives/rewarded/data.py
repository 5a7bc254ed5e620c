"""Prompts as ids and as a run reads them, with room for the answers that are written to them on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import numpy as np

from anyformer.recipe import Reads, Recipe
from anyformer.spec import ModelSpec, Workload
from anyformer.text import Tokenizer
from anyformer.text.chat import Chat
from anyformer.text.conversations import Exchange, ExchangeCorpus
from anyformer.text.prompts import encode_prompt
from anyformer.text.sources import wrong
from anyformer.training.data.examples import drawn_by_length, read_by_length
from anyformer.training.data.feed import SampledFeed, TrainingData
from anyformer.training.objectives.answers.encoded import laid_out
from anyformer.training.objectives.rewarded import RewardedSpec

LIKELIEST = -1  # as a seed: nothing is drawn


class PromptRows(NamedTuple):
    """Prompts, of each what its answers are read behind and drawn by."""

    ids: (
        np.ndarray
    )  # [prompt, answer, token] int64: the prompt each time, and behind it 0, where there is room to write
    n: np.ndarray  # [prompt, 1] int64: tokens of the prompt
    seed: np.ndarray  # [prompt, answer] int64: that an answer is drawn by, or LIKELIEST
    exchange: np.ndarray  # [prompt, 1] object: the `Exchange`
    highest: np.ndarray  # [prompt, 1] float64: what an answer may be worth
    labels: np.ndarray  # [prompt, answer] int64, 0: each answer is told one number

    def chance(self) -> np.ndarray:
        """What a reward of 0 lacks [prompt, answer]."""
        return np.broadcast_to(self.highest, self.labels.shape)


class EncodedPrompts:
    """Prompts in memory. Raises TextError for one that leaves no room in `longest` tokens, or whose line says too little."""

    def __init__(
        self, corpus: ExchangeCorpus, tokenizer: Tokenizer, said: RewardedSpec, longest: int | None = None
    ) -> None:
        self.corpus, self.said = corpus, said
        for row in corpus.rows:
            for rule in said.rewards:
                if reason := rule.lacks(row.facts):
                    raise wrong(corpus.where, row.line, f"{rule.kind} judges answers by it, and it {reason}")

        def asked(row: Exchange, chat: Chat | None) -> list[int]:
            if isinstance(row.before, str):
                return encode_prompt(tokenizer, row.before)
            assert chat is not None
            return chat.token_ids(row.before, row.tools)

        self.prompts = list(laid_out(corpus, tokenizer, asked))
        self.lengths = np.array([len(ids) for ids in self.prompts], dtype=np.int64)[:, None] + said.max_new_tokens
        if longest is not None and (n := int(self.lengths.max())) > longest:
            remedy = "make rows longer (--seq-len), or answers shorter (--max-new-tokens)"
            n_asked, line = n - said.max_new_tokens, corpus.rows[int(self.lengths.argmax())].line
            room = f"{n_asked} tokens and an answer of {said.max_new_tokens} are more than the {longest} of a row"
            raise wrong(corpus.where, line, f"{room}; {remedy}")

    def batch(self, numbers: np.ndarray, seeds: np.ndarray) -> PromptRows:
        """The prompts of these numbers, with answers that are drawn by `seeds` [prompt, answer]."""
        n = self.lengths[numbers] - self.said.max_new_tokens
        ids = np.zeros((*seeds.shape, int(self.lengths[numbers].max())), dtype=np.int64)
        exchanges = np.empty_like(n, dtype=object)
        for i, number in enumerate(numbers):
            ids[i, :, : n[i, 0]] = self.prompts[number]
            exchanges[i, 0] = self.corpus.rows[number]
        highest = np.full(n.shape, self.said.highest)
        return PromptRows(ids, n, seeds, exchanges, highest, np.zeros_like(seeds))


class PromptFeed(SampledFeed):
    """Batches of prompts without end; the answers to one are drawn by seeds of the run's, its epoch and its number."""

    def __init__(self, prompts: EncodedPrompts, recipe: Recipe) -> None:
        where, lines = prompts.corpus.where, [row.line for row in prompts.corpus.rows]
        group, most = prompts.said.group, recipe.batch_tokens
        lengths = group * prompts.lengths[:, 0]
        if (n := int(lengths.max())) > most:
            said = f"{group} answers to it take up to {n:,} tokens, and a batch holds {most:,}"
            remedy = "make the batch larger (--batch-tokens), answers shorter (--max-new-tokens) or fewer (--group)"
            raise wrong(where, lines[int(lengths.argmax())], f"{said}; {remedy}")
        sampler = drawn_by_length(lengths, recipe, where, lines)

        def drawn(numbers: np.ndarray) -> PromptRows:
            seeds = [
                np.random.SeedSequence((recipe.seed, sampler.epoch, int(number))).generate_state(group, np.uint64)
                for number in numbers
            ]
            return prompts.batch(numbers, (np.array(seeds) >> np.uint64(1)).astype(np.int64))

        super().__init__(drawn, sampler)


class PromptValidation:
    """Every prompt once, with one answer: the likeliest tokens."""

    def __init__(self, prompts: EncodedPrompts) -> None:
        self.prompts = prompts
        rows = prompts.corpus.rows
        self.document_nbytes = np.array([len(str(row.before).encode()) for row in rows], dtype=np.int64)

    def batches(self, batch_tokens: int, most_tokens: int | None = None) -> Iterator[tuple[PromptRows, np.ndarray]]:
        for numbers in read_by_length(self.prompts.lengths, batch_tokens, most_tokens):
            rows = self.prompts.batch(numbers, np.full((len(numbers), 1), LIKELIEST))
            yield rows, np.asarray(numbers)[:, None]


class PromptData(TrainingData[ExchangeCorpus, Tokenizer]):
    """Prompts to train on, and others to validate on. A batch has room for batch_tokens of prompts with their answers."""

    reads: ClassVar[Reads] = "prompts"

    def __init__(self, train: ExchangeCorpus, held_out: ExchangeCorpus | None, tokenizer: Tokenizer) -> None:
        super().__init__(train, held_out, tokenizer)
        self._encoded: dict[tuple[RewardedSpec, int, bool], EncodedPrompts] = {}

    def identity(self) -> tuple[str, ...]:
        return (*super().identity(), self.tokenizer.chat_template or "")

    def encoded(self, recipe: Recipe, *, held_out: bool = False) -> EncodedPrompts:
        """The prompts to train on, or those to validate on, as rows of this recipe."""
        said, corpus = recipe.objective, self.held_out if held_out else self.train
        assert isinstance(said, RewardedSpec)
        assert corpus is not None
        key = (said, recipe.seq_len, held_out)
        if key not in self._encoded:
            self._encoded[key] = EncodedPrompts(corpus, self.tokenizer, said, recipe.seq_len)
        return self._encoded[key]

    def feed(self, recipe: Recipe) -> PromptFeed:
        return PromptFeed(self.encoded(recipe), recipe)

    def validation(self, recipe: Recipe) -> PromptValidation | None:
        return None if self.held_out is None else PromptValidation(self.encoded(recipe, held_out=True))

    def longest(self, spec: ModelSpec, recipe: Recipe, seq_len: int) -> int:
        parts = [self.encoded(recipe), *([] if self.held_out is None else [self.encoded(recipe, held_out=True)])]
        return min(seq_len, max(int(each.lengths.max()) for each in parts))

    def load(self, recipe: Recipe) -> Workload:
        found = self.encoded(recipe)
        return Workload(batch=found.said.group, query=int(np.ceil(found.lengths.mean())))

    def predicted_share(self, recipe: Recipe) -> float:
        load = self.load(recipe)
        return load.batch / load.tokens
