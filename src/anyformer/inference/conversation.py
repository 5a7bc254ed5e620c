"""Conversations with a model that was tuned to have them, by its checkpoint's chat template."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from anyformer.disk.atomic import write_named
from anyformer.errors import InputError, UsageError
from anyformer.generation import GREEDY, CompiledStep, Continuation, Guessing, Prefixes, Sampling, generate_text
from anyformer.inference.opened import Opened
from anyformer.layers.embedding import learned_positions
from anyformer.text.chat import Chat, Tool

USUAL = 1024  # tokens of an answer at most, where nobody says how many


class Conversation:
    """What was said so far; each answer is the continuation of all of it, as the template writes it.

    Of that only what is new is read, where what was read could stay (`Prefixes`). `system` is said before everything; `tools`
    are what the template tells of; `compiled` is the model's step, where that is compiled, `guessing` who guesses. Closed, or at
    the end of a `with`, it leaves no process behind. Raises TextError where the checkpoint has no template, InputError for a
    model with an encoder.
    """

    def __init__(
        self,
        found: Opened,
        system: str | None = None,
        compiled: CompiledStep | None = None,
        *,
        guessing: Guessing | None = None,
        tools: Sequence[Tool] = (),
    ) -> None:
        if found.model.encoder is not None:
            raise InputError(
                "this model has an encoder and a decoder, and no template makes one text of both; give `generate` a prompt, "
                "without --chat"
            )
        self.found, self.chat, self.tools = found, Chat(found.tokenizer), tools
        self.compiled, self.guessing, self.prefixes = compiled, guessing, Prefixes(found.model)
        self._begun = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[dict[str, str]] = []
        self._saved: set[Path] = set()  # files that hold this conversation
        self.reset()

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *error: object) -> None:
        self.chat.close()

    def reset(self) -> None:
        """Forget all but what the system says."""
        self.messages = list(self._begun)

    def answer(
        self,
        said: str,
        *,
        role: str = "user",
        max_new_tokens: int | None = None,
        sampling: Sampling = GREEDY,
        seed: int = 0,
        stop: Sequence[str] = (),
        on_text: Callable[[int, str], None] | None = None,
    ) -> Continuation:
        """The answer to what a user says, or a tool, told piece by piece as it becomes certain (`on_text`).

        `max_new_tokens` None is 1024, or as many as the model has positions left. Both are then part of the conversation; where
        it fails neither is. Raises TextError for what the template refuses, InputError where the model has no room.
        """
        model = self.found.model
        messages = [*self.messages, {"role": role, "content": said}]
        ids = self.chat.token_ids(messages, self.tools)
        limit = learned_positions(model.spec.stack)
        if limit is not None and len(ids) >= limit:
            raise InputError(
                f"the conversation has {len(ids)} tokens, and the {limit} learned positions of this model leave no room for an "
                "answer; say less, or begin anew (/reset)"
            )
        most = USUAL if limit is None else min(USUAL, limit - len(ids))
        (written,) = generate_text(
            model,
            self.found.tokenizer,
            [ids],
            max_new_tokens=most if max_new_tokens is None else max_new_tokens,
            sampling=sampling,
            seed=seed,
            stop=stop,
            on_text=on_text,
            guessing=self.guessing,
            compiled=self.compiled,
            prefixes=self.prefixes,
        )
        self.messages = [*messages, {"role": "assistant", "content": written.text}]
        return written

    def save(self, file: Path) -> None:
        """Write the messages as JSON. Raises UsageError for a file that somebody else wrote, RunFailed where it cannot be."""
        if file.exists() and file.resolve() not in self._saved:
            raise UsageError(f"{file} exists already; give a new name")
        write_named(file, (json.dumps(self.messages, indent=1, ensure_ascii=False) + "\n").encode())
        self._saved.add(file.resolve())
