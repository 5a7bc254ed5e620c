"""Texts held to a JSON schema, a regular expression or a grammar: which tokens may follow, found anew behind each.

Willard and Louf 2023, arXiv:2307.09702. The parsing is llguidance's: Earley's algorithm over a trie of the vocabulary.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from anyformer.errors import InputError, RunFailed, UsageError
from anyformer.text import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

T = TypeVar("T")
Form = Literal["json_schema", "regex", "grammar"]
# Between the parts of a JSON value: nothing, a space, or a new line and what indents the next. Without an end to it a model
# may write blanks for ever.
BLANKS = r"(\n[ \t]{0,40}| )?"
GBNF = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)  # how a rule begins in llama.cpp's notation, and in Lark's none
BYTES = (*range(0xC0), *range(0xC2, 0xF5))  # that occur in UTF-8
BYTEWISE = "take a model whose tokens spell every byte"
MOST_SAID = 300  # characters of an error
# llguidance reads rules that lead to rules by recursion, 6 KB a rule; where a stack is full the process ends. So it gets one
# that no form of so many characters fills.
MOST_WRITTEN, STACK_NBYTES = 1 << 18, 256 << 20
_stack = threading.Lock()  # the size is of all threads that begin


class Grammars:
    """What the texts of a vocabulary can be held to; its tokens are put into a trie once."""

    def __init__(self, tokenizer: Tokenizer, n_scored: int) -> None:
        """`n_scored`: tokens that the model chooses among.

        Raises UsageError without llguidance, and InputError for a vocabulary that does not say what ends a text, or that has
        bytes without a token: a text might stop where no token goes on.
        """
        try:
            from llguidance import LLTokenizer
        except ImportError:
            raise UsageError("grammars need llguidance; install it with `pip install 'anyformer[grammars]'`") from None
        self.closing = [token for token in tokenizer.closing_ids if token < n_scored]
        if not self.closing:
            raise InputError("this model has no token that ends a text, so one held to a grammar could not end")
        try:
            self.tokens = LLTokenizer(
                json.dumps(tokenizer.data), n_vocab=max(n_scored, tokenizer.vocab_size), eos_token=self.closing
            )
        except ValueError:
            raise InputError(f"no grammar holds a vocabulary of this kind ({tokenizer.kind}); {BYTEWISE}") from None
        self.n_scored = n_scored
        known = (
            token
            for token in range(min(n_scored, tokenizer.vocab_size))
            if token not in self.closing and not self.tokens.is_special_token(token)
        )
        spelled = {self.tokens.decode_bytes([token]) for token in known}
        if missing := [byte for byte in BYTES if bytes([byte]) not in spelled]:
            raise InputError(f"this vocabulary has no token of the byte 0x{missing[0]:02x} alone; {BYTEWISE}")

    def read(self, form: Form, content: Any) -> Grammar:
        """The grammar of a JSON schema (what JSON gives), of a regular expression, or one in Lark's or llama.cpp's notation.

        Raises InputError for what is none, for what llguidance does not know, and where there is no such text.
        """
        from llguidance import LLMatcher, grammar_from

        try:
            match form, content:
                case "json_schema", dict():
                    written = LLMatcher.grammar_from_json_schema(spaced(content))
                case "json_schema", _:
                    raise InputError("json_schema: a schema is an object, such as {'type': 'object'}")
                case "grammar", str() if not GBNF.search(content):
                    written = LLMatcher.grammar_from_lark(content)
                case _, str():
                    written = grammar_from(form, content)
                case _:
                    raise InputError(f"{form}: it is a text, not {type(content).__name__}")
        except ValueError as error:
            raise InputError(f"{form}: {_one_line(error)}") from None
        if len(written) > MOST_WRITTEN:
            raise InputError(f"{form}: its {len(written):,} characters are more than {MOST_WRITTEN:,}; make it shorter")
        parser = _on_a_long_stack(lambda: LLMatcher(self.tokens, written, log_level=0))
        parser.compute_bitmask()  # says too whether there is a first token
        if parser.is_error():
            said = _one_line(parser.get_error())
            raise InputError(f"{form}: {'no text is of this form' if said == 'NoExtensionBias' else said}")
        return Grammar(parser, tuple(self.closing), self.n_scored)


def spaced(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON schema that says, unless it does already, which blanks may stand between the parts of a value."""
    said = schema.get("x-guidance", {})
    return {**schema, "x-guidance": {"whitespace_pattern": BLANKS, **said} if isinstance(said, dict) else said}


@lru_cache(maxsize=1)
def grammars_of(tokenizer: Tokenizer, n_scored: int) -> Grammars:
    """The `Grammars` of a vocabulary, kept for the next text."""
    return Grammars(tokenizer, n_scored)


@dataclass(frozen=True, eq=False)
class Grammar:
    """The texts that may be written with one vocabulary; each grows in a parser of its own (`Parsers`)."""

    parser: LLMatcher  # of no text yet
    closing: tuple[int, ...]  # that end a text
    n_scored: int


class Parsers:
    """The texts of a batch's rows, each as far as it has grown in a grammar."""

    def __init__(self, grammar: Grammar, n_rows: int) -> None:
        self.grammar = grammar
        self.rows = [grammar.parser.deep_copy() for _ in range(n_rows)]
        self._next: Tensor | None = None  # what may not follow now, once it was asked

    def add(self, ids: Sequence[Sequence[int]]) -> None:
        """Take the tokens that rows have chosen [row, token]; where a text is whole nothing follows."""
        self._next = None
        for parser, tokens in zip(self.rows, ids, strict=True):
            for token in tokens:
                if not parser.is_stopped():
                    parser.consume_token(token)

    def select(self, rows: list[int]) -> None:
        """Take these rows, in this order; one may be taken several times."""
        self.rows, self._next = [self.rows[row].deep_copy() for row in rows], None

    def forbidden(self, guesses: Sequence[int] = ()) -> Tensor:
        """The tokens that may not follow, bool [row, vocab]; of one row [1 + guess, vocab]: behind no guess, the first …

        Behind a guess that may not stand anything may, since nothing comes of it. Raises RunFailed for a text that has become
        too much for the parser.
        """
        if not guesses:
            if self._next is None:
                self._next = torch.stack([self._forbidden(parser) for parser in self.rows])
            return self._next
        parser = self.rows[0].deep_copy()
        found = [self._forbidden(parser)]
        for guess in guesses:
            stands = parser.consume_token(guess)
            found.append(self._forbidden(parser) if stands else torch.zeros_like(found[-1]))
        return torch.stack(found)

    def _forbidden(self, parser: LLMatcher) -> Tensor:
        bits = np.frombuffer(parser.compute_bitmask(), np.uint8)
        if parser.is_error():
            raise RunFailed(f"the text can't be held to its grammar: {_one_line(parser.get_error())}")
        allowed = np.unpackbits(bits, count=self.grammar.n_scored, bitorder="little")
        if not (parser.is_accepting() or parser.is_stopped()):  # where a token that ends texts is one of words too
            allowed[list(self.grammar.closing)] = 0
        if not allowed.any():
            raise RunFailed("the text can't be held to its grammar: there is no token for what follows")
        return torch.from_numpy(allowed == 0)


def _on_a_long_stack(work: Callable[[], T]) -> T:
    """What work gives, done in a thread of its own that has `STACK_NBYTES`."""
    with ThreadPoolExecutor(1) as pool:
        with _stack:
            usual = threading.stack_size(STACK_NBYTES)
            try:
                done = pool.submit(work)  # begins the thread
            finally:
                threading.stack_size(usual)
        return done.result()


def _one_line(error: object) -> str:
    """What the parser says, without the lines that draw where."""
    lines = re.split("<state>|<backtrace>", str(error))[0].splitlines()
    return " ".join(line.strip() for line in lines if not re.fullmatch(r" *(\d+ \|.*|\^*)", line))[:MOST_SAID]
