"""Answers kept on disk: what a command has printed is printed again, and neither torch nor any model is imported for it.

The question is the command with its parameters, what the files hold that they name, and the code: change one of them and it is
answered afresh. `ANYFORMER_NO_CACHE` has every question answered afresh.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

import click

from anyformer.cli.terminal import Recorder, console
from anyformer.disk.cache import recall, remember
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
            if known is not None and known["width"] in (None, console().width):
                Recorder.replay(known["printed"])
                status = known["status"]
            else:
                status = _recorded(functools.partial(run, **parameters), asked)
            click.get_current_context().exit(status)

        return answered  # type: ignore[return-value]

    return around


def _recorded(run: Callable[[], Any], asked: Any) -> int:
    """The status with which the command ends; what it prints is kept, unless it fails or warns."""
    out, errors = Recorder(sys.stdout), Recorder(sys.stderr)
    status = 0
    with redirect_stdout(out), redirect_stderr(errors):  # type: ignore[type-var]
        try:
            run()
        except click.exceptions.Exit as ended:
            status = ended.exit_code
    if asked and out.whole and not errors.printed:
        remember(ROOM, asked, {"printed": out.printed, "width": out.width, "status": status})
    return status


def _question(command: str, parameters: Mapping[str, Any]) -> Any:
    """All that the answer depends on, as plain data; None where it depends on more: own parts, directories, this machine."""
    given = click.get_current_context().get_parameter_source("import")
    if os.environ.get("ANYFORMER_NO_CACHE") or given not in (None, click.core.ParameterSource.DEFAULT):
        return None
    files: dict[str, str] = {}
    for word in _words(list(parameters.values())):
        if THIS.fullmatch(word.strip()):
            return None
        if PATH.search(word):
            named = [path for path in {word, COUNT.sub("", word, count=1)} if os.path.isfile(path)]
            if not named or any(os.path.getsize(path) > MOST_NBYTES for path in named):
                return None
            files |= {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in named}
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in parameters.items()}
    return {"command": command, "parameters": plain, "files": files, "code": _code()}


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
    files = sorted(_files(Path(__file__).parent.parent))
    return hashlib.sha256(repr((__version__, sys.version, found, files)).encode()).hexdigest()


def _files(folder: Path | str) -> Iterator[tuple[str, int, int]]:
    for entry in os.scandir(folder):
        if entry.is_dir():
            yield from _files(entry.path) if entry.name != "__pycache__" else ()
        else:
            stat = entry.stat()
            yield entry.path, stat.st_mtime_ns, stat.st_size
