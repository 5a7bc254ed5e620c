"""Answers kept on disk: what a command has printed is printed again, and neither torch nor any model is imported for it.

The question is the command with its parameters, what the files hold that they name, the terminal and the code: change one of
them and it is answered afresh. `ANYFORMER_NO_CACHE` has every question answered afresh.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click

from anyformer.cli.terminal import console
from anyformer.disk.cache import recall, remember
from anyformer.screen import on_screen, raw
from anyformer.spec.outside import installed
from anyformer.version import __version__

Command = TypeVar("Command", bound=Callable[..., Any])
ROOM = "answers"
PATH = re.compile(r"[/\\]|\.(json|ya?ml|gguf|safetensors)", re.IGNORECASE)  # somewhere in a word that names a file
COUNT = re.compile(r"\d+\s*[x×*]\s*", re.IGNORECASE)  # before the device of --hardware
THIS = re.compile(r"(\d+\s*[x×*]\s*)?this", re.IGNORECASE)  # this machine, whose rates are measured anew
MOST_NBYTES = 1 << 20  # of a file that is read to see whether it has changed


def keeps_answers(*writes: str) -> Callable[[Command], Command]:
    """Have a command print again what it printed for the same question; with an option of `writes`, a file's, it runs."""

    def around(run: Command) -> Command:
        @functools.wraps(run)
        def answered(**parameters: Any) -> None:
            asked = None if any(parameters[name] for name in writes) else _question(run.__module__, parameters)
            known = recall(ROOM, asked) if asked else None
            if known is None:
                status = _recorded(functools.partial(run, **parameters), asked)
            else:
                raw(sys.stdout).write(known["printed"])
                status = known["status"]
            click.get_current_context().exit(status)

        return answered  # type: ignore[return-value]

    return around


class _Recorder:
    """A stream that hands on the text that is written to it, and holds it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.printed = stream, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self.printed += text
        return self.stream.write(text)


def _recorded(run: Callable[[], Any], asked: Any) -> int:
    """The status with which the command ends; what it prints is kept, unless it fails or warns."""
    out, errors = _Recorder(raw(sys.stdout)), _Recorder(raw(sys.stderr))
    status = 0
    with on_screen(out, errors):  # type: ignore[arg-type]
        try:
            run()
        except click.exceptions.Exit as ended:
            status = ended.exit_code
    if asked and not errors.printed:
        remember(ROOM, asked, {"printed": out.printed, "status": status})
    return status


def _question(command: str, parameters: Mapping[str, Any]) -> Any:
    """All that the answer depends on, as plain data; None where it depends on more: others' parts, how files are read,
    directories, this machine."""
    source, usual = click.get_current_context().get_parameter_source, (None, click.core.ParameterSource.DEFAULT)
    asked = not all(source(name) in usual for name in ("import", "as"))
    if asked or installed() or os.environ.get("ANYFORMER_NO_CACHE"):
        return None
    files: dict[str, str] = {}
    for word in _words(list(parameters.values())):
        if THIS.fullmatch(word.strip()):
            return None
        ways = {word, COUNT.sub("", word, count=1), word.rpartition(":")[0]}  # of a device, and of a law, in a file
        named = [path for path in ways if os.path.isfile(path)]
        if (PATH.search(word) and not named) or any(os.path.getsize(path) > MOST_NBYTES for path in named):
            return None
        files |= {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in named}
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in parameters.items()}
    out = console()
    seen = [out.width, out.color_system, out.no_color, out.is_terminal, out.encoding]
    return {"command": command, "parameters": plain, "files": files, "terminal": seen, "code": _code()}


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _words(item)
    elif isinstance(value, str | Path):
        yield str(value)


def _code() -> str:
    """A fingerprint of this package's files, by size and time, and of the PyTorch that would be imported."""
    torch = importlib.util.find_spec("torch")
    found = [os.stat(torch.origin).st_mtime_ns] if torch and torch.origin else []
    own = (path for path in Path(__file__).parent.parent.rglob("*") if "__pycache__" not in path.parts)
    files = sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in own if path.is_file())
    return hashlib.sha256(repr((__version__, sys.version, found, files)).encode()).hexdigest()
