"""Prompts as ids and as a run reads them, with room for the answers that are written to them on the way."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from anyformer.recipe import Reads, Recipe
from anyformer.spec import Workload
from anyformer.text import Tokenizer
from anyformer.text.chat import Chat
from anyformer.text.conversations import Exchange, ExchangeCorpus
from anyformer.text.prompts import encode_prompt
from anyformer.text.sources import wrong
from anyformer.training.data.examples import drawn_by_length
from anyformer.training.data.feed import Feed, SampledFeed
from anyformer.training.objectives.answers.data import ExchangeData
from anyformer.training.objectives.answers.encoded import laid_out
from anyformer.training.objectives.rewarded import RewardedSpec
from anyformer.training.objectives.rewarded.judging import check_prompts

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
    answers: np.ndarray  # [prompt, answer] object: `Rollout`, once they are written
    rewards: np.ndarray  # [prompt, answer] float64: what each is worth

    @property
    def drawn(self) -> bool:
        """Whether answers are drawn, which are learnt from; those of the likeliest tokens are judged alone."""
        return bool((self.seed != LIKELIEST).all())

    def chance(self) -> np.ndarray:
        """What a reward of 0 lacks [prompt, answer]."""
        return np.broadcast_to(self.highest, self.labels.shape)


class EncodedPrompts:
    """Prompts in memory. Raises TextError for one that leaves no room in `longest` tokens, or whose line says too little."""

    def __init__(
        self, corpus: ExchangeCorpus, tokenizer: Tokenizer, said: RewardedSpec, longest: int | None = None
    ) -> None:
        self.corpus, self.said, self.cut = corpus, said, 0
        self.sources = np.arange(len(corpus.rows))
        for reward in said.rewards:
            check_prompts(reward, corpus)

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

    @property
    def nbytes(self) -> np.ndarray:
        """[prompt] int64: UTF-8 bytes."""
        return np.array([len(str(row.before).encode()) for row in self.corpus.rows], dtype=np.int64)

    def batch(self, numbers: np.ndarray, seeds: np.ndarray | None = None) -> PromptRows:
        """The prompts of these numbers, with answers drawn by `seeds` [prompt, answer]; None: one, of the likeliest tokens."""
        seeds = np.full((len(numbers), 1), LIKELIEST) if seeds is None else seeds
        n = self.lengths[numbers] - self.said.max_new_tokens
        ids = np.zeros((*seeds.shape, int(self.lengths[numbers].max())), dtype=np.int64)
        exchanges = np.empty_like(n, dtype=object)
        for i, number in enumerate(numbers):
            ids[i, :, : n[i, 0]] = self.prompts[number]
            exchanges[i, 0] = self.corpus.rows[number]
        highest = np.full(n.shape, self.said.highest)
        answers, rewards = np.empty_like(seeds, dtype=object), np.zeros(seeds.shape)
        return PromptRows(ids, n, seeds, exchanges, highest, np.zeros_like(seeds), answers, rewards)


class PromptData(ExchangeData[EncodedPrompts]):
    """Prompts to train on, and others to validate on. A batch has room for batch_tokens of prompts with their answers."""

    reads: ClassVar[Reads] = "prompts"

    def encode(self, corpus: ExchangeCorpus, recipe: Recipe) -> EncodedPrompts:
        assert isinstance(recipe.objective, RewardedSpec)
        return EncodedPrompts(corpus, self.tokenizer, recipe.objective, recipe.seq_len)

    def feed(self, recipe: Recipe) -> Feed:
        """Batches without end; the answers to a prompt are drawn by seeds of the run's, the epoch and its number."""
        prompts, where, lines = self.encoded(recipe), self.train.where, self.lines(recipe)
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

        return SampledFeed(drawn, sampler)

    def load(self, recipe: Recipe) -> Workload:
        return Workload(batch=self.encoded(recipe).said.group, query=self.mean_length(recipe))

    def predicted_share(self, recipe: Recipe) -> float:
        load = self.load(recipe)
        return load.batch / load.tokens
