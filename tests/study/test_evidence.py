"""What is gathered of studies is what their pages of findings say, and `history --claims` tells all of it."""

from __future__ import annotations

from pathlib import Path

from anyformer.study.evidence import record
from tests.cli.running import run, succeeded
from tools.claims import DATA, evidence, verdicts, written

ROOT = Path(__file__).resolve().parents[2]


def test_the_record_is_that_of_the_results() -> None:
    assert DATA.read_text(encoding="utf-8") == written(), "run python tools/claims.py"
    assert record().evidence == evidence()


def test_every_verdict_of_every_page_is_there() -> None:
    """Counted apart from the reader: rulings stand in bold, and nothing else does."""
    pages = sorted((ROOT / "studies" / "results").glob("*.md"))
    bold = {page.stem: page.read_text(encoding="utf-8").count("** |") for page in pages}
    for page in pages:
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
