"""Who guesses for a model that writes: its draft, the text itself, or modules of its own, as they are asked for by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.errors import UsageError
from anyformer.generation import DraftModel, Guessing, OwnModules, PromptLookup
from anyformer.inference.opened import Opened, TrainedModel
from anyformer.text import Tokenizer

DRAFT_TOKENS = 4  # that a draft writes before they are checked


def guessing(
    found: Opened,
    opening: Mapping[str, Any],
    *,
    draft: TrainedModel | None = None,
    draft_tokens: int | None = None,
    lookup: int | None = None,
    ahead: bool = False,
) -> Guessing | None:
    """The way to guess, or None where none is asked for. `lookup`: tokens a pass that are looked up in the text.

    A draft is opened as `opening`, the options of `opened`, says. Raises UsageError for two ways at once and for a draft with
    another tokenizer, InputError where `ahead` finds no modules.
    """
    if sum((draft is not None, lookup is not None, ahead)) > 1:
        raise UsageError("a draft, look-up and the model's own modules each guess alone; take one of them")
    if draft_tokens is not None and draft is None:
        raise UsageError("draft_tokens are those that a draft writes; name the draft too")
    if draft is not None:
        beside = found.beside(draft, **opening)
        _check_vocabulary(found.tokenizer, beside.tokenizer)
        return DraftModel(beside.model, DRAFT_TOKENS if draft_tokens is None else draft_tokens)
    if lookup is not None:
        return PromptLookup(lookup)
    return OwnModules.of(found.model.spec) if ahead else None


def _check_vocabulary(ours: Tokenizer, theirs: Tokenizer) -> None:
    """Raise UsageError for tokenizers whose ids stand for other tokens."""
    for token in range(max(ours.vocab_size, theirs.vocab_size)):
        if ours.spelling(token) != theirs.spelling(token):
            raise UsageError(
                f"the draft has another vocabulary: its token {token} is {theirs.spelling(token)!r} and the model's "
                f"{ours.spelling(token)!r}; take a draft of the same tokenizer"
            )
