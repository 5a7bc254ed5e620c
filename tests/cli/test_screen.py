"""Whatever the streams are, closed, full, broken, of few characters, a command ends with a status and without a traceback."""

import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from anyformer.cli import main as cli
from anyformer.cli.terminal import tell
from anyformer.screen import Screen, console

SOURCE = Path(cli.__file__).parents[2]
START = [sys.executable, "-m", "anyformer"]
PLAIN = ("presets",)
TABLE = ("show", "gpt2")
HELP, UNSEEN = ("train", "--help"), ("show", "naïve-東京")
WORDS = {"plain": PLAIN, "table": TABLE, "yaml": (*TABLE, "--spec", "yaml"), "wrong": ("show", "nowhere")}


def each(commands: Iterable[Sequence[str]]) -> list[Any]:
    """Parameters; slow are those that import torch."""
    light = (PLAIN, HELP, WORDS["wrong"], UNSEEN)
    marked = ((words, () if words in light else pytest.mark.slow) for words in commands)
    return [pytest.param(words, marks=marks, id=" ".join(words)) for words, marks in marked]


def shell(line: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    """A line of a shell in which "$@" is the command `anyformer` with these arguments."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "ANYFORMER_NO_CACHE": "1", **more}
    command = ["bash", "-c", line, "bash", *START, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, check=False, timeout=120)


def quiet(found: subprocess.CompletedProcess[bytes]) -> None:
    assert b"Traceback" not in found.stderr, found.stderr.decode()
    assert b"Exception ignored" not in found.stderr, found.stderr.decode()


@pytest.mark.parametrize("words", each(WORDS.values()))
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream(words: Sequence[str], closed: str) -> None:
    found = shell(f'"$@" {closed}', *words)
    quiet(found)
    assert found.returncode == (2 if words == WORDS["wrong"] else 0), found.stderr


@pytest.mark.slow
def test_a_file_never_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    """The next file that is opened would get the number of the stream, and what is printed."""
    found = shell('"$@" >&-', *TABLE, "--diagram", str(tmp_path / "a.svg"))
    assert found.returncode == 0
    text = (tmp_path / "a.svg").read_text()
    assert text.startswith("<svg")
    assert text.endswith("</svg>\n")


@pytest.mark.parametrize("words", each([PLAIN, HELP, TABLE, ("history", "--markdown")]))
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_enough(words: Sequence[str], unbuffered: str) -> None:
    found = shell('"$@" | head -c 1; exit ${PIPESTATUS[0]}', *words, PYTHONUNBUFFERED=unbuffered)
    assert found.stderr == b""
    assert found.returncode in (0, 141), found.stderr  # 0: all was in the pipe before it went


def test_a_reader_that_never_was() -> None:
    for words in (PLAIN, HELP):
        found = shell('{ sleep 0.2; "$@"; } | true; exit ${PIPESTATUS[0]}', *words)
        assert (found.returncode, found.stderr) == (141, b""), words


def test_errors_that_nobody_reads() -> None:
    found = shell('{ "$@" 3>&1 >&2 2>&3 3>&-; echo $? >&2; } | true', *WORDS["wrong"])
    assert found.stderr.strip() == b"2"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device that is always full is Linux's")
@pytest.mark.parametrize("words", each([PLAIN, HELP, TABLE]))
def test_a_full_disk_under_what_is_printed(words: Sequence[str]) -> None:
    found = shell('"$@" > /dev/full', *words)
    assert (found.returncode, found.stderr) == (1, b"error: No space left on device\n")


@pytest.mark.parametrize(
    ("encoding", "more"),
    [
        ("ascii", {"PYTHONIOENCODING": "ascii"}),
        ("latin-1", {"PYTHONIOENCODING": "latin-1"}),
        ("utf-8", {"LC_ALL": "C"}),
    ],
)
@pytest.mark.parametrize(
    "words",
    each(
        [
            PLAIN,
            UNSEEN,
            TABLE,
            (*TABLE, "--spec", "json"),
            ("diff", "gpt2", "gpt2+norm=RMSNorm"),
            ("diff", "gpt2", "llama2-7b", "--lineage"),
            ("history",),
        ]
    ),
)
def test_a_terminal_of_few_characters(words: Sequence[str], encoding: str, more: dict[str, str]) -> None:
    found = shell('"$@"', *words, **more)
    quiet(found)
    assert found.returncode == (2 if words == UNSEEN else 0)
    (found.stdout + found.stderr).decode(encoding)


def test_a_minus_is_one_in_every_encoding() -> None:
    raw = io.TextIOWrapper(io.BytesIO(), "latin-1")
    screen = Screen(raw)
    screen.write("−14.0M × 2 ─ 東")
    screen.flush()
    assert raw.buffer.getvalue() == "-14.0M × 2 - ?".encode("latin-1")  # type: ignore[attr-defined]


@pytest.mark.slow
def test_json_holds_the_same_in_every_encoding() -> None:
    whole, ascii_only = (
        json.loads(shell('"$@"', *TABLE, "--json", PYTHONIOENCODING=name).stdout.decode(name))
        for name in ("utf-8", "ascii")
    )
    assert whole == ascii_only
    assert "√" in json.dumps(whole, ensure_ascii=False)


def test_bytes_that_are_no_text() -> None:
    """As an argument, a name, the text to be encoded."""
    for line in ("$'\\xff\\xfe'", "show $'a\\xff/b'", "show gpt2 --spec $'\\x9b31m'", "$'\\e]0;x\\a'", "show $'\\x7f'"):
        found = shell(f'"$@" {line}')
        assert (found.returncode, found.stdout) == (2, b"")
        assert found.stderr.count(b"\n") == 1
        assert not set(found.stderr.decode()) & {"\x1b", "\x07", "\x7f", "\x9b"}


@pytest.mark.slow
def test_a_name_is_no_markup_and_steers_nothing(tmp_path: Path) -> None:
    """Neither in a table nor in an error."""
    name = "[red]c\x1b[2J\x9b31m :smile:.yaml"
    (tmp_path / name).write_bytes(shell('"$@"', *TABLE, "--spec", "yaml").stdout)
    for line in (
        'show "./$NAME"',
        'cost "./$NAME"',
        'diff gpt2 "./$NAME"',
        'check "./$NAME"',
        'show "./$NAME/nothing"',
    ):
        found = shell(f'cd "{tmp_path}"; "$@" {line}', NAME=name)
        said = found.stdout.decode() + found.stderr.decode()
        assert "[red]c\\x1b[2J\\x9b31m :smile:" in said.replace("\n", ""), said
        assert not set(said) & {"\x1b", "\x9b"}


def test_the_shown_and_the_raw(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(sys.stdout)
    screen.write("a\x1bb\udcffc\ud800\n")
    console(60).print("[bold]\x1b[0m[/bold]")
    assert capsys.readouterr().out == "a\\x1bb\\xffc\\ud800\n[bold]\\x1b[0m[/bold]\n"


@pytest.mark.parametrize("variable", ["bash_complete", "zsh_complete", "fish_complete", "nonsense", ""])
def test_a_shell_that_asks_for_completions_of_nothing(variable: str) -> None:
    found = shell('"$@"', *PLAIN, _ANYFORMER_COMPLETE=variable)
    quiet(found)
    assert found.returncode in (0, 1, 2)


def interrupted(delay: float, words: Sequence[str]) -> tuple[int, str]:
    """The status and what it said on stderr, of a command that gets SIGINT after so many seconds."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "ANYFORMER_NO_CACHE": "1"}
    # A program of its own tells when `main` begins: what comes before that nobody can catch, however long it takes.
    program = "import os; from anyformer.__main__ import main; os.write(1, b'.'); main()"
    command = [sys.executable, "-c", program, *words]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    return process.returncode, said.decode()


@pytest.mark.parametrize("delays", [[0.1, 0.6], pytest.param([i / 20 for i in range(2, 62)], marks=pytest.mark.slow)])
def test_an_interrupt_while_it_starts(delays: list[float]) -> None:
    for delay in delays:
        status, said = interrupted(delay, ("cost", "llama2-7b"))
        assert status in (0, 130), (delay, said)  # 0: it was faster
        assert said == ("" if status == 0 else "\nerror: interrupted\n"), delay


def test_json_has_null_for_numbers_that_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    tell({"a": math.inf, "b": [math.nan, (1.5, {"c": -math.inf})]}, True, version=1)
    assert json.loads(capsys.readouterr().out) == {"version": 1, "a": None, "b": [None, [1.5, {"c": None}]]}
