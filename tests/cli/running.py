"""Runs commands in this process, on a text and sizes that take a second."""

from pathlib import Path

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
