"""Chat: messages as the one text that a model was tuned on, by its checkpoint's template.

A template is a program that came with the weights. It runs in jinja2's immutable sandbox, in a process of its own that has
little memory and few seconds; the same one answers until it is closed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anyformer.errors import TextError
from anyformer.text.companions import ROLES, content_of
from anyformer.text.tokenizer import Tokenizer

PROGRAM = Path(__file__).with_name("template_process.py")
SECONDS = 5.0  # that a template may take

Message = Mapping[str, Any]
"""{"role": "system", "user", "assistant" or "tool", "content": text}, as OpenAI's interface and transformers have it.

The assistant may call tools beside its content, or in its place: "tool_calls", a list of objects.
"""

Tool = Mapping[str, Any]
"""A function that the assistant may call, as transformers hands it to a template: the JSON schema that says what it is."""


class Chat:
    """The chat template of a tokenizer, ready to be filled in. Raises TextError where it has none.

    Closed, or at the end of a `with`, it leaves no process behind.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        template = tokenizer.chat_template
        if template is None:
            raise TextError(
                "this checkpoint has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json): it "
                "was not tuned to chat; name a template (--chat-template), or continue texts with `anyformer generate`"
            )
        self.tokenizer, self.template = tokenizer, template
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def text(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), answers: bool = True) -> str:
        """The text of a conversation, up to where the assistant's answer begins if it `answers`. Raises TextError."""
        used = {"tools": bool(tools), "tool_calls": any(each.get("tool_calls") for each in messages)}
        for name, is_used in used.items():
            if is_used and name not in self.template:
                raise TextError(f"the chat template knows no {name}, and would leave them out; use one that does")
        named = {name: content_of(self.tokenizer.config.get(name)) for name in ROLES}
        values = {name: token for name, token in named.items() if token is not None}
        for name, token in (("bos_token", self.tokenizer.begin_of_text), ("eos_token", self.tokenizer.end_of_text)):
            if name not in values and token is not None:
                values[name] = self.tokenizer.spelling(token) or ""
        said = [{name: value for name, value in each.items() if value is not None} for each in messages]
        values |= {"messages": said, "add_generation_prompt": answers, "tools": list(tools) or None}
        told = self._ask({"template": self.template, "values": values})
        if "text" not in told:
            raise TextError(f"the chat template refuses this conversation: {told.get('error', 'no reason is given')}")
        if not told["text"]:
            raise TextError("the chat template writes nothing for this conversation; restore it from a copy")
        return told["text"]

    def token_ids(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """The tokens of a conversation, up to where the assistant's answer begins. Raises TextError."""
        return self.tokenizer.encode(self.text(messages, tools=tools), specials=True)

    def close(self) -> None:
        """End the process, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()  # which waits for it, and closes the pipes

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        with self._turn:
            process = self._process = self._process or subprocess.Popen(
                [sys.executable, "-I", str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for whoever asks
            )
            assert process.stdin is not None
            assert process.stdout is not None
            late = threading.Timer(SECONDS, process.kill)
            late.start()
            try:
                process.stdin.write(json.dumps(question).encode() + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = b""
            except BaseException:  # interrupted: the answer would come to the next question
                self.close()
                raise
            finally:
                late.cancel()
            if not line:
                self.close()
                raise TextError(
                    f"the chat template took more than {SECONDS:g} s or too much memory, and was ended; use another"
                )
            return json.loads(line)
