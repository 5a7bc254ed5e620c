"""Masked rows, some tokens hidden, and the loss at the hidden places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anyformer.errors import UsageError
from anyformer.layers import TokenDropoutSpec
from anyformer.recipe import Recipe
from anyformer.text import Batch, Tokenizer
from anyformer.text.noise import masked, whole_words
from anyformer.training.data.feed import TrainingData
from anyformer.training.data.noise import Noise, check_hides
from anyformer.training.data.vocabulary import begins_word, known_mask, special, token_of_role
from anyformer.training.objectives.architecture import no_vocabulary_head, not_an_encoder
from anyformer.training.objectives.masked import MaskedLM
from anyformer.training.objectives.objective import Objective


@dataclass(frozen=True, eq=False)
class MaskedNoise(Noise):
    """Hides tokens of each row, never special ones; documents stay apart as they were packed."""

    said: MaskedLM
    mask: int
    special: np.ndarray  # [id] bool
    begins_word: np.ndarray | None  # [id] bool; None where tokens are hidden one by one

    @classmethod
    def of(cls, said: MaskedLM, seq_len: int, tokenizer: Tokenizer) -> MaskedNoise:
        """Raises TextError for a tokenizer without a mask, UsageError where nothing would be hidden."""
        check_hides(said, said.rate, seq_len)
        words = begins_word(tokenizer) if said.whole_words else None
        return cls(said, token_of_role(tokenizer, "mask_token", said), special(tokenizer), words)

    def __call__(self, batch: Batch, rngs: Sequence[np.random.Generator]) -> Batch:
        inputs, labels = np.empty_like(batch.input_ids), np.empty_like(batch.labels)
        replacements = np.flatnonzero(~self.special)
        for i, rng in enumerate(rngs):
            ids = batch.input_ids[i]
            inputs[i], labels[i] = masked(
                ids,
                rng,
                mask=self.mask,
                replacements=replacements,
                rate=self.said.rate,
                mask_share=self.said.mask_share,
                random_share=self.said.random_share,
                groups=None if self.begins_word is None else whole_words(ids, self.begins_word),
                spared=(batch.document[i] == 0) | self.special[ids],
                max_ngram=self.said.max_ngram,
            )
        return batch._replace(input_ids=inputs, labels=labels)


class MaskedObjective(Objective[MaskedLM]):
    """For encoders; rows are `text.Batch` with labels at the hidden places."""

    noise = MaskedNoise.of

    def refuses(self) -> str | None:
        return not_an_encoder(self.spec) or no_vocabulary_head(self.spec, "mlm")

    def check(self, recipe: Recipe, data: TrainingData) -> None:
        dropped = next(self.spec.nested(TokenDropoutSpec), None)
        mask = None if data.tokenizer is None else known_mask(data.tokenizer)
        if dropped is not None and mask not in (None, dropped.token):
            raise UsageError(
                f"TokenDropout.token = {dropped.token} is the mask that this model leaves out, and the tokenizer's is {mask}; "
                f"set the field to {mask}"
            )
