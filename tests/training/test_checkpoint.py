"""Checkpoints: everything comes back bit for bit; what is damaged is named; what fails leaves the former one good."""

import copy
import json
import logging
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from anyformer.errors import CheckpointError
from anyformer.training.checkpoint.checkpoints import Checkpoints, step_of
from tests.training.small import save, saved, step, trained

FILES = ["manifest.json", "model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json"]


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints")


class TestRestore:
    def test_the_next_steps_are_the_same(self, checkpoints: Checkpoints) -> None:
        model, optimizer = trained(3)
        random.gauss(0, 1)  # leaves one number waiting in the generator
        np.random.standard_normal()
        optimizer.param_groups[0]["lr"] = 0.1 + 0.2
        state = {"sampler": {"step": 7, "seed": 2**63}, "loss": 0.1 + 0.2, "none": None}
        path = save(checkpoints, 3, model, optimizer, state)
        expected = [random.gauss(0, 1), float(np.random.standard_normal()), *(step(model, optimizer) for _ in range(4))]
        weights = copy.deepcopy(model.state_dict())

        other, others = trained(5, seed=1)
        table = other.table.weight
        random.seed(5)
        np.random.seed(5)
        assert checkpoints.restore(path, other, others) == state
        assert others.param_groups[0]["lr"] == 0.1 + 0.2
        assert others.param_groups[1]["weight_decay"] == 0.0
        assert others.param_groups[0]["betas"] == (0.8, 0.9)
        assert other.head.weight is other.table.weight is table
        again = [random.gauss(0, 1), float(np.random.standard_normal()), *(step(other, others) for _ in range(4))]
        assert [x.hex() for x in again] == [x.hex() for x in expected]
        for name, tensor in other.state_dict().items():
            assert torch.equal(tensor, weights[name]), name

    def test_an_optimiser_without_moments_yet(self, checkpoints: Checkpoints) -> None:
        model, optimizer = trained(0)
        path = save(checkpoints, 0, model, optimizer, {})
        other, others = trained(2, seed=1)
        checkpoints.restore(path, other, others)
        assert not others.state

    def test_moments_wider_than_the_weights_keep_every_bit(self, checkpoints: Checkpoints) -> None:
        model = nn.Linear(3, 2).to(torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        for values in optimizer.state.values():
            values["exp_avg"] = torch.full_like(values["exp_avg"], 1 / 3, dtype=torch.float32)
        path = save(checkpoints, 1, model, optimizer, {})
        other = nn.Linear(3, 2).to(torch.bfloat16)
        others = torch.optim.AdamW(other.parameters())
        checkpoints.restore(path, other, others)
        for values in others.state.values():
            assert values["exp_avg"].dtype == torch.float32
            assert torch.equal(values["exp_avg"], torch.full_like(values["exp_avg"], 1 / 3))

    def test_a_learning_rate_that_is_a_tensor(self, checkpoints: Checkpoints) -> None:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.3), foreach=False)
        path = save(checkpoints, 1, model, optimizer, {})
        others = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.5), foreach=False)
        checkpoints.restore(path, model, others)
        assert torch.equal(others.param_groups[0]["lr"], torch.tensor(0.3))

    def test_another_model_is_refused_untouched(self, checkpoints: Checkpoints) -> None:
        saved(checkpoints, 1)
        path = checkpoints.latest()
        assert path is not None
        other, others = trained(0, width=7)
        before = copy.deepcopy(other.state_dict())
        with pytest.raises(CheckpointError, match=r"table.weight has shape \(11, 6\) there and \(11, 7\) here"):
            checkpoints.restore(path, other, others)
        assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())
        linear = nn.Linear(2, 2)
        with pytest.raises(CheckpointError, match=r"lacks bias, weight, and the model lacks layer.bias"):
            checkpoints.restore(path, linear, torch.optim.AdamW(linear.parameters()))

    def test_another_optimiser_is_refused_untouched(self, checkpoints: Checkpoints) -> None:
        saved(checkpoints, 1)
        path = checkpoints.latest()
        assert path is not None
        other, _ = trained(0, seed=3)
        before = copy.deepcopy(other.state_dict())
        with pytest.raises(CheckpointError, match="of another optimiser"):
            checkpoints.restore(path, other, torch.optim.AdamW(other.parameters()))
        assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())


class TestFiles:
    def test_what_is_there(self, checkpoints: Checkpoints) -> None:
        saved(checkpoints, 12)
        path = checkpoints.directory / "step-00000012"
        assert sorted(file.name for file in path.iterdir()) == FILES
        with safe_open(path / "model.safetensors", "pt") as file:  # type: ignore[no-untyped-call]
            names = set(file.keys())
        # Tied: once.
        assert names == {"table.weight", "layer.weight", "layer.bias", "seen"}
        assert json.loads((path / "manifest.json").read_text())["step"] == 12
        assert json.loads((path / "state.json").read_text())["state"] == {"number": 12}
        assert step_of(path) == 12
        with pytest.raises(CheckpointError, match="no checkpoint"):
            step_of(checkpoints.directory)

    @pytest.mark.parametrize("name", FILES)
    @pytest.mark.parametrize("options", ["missing", "truncated", "flipped"])
    def test_damage_is_named(self, checkpoints: Checkpoints, name: str, options: str) -> None:
        model, optimizer = saved(checkpoints, 1, 2)
        path = checkpoints.directory / "step-00000002"
        file = path / name
        if options == "missing":
            file.unlink()
        elif options == "truncated":
            os.truncate(file, file.stat().st_size - 1)
        else:
            content = bytearray(file.read_bytes())
            # A digit of the manifest, and not its own sign of life
            content[content.index(b"nbytes") + 10 if name == "manifest.json" else -3] ^= 1
            file.write_bytes(content)
        with pytest.raises(CheckpointError, match=name) as error:
            checkpoints.restore(path, model, optimizer)
        assert f"delete {path}" in str(error.value)
        if options == "missing" and name == "manifest.json":
            return  # incomplete: below
        if (
            options != "flipped" or name == "manifest.json"
        ):  # flips elsewhere are seen by reading all of it, in `restore`
            with pytest.raises(CheckpointError, match=name):
                checkpoints.latest()
        else:
            assert checkpoints.latest() == path

    def test_one_without_a_manifest_is_passed_over_aloud(
        self, checkpoints: Checkpoints, caplog: pytest.LogCaptureFixture
    ) -> None:
        model, optimizer = saved(checkpoints, 1, 2)
        (checkpoints.directory / "step-00000002" / "manifest.json").unlink()
        with caplog.at_level(logging.WARNING):
            assert checkpoints.latest() == checkpoints.directory / "step-00000001"
        assert "step-00000002: it is incomplete" in caplog.text
        # The next save does away with it.
        save(checkpoints, 2, model, optimizer, {})
        assert sorted(p.name for p in checkpoints.directory.iterdir()) == ["step-00000001", "step-00000002.1"]
        assert checkpoints.latest() == checkpoints.directory / "step-00000002.1"

    def test_nothing_there(self, checkpoints: Checkpoints) -> None:
        assert checkpoints.latest() is None
        assert checkpoints.best() is None
        model, optimizer = trained(0)
        with pytest.raises(CheckpointError, match="there is no checkpoint"):
            checkpoints.restore(checkpoints.directory / "step-00000001", model, optimizer)


class TestKept:
    def save(self, checkpoints: Checkpoints, metrics: list[float | None]) -> list[int]:
        model, optimizer = trained(0)
        for number, metric in enumerate(metrics, start=1):
            save(checkpoints, number, model, optimizer, {}, metric)
        return sorted(step_of(path) for path in checkpoints.directory.iterdir())

    def test_the_last_and_the_best(self, checkpoints: Checkpoints) -> None:
        assert self.save(checkpoints, [3.0, 1.0, 2.0, 4.0, 1.0, 5.0, 6.0]) == [2, 6, 7]
        assert checkpoints.best() == checkpoints.directory / "step-00000002"

    def test_without_metrics_or_numbers(self, checkpoints: Checkpoints) -> None:
        assert self.save(checkpoints, [None, float("nan"), None, None]) == [3, 4]
        assert checkpoints.best() is None

    def test_as_many_as_asked_for(self, tmp_path: Path) -> None:
        assert self.save(Checkpoints(tmp_path / "three", keep_last=3), [None] * 5) == [3, 4, 5]
        assert self.save(Checkpoints(tmp_path / "one", keep_last=1), [1.0, 2.0, 3.0]) == [1, 3]
        with pytest.raises(ValueError, match="keep_last=0"):
            Checkpoints(tmp_path, keep_last=0)

    def test_a_step_saved_twice_is_the_second(self, checkpoints: Checkpoints) -> None:
        model, optimizer = saved(checkpoints, 1, 2)
        for again in ("once", "twice"):
            save(checkpoints, 2, model, optimizer, {"again": again})
        assert len(list(checkpoints.directory.iterdir())) == 2
        path = checkpoints.latest()
        assert path is not None
        assert checkpoints.restore(path, model, optimizer) == {"again": "twice"}

    def test_one_older_than_the_rest_stays_when_it_is_new(self, checkpoints: Checkpoints) -> None:
        saved(checkpoints, 8, 9, 5)
        assert [step_of(path) for path in sorted(checkpoints.directory.iterdir())] == [5, 8, 9]

    def test_leftovers_go(self, checkpoints: Checkpoints) -> None:
        model, optimizer = saved(checkpoints, 1)
        left = checkpoints.directory / ".tmp-1-step-00000002"
        left.mkdir()
        (left / "model.safetensors").write_bytes(b"half")
        save(checkpoints, 2, model, optimizer, {})
        assert sorted(p.name for p in checkpoints.directory.iterdir()) == ["step-00000001", "step-00000002"]
