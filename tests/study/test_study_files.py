"""The studies of this repository are studies: their files read, their models can be built and trained, what they take is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from anyformer.spec import specification
from anyformer.study.findings import foreseen
from anyformer.study.run_study import plan_study
from anyformer.study.specification import read_study

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "studies").glob("*.yaml"))
FAST = ("03-norms", "quick")


def test_there_is_one_for_each_claim() -> None:
    """Of the twelve, 8 is a matter of `profile` and trains nothing."""
    numbers = {int(file.stem[:2]) for file in FILES if file.stem[:2].isdigit()}
    assert numbers >= {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 14, 15}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_reads_and_names_models_that_there_are(file: Path) -> None:
    spec = read_study(file)
    assert spec.claims
    assert all(specification(model.architecture).n_layers for model in spec.models)
    assert "the least difference found four times in five" in foreseen(spec) or spec.seeds == 1


@pytest.mark.parametrize(
    "file",
    [file if file.stem in FAST else pytest.param(file, marks=pytest.mark.slow) for file in FILES],
    ids=[file.stem for file in FILES],
)
def test_a_dry_run_says_what_it_takes(file: Path, tmp_path: Path) -> None:
    for i, page in enumerate(
        sorted((ROOT / "docs").glob("*.md"))
    ):  # texts that lie here in place of the standard library
        text = page.read_text(encoding="utf-8")[:20_000]
        for at in range(0, len(text), 2_000):
            (tmp_path / f"{i}-{at}.txt").write_text(text[at : at + 2_000], encoding="utf-8")
    plan = plan_study(file, data=str(tmp_path), out=tmp_path / "out", say=lambda _: None)
    spec = read_study(file)
    reported = len(spec.models) * len(spec.sizes) * len(spec.tokens) * spec.seeds
    tried = (
        len(spec.sizes)
        * len(spec.choosing)
        * sum(len(spec.rates_of(model)) for model in spec.models if len(spec.rates_of(model)) > 1)
    )
    assert (plan.runs, plan.done) == (reported + tried, 0)
    assert plan.flops > 0
    assert plan.seconds > 0
    assert not (tmp_path / "out").exists()
