"""New processes that need not import: one has imported what all of them need, waits, and forks for each script.

A start of Python with torch and all parts takes seconds, a fork none; nothing that one script does is seen by the next.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Done(NamedTuple):
    """What a process left: its exit status, what it printed."""

    returncode: int
    stdout: str
    stderr: str


@cache
def _waiting() -> subprocess.Popen[str]:
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    alone = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}  # one thread, since a fork takes no others along
    command = [sys.executable, "-m", "tests.warm"]
    return subprocess.Popen(command, env=alone, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def python(*arguments: str, cwd: Path, environment: Mapping[str, str]) -> Done:
    """Run `python SCRIPT …` or `python -m MODULE …` in a folder, on one thread, with these variables of its own.

    A DeprecationWarning that the script itself causes is an error.
    """
    with TemporaryDirectory() as folder:
        said = [Path(folder) / name for name in ("stdout", "stderr")]
        order = {
            "arguments": arguments,
            "cwd": str(cwd),
            "environment": dict(environment),
            "said": list(map(str, said)),
        }
        waiting = _waiting()
        assert waiting.stdin is not None
        assert waiting.stdout is not None
        waiting.stdin.write(f"{json.dumps(order)}\n")
        waiting.stdin.flush()
        return Done(int(waiting.stdout.readline()), *(path.read_text(encoding="utf-8") for path in said))


def _forked() -> dict[str, Any] | None:
    """Fork for each line of standard input and write the child's exit status; what a child is to do, None at the end."""
    import anyformer.cli.main
    import anyformer.hub
    import anyformer.training.run  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return json.loads(line)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()
    return None


def _become(arguments: list[str], cwd: str, environment: dict[str, str], said: list[str]) -> None:
    os.chdir(cwd)
    os.environ.update(environment)
    for number, path in zip((0, 1, 2), (os.devnull, *said), strict=True):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), number)
    warnings.filterwarnings("error", category=DeprecationWarning, module="__main__")
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    order = _forked()
    if order is not None:
        _become(**order)
