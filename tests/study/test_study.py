"""Studies as files: which runs there are, rates chosen apart from what is reported, runs made once by whoever comes, verdicts."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from anyformer.disk.lock import Lock
from anyformer.errors import CheckpointError, SpecError, TextError, UsageError
from anyformer.recipe import Lion, Recipe
from anyformer.study import cells as module
from anyformer.study.cells import Cell, Runs, bottom, read_texts
from anyformer.study.findings import as_markdown, find, foreseen
from anyformer.study.results import RunResult, Trial, Tuning
from anyformer.study.ruling import judged, losses_of, sensitivity
from anyformer.study.run_study import plan_study, run_study
from anyformer.study.specification import LessSensitive, LowerLoss, ModelEntry, SameLoss, StudySpec, read_study
from anyformer.study.windows import WindowLoss
from anyformer.training.run import RunOptions
from anyformer.training.run.evaluation import DocumentLoss
from tests.cli.running import run, succeeded

SAID: dict[str, Any] = {
    "study": 1,
    "title": "two norms",
    "data": "texts",
    "select": 0.1,
    "report": 0.1,
    "vocab_size": 270,
    "models": [{"name": "rms", "architecture": "llama2"}, {"name": "layer", "architecture": "llama2+norm=LayerNorm"}],
    "sizes": [30_000],
    "tokens": [512],
    "seeds": 2,
    "recipe": {"batch_tokens": 128, "seq_len": 16},
    "claims": [{"kind": "SameLoss", "says": "they are the same", "model": "rms", "than": "layer"}],
}
HOW = RunOptions(device=torch.device("cpu"), plan=False, validations=0)


def quiet(_: str) -> None:
    """Say nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("study")
    (place / "texts").mkdir()
    draw = random.Random(0)
    for i in range(30):
        lines = (" ".join(draw.choice(["cat", "dog", "owl", "sees", "the"]) for _ in range(8)) for _ in range(12))
        (place / "texts" / f"{i}.txt").write_text(".\n".join(lines))
    return place


def written(folder: Path, name: str = "study", **changes: Any) -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(SAID | changes))
    return file


Losses = Callable[[Cell], float | str]


@pytest.fixture
def fake(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Runs, list[Cell]]]:
    """Runs whose losses are said, or why they fail; and which were made, in order."""

    def make(losses: Losses, **changes: Any) -> tuple[Runs, list[Cell]]:
        spec = read_study(written(folder, **changes))
        runs, made = Runs(spec, read_texts(spec, quiet), tmp_path, HOW), list[Cell]()

        def run(self: Runs, cell: Cell) -> RunResult:
            made.append(cell)
            loss = losses(cell)
            failed = loss if isinstance(loss, str) else None
            documents = () if isinstance(loss, str) else (DocumentLoss(loss * 10, 10, 40),)
            return RunResult(
                architecture=cell.model, seed=cell.seed, learning_rate=cell.rate or 0.0, n_params=30_000,
                n_params_embedding=1, flops_per_token=1.0, tokens_seen=cell.tokens, tokens_per_second=1.0, seconds=1.0,
                documents=documents, failure=failed,
            )  # fmt: skip

        monkeypatch.setattr(Runs, "_run", run)
        return runs, made

    return make


Windows = Callable[[str, int], tuple[WindowLoss, ...]]


def reported(spec: StudySpec, loss: Callable[[str, int], float], windows: Windows = lambda *_: ()) -> Any:
    """The runs that a study reports at its largest size and budget, of losses that are said."""
    size, tokens = max(spec.sizes), max(spec.tokens)

    def run(name: str, seed: int) -> RunResult:
        return RunResult(
            architecture=name, seed=seed, learning_rate=1e-3, n_params=size, n_params_embedding=1, flops_per_token=1.0,
            tokens_seen=tokens, tokens_per_second=1.0, seconds=1.0, windows=windows(name, seed),
            documents=(DocumentLoss(loss(name, seed) * 10, 10, 40),),
        )  # fmt: skip

    seeds = range(1, spec.seeds + 1)
    return {(one.name, size, tokens): [run(one.name, seed) for seed in seeds] for one in spec.models}


def test_a_study_runs_and_is_written_up_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, said = written(folder), list[str]()
    plan = plan_study(file, out=tmp_path, say=quiet)
    assert (plan.runs, plan.done, plan.tokens) == (4, 0, 4 * 512)
    assert "the least margin of equality" in str(plan)
    found = run_study(file, out=tmp_path, say=said.append)
    assert found is not None
    assert sum("nats" in line and "left" in line for line in said) == 4
    page = found.page.read_text()
    assert "| they are the same | **" in page
    told = json.loads((tmp_path / "findings.json").read_text())
    by_model = {one["model"]: one["seeds"] for one in told["losses"]}
    assert by_model.keys() == {"rms", "layer"}
    assert all(2 < loss < 6 for seeds in by_model.values() for loss in seeds.values())
    report = (tmp_path / "report-30000-512.html").read_text()
    assert "they are the same" in report
    monkeypatch.setattr("anyformer.study.compare.train", _never)
    once_more = run_study(file, out=tmp_path, say=quiet)
    assert once_more is not None
    assert once_more.findings.as_json() == found.findings.as_json()
    assert plan_study(file, out=tmp_path, say=quiet).done == 4
    before = found.page.read_text()
    other = tmp_path / "other.txt"
    other.write_text("\n".join(f"another line, number {i}" for i in range(2000)))
    for given, says in (
        ((file, str(other)), "findings on another text"),
        ((written(folder, title="another"), None), "findings of another study"),
    ):
        with pytest.raises(UsageError, match=says):
            run_study(given[0], data=given[1], out=tmp_path, say=quiet)
    assert found.page.read_text() == before


def test_studies_share_equal_runs_whatever_their_models_are_called(folder: Path, tmp_path: Path) -> None:
    """The second names the first's `rms` base, has it beside another model, and runs that alone."""
    first = run_study(written(folder), out=tmp_path / "first", runs_in=tmp_path / "runs", say=quiet)
    models = [{"name": "base", "architecture": "llama2"}, {"name": "gelu", "architecture": "llama2+activation=GELU"}]
    claims = [{"kind": "LowerLoss", "says": "x", "model": "base", "than": "gelu"}]
    file = written(folder, models=models, claims=claims)
    assert plan_study(file, out=tmp_path / "second", runs_in=tmp_path / "runs", say=quiet).done == 2
    said = list[str]()
    second = run_study(file, out=tmp_path / "second", runs_in=tmp_path / "runs", say=said.append)
    assert first is not None
    assert second is not None
    assert [line.split(",")[0] for line in said if "nats" in line and "left" in line] == ["gelu", "gelu"]
    losses = [
        [run.validation_loss for run in found.findings.runs[name, 30_000, 512]]
        for found, name in ((first, "rms"), (second, "base"))
    ]
    assert losses[0] == losses[1]
    assert {run.architecture for run in second.findings.runs["base", 30_000, 512]} == {"base"}
    assert sorted(each.name for each in (tmp_path / "second").iterdir()) == [
        "findings.json", "findings.md", "report-30000-512.html",
    ]  # fmt: skip


def _never(*_: Any, **__: Any) -> Any:
    raise AssertionError("a run was made again")


def test_the_three_parts_of_the_text_are_apart(folder: Path) -> None:
    texts = read_texts(read_study(written(folder)), quiet)
    assert texts.select.held_out is not None
    assert texts.report.held_out is not None
    parts = [texts.report.train, texts.select.held_out, texts.report.held_out]
    assert sum(part.n_documents for part in parts) == 30
    documents = [bytes(part.document(i).tobytes()) for part in parts for i in range(part.n_documents)]
    assert len(set(documents)) == 30
    assert texts.select.train is texts.report.train


def test_a_rate_is_chosen_by_seed_0_and_a_grid_goes_on_beyond_its_end(fake: Any) -> None:
    """The best rates are 8e-3, two beyond the grid, and 2e-3, within it."""
    best = {"rms": 8e-3, "layer": 2e-3}
    runs, made = fake(lambda cell: 3 + abs(math.log(cell.rate / best[cell.model])), rates=[1e-3, 2e-3, 4e-3])
    runs.make_all(lambda *_: None)
    chose = [cell for cell in made if cell.chooses]
    assert [cell.rate for cell in chose if cell.model == "rms"] == [1e-3, 2e-3, 4e-3, 8e-3, 16e-3]
    assert [cell.rate for cell in chose if cell.model == "layer"] == [1e-3, 2e-3, 4e-3]
    assert {(cell.model, cell.rate) for cell in made if not cell.chooses} == set(best.items())
    assert {tuning.architecture: tuning.chosen for tuning in runs.tuning()} == best
    assert all(runs.data(cell) is runs.texts.select for cell in chose)


def test_a_grid_that_ends_before_its_best_says_so(fake: Any) -> None:
    """The best rates are 64e-3, beyond the three that a grid goes on by, and 2e-3, within it."""
    best = {"rms": 64e-3, "layer": 2e-3}
    runs, _ = fake(lambda cell: 3 + abs(math.log(cell.rate / best[cell.model])), rates=[1e-3, 2e-3, 4e-3])
    runs.make_all(lambda *_: None)
    made = reported(runs.spec, lambda *_: 3.0)
    said = as_markdown(find(runs.spec, "a text", made, runs.tuning()), "anyformer study").splitlines()
    ended = "; chosen 0.032; the best is the last that was tried: one beyond it may be better"
    assert [line.endswith(ended) for line in said if line.startswith("- rms: ")] == [True]
    assert [line.endswith("; chosen 0.002") for line in said if line.startswith("- layer: ")] == [True]


def test_several_seeds_choose_a_rate_by_their_mean_and_tell_how_sensitive_a_model_is(fake: Any) -> None:
    """Seed 0 alone would choose 2e-3 for `rms`; `layer` has no loss at the largest rate, which counts as ln 270."""
    said = {1e-3: (3.0, 3.2), 2e-3: (2.9, 3.6), 4e-3: (3.4, 3.4)}
    seeds = (0, 1001, 1002)

    def loss(cell: Cell) -> float | str:
        if not cell.chooses:
            return 3.0
        first, others = said.get(cell.rate or 0.0, (3.5, 3.5))
        each = (first, others, others)
        if cell.model == "layer":
            return "the loss is nan" if cell.rate == 4e-3 else each[seeds.index(cell.seed)]
        return each[seeds.index(cell.seed)]

    claims = [{"kind": "LessSensitive", "says": "x", "model": "rms", "than": "layer"}]
    runs, made = fake(loss, rates=[*said], rate_seeds=3, claims=claims)
    runs.make_all(lambda *_: None)
    assert {cell.seed for cell in made if cell.chooses} == set(seeds)
    tuning = runs.tuning()
    assert {one.architecture: one.chosen for one in tuning} == {"rms": 1e-3, "layer": 1e-3}
    # That is the grid's end, which goes on; what is beyond the study's rates counts for no sensitivity.
    assert {trial.learning_rate for trial in tuning[0].trials} == {0.5e-3, *said}
    top = math.log(270)
    expected = {0: ((3.0 + 2.9 + top) / 3 - 2.9), 1001: ((3.2 + 3.6 + top) / 3 - 3.2)}
    found = sensitivity(runs.spec, tuning, "layer")
    assert {seed: found[seed] for seed in expected} == pytest.approx(expected)
    assert sensitivity(runs.spec, tuning, "rms")[0] == pytest.approx((3.0 + 2.9 + 3.4) / 3 - 2.9)
    (verdict,) = judged(runs.spec, reported(runs.spec, lambda *_: 3.0), tuning)
    assert verdict.ruling == "supported"
    assert " of sensitivity to the rate (" in verdict.said


def test_of_rates_nearly_tied_the_lowest_is_chosen(fake: Any) -> None:
    """`rms` is all but flat above 1e-3, where its best is at the end, and the grid goes on; of `layer` none is near the best."""
    said = {
        "rms": {1e-3: 3.2, 2e-3: 3.029, 4e-3: 3.02, 8e-3: 3.0, 16e-3: 3.4},
        "layer": {1e-3: 3.5, 2e-3: 3.031, 4e-3: 3.0, 8e-3: 3.02},
    }
    runs, made = fake(lambda cell: said[cell.model][cell.rate], rates=[1e-3, 2e-3, 4e-3, 8e-3], rate_tie=0.03)
    runs.make_all(lambda *_: None)
    assert {cell.rate for cell in made if cell.model == "rms" and cell.chooses} == set(said["rms"])
    assert {(cell.model, cell.rate) for cell in made if not cell.chooses} == {("rms", 2e-3), ("layer", 4e-3)}
    assert {one.architecture: one.chosen for one in runs.tuning()} == {"rms": 2e-3, "layer": 4e-3}


def test_a_rate_between_those_tried_is_the_bottom_of_their_bowl(fake: Any) -> None:
    """To a quarter of a factor of two; beside a failure the bowl is not known, and the best of the grid stands."""

    def loss(cell: Cell) -> float | str:
        if cell.model == "layer" and cell.rate == 8e-3:
            return "the loss is nan"
        return 3 + 0.1 * math.log2((cell.rate or 0.0) / (2.9e-3 if cell.model == "rms" else 3.5e-3)) ** 2

    runs, made = fake(loss, rates=[1e-3, 2e-3, 4e-3, 8e-3], rate_between=True)
    runs.make_all(lambda *_: None)
    assert {(cell.model, cell.rate) for cell in made if not cell.chooses} == {("rms", 2.83e-3), ("layer", 4e-3)}
    assert {one.architecture: one.chosen for one in runs.tuning()} == {"rms": 2.83e-3, "layer": 4e-3}
    rates = {0.5: 3.9, 3.0: 3.2, 4.0: 3.3}  # not in steps of one factor
    middle = np.linspace(math.log2(0.5), 2, 10_001)
    through = sum(
        loss * np.prod([(middle - math.log2(b)) / math.log2(a / b) for b in rates if b != a], 0)
        for a, loss in rates.items()
    )  # Lagrange's
    assert abs(math.log2(bottom(rates, 3.0)) - middle[np.argmin(through)]) < 1 / 8 + 1e-3
    assert bottom({1.0: 3.0, 2.0: 3.0, 4.0: 3.0}, 2.0) == 2.0
    assert bottom({1.0: 2.9, 2.0: 3.0}, 1.0) == 1.0


def test_each_size_has_a_rate_of_its_own(fake: Any) -> None:
    """A larger model's best is lower; what one size tried says nothing of another's sensitivity, which is the largest's."""

    def loss(cell: Cell) -> float:
        best, steep = (4e-3, 0.5) if cell.size == 20_000 else (2e-3, 1.0)
        return 3.0 + steep * abs(math.log2((cell.rate or 0.0) / best))

    claims = [{"kind": "LessSensitive", "says": "x", "model": "rms", "than": "layer"}]
    runs, made = fake(loss, sizes=[40_000, 20_000], rates=[1e-3, 2e-3, 4e-3, 8e-3], claims=claims)
    runs.make_all(lambda *_: None)
    chosen = {("rms", 20_000): 4e-3, ("rms", 40_000): 2e-3, ("layer", 20_000): 4e-3, ("layer", 40_000): 2e-3}
    assert {(cell.model, cell.size): cell.rate for cell in made if not cell.chooses} == chosen
    assert {(one.architecture, one.size): one.chosen for one in runs.tuning()} == chosen
    assert sensitivity(runs.spec, runs.tuning(), "rms") == {0: pytest.approx((1 + 0 + 1 + 2) / 4)}
    foreseen_rates = {(cell.model, cell.size): cell.rate for cell in runs.cells(ahead=True) if not cell.chooses}
    assert foreseen_rates == chosen


def test_a_grid_ends_somewhere(fake: Any) -> None:
    runs, made = fake(lambda cell: 3 - math.log(cell.rate), rates=[1e-3, 2e-3])
    runs.make_all(lambda *_: None)
    assert max(cell.rate for cell in made) == 2e-3 * 2**module.EXTENSIONS


def test_a_failure_is_a_row_and_is_not_tried_again(fake: Any) -> None:
    runs, made = fake(lambda cell: "the loss is nan" if (cell.model, cell.seed) == ("layer", 1) else 3.0)
    told = []
    runs.make_all(lambda cell, run, left: told.append((cell, run.failure, left)))
    assert [left for *_, left in told] == [3, 2, 1, 0]
    again = Runs(runs.spec, runs.texts, runs.folder, HOW)
    n = len(made)
    failed = [cell for cell in again.cells() if (run := again.result(cell)) and run.failure]
    assert [(cell.model, cell.seed) for cell in failed] == [("layer", 1)]
    assert len(made) == n
    reported = {
        (m, 30_000, 512): [runs.result(Cell(m, 30_000, 512, None, s)) for s in (1, 2)] for m in ("rms", "layer")
    }
    found = find(runs.spec, "", reported, ())
    assert found.verdicts[0].ruling == "undecided"
    assert "1 of its runs failed and count in no mean" in found.verdicts[0].said
    page, (of_rms, of_layer) = as_markdown(found, ""), found.as_json()["losses"]
    assert of_layer["flops"] == of_rms["flops"] == reported["rms", 30_000, 512][0].flops
    assert (
        len({line.rsplit("|", 3)[1] for line in page.splitlines() if line.startswith(("| rms | 30", "| layer | 30"))})
        == 1
    )
    (kept,) = (runs.folder / "failed").iterdir()
    kept.write_text(kept.read_text()[:-9])
    with pytest.raises(CheckpointError, match=r"is damaged .*; delete it: the run is then tried again"):
        Runs(runs.spec, runs.texts, runs.folder, HOW).result(failed[0])
    kept.unlink()
    assert Runs(runs.spec, runs.texts, runs.folder, HOW).result(failed[0]) is None


def _hold(place: Path, ready: Any, go: Any) -> None:
    lock = Lock(place, place)
    ready.set()
    go.wait(60)
    lock.release()


def test_what_another_process_makes_is_left_to_it_and_a_dead_one_holds_nothing(fake: Any) -> None:
    runs, made = fake(lambda cell: 3.0)
    first = next(runs.cells())
    place = runs.folder / "locks" / runs.identity(first)
    place.parent.mkdir()
    context = multiprocessing.get_context("spawn")
    ready, go = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(place, ready, go), daemon=True)
    other.start()
    try:
        assert ready.wait(60)
        assert runs.make(first) is None
        waits = list[int]()

        def wait() -> None:
            waits.append(len(made))
            other.kill()  # as the machine would: nothing is tidied up
            other.join(60)

        runs.make_all(lambda *_: None, wait)
    finally:
        other.kill()
        other.join(60)
    assert waits == [3]
    assert made[-1] == first


def test_verdicts_speak_of_the_largest_size_and_budget(fake: Any) -> None:
    noise = {1: 0.0, 2: 0.001}
    runs, _ = fake(
        lambda cell: (
            3 + noise[cell.seed] + (0.1 + noise[cell.seed] / 9 if cell.model == "layer" else 0) + 256 / cell.tokens
        ),
        tokens=[256, 512],
        claims=[
            {"kind": "LowerLoss", "says": "a", "model": "rms", "than": "layer"},
            {"kind": "SameLoss", "says": "b", "model": "rms", "than": "layer"},
            {"kind": "LessCompute", "says": "c", "model": "rms", "than": "layer", "times": 1.05},
            {"kind": "LessCompute", "says": "d", "model": "rms", "than": "layer", "times": 9},
        ],
    )
    runs.make_all(lambda *_: None)
    cells = [(m, 30_000, d) for d in (256, 512) for m in ("rms", "layer")]
    found = find(
        runs.spec, "", {(m, n, d): [runs.result(Cell(m, n, d, None, s)) for s in (1, 2)] for m, n, d in cells}, ()
    )
    assert [one.ruling for one in found.verdicts] == ["supported", "contradicted", "supported", "contradicted"]
    assert found.spread.df == 1
    assert losses_of(found.runs["rms", 30_000, 512])[1] == pytest.approx(3.5)


@pytest.mark.parametrize("failing", [None, 1, 2])
def test_a_run_that_failed_costs_nothing_and_counts_in_no_mean(fake: Any, failing: int | None) -> None:
    """Two equal models take the same, whichever seed of one failed."""

    def loss(cell: Cell) -> float | str:
        failed = (cell.model, cell.seed) == ("rms", failing)
        return "the loss is nan" if failed else 3 + 256 / cell.tokens + cell.seed / 1e3

    claims = [{"kind": "LessCompute", "says": "c", "model": "rms", "than": "layer", "times": 1.2}]
    runs, _ = fake(loss, tokens=[256, 512, 1024], seeds=3, claims=claims)
    runs.make_all(lambda *_: None)
    every: dict[tuple[str, int, int], list[RunResult]] = {}
    for cell in runs.cells():
        every.setdefault((cell.model, cell.size, cell.tokens), []).append(runs.result(cell))
    (verdict,) = judged(runs.spec, every)
    assert verdict.said.count("1.00 times") == 3
    assert ("3 of its runs failed" in verdict.said) == (failing is not None)


def test_less_sensitive_by_less_than_is_shown_is_undecided() -> None:
    claims = tuple(LessSensitive(says=f"x{i}", model="a", than="b") for i in range(9))  # whose p are corrected for nine
    models = tuple(ModelEntry(name=name, architecture="gpt2") for name in "ab")
    spec = StudySpec(title="t", models=models, claims=claims, rates=(1e-3, 2e-3), rate_seeds=3, seeds=2)
    rows = {
        "a": (0.010, 0.0112, 0.0118),
        "b": (0.0125, 0.0142, 0.0158),
    }  # how far the second rate's loss is above the first's
    tuning = tuple(
        Tuning(
            architecture=name,
            size=spec.sizes[-1],
            trials=(
                Trial(learning_rate=1e-3, validation_loss=3.0, seeds=(3.0,) * 3),
                Trial(learning_rate=2e-3, validation_loss=3.0, seeds=tuple(3 + 2 * more for more in each)),
            ),
            chosen=1e-3,
        )
        for name, each in rows.items()
    )
    for verdict in judged(spec, reported(spec, lambda *_: 3.0), tuning):
        assert "-0.003" in verdict.said.replace("\N{MINUS SIGN}", "-")
        assert verdict.ruling == "undecided"


def pair(**claim: Any) -> dict[str, Any]:
    return {"claims": [{"kind": "LowerLoss", "says": "x", "model": "rms", "than": "layer"} | claim]}


def order(*names: str) -> dict[str, Any]:
    published = [{"model": name, "loss": 1 + i} for i, name in enumerate(names)]
    return {"claims": [{"kind": "SameOrder", "says": "x", "published": published}]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"claims": [{"kind": "SameLoss", "says": "x", "model": "rms", "than": "lay"}]},
            "of 'lay', no model of the study",
        ),
        ({"models": [{"name": "a", "architecture": "gpt2"}] * 2}, "has two called 'a'; name each once"),
        ({"sizes": [20_000, 30_000, 20_000]}, "sizes = .* has one twice; give each once"),
        ({"tokens": [2_000, 2_000]}, "tokens = .* has one twice; give each once"),
        ({"tokens": [256, 100]}, "Study.tokens = .* has 100, less than a batch of 'rms', 128 tokens"),
        ({"rate_tokens": 127}, "rate_tokens = 127 has 127, less than a batch of 'rms', 128 tokens"),
        ({"study": 2}, "written in version 2 of the language"),
        ({"seed": 2}, "seeds"),
        ({"tokens": []}, "Study.tokens"),
        ({"select": 1.0}, "Study.select = 1.0"),
        ({"rate_tie": -0.1}, "Study.rate_tie = -0.1"),
        ({"rate_tie": 0.1, "rate_between": True}, "chooses another rate than rate_tie; give one of the two"),
        ({"lengths": [16, 24]}, "Study.lengths.*has 16, which does not divide 24"),
        ({"lengths": [1]}, "has windows of 1 token, of which none is predicted; give 2 or more"),
        (pair(length=32), "speaks of windows of 32 tokens; the study's lengths are none"),
        (pair(length=8, than="rms") | {"lengths": [8]}, "compares a model with itself; name two, or two lengths"),
        (pair(length=8, last=8) | {"lengths": [8]}, "counts the last 8 of 8 tokens"),
        (pair(last=8), "counts the last tokens of windows and names no length"),
        (pair(kind="LessSensitive"), "one, 'x', of sensitivity to rates, and 'rms' has no two; give it two or more"),
        (pair(about="norms"), "are about 'norms', no row of variants .*did you mean 'norm'.*; there are n_layers, "),
        ({"title": None, "foo": 1}, r"bad\.yaml: 2 faults: \(1\) Study has no field 'foo'"),
        ({"seeds": 1001}, "are more than 1,000, beyond which seeds choose rates"),
        (order("rms", "layer", "gpt"), "SameOrder.published.* leaves 3 losses besides extremes"),
        (order("rms", "layer", "rms", "gpt"), "has two losses of 'rms'; give one"),
        (order("rms", "layer", "x", "gpt"), "of 'x', no model of the study"),
    ],
)
def test_bad_files_are_refused(folder: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        read_study(written(folder, "bad", **changes))


def test_what_a_models_recipe_does_not_name_is_the_studys(folder: Path) -> None:
    own, plain = {"optimizer": {"kind": "Lion"}, "seq_len": 32}, SAID["models"][1]
    spec = read_study(written(folder, models=[{"name": "rms", "architecture": "llama2", "recipe": own}, plain]))
    assert spec.recipe_of(spec.models[0], 512) == Recipe(batch_tokens=128, seq_len=32, optimizer=Lion(), tokens=512)
    assert spec.recipe_of(spec.models[1], 512) == Recipe(batch_tokens=128, seq_len=16, tokens=512)
    for wrong in (3, {"d": 1}):
        with pytest.raises(SpecError, match=r"models\[0\]\.recipe"):
            read_study(
                written(folder, "bad", models=[{"name": "rms", "architecture": "llama2", "recipe": wrong}, plain])
            )


def test_the_model_that_cannot_be_so_small_is_named(folder: Path, tmp_path: Path) -> None:
    file = written(folder, "small", sizes=[30])
    with pytest.raises(SpecError, match=r"^rms: no model of this architecture has about 30 parameters"):
        plan_study(file, out=tmp_path, say=quiet)


@pytest.mark.parametrize("name", ["t5-small", "bert-base"])
def test_a_model_that_scores_no_text_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    """By what can be done about it: objectives that train it are refused too."""
    file = written(folder, "bad", models=[{"name": "other", "architecture": name}], claims=[])
    with pytest.raises(
        UsageError, match=r"^other: a study is of language models, and .* does not score a text; leave it"
    ):
        plan_study(file, out=tmp_path, say=quiet)


@pytest.mark.parametrize("share", ["report", "select"])
def test_the_share_that_is_too_small_is_named(folder: Path, tmp_path: Path, share: str) -> None:
    (texts := tmp_path / "texts").mkdir()
    for i in range(3):
        (texts / f"{i}.txt").write_text("the cat sits\n" * 50)
    file = written(folder, "bad", **{"data": str(texts), "report": 0.34, "select": 0.51, share: 0.1})
    with pytest.raises(TextError, match=f"^{share}: the validation split is empty"):
        plan_study(file, out=tmp_path, say=quiet)


def test_what_scores_no_text_is_refused(folder: Path) -> None:
    file = written(folder, "bad", recipe=SAID["recipe"] | {"objective": "Contrastive"})
    with pytest.raises(UsageError, match="a study is of language models"):
        read_study(file)


def windowed(spec: StudySpec, by_length: Callable[[str, int], float]) -> Any:
    """Runs whose losses in windows are 3 + what is said of (model, length), and a little by seed; no model `short` at 16."""

    def windows(name: str, seed: int) -> tuple[WindowLoss, ...]:
        lengths = (length for length in (8, 16) if (name, length) != ("short", 16))
        level = {length: 3 + by_length(name, length) + seed / 1000 * (length == 16) for length in lengths}
        return tuple(
            WindowLoss(length, 160 // length, 10, (at * 160 / length,) * (length - 1), (10 * at + 10,) * (length - 1))
            for length, at in level.items()
        )

    return reported(
        spec, lambda name, seed: 9 + seed * (name == "b"), windows
    )  # deviations that would hide all, if pooled


def test_claims_of_windows_are_judged_by_windows() -> None:
    """In the windows of 16 the second model is .5 worse; at the ends every loss is 1 higher."""
    names = ("a", "b", "short")
    claims = (
        LowerLoss(says="x", model="a", than="b", length=16),
        SameLoss(says="x", model="a", than="b", length=8),
        SameLoss(says="x", model="a", than="a", length=16, than_length=8),
        SameLoss(says="x", model="b", than="b", length=16, than_length=8, last=4),
        LowerLoss(says="x", model="a", than="short", length=16),
    )
    models = tuple(ModelEntry(name=name, architecture="gpt2") for name in names)
    spec = StudySpec(title="t", models=models, claims=claims, seeds=3, lengths=(8, 16))
    runs = windowed(spec, lambda name, length: 0.5 * (name == "b" and length == 16))
    found = judged(spec, runs)
    assert [one.ruling for one in found] == ["supported", "supported", "supported", "contradicted", "undecided"]
    assert found[0].said.startswith("−0.5000 nats a token in windows of 16 (")
    assert found[3].said.startswith("+0.5020 nats a token in windows of 16 against 8, the last 4 tokens (")
    assert found[4].said == "the models share no finished seed in windows of 16"
    assert losses_of(runs["b", 1_000_000, 2_000_000], 8, 4) == {1: 4.0, 2: 4.0, 3: 4.0}
    page = as_markdown(find(spec, "", runs, ()), "command")
    assert "| b | 1.00M | 2.00M | 16 | 3.5020 | – | 3.5020 |" in page
    assert "| short | 1.00M | 2.00M | 16 |" not in page


def test_a_page_says_which_parameters_its_sizes_count() -> None:
    models = tuple(ModelEntry(name=name, architecture="gpt2") for name in ("a", "b"))
    for spec, said in (
        (StudySpec(title="t", models=models, tokens=(1_000_000,)), "parameters"),
        (
            StudySpec(title="t", models=models, tokens=(1_000_000,), count="non_embedding"),
            "parameters beside the tables",
        ),
    ):
        page = as_markdown(find(spec, "", reported(spec, lambda name, seed: 3.0), ()), "command")
        assert f"Up to 1.00M {said} and 1.00M tokens, 1 token a parameter." in page


def test_a_bar_in_a_name_ends_no_cell(folder: Path) -> None:
    """It would move every number of its row into another column."""
    models = tuple(ModelEntry(name=name, architecture="gpt2") for name in ("a|b", "c"))
    spec = StudySpec(title="t", models=models, claims=(LowerLoss(says="x | y", model="a|b", than="c"),), seeds=3)
    page = as_markdown(find(spec, "", reported(spec, lambda name, seed: 3 + seed), ()), "command")
    assert "| x \\| y | **" in page
    assert "| a\\|b | 1.00M |" in page


def test_lengths_are_read_by_a_run_and_later_on_by_one_that_is_kept(folder: Path, tmp_path: Path) -> None:
    before = run_study(written(folder, claims=[]), out=tmp_path, say=quiet)
    claims = [{"kind": "SameLoss", "says": "x", "model": "rms", "than": "rms", "length": 32, "than_length": 16}]
    after = run_study(written(folder, claims=claims, lengths=[16, 32]), out=tmp_path, say=quiet)
    assert before is not None
    assert after is not None
    each = ([run for runs in one.findings.runs.values() for run in runs] for one in (before, after))
    for old, new in zip(*each, strict=True):
        assert (old.windows, new.documents) == ((), old.documents)
        assert [each.length for each in new.windows] == [16, 32]
        assert all(2 < each.loss() < 6 for each in new.windows)
    assert "in windows of 32 against 16" in after.page.read_text()


def test_one_seed_can_tell_nothing() -> None:
    spec = StudySpec(title="t", models=(read_model("a"), read_model("b")), seeds=1)
    assert foreseen(spec) == "one seed: no difference can be told from chance"


def read_model(name: str) -> Any:
    from anyformer.study.specification import ModelEntry

    return ModelEntry(name=name, architecture="gpt2")


@pytest.mark.slow
def test_several_processes_share_the_runs(folder: Path, tmp_path: Path) -> None:
    found = run_study(written(folder), out=tmp_path, jobs=2, say=quiet)
    assert found is not None
    assert all(run.finished for runs in found.findings.runs.values() for run in runs)


STARTS = """
import sys, time
from anyformer.study import run_study
other = run_study._another(sys.argv[1], None, sys.argv[2], None, (), 2)
print(other.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="whose death is told by Linux alone")
def test_another_process_ends_with_the_one_that_started_it(folder: Path, tmp_path: Path) -> None:
    """It would make all runs of a study that nobody waits for."""
    words = [sys.executable, "-c", STARTS, str(written(folder, "long", tokens=[50_000_000])), str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        other = int(parent.stdout.readline())
        assert "known to be needed" in parent.stderr.readline() + parent.stderr.readline()
        parent.kill()
        try:
            _, told = parent.communicate(timeout=60)  # until the last that holds the pipe is gone
        finally:
            if Path(f"/proc/{other}").exists():
                os.kill(other, signal.SIGKILL)
    assert "Traceback" not in told


@pytest.mark.parametrize("status", [None, 2])
def test_other_processes_import_the_same_parts_and_a_refusal_of_theirs_is_told(
    status: int | None, folder: Path, fake: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Other:
        def __init__(self, words: list[str], env: Any) -> None:
            started.append(words)

        def poll(self) -> int | None:
            return status

        terminate = wait = lambda _: None

    started: list[list[str]] = []
    fake(lambda _: 3.0)
    monkeypatch.setattr("anyformer.study.run_study.subprocess.Popen", Other)
    own = tmp_path / f"parts_of_a_study_{status}.py"  # imported once in a process
    own.write_text("x = 1")
    words = ("study", folder / "study.yaml", "--runs-in", tmp_path, "--jobs", 2, "--runs-only", "--import", own)
    result = run(*words)
    assert [each[each.index("--import") + 1] for each in started] == [str(own)]
    if status is None:
        succeeded(result)
    else:
        assert result.exit_code == 2
        assert "error: another process of --jobs 2 was refused" in result.stderr
