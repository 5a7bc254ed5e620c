"""Several texts to train on, in the proportions of the recipe's mixture."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from anyformer.errors import UsageError
from anyformer.recipe import Recipe
from anyformer.text import EncodedCorpus, MixedRows, MixtureSampler, Packed, Tokenizer, pack
from anyformer.training.data.feed import Feed, SampledFeed
from anyformer.training.data.noise import noisy
from anyformer.training.data.text import TextData
from anyformer.training.objectives.objective import noise_of


class MixedText(TextData):
    """Texts in the order of the recipe's mixture. What is said of rows in general is said of those of the first."""

    def __init__(self, texts: Sequence[EncodedCorpus], held_out: EncodedCorpus | None, tokenizer: Tokenizer) -> None:
        super().__init__(texts[0], held_out, tokenizer)
        self.texts = tuple(texts)

    def identity(self) -> tuple[str, ...]:
        every = hashlib.sha256(" ".join(text.fingerprint for text in self.texts).encode()).hexdigest()
        return every, self.held_out.fingerprint if self.held_out else ""

    def feed(self, recipe: Recipe) -> Feed:
        """Raises TextError where the texts do not last, having been read as often as they may be."""
        assert recipe.mixture is not None
        noise = noise_of(recipe, self.tokenizer)
        parts = [
            noise.rows(text, recipe.seq_len, recipe.seed) if noise else pack(text, recipe.seq_len, seed=recipe.seed)
            for text in self.texts
        ]
        packed = [part for part in parts if isinstance(part, Packed)]
        if len(packed) < len(parts):
            raise UsageError(
                f"{recipe.objective.kind} makes rows of runs of one text; train it on one, not on a mixture"
            )
        rows, epochs = MixedRows(packed), [text.epochs for text in recipe.mixture.texts]
        sampler = MixtureSampler(
            [part.n_rows for part in packed],
            recipe.batch_rows,
            recipe.seed,
            recipe.mixture.by_step(recipe.steps, recipe.batch_tokens),
            epochs,
        )
        if any(each is not None for each in epochs):
            sampler.counts(recipe.steps)
        return noisy(rows, sampler, noise) if noise is not None else SampledFeed(rows.batch, sampler)
