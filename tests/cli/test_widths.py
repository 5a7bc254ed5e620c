"""What commands print at 60, 80 and 120 columns: no line too long, no word broken or left out, no line padded."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from anyformer.cli.main import application
from tests.cli.running import succeeded

pytestmark = pytest.mark.usefixtures("_quick")
GOLDEN = Path(__file__).parent / "golden"  # read line by line before they were committed
WIDE = 500  # columns that nothing needs to be wrapped for
WIDTHS = (60, 80, 120)
HEADS = {"part", "all", "together"}  # over a column of names, which paragraphs have not
COMMANDS = (
    "diff transformer-lm gpt2 llama2",
    "diff gpt2 llama2 --lineage",
    "show deepseek-v3 --no-diagram",
    "show gpt-4",
    pytest.param("plan llama3-8b --hardware 8xH100 --tokens 1T --mesh dp=2,tp=4", marks=pytest.mark.slow),
    "check gpt2",
    "cost deepseek-v3 --seq-len 4096",
)


def shown(command: str, columns: int) -> str:
    return succeeded(CliRunner().invoke(application, command.split(), env={"COLUMNS": str(columns)})).stdout


def words(text: str) -> set[str]:
    """Without what stands between the cells of a row when they are a paragraph."""
    return {word.strip(";,") for word in text.split()} - {"", "–"}


def check(text: str, columns: int) -> None:
    for line in text.splitlines():
        assert line == line.rstrip(), f"padded: {line!r}"
        assert len(line) <= columns or " " not in line.strip(), f"{len(line)} columns: {line}"


def test_the_history_fits() -> None:
    """A paragraph a model where the table would be too wide, without the cells that say nothing."""
    whole = words(shown("history --since 2025", WIDE))
    for columns in WIDTHS:
        text = shown("history --since 2025", columns)
        check(text, columns)
        assert whole <= words(text) | {"year", "model", "size"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_width_says_the_same(command: str) -> None:
    whole = words(shown(command, WIDE))
    for columns in WIDTHS:
        text = shown(command, columns)
        check(text, columns)
        assert words(text) <= whole, f"{columns} columns: {sorted(words(text) - whole)}"
        assert whole - HEADS <= words(text), f"{columns} columns: {sorted(whole - HEADS - words(text))}"


def test_two_that_differ_have_their_figures_at_60_columns() -> None:
    text = shown("diff llama2-7b gemma3-27b", 60)
    check(text, 60)
    assert text == (GOLDEN / "diff-60.txt").read_text(encoding="utf-8")


def test_names_of_tensors_are_whole() -> None:
    """On a line of their own where it is too narrow: longer than the line, if need be, as a name is to be copied."""
    narrow, wide = (shown("diff gpt2 gpt2-xl --keys", columns) for columns in (60, WIDE))
    names = re.findall(r"[−+~] (stack\.\S+)", wide)
    assert names
    assert re.findall(r"[−+~] (stack\.\S+)", narrow) == names


def test_presets_leave_out_sources_before_they_are_cut() -> None:
    for columns in WIDTHS:
        text = shown("presets --family llama", columns)
        check(text, columns)
        assert "…" not in text
        assert "13,015,864,320" in text
        assert ("arXiv" in text) == (columns == 120)


def test_runs(trained: Path) -> None:
    for columns in WIDTHS:
        text = shown(f"runs {trained.parent}", columns)
        check(text, columns)
        assert {"first", "finished"} <= words(text)
    assert shown(f"runs {trained.parent}", 120).splitlines()[0].split()[-1] == "(UTC)"


def test_a_comparison_that_has_run(tmp_path: Path, text: Path, trained: Path) -> None:
    """Each width has the scores; the widest that a file gets by default has all columns."""
    sizes = "--params 40k --tokens 2048 --seq-len 32 --batch-tokens 256 --device cpu"
    command = f"compare gpt2 llama2 --data {text} --tokenizer {trained}/tokenizer {sizes} --prompt a --out {tmp_path}"
    first = shown(command, 100)
    (score,) = re.findall(r"^llama2 .* (\d\.\d{4}) +[−+]", first, flags=re.MULTILINE)
    for columns in WIDTHS:
        text_shown = shown(command, columns)
        said = text_shown[: text_shown.index("a sample of")]
        check(said, columns)
        assert score in said
        assert "norm" in said  # what differs
        assert "RMSNorm" in said
