"""Processes that train together, forked once for a file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.training.cluster.processes import Processes, processes


@pytest.fixture(scope="module")
def two() -> Iterator[Processes]:
    with processes(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def four() -> Iterator[Processes]:
    with processes(4) as pool:
        yield pool
