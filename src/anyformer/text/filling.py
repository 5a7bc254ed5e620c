"""What stands between two texts (fill in the middle): the tokens that mark it, prompts that ask for it, texts cut for it.

Bavarian et al. 2022, arXiv:2207.14255, section 3.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from anyformer.errors import TextError
from anyformer.text.noise import InfillingParts, two_places
from anyformer.text.prompts import opening
from anyformer.text.tokenizer import Tokenizer


class Marks(NamedTuple):
    """The ids before each part of a text."""

    prefix: int
    suffix: int
    middle: int


# How vocabularies spell them; the first is how those that are trained here do.
KNOWN = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
)
# What models were taught to write behind a middle, or write where they were taught nothing: the next file's beginning.
ENDS = (
    *("▁<EOT>", "<|fim_pad|>", "<fim_pad>", "<fim-pad>"),
    *("<|file_sep|>", "<file_sep>", "<|file_separator|>", "<|repo_name|>", "<repo_name>"),
)
_BEFORE = "☺"  # stands before a text that nothing is to be put before; no token reaches over its end


def marks_of(tokenizer: Tokenizer) -> Marks | None:
    """The marks that a vocabulary has; None: it has none."""
    for spellings in KNOWN:
        prefix, suffix, middle = map(tokenizer.token, spellings)
        if prefix is not None and suffix is not None and middle is not None:
            return Marks(prefix, suffix, middle)
    return None


def ending_middles(tokenizer: Tokenizer) -> Tokenizer:
    """One by which a text ends where a middle does, at a mark too. Raises TextError without marks."""
    ends = [tokenizer.end_of_text, *map(tokenizer.token, ENDS), *_needed(tokenizer)]
    return tokenizer.closing_at([each for each in ends if each is not None])


def prompt_between(tokenizer: Tokenizer, prefix: str, suffix: str) -> list[int]:
    """The ids behind which a model writes what stands between two texts: PSM. Raises TextError without marks.

    What is spelled like a special token in either is text.
    """
    marks, before = _needed(tokenizer), [*opening(tokenizer)]
    return [*before, marks.prefix, *tokenizer.encode(prefix), marks.suffix, *within(tokenizer, suffix), marks.middle]


def cut_at_characters(
    tokenizer: Tokenizer, ids: np.ndarray, rng: np.random.Generator, *, first: bool, more: int
) -> InfillingParts | None:
    """The tokens of a text's three parts, cut between any two characters, each part encoded by itself.

    `first`: the text is a document's beginning. None where these tokens are not those of any text, as where a row has cut a
    character in two, and for parts of over `more` tokens more than the text.
    """
    encode = tokenizer.encode if first else partial(within, tokenizer)
    text = tokenizer.decode(ids) if first else tokenizer.decode_behind(tokenizer.encode(_BEFORE), ids.tolist())
    if encode(text) != ids.tolist():
        return None
    one, other = two_places(len(text), rng)
    parts = (encode(text[:one]), within(tokenizer, text[one:other]), within(tokenizer, text[other:]))
    if sum(map(len, parts)) > len(ids) + more:
        return None
    return InfillingParts(*(np.array(part, dtype=np.int64) for part in parts))


def within(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text that stands within another one: without the space that some vocabularies put before all text."""
    put = tokenizer.spelling(next(iter(tokenizer.encode("a")), 0)) or ""
    if put.startswith(("▁", "Ġ")):
        before, both = (tokenizer.encode(each) for each in (_BEFORE, _BEFORE + text))
        if both[: len(before)] == before:
            return both[len(before) :]
    return tokenizer.encode(text)


def _needed(tokenizer: Tokenizer) -> Marks:
    if (marks := marks_of(tokenizer)) is None:
        raise TextError(
            f"this {tokenizer.kind} tokenizer has no tokens that mark a middle ({' '.join(KNOWN[0])}, or as a code model spells "
            "them); leave the suffix out, or take a model that was trained to fill in the middle (--objective fill-in-the-middle)"
        )
    return marks
