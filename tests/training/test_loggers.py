"""Loggers and callbacks: other tools read what the run wrote; none can end or change it, and none hears of a step twice."""

from __future__ import annotations

import csv
import importlib.util
import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer.disk.run_layout import CHECKPOINTS
from anyformer.errors import UsageError
from anyformer.recipe import DropoutSpec
from anyformer.study.train import Trained, train
from anyformer.training.checkpoint.metrics import StepMetrics, read_metrics
from anyformer.training.run import RunOptions
from anyformer.training.run.loggers import CSV
from anyformer.training.run.plan import RunPlan
from anyformer.training.run.progress import Watcher
from anyformer.training.run.signals import Stopped
from tests.cli.running import write_text

STEPS = 12


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


def run(text: Path, out: Path | None, said: list[str] | None = None, **options: Any) -> Trained:
    return train(
        "llama2-7b",
        text,
        out=out,
        n_params=20_000,
        vocab_size=270,
        recipe="small",
        tokens=STEPS * 64,
        batch_tokens=64,
        seq_len=16,
        device="cpu",
        options=RunOptions(plan=False, validations=3, save_every=4, peak=lambda *_: 1e11),
        watcher=options.pop("watcher", Watcher()),
        say=(said if said is not None else []).append,
        **options,
    )


class StopsAfter(Watcher):
    """Stops the run as a signal does."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.last = step

    def step(self, metrics: StepMetrics) -> None:
        if metrics.step == self.last:
            os.kill(os.getpid(), signal.SIGTERM)


def in_two_parts(text: Path, out: Path, log: str) -> None:
    """Run; lose what came after the checkpoint of step 4, as a machine that dies does; go on; run again for nothing."""
    with pytest.raises(Stopped):
        run(text, out, log=[log], watcher=StopsAfter(6))
    for path in sorted((out / CHECKPOINTS).glob("step-00000006*/*")):
        path.unlink()
    run(text, out, log=[log])
    run(text, out, log=[log])


def true_of(out: Path) -> dict[str, list[tuple[int, float]]]:
    """What the run's own file says, by figure."""
    known = read_metrics(out)
    return {
        "loss": [(each.step, each.loss) for each in known.steps],
        "lr": [(each.step, each.lr) for each in known.steps],
        "validation_loss": [(each.step, each.validation_loss) for each in known.validations],
    }


def of_csv(out: Path) -> dict[str, list[tuple[int, float]]]:
    with (out / "logs" / "metrics.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return {name: [(int(row["step"]), float(row[name])) for row in rows if row[name]] for name in true_of(out)}


def of_tensorboard(out: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(out / "logs" / "tensorboard"))
    events.Reload()
    return {name: [(each.step, each.value) for each in events.Scalars(name)] for name in true_of(out)}


def of_mlflow(out: Path) -> dict[str, list[tuple[int, float]]]:
    from mlflow.tracking import MlflowClient  # type: ignore[import-not-found]

    client = MlflowClient((out / "logs" / "mlflow").as_uri())
    name = (out / "logs" / "mlflow-id").read_text(encoding="utf-8")
    found = {figure: client.get_metric_history(name, figure) for figure in true_of(out)}
    return {figure: [(each.step, each.value) for each in values] for figure, values in found.items()}


def absent(package: str) -> list[pytest.MarkDecorator]:
    missing = importlib.util.find_spec(package) is None
    return [pytest.mark.slow, pytest.mark.skipif(missing, reason=f"the package {package} is not installed")]


READERS: Mapping[str, Callable[[Path], dict[str, list[tuple[int, float]]]]] = {
    "csv": of_csv,
    "tensorboard": of_tensorboard,
    "mlflow": of_mlflow,
}


@pytest.mark.parametrize("log", ["csv", "tensorboard", pytest.param("mlflow", marks=absent("mlflow"))])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_run_in_parts_is_one_log(log: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    out = tmp_path / "run"
    in_two_parts(text, out, log)
    expected, found = true_of(out), READERS[log](out)
    assert [step for step, _ in expected["loss"]] == list(range(1, STEPS + 1))
    for name, values in expected.items():
        assert [step for step, _ in found[name]] == [step for step, _ in values], name
        assert [value for _, value in found[name]] == pytest.approx([value for _, value in values], rel=1e-6), name


def csv_of(folder: Path, *steps: int, done: int) -> str:
    """What the file holds after it went on behind a step and was given these."""
    log = CSV(folder, "run", {})
    log.open(done)
    for step in steps:
        often = {"tokens": step, "flops": 1.0, "seconds": 1.0, "tokens_per_second": 5.0}
        log.write(StepMetrics(step=step, loss=float(step), lr=0.5, grad_norm=1.0, **often))
    log.close()
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as stream:
        return stream.read()


def test_a_row_that_a_full_disk_cut_is_none(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    first, more = csv_of(tmp_path, 1, 2, done=0), csv_of(tmp_path, 3, done=2)
    file.write_text(first[:-20], encoding="utf-8", newline="")
    assert csv_of(tmp_path, 2, 3, done=2) == more


def test_a_log_that_goes_on_is_never_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends it while its rows are written again finds those that were there."""
    before = csv_of(tmp_path, 1, 2, done=0)

    def ends(self: Any, rows: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(csv.DictWriter, "writerows", ends)
    with pytest.raises(KeyboardInterrupt):
        csv_of(tmp_path, done=1)
    assert (tmp_path / "metrics.csv").read_bytes().decode() == before


def records(content: bytes) -> Iterator[bytes]:
    """The records of wandb's file: a header of 7 bytes, then LevelDB's log format, in blocks of 32 KB."""
    at, whole = 7, b""
    while at + 7 <= len(content):
        if (1 << 15) - at % (1 << 15) < 7:  # no room for another header in this block
            at += (1 << 15) - at % (1 << 15)
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole = content[at + 7 : at + 7 + length] if kind in (1, 2) else whole + content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield whole


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="the package wandb is not installed")
@pytest.mark.filterwarnings("ignore")
def test_wandb_offline(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it wrote for synchronising is one run of one identity, each of its files read by wandb's own reader."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    out, said = tmp_path / "run", list[str]()
    run(text, out, said, log=["wandb"])
    assert not said
    from wandb.proto import wandb_internal_pb2  # type: ignore[import-not-found]

    (file,) = (out / "logs" / "wandb").glob("offline-run-*/*.wandb")
    assert (out / "logs" / "wandb-id").read_text(encoding="utf-8") in file.name
    losses = list[float]()
    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        for item in record.history.item if record.WhichOneof("record_type") == "history" else ():
            if (item.key or "/".join(item.nested_key)) == "loss":
                losses.append(float(item.value_json))
    assert losses == pytest.approx([loss for _, loss in true_of(out)["loss"]])


class Meddler(Watcher):
    """Does all that it can to a run."""

    def begin(self, plan: RunPlan) -> None:
        object.__setattr__(plan, "steps", 1)

    def step(self, metrics: StepMetrics) -> None:
        object.__setattr__(metrics, "loss", -1.0)
        random.seed(0)
        torch.manual_seed(3)


class Fails(Watcher):
    """Fails at some step, and counts how often it is asked."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error, self.asked = error, 0

    def step(self, metrics: StepMetrics) -> None:
        self.asked += 1
        if self.asked == 2:
            raise self.error


def test_callbacks_change_nothing(text: Path) -> None:
    said = list[str]()
    failing = [Fails(ValueError("no\nroom")), Fails(SystemExit(3))]
    plain = run(text, None, dropout=DropoutSpec(residual=0.1))
    beside = run(text, None, said, dropout=DropoutSpec(residual=0.1), callbacks=[Meddler(), *failing])
    assert [each.loss for each in beside.result.steps] == [each.loss for each in plain.result.steps]
    for one, other in zip(plain.model.parameters(), beside.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert [each.asked for each in failing] == [2, 2]
    assert [line for line in said if "Fails" in line] == [
        "Fails failed and is asked no more; the run goes on (ValueError: no room)",
        "Fails failed and is asked no more; the run goes on (SystemExit: 3)",
    ]


class TakesThePlace(Watcher):
    """Puts a file where logs would lie."""

    def __init__(self, out: Path) -> None:
        super().__init__()
        self.out = out

    def begin(self, plan: RunPlan) -> None:
        (self.out / "logs").write_text("a file", encoding="utf-8")


def test_a_log_that_cannot_be_written(text: Path, tmp_path: Path) -> None:
    out, said = tmp_path / "run", list[str]()
    watcher = TakesThePlace(out)
    assert len(run(text, out, said, log=["csv", "tensorboard"], watcher=watcher).result.steps) == STEPS
    assert sum("failed and is asked no more" in line for line in said) == 2


def test_logs_that_there_are_not(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="did you mean 'wandb'"):
        run(text, tmp_path / "run", log=["wanbd"])
    with pytest.raises(UsageError, match="name one with --out"):
        run(text, None, log=["csv"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"anyformer\[mlflow\]"):
        run(text, tmp_path / "run", log=["mlflow"])
    assert not (tmp_path / "run").exists()
