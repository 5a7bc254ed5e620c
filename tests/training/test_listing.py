"""`anyformer runs` lists what was trained in a folder, and how far it is."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import anyformer as af
from anyformer.cli.runs import command
from anyformer.disk.seal import read_record
from anyformer.errors import UsageError
from anyformer.training.checkpoint.checkpoints import Checkpoints
from anyformer.training.checkpoint.metrics import MetricsLog, StepMetrics, ValidationMetrics
from tests.training.owned import created, held
from tests.training.small import save


def metrics(path: Path, step: int, validation: float | None) -> None:
    log = MetricsLog(path / "metrics.jsonl")
    log.open(0)
    for i in range(1, step + 1):
        log.add(
            StepMetrics(
                step=i, tokens=i, flops=i, seconds=i, loss=5.0 - i / 8, lr=0.1, grad_norm=1.0, tokens_per_second=1.0
            )
        )
    if validation is not None:
        log.add(ValidationMetrics(step=step, tokens=step, flops=step, seconds=step, validation_loss=validation))
    log.close()


class TestRuns:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Iterator[Path]:
        """One finished, one interrupted in a sub-folder, one running, one damaged, one thing that is no run."""
        runs = tmp_path / "runs"
        with held(runs / "done") as run:
            metrics(run, 20, 2.25)
            model = torch.nn.Linear(1, 1)
            save(Checkpoints(run / "checkpoints"), 20, model, torch.optim.AdamW(model.parameters()), {})
        with held(runs / "more" / "cut") as run:
            metrics(run, 8, None)
        created(runs / "bad").release()
        (runs / "bad" / "run.json").write_text("{")
        (runs / "notes").mkdir()
        (runs / ".tmp-1-x").mkdir()
        with held(runs / "now"):
            yield runs

    def test_json(self, folder: Path) -> None:
        result = CliRunner().invoke(command, [str(folder), "--json"])
        assert result.exit_code == 0, result.output
        listing = json.loads(result.output)
        assert listing["version"] == 1
        runs = {run.pop("name"): run for run in listing["runs"]}
        assert {name: run["state"] for name, run in runs.items()} == {
            "done": "finished",
            "more/cut": "interrupted",
            "now": "running",
            "bad": "damaged",
        }
        n_params = read_record(folder / "done")["n_params"]
        date = read_record(folder / "done")["date"]
        assert runs["done"] == {
            "architecture": "tiny",
            "n_params": n_params,
            "step": 20,
            "steps": 20,
            "train_loss": 2.5,
            "validation_loss": 2.25,
            "state": "finished",
            "date": date,
        }
        assert (runs["more/cut"]["step"], runs["more/cut"]["train_loss"]) == (8, 4.0)
        assert runs["more/cut"]["validation_loss"] is None
        assert (runs["now"]["step"], runs["now"]["train_loss"]) == (0, None)

    def test_table(self, folder: Path) -> None:
        result = CliRunner(env={"COLUMNS": "160"}).invoke(command, [str(folder)])
        assert result.exit_code == 0, result.output
        rows = {words[0]: words for line in result.output.splitlines() if (words := line.split())}
        assert rows["done"][1:6] == ["tiny", "4.90k", "20/20", "2.500", "2.250"]
        assert rows["more/cut"][3:6] == ["8/20", "4.000", "interrupted"]
        assert rows["bad"] == ["bad", "damaged"]
        assert "notes" not in rows

    def test_none(self, tmp_path: Path) -> None:
        result = CliRunner().invoke(command, [str(tmp_path)])
        assert result.exit_code == 0
        assert "no runs" in result.output
        assert CliRunner().invoke(command, [str(tmp_path / "nowhere")]).exit_code == 2

    def test_from_python(self, folder: Path) -> None:
        assert af.list_runs(str(folder)) == af.list_runs(folder) != []
        with pytest.raises(UsageError, match=r"there is no directory .*nowhere; give one in which `train` made runs"):
            af.list_runs(folder / "nowhere")
