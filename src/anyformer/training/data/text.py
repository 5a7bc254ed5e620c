"""Plain text to train and to validate on, with the noise that an objective asks for."""

from __future__ import annotations

from typing import ClassVar

from anyformer.recipe import Reads, Recipe
from anyformer.spec import ModelSpec, Workload
from anyformer.text import EncodedCorpus, Sampler, StreamSampler, Tokenizer, pack, pack_whole
from anyformer.training.data.feed import Feed, SampledFeed, TrainingData, Validation
from anyformer.training.data.noise import PackedValidation, load_of, noisy
from anyformer.training.data.segments import SegmentValidation, in_streams
from anyformer.training.objectives.objective import NoiseRule, judging_noise_of, noise_of


class TextData(TrainingData[EncodedCorpus, Tokenizer | None]):
    """Plain text: for causal language modelling, or with noise that the recipe's objective asks for."""

    reads: ClassVar[Reads] = "text"

    @property
    def vocab_size(self) -> int:
        return self.train.vocab_size

    def identity(self) -> tuple[str, ...]:
        """What is encoded already tells of its tokenizer."""
        return self.train.fingerprint, self.held_out.fingerprint if self.held_out else ""

    def feed(self, recipe: Recipe) -> Feed:
        noise = noise_of(recipe, self.tokenizer)
        if noise is not None:
            rows = noise.rows(self.train, recipe.seq_len, recipe.seed)
            return noisy(rows, Sampler(rows.n_rows, recipe.batch_rows, recipe.seed), noise)
        packed = pack(self.train, recipe.seq_len, seed=recipe.seed)
        if recipe.memory is not None:
            return in_streams(packed, StreamSampler(packed.n_rows, recipe.batch_rows, recipe.seed))
        return SampledFeed(packed.batch, Sampler(packed.n_rows, recipe.batch_rows, recipe.seed))

    def validation(self, recipe: Recipe) -> Validation | None:
        return None if self.held_out is None else text_validation(self.held_out, self.tokenizer, recipe)

    def longest(self, spec: ModelSpec, recipe: Recipe, seq_len: int) -> int:
        return longest_of_text(noise_of, spec, recipe, self.tokenizer, seq_len)

    def load(self, recipe: Recipe) -> Workload:
        noise = noise_of(recipe, self.tokenizer)
        if noise is None:
            return Workload(batch=1, query=recipe.seq_len, past=recipe.memory or 0)
        return load_of(noise, noise.rows(self.train, recipe.seq_len, recipe.seed))


def longest_of_text(rule: NoiseRule, spec: ModelSpec, recipe: Recipe, tokenizer: Tokenizer | None, seq_len: int) -> int:
    """The tokens of the longest sequence that a model will be given of rows of text, by the noise that a rule says of them."""
    noise = rule(recipe.but(seq_len=seq_len, batch_tokens=seq_len), tokenizer)
    if noise is None:
        return seq_len
    return noise.joint(seq_len) if spec.encoder is None else noise.longest(seq_len)


def text_validation(text: EncodedCorpus, tokenizer: Tokenizer | None, recipe: Recipe) -> Validation:
    """The rows of a text by which a model of the recipe's objective is judged, with noise that is always the same."""
    noise = judging_noise_of(recipe, tokenizer)
    if recipe.memory is not None:
        return SegmentValidation(text, recipe.seq_len, recipe.memory)
    rows = noise.rows(text, recipe.seq_len) if noise else pack_whole(text, recipe.seq_len)
    return PackedValidation(rows, noise, recipe.seed)
