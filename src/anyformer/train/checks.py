"""What can be known to be wrong before anything is built or written."""

from __future__ import annotations

from anyformer.errors import UsageError
from anyformer.layers.embedding import LearnedPositionsSpec
from anyformer.spec import ModelSpec


def check_vocabulary(spec: ModelSpec, vocab_size: int) -> None:
    """Raise UsageError where the tokenizer has ids that the model has no row for."""
    rows = min([spec.vocab_size, *(head.table.rows for head in spec.heads[:1])])
    if rows < vocab_size:
        raise UsageError(
            f"the model has a vocabulary of {rows}, smaller than the tokenizer's {vocab_size}; "
            f"resize it with --vocab {vocab_size}, or use another tokenizer"
        )


def check_positions(spec: ModelSpec, longest: int) -> None:
    """Raise UsageError where sequences go beyond the model's learned positions."""
    learned = [value.n_positions for value in spec.nested() if isinstance(value, LearnedPositionsSpec)]
    if learned and min(learned) < longest:
        raise UsageError(
            f"sequences of {longest} tokens go beyond the model's {min(learned)} learned positions; "
            f"use --seq-len {min(learned)} or less"
        )
