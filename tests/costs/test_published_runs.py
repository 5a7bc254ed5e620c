"""What devices are said to reach is what published runs of one source reached; plans of all others are as near as is said."""

from math import exp
from statistics import median

import pytest

from anyformer.costs.hardware.devices import devices
from tests.costs.published_runs import FITTED, TRITON, PublishedRun, error, fitted, published

REST = [run for run in published() if not run.fitted_on]
OTHERS = [run for run in REST if run.source != "mosaic"]
# How much faster plans are than runs of these: the H100 were throttled, Megatron's attention of 2022 was not fused, and
# LLaMA 3 was trained by people who tuned it for months.
BOUNDS = {
    ("titan", "A100-80GB"): (-0.15, 0.15),
    ("titan", "H100"): (0.0, 0.35),
    ("korthikanti", "A100-80GB"): (0.0, 0.4),
    ("llama3", "H100"): (-0.3, 0.0),
}


def test_there_are_runs_of_each_device() -> None:
    for device in TRITON:
        assert len([run for run in published() if run.fitted_on and run.device == device]) > 15
        assert len([run for run in REST if run.device == device]) > 15


@pytest.mark.parametrize("run", OTHERS, ids=lambda run: f"{run.source}-{run.model}-{run.number}")
def test_a_run_that_nothing_was_fitted_on(run: PublishedRun) -> None:
    least, most = BOUNDS[run.source, run.device]
    assert least < exp(error(run)) - 1 < most


@pytest.mark.parametrize("device", TRITON)
def test_every_other_run_of_the_same_source(device: str) -> None:
    some = [run for run in REST if run.device == device and run.source == "mosaic" and run.seq_len <= 8192][::3]
    errors = [abs(exp(error(run)) - 1) for run in some]
    assert median(errors) < 0.06
    assert max(errors) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("these", [("A100-80GB", "A100-40GB"), ("H100",)], ids="-".join)
def test_shares_are_the_fitted_ones(these: tuple[str, ...]) -> None:
    found = fitted([run for run in published() if run.fitted_on and run.device in these])
    for device in these:
        assert found.attention == pytest.approx(TRITON[device], abs=0.01)
        said = devices()[device].efficiency
        for name in set(FITTED) - {"attention"}:
            assert getattr(said, name) == pytest.approx(getattr(found, name), abs=0.01), name
