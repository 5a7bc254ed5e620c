"""Faults put into the program on purpose, one after another: the harness must see each as what it is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click

from tests.hostile.arena import Arena, Limits, scratch
from tests.hostile.kinds import Attempt
from tests.hostile.verdict import faults, files_of

LIMITS = Limits(memory_nbytes=100 << 20, cpu_seconds=1, wall_seconds=20.0)


def _raise(*_: Any, **__: Any) -> Any:
    raise KeyError("of a reader")


def _spin(*_: Any, **__: Any) -> Any:
    while True:
        pass


def _sleep(*_: Any, **__: Any) -> Any:
    signal.pause()


def _fill(*_: Any, **__: Any) -> Any:
    held = bytearray(150 << 20)
    held[::4096] = b"x" * len(held[::4096])
    raise click.UsageError("too much")


def _abort(*_: Any, **__: Any) -> Any:
    os.abort()


def _lines(*_: Any, **__: Any) -> Any:
    click.echo("one line", err=True)
    raise click.UsageError("and another")


def _long(*_: Any, **__: Any) -> Any:
    os.write(2, b"error: " + b"long " * 1_000)  # past the command line, which would cut it
    raise SystemExit(2)


def _escape(*_: Any, **__: Any) -> Any:
    os.write(1, b"\x1b[31mred\n")  # past the screen, which would spell it out
    raise SystemExit(0)


def _markup(*_: Any, **__: Any) -> Any:
    click.echo("zq7")
    raise SystemExit(0)


def _litter(*_: Any, **__: Any) -> Any:
    Path(".tmp-left").write_text("x")
    raise click.UsageError("refused")


def _change(*_: Any, **__: Any) -> Any:
    Path("input.json").write_text("x")
    raise click.UsageError("refused")


def _negative(*_: Any, **__: Any) -> Any:
    click.echo('{"total": -28000000}')
    raise SystemExit(0)


def _nan(*_: Any, **__: Any) -> Any:
    click.echo('{"total": NaN}')
    raise SystemExit(0)


def _status(*_: Any, **__: Any) -> Any:
    raise SystemExit(3)


def _other(*_: Any, **__: Any) -> Any:
    click.echo('{"loss": 5.66}')
    raise SystemExit(0)


FAULTS: dict[str, Callable[..., Any]] = {
    "no traceback": _raise,
    "it ends": _spin,
    "it ends by itself": _abort,
    "memory is bounded": _fill,
    "a refusal is one line": _lines,
    "a refusal is short": _long,
    "no raw control characters": _escape,
    "markup in names is text": _markup,
    "nothing unfinished is left": _litter,
    "a refusal changes nothing": _change,
    "no figure is negative": _negative,
    "--json is JSON": _nan,
    "status 0, 1 or 2": _status,
    "what was sealed answers as before, or something is said": _other,
}


def main() -> None:
    """Print as JSON, of each fault and of none, which promises the harness sees broken."""
    root = scratch()
    arena = Arena(root)
    seen = {}
    for name, fault in {"none": None, **FAULTS}.items():
        folder = root / str(len(seen))
        folder.mkdir()
        (folder / "input.json").write_text('{"anyformer": 1}')
        expected = '0\n{"loss": 4.18}' if fault is _other else None
        attempt = Attempt("seeded", ["cost", "input.json", "--json"], figures=True, expected=expected)
        before = files_of(folder)
        with patch("anyformer.spec.codec.decode", fault) if fault else patch("anyformer.version.__version__", "0"):
            ending = arena.run(attempt.arguments, folder, limits=LIMITS)
        seen[name] = [broken.promise for broken in faults(attempt, ending, before, folder, LIMITS)]
    shutil.rmtree(root)
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
