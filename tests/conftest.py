"""What all tests share: one thread each, the material's place."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# Before anything imports torch: tests run side by side, and on two cores more threads only get in each other's way.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ.pop("COLUMNS", None)  # which pytest-xdist sets: what is printed into a pipe is as wide as nobody told
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Every test works out what it checks; tests/cli/test_answers.py keeps answers of its own.
os.environ["ANYFORMER_NO_CACHE"] = "1"
# Nothing in a test may ask a hub.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

ROOT = Path(__file__).resolve().parent.parent

# `make test` tries the same combinations each time, so that it says something about the change at hand;
# `make test-all` draws new ones (HYPOTHESIS_PROFILE=explore).
settings.register_profile("same", derandomize=True, database=None)
settings.register_profile("explore", print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave what is in turn, where it is not its turn, to `make test-all`."""
    from tests.sample import is_its_turn  # imports torch, which reads the variables above

    for item in items:
        if not all(is_its_turn(item.nodeid, *mark.args) for mark in item.iter_markers("in_turn")):
            item.add_marker("slow")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    if "torch" in sys.modules:  # a plugin was there before the variables above
        import torch

        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def material() -> Path:
    """The folder of real texts and weights beside the repository; a test that needs it is skipped without it."""
    folder = ROOT.parent / "shared" / "material"
    if not folder.is_dir():
        pytest.skip("no ../shared/material beside the repository: real texts and weights are not at hand")
    return folder
