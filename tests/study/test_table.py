"""The terminal's table and the `--json` answer."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from anyformer.study.results import Study
from anyformer.study.statistics import analyse
from anyformer.study.table import as_json, result_rows, results_table
from tests.study.studies import one_seed, three_seeds

JSON_DOCS = Path(__file__).parents[2] / "docs" / "json.md"


def printed(study: Study, width: int) -> list[str]:
    console = Console(width=width, color_system=None, force_terminal=True)
    with console.capture() as capture:
        console.print(results_table(study, analyse(study), width=width))
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize("study", [one_seed(), three_seeds()])
@pytest.mark.parametrize("width", [80, 100, 140])
def test_nothing_is_cut_off(study: Study, width: int) -> None:
    lines = printed(study, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for finding in analyse(study).findings:
        assert finding.architecture in text
        if finding.score is not None:
            assert f"{finding.score.value:.4f}" in text
            assert f"{finding.score.low:.3f} … {finding.score.high:.3f}" in text
    assert ("FLOPs" in text) == (width >= 100)


def test_failed_run_is_in_its_row_and_explained() -> None:
    lines = printed(one_seed(), 100)
    row = next(line for line in lines if line.startswith("gpt2 "))
    assert "failed" in row
    assert "3.01M" in row
    assert "gpt2, seed 0 failed: the loss was NaN at step 141; lower the learning rate" in lines
    assert any(line.startswith("1 of 3 failed") for line in printed(three_seeds(), 100))


def test_names_are_not_read_as_markup() -> None:
    study = one_seed()
    runs = tuple(replace(one, architecture=f"[red]{at}[/red]") for at, one in enumerate(study.runs))
    assert "[red]2[/red]" in "\n".join(printed(replace(study, runs=runs), 100))
    assert "to [red]0[/red]" in " ".join("\n".join(printed(replace(study, runs=runs), 140)).split())


def test_json_answer_is_plain_and_documented() -> None:
    study = three_seeds()
    answer = as_json(study, analyse(study))
    again = json.loads(json.dumps(answer, allow_nan=False))
    assert again == answer
    documented = JSON_DOCS.read_text(encoding="utf-8").split("\n## compare\n")[1].split("\n## ")[0]
    for key in {*answer, *answer["rows"][0], *answer["rows"][0]["finding"], *answer["rows"][1]["failures"][0]}:
        assert f"`{key}`" in documented, key
    assert answer["rows"][1]["failures"] == [{"seed": 2, "reason": "out of memory at step 231"}]
    assert [row["architecture"] for row in answer["rows"]] == ["transformer-lm", "gpt2", "llama2"]


def test_rows_hold_means_over_finished_runs() -> None:
    study = three_seeds()
    row = result_rows(study, analyse(study))[1]
    finished = [one for one in study.runs if one.architecture == "gpt2"][:2]
    assert row.seeds == (0, 1)
    assert row.validation_loss == pytest.approx(sum(one.validation_loss or 0 for one in finished) / 2)
    # 8,450 tokens/s × (6 × 2,109,952 + 6 × 4,096 × 192) FLOPs over 290 GFLOP/s
    assert row.share_of_peak == pytest.approx(8450 * 17_378_304 / 290e9, rel=1e-9)


def test_no_share_is_told_of_a_peak_that_training_passes() -> None:
    """Such a peak was measured while the machine was busy."""
    study = three_seeds()
    busy = replace(study, machine=replace(study.machine, peak_flops_per_second=1e11))  # row 1 reaches 1.47e11
    shares = [row.share_of_peak for row in result_rows(busy, analyse(busy))]
    assert shares[1] is None
    assert all(share is None or share <= 1 for share in shares)
    assert shares == [None] * 3, "of the others neither: the peak is wrong for all"
