"""A run's directory that this process made and holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anyformer.disk.lock import Lock
from anyformer.training.checkpoint.directory import own
from tests.training.killing import recipe, spec

PRINTS = {"data": "d1", "tokenizer": "t1"}


def created(path: Path) -> Lock:
    return own(path, spec(), recipe(), PRINTS, "tiny")


@contextmanager
def held(path: Path) -> Iterator[Path]:
    lock = created(path)
    try:
        yield path
    finally:
        lock.release()
