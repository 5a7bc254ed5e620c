"""A text, a run trained on it, a directory of weights: made once for all commands."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from anyformer.measure.calibrate import Machine
from tests.cli.running import SMALL, run, succeeded, write_text

PEAK = 1e11  # FLOPs a second


@pytest.fixture(scope="package")
def _quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No second of large products before each run, no cache outside the test."""
    machine = Machine("a processor", "cpu", 1, "2", {"float32": PEAK, "bfloat16": PEAK}, 1e10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANYFORMER_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("anyformer.measure.calibrate", lambda *_: machine)
        yield


@pytest.fixture(scope="package")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="package")
def trained(tmp_path_factory: pytest.TempPathFactory, text: Path, _quick: None) -> Path:
    """A run; whoever changes it copies it first."""
    out = tmp_path_factory.mktemp("runs") / "first"
    succeeded(run("train", "llama2-7b", "--data", text, "--out", out, *SMALL))
    return out


@pytest.fixture(scope="package")
def converted(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Path:
    """The same weights as a Hugging Face directory."""
    out = tmp_path_factory.mktemp("hub") / "model"
    succeeded(run("convert", trained, out))
    return out
