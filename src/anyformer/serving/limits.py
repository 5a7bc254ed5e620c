"""What a server takes on, so that no client takes all of it; what it refuses, in OpenAI's form of an error."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from anyformer.errors import InputError, bounded
from anyformer.generation import Prefixes
from anyformer.inference.opened import Opened
from anyformer.layers.embedding import learned_positions
from anyformer.model import Transformer
from anyformer.screen import visible

WITHOUT_CONTEXT = 4096  # tokens, where neither a model nor an option says how many
MOST_CLIENTS = 10_000  # of which the rate is remembered
KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class Refusal(Exception):
    """A request that is refused: `param` is the field at fault, `code` a word that programs look at, `seconds` when to ask again.

    What no UTF-8 holds, half a character, is spelled out, and what steers a terminal.
    """

    def __init__(
        self, message: str, status: int = 400, *, param: str | None = None, code: str | None = None, seconds: int = 1
    ) -> None:
        super().__init__(visible(bounded(message)))
        self.seconds = seconds
        self.status, self.param, self.code = status, param and visible(param), code

    def as_json(self) -> dict[str, Any]:
        """The body of the answer."""
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class Limits:
    """What a server takes on. Raises InputError where the model has no room for it."""

    longest: int | None = None  # tokens of a prompt and its continuation; None: the model's context
    max_tokens: int = 4096  # new ones of one text
    rows: int = 32  # texts that grow at once
    waiting: int = 256  # texts that wait for their turn
    body_nbytes: int = 4 << 20
    rate: int | None = None  # requests a minute of one client; None: any number
    seconds: float = 600.0  # that an answer may take
    prefix_nbytes: int | None = (
        None  # of what was read, for prompts that begin alike; None: a share of free memory; 0: nothing stays
    )

    def context(self, found: Opened) -> int:
        """Tokens that a row may have."""
        stack = found.model.spec.stack
        most = learned_positions(stack)
        if self.longest is not None and most is not None and self.longest > most:
            raise InputError(
                f"--max-length {self.longest} is beyond the {most} learned positions of this model; ask for fewer"
            )
        return self.longest or most or found.model.spec.context or WITHOUT_CONTEXT

    def prefixes(self, model: Transformer) -> Prefixes | None:
        """Where what was read stays."""
        return None if self.prefix_nbytes == 0 else Prefixes(model, self.prefix_nbytes)

    def characters(self, found: Opened) -> int | None:
        """Characters that a row may have; None where a token may stand for more than its spelling."""
        tokenizer = found.tokenizer
        if tokenizer.kind != "byte-level-bpe" or tokenizer.data.get("normalizer") is not None:
            return None
        return self.context(found) * max(len(tokenizer.spelling(token) or "") for token in range(tokenizer.vocab_size))


class RequestRates:
    """Which clients have asked too often: each has as many requests as a minute allows, and gets them back evenly."""

    def __init__(self, a_minute: int) -> None:
        self.a_minute = a_minute
        self.left: dict[str, tuple[float, float]] = {}  # by client: requests left, and when

    def take(self, client: str, now: float) -> None:
        """Count a request at a time in seconds. Raises Refusal."""
        left, then = self.left.pop(client, (float(self.a_minute), now))
        left = min(self.a_minute, left + (now - then) * self.a_minute / 60)
        if len(self.left) >= MOST_CLIENTS:
            del self.left[next(iter(self.left))]
        self.left[client] = (left - (left >= 1), now)
        if left < 1:
            seconds = ceil((1 - left) * 60 / self.a_minute)
            said = f"more than {self.a_minute} requests a minute; wait {seconds} s"
            raise Refusal(said, 429, code="rate_limit_exceeded", seconds=seconds)
