"""Runs commands in this process, on a text and sizes that take a second."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from anyformer.cli.main import application

SIZES = {
    "--params": "60k",
    "--tokens": "4096",
    "--seq-len": "32",
    "--batch-tokens": "256",
    "--device": "cpu",
}
SMALL = tuple(word for option in {**SIZES, "--vocab": "300"}.items() for word in option)


def run(*arguments: object, typed: str | None = None) -> Result:
    return CliRunner().invoke(application, [str(argument) for argument in arguments], input=typed)


def outcome(*arguments: object) -> tuple[int, str, str]:
    """Status, stdout, stderr."""
    result = run(*arguments)
    return result.exit_code, result.stdout, result.stderr


def write_text(path: Path) -> Path:
    lines = [f"line {i}: the {('cat', 'dog', 'owl')[i % 3]} sits on mat number {i * 7 % 11}." for i in range(400)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def succeeded(result: Result) -> Result:
    assert result.exit_code == 0, result.stderr
    return result


def everything(folder: Path) -> dict[str, bytes]:
    """Every file below, and what it holds."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def answer(*arguments: object) -> dict[str, Any]:
    return json.loads(succeeded(run(*arguments, "--json")).stdout)


def refused(result: Result, *says: str) -> None:
    """It could not start: status 2, nothing on stdout, one line that says all of this."""
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.endswith("\n")
    assert result.stderr.count("\n") == 1, result.stderr
    for words in says:
        assert words in result.stderr, result.stderr


def failed(result: Result, *says: str) -> None:
    """It ran and failed: status 1, and one last line that says all of this."""
    assert result.exit_code == 1, result.output
    *before, last = result.stderr.strip().splitlines()
    assert last.startswith("error: ")
    assert not any(line.startswith(("error", "Traceback")) for line in before)
    for words in says:
        assert words in last, last
