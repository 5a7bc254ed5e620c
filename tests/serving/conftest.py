"""A small model behind a real server, in a thread of its own, on a free port."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import pytest
import uvicorn

from anyformer.families.compose import changed
from anyformer.inference.opened import Opened
from anyformer.serving import Limits, application
from anyformer.spec import TableSpec
from anyformer.text import Tokenizer
from anyformer.text.filling import KNOWN
from tests.laws.models import SHRUNK, randomised

TEXTS = ["Größe, naïve café, 東京, 🙂 and more of the same, said the fox. ", "if x > 0:\n    return x\n"] * 30
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
LONGEST = 200


class Running(NamedTuple):
    """A server, and what is behind it."""

    url: str
    found: Opened
    app: object

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"


Start = Callable[..., AbstractContextManager[Running]]


@pytest.fixture(scope="session")
def found() -> Opened:
    tokenizer = Tokenizer.train(TEXTS, 320).with_specials(KNOWN[0])
    tokenizer = Tokenizer(tokenizer._inner, {**tokenizer.config, "chat_template": TEMPLATE})
    spec = next(spec for name, spec in SHRUNK.items() if "gemma3-27b" in name)
    return Opened(randomised(changed(spec, TableSpec, rows=tokenizer.vocab_size)), tokenizer, None)


@pytest.fixture(scope="session")
def start(found: Opened) -> Start:
    @contextmanager
    def started(limits: Limits | None = None, **options: object) -> Iterator[Running]:
        app = application(found, "tiny", limits or Limits(longest=LONGEST), **options)  # type: ignore[arg-type]
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=5))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            until = time.monotonic() + 20
            while not server.started and time.monotonic() < until:
                time.sleep(0.01)
            try:
                yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", found, app)
            finally:
                server.should_exit = True
                thread.join(20)
                assert not thread.is_alive()

    return started


@pytest.fixture(scope="session")
def running(start: Start) -> Iterator[Running]:
    with start() as server:
        yield server
