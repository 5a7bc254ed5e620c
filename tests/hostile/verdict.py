"""What is promised of every command, whatever it is given, and where an ending broke it."""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import json
import math
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from anyformer.cli.main import application
from tests.hostile.answer import answer_of, first_change
from tests.hostile.arena import CLOSED, UNREAD, Ending, Limits
from tests.hostile.kinds import Attempt
from tests.hostile.trees import MARKUP

READER_GONE = 128 + signal.SIGPIPE
LONGEST_LINE = 2_000  # characters of an error
MOST_SAID = 1 << 20  # characters of an answer, and
SAID_OF_ONE = 64  # of each character that it was asked about: as JSON a token is a number, a word and their lines
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_OURS = re.compile(r'File "[^"]*/(anyformer/[^"]+)", line (\d+), in (\w+)')
_RAISED = re.compile(
    r"^([A-Za-z_][\w.]*(?:Error|Exception|Warning|Interrupt|Exit|Panic\w*|Failed))\b:?(.*)", re.MULTILINE
)


class Fault(NamedTuple):
    """A promise that was not kept; `where` tells faults of one cause from others."""

    promise: str
    where: str


Files = Mapping[str, str]


def files_of(folder: Path) -> Files:
    """Every entry below a folder with a digest of what it is."""
    found = {}
    for where, directories, names in os.walk(folder):
        for name in (*directories, *names):
            path = Path(where, name)
            if path.is_symlink():
                entry = "link " + os.readlink(path)
            elif path.is_dir():
                entry = "directory"
            else:
                entry = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
            found[os.fsencode(path.relative_to(folder)).decode("utf-8", "backslashreplace")] = entry
    return found


def faults(attempt: Attempt, ending: Ending, before: Files, folder: Path, limits: Limits) -> Iterator[Fault]:
    """Every promise that this ending broke; `before` it the folder held so much."""
    after = files_of(folder)
    if ending.timed_out or ending.status == -signal.SIGXCPU:
        yield Fault("it ends", f"after {ending.cpu_seconds:.0f} s of processor time it had not")
        return
    if ending.status < 0:
        yield Fault("it ends by itself", f"ended by {signal.Signals(-ending.status).name}: {_last(ending.errors)}")
        return
    if "Traceback (most recent call last)" in ending.errors or "panicked at" in ending.errors:
        yield Fault("no traceback", _origin(ending.errors))
    elif attempt.stdout == UNREAD and ending.status == READER_GONE:
        pass
    elif ending.status not in (0, 1, 2):
        yield Fault("status 0, 1 or 2", f"{ending.status}: {_last(ending.errors)}")
    elif ending.status == 2:
        yield from _refusal(ending)
    elif ending.status == 1 and ending.errors and not _last(ending.errors).startswith("error: "):
        yield Fault("a failure's last line is its error", _last(ending.errors))
    elif ending.status == 0:
        yield from _answer(attempt, ending)
        if attempt.expected is not None and not ending.errors:
            found = answer_of(attempt.arguments, attempt.outputs, ending, folder)
            if found != attempt.expected:
                yield Fault(
                    "what was sealed answers as before, or something is said", first_change(attempt.expected, found)
                )
    yield from _printed(ending, MOST_SAID + SAID_OF_ONE * sum(map(len, attempt.arguments)))
    yield from _left(attempt, ending, before, after)
    if ending.cpu_seconds > limits.cpu_seconds:
        yield Fault("time is bounded", f"{ending.cpu_seconds:.0f} s of processor time, status {ending.status}")
    if ending.memory_nbytes > limits.memory_nbytes:
        yield Fault("memory is bounded", f"{ending.memory_nbytes >> 20} MiB, status {ending.status}")


def _refusal(ending: Ending) -> Iterator[Fault]:
    lines = ending.errors.splitlines()
    if len(lines) != 1 or not lines[0].startswith("error: "):
        yield Fault("a refusal is one line", f"{len(lines)} lines: {' | '.join(lines)[:300]}")
    elif len(lines[0]) > LONGEST_LINE:
        yield Fault("a refusal is short", f"{len(lines[0]):,} characters: {lines[0][:120]}")
    if ending.out:
        yield Fault("a refusal prints nothing", ending.out[:120])


def _printed(ending: Ending, most: int) -> Iterator[Fault]:
    for name, text in (("stdout", ending.out), ("stderr", ending.errors)):
        if found := _CONTROL.search(text):
            yield Fault("no raw control characters", f"{name}: {_around(text, found.start())}")
        for found in re.finditer(MARKUP, text):
            if not re.search(r"\[(red|/red|bold)?\]?\s*$", text[: found.start()]):
                yield Fault("markup in names is text", f"{name}: {_around(text, found.start())}")
                break
        if len(text) > most:
            yield Fault("what is printed is bounded", f"{len(text):,} characters on {name}: {text[:80]}")


def _left(attempt: Attempt, ending: Ending, before: Files, after: Files) -> Iterator[Fault]:
    def may(path: str) -> bool:
        return any(fnmatch.fnmatch(path, end) or path.startswith(end + "/") for end in attempt.outputs)

    changed = sorted(path for path in before if after.get(path) != before[path])
    if refused := [path for path in changed if ending.status == 2 and path != "run/lock"]:
        yield Fault("a refusal changes nothing", ", ".join(refused)[:300])
    elif others := [path for path in changed if not may(path)]:
        yield Fault("inputs stay as they are", ", ".join(others)[:300])
    new = sorted(path for path in after if path not in before)
    unfinished = [path for path in new if ".tmp-" in path]
    if unfinished:
        yield Fault("nothing unfinished is left", ", ".join(unfinished)[:300])
    unwanted = [
        path for path in new if not may(path) or (ending.status == 2 and not path.startswith(("kept", "run/lock")))
    ]
    if unwanted:
        yield Fault("nothing is written that was not asked for", f"status {ending.status}: {', '.join(unwanted)[:300]}")


def _answer(attempt: Attempt, ending: Ending) -> Iterator[Fault]:
    if not asks_for_json(attempt.arguments) or attempt.stdout in (CLOSED, UNREAD):
        return
    if "--help" in attempt.arguments or "-h" in attempt.arguments or "_ANYFORMER_COMPLETE" in attempt.environment:
        return

    def refuse(name: str) -> float:
        raise ValueError(f"{name} is no JSON")

    try:
        answer = json.loads(ending.out, parse_constant=refuse)
    except ValueError as error:
        yield Fault("--json is JSON", f"{error}: {ending.out[:100]!r}")
        return
    except RecursionError:
        yield Fault("--json is JSON", "nested too deeply")
        return
    if attempt.figures and attempt.arguments[0] in ("cost", "plan"):
        for path, value in _numbers(answer, ""):
            if value < 0 or math.isinf(value):
                yield Fault("no figure is negative", f"{path} = {value}")
                return


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether `--json` is there as an option, and not as the value of the one before it."""
    command, valued = application, set[str]()
    for before, word in itertools.pairwise(("", *arguments)):
        if word == "--json" and before not in valued:
            return True
        if isinstance(command, click.Group) and (inner := command.get_command(click.Context(command), word)):
            command = inner
            options = (each for each in inner.params if isinstance(each, click.Option) and not each.is_flag)
            valued = {name for each in options for name in each.opts}
    return False


def _numbers(tree: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _numbers(value, f"{path}.{key}")
    elif isinstance(tree, list):
        for value in tree:
            yield from _numbers(value, path + "[]")
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield path, tree


def _origin(errors: str) -> str:
    """What was raised, and the last place of ours that it passed."""
    if "panicked at" in errors:
        found = re.search(r"panicked at ([^\n]+)", errors)
        return "panic " + (found[1] if found else "")
    raised = list(_RAISED.finditer(errors))
    places = list(_OURS.finditer(errors))
    where = f"{places[-1][1]}:{places[-1][2]} {places[-1][3]}" if places else "?"
    return f"{raised[-1][1]} in {where}:{raised[-1][2][:120]}" if raised else f"in {where}: {_last(errors)}"


def cause(fault: Fault) -> str:
    """A fault without its figures: faults of one cause have one."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|(?<!py:)\b\d[\d.,]*\b", "·", f"{fault.promise}: {fault.where.split(': ')[0]}")


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else ""


def _around(text: str, at: int) -> str:
    return repr(text[max(0, at - 60) : at + 30])
