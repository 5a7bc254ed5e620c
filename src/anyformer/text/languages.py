"""Languages of a translation, a token for each in some vocabularies: mBART's (arXiv:2001.08210), NLLB's (arXiv:2207.04672)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyformer.errors import TextError, did_you_mean
from anyformer.text.companions import ROLES, content_of
from anyformer.text.generation_config import ANSWER

if TYPE_CHECKING:
    from anyformer.text.tokenizer import Tokenizer


def language(tokenizer: Tokenizer, name: str) -> int:
    """The id of the special token that names a language. Raises TextError where there is none."""
    known = {tokenizer.spelling(i): i for i in tokenizer.special_ids if i not in _of_roles(tokenizer)}
    if name not in known:
        raise TextError(
            f"no special token {name!r} names a language in this vocabulary{did_you_mean(name, filter(None, known))}; "
            "give one that does, as it is spelled there"
        )
    return known[name]


def sides_in(tokenizer: Tokenizer, name: str) -> tuple[list[int], list[int]]:
    """The ids before and behind a text of a language: its token where the tokenizer's rules have another one's, else first.

    Without rules `end_of_text` closes it. Raises TextError for rules that open a text with something else.
    """
    token, (before, behind) = language(tokenizer, name), tokenizer.around_source
    others = {*before, *behind} - _of_roles(tokenizer)
    if not others and not before:
        return [token], behind
    if len(others) != 1:
        shown = " ".join(tokenizer.spelling(i) or "" for i in (*before, *behind))
        raise TextError(
            f"this tokenizer's rules put {shown} around a text, and no language among them; leave the source's language out"
        )
    first, last = ([token if each in others else each for each in side] for side in (before, behind))
    return first, last


def answers_in(tokenizer: Tokenizer, name: str) -> dict[str, int]:
    """What generation_config.json says of answers in a language: its token is written first.

    Where the tokenizer's rules put languages behind a text, as mBART's do, it is what the decoder reads first instead. Raises
    TextError for what names no language.
    """
    behind = {*tokenizer.around[1]} - _of_roles(tokenizer)
    start, first = ANSWER
    return {start if behind else first: language(tokenizer, name)}


def _of_roles(tokenizer: Tokenizer) -> set[int]:
    """The ids of tokens that open, close, pad or hide what stands in any language."""
    spelled = {content_of(tokenizer.config.get(role)) for role in ROLES}
    named = {i for i in tokenizer.special_ids if tokenizer.spelling(i) in spelled}
    return named | {i for i in (tokenizer.begin_of_text, tokenizer.end_of_text) if i is not None}
