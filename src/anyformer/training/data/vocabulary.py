"""Properties of a vocabulary that noise needs: its mask, its sentinels, which ids are special, begin a word, end a sentence."""

from __future__ import annotations

import numpy as np

from anyformer.errors import TextError
from anyformer.recipe import ObjectiveSpec
from anyformer.text import Tokenizer
from anyformer.text.companions import content_of

# Tried in this order where no configuration names one.
_USUAL = {
    "mask_token": ("<mask>", "[MASK]", "<|mask|>"),
    "cls_token": ("[CLS]", "<cls>"),
    "sep_token": ("[SEP]", "<sep>"),
}
_SPACES = ("Ġ", "Ċ", "ĉ", "▁", " ", "\n", "\t")  # as byte-level, SentencePiece and plain vocabularies spell them


def specials(tokenizer: Tokenizer) -> dict[str, int]:
    """The special tokens by their spelling."""
    return {tokenizer.spelling(token) or "": token for token in tokenizer.special_ids}


def token_of_role(tokenizer: Tokenizer, role: str, objective: ObjectiveSpec) -> int:
    """The id of what tokenizer_config.json names so, or of its usual spelling. Raises TextError without one."""
    found = _of_role(tokenizer, role)
    if found is None:
        raise lacking(tokenizer, objective, objective.roles[role])
    return found


def known_mask(tokenizer: Tokenizer) -> int | None:
    """The id of the mask; None: there is none."""
    return _of_role(tokenizer, "mask_token")


def _of_role(tokenizer: Tokenizer, role: str) -> int | None:
    spelled, known = content_of(tokenizer.config.get(role)), specials(tokenizer)
    return next((known[spelling] for spelling in (spelled, *_USUAL.get(role, ())) if spelling in known), None)


def serves(tokenizer: Tokenizer, objective: ObjectiveSpec) -> bool:
    """Whether a vocabulary has the tokens that an objective hides text by: its mask, the first of its sentinels."""
    return all(_of_role(tokenizer, role) is not None for role in objective.roles) and (
        set(objective.specials[:1]) <= set(specials(tokenizer))
    )


def lacking(tokenizer: Tokenizer, objective: ObjectiveSpec, *spellings: str) -> TextError:
    """The refusal of a vocabulary without the tokens that an objective needs."""
    options = " ".join(f"--special '{spelling}'" for spelling in spellings)
    return TextError(
        f"this {tokenizer.kind} tokenizer has no special token {', '.join(spellings)}, which {objective.kind} needs; train one "
        f"with `anyformer tokenizer train {options}`, leave --tokenizer out to have one trained on the way, or, with "
        f"--init, take an --objective that its tokenizer serves"
    )


def special(tokenizer: Tokenizer) -> np.ndarray:
    """Which ids stand for no text: bool [id]."""
    found = np.array([tokenizer.spelling(token) is None for token in range(tokenizer.vocab_size)])
    found[list(tokenizer.special_ids)] = True
    return found


def begins_word(tokenizer: Tokenizer) -> np.ndarray:
    """Which ids begin a word: bool [id].

    WordPiece marks what goes on (`##`), others a space before; a mark of punctuation is a word of its own.
    """
    spelled = [tokenizer.spelling(token) or "" for token in range(tokenizer.vocab_size)]
    if tokenizer.kind == "wordpiece":
        begins = [not spelling.startswith("##") for spelling in spelled]
    else:
        begins = [spelling.startswith(_SPACES) or not spelling[:1].isalnum() for spelling in spelled]
    found = np.array(begins) | (tokenizer.kind == "wordlevel")
    found[list(tokenizer.special_ids)] = True
    return found


def ends_sentence(tokenizer: Tokenizer) -> np.ndarray:
    """Which ids end a sentence: those that end in a full stop, a question or exclamation mark, or a line's end."""
    ends = (".", "!", "?", "\n", "Ċ")
    return np.array([(tokenizer.spelling(token) or "").endswith(ends) for token in range(tokenizer.vocab_size)])
