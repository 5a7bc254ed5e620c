"""What is gathered of studies is what their pages of findings say, and `history --claims` tells all of it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from anyformer.study.evidence import record
from tests.cli.running import run, succeeded
from tools.claims import DATA, evidence, pages, verdicts, written

ROOT = Path(__file__).resolve().parents[2]


def test_the_record_is_that_of_the_results() -> None:
    assert DATA.read_text(encoding="utf-8") == written(), "run python -m tools.claims"
    assert record().evidence == evidence()


def test_every_verdict_of_every_page_is_there() -> None:
    """Counted apart from the reader: rulings stand in bold, and nothing else does."""
    assert pages()
    bold = {page.stem: page.read_text(encoding="utf-8").count("** |") for page in pages()}
    for page in pages():
        kept = [one for one in record().evidence if one.study == f"studies/{page.stem}.yaml"]
        assert len(kept) == bold[page.stem] > 0


def test_a_page_is_read_row_by_row() -> None:
    table = "| claim | verdict | numbers |\n|---|---|---|\n| a | **supported** | +1 (b; c) |\n"
    page = f"x\n\n{table}\n| model | x | y |\n|---|---|---|\n| d | e | f |\n"
    assert list(verdicts(page)) == [("a", "supported", "+1 (b; c)")]


def test_history_tells_claims_by_what_they_are_about() -> None:
    shown = succeeded(run("history", "--claims")).stdout
    flat = " ".join(shown.split())
    for one in record().evidence:
        assert f"{one.ruling}: {one.claim} {one.said}. {one.scale}; {one.study}" in flat
    assert shown.index("\nactivation\n") < shown.index("\nthe whole\n")


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_each_page_has_its_picture_among_the_claims(page: Path) -> None:
    pytest.importorskip("matplotlib")
    pictures = importlib.import_module("tools.claims_pictures")
    drawn, kept = pictures.draw(page.read_text(encoding="utf-8")), pictures.beside(page)
    assert kept.read_text(encoding="utf-8") == drawn, "run python -m tools.claims"
    assert f"](../studies/results/{kept.name})" in (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")


def test_a_picture_shows_what_the_page_says() -> None:
    """A model of two sizes and budgets, one seed of which failed, another that failed wholly, and their rates."""
    pytest.importorskip("matplotlib")
    pictures = importlib.import_module("tools.claims_pictures")
    row = "| model | parameters | tokens | lr | loss by seed, nats a token | mean | FLOPs | tokens/s |"
    page = "\n".join([
        row, "|---|---:|---:|---:|---|---:|---:|---:|",
        "| a | 1.25M | 500k | 0.002 | 4.1000, failed: diverged | 4.1000 | 4.25T | 9 |",
        "| b | 1.25M | 500k | 0.002 | failed: diverged | – | 4.25T | 9 |",
        "| a | 2.25M | 1.00M | 0.002 | 4.0000, 4.2000 | 4.1000 | 13.5 T | 1,234 |", "",
        "Learning rates, chosen on a part", "", "- a: 0.001 4.5, 0.002 failed; chosen 0.001",
    ])  # fmt: skip
    found = [(row[0], pictures.number(row[2]), pictures.number(row[6])) for row in pictures.rows(page, pictures.LOSSES)]
    assert found == [("a", 5e5, 4.25e12), ("b", 5e5, 4.25e12), ("a", 1e6, 13.5e12)]
    assert list(pictures.tried(page)) == [("a", 0.001, 4.5)]
    drawn = pictures.draw(page)
    assert drawn.count(">a</text>") == 2  # a legend each
    assert all(f">{tick}</text>" in drawn for tick in ("4.25 T", "13.5 T", "0.001"))
