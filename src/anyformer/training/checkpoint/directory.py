"""The directory of a run: what ran, by what recipe, on what, how far; and one owner at a time."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyformer import recipe as recipes
from anyformer import spec as specs
from anyformer.disk import atomic
from anyformer.disk.lock import Lock
from anyformer.disk.run_layout import CHECKPOINTS, LOCK, RECIPE, RECORD, SPEC, is_run
from anyformer.errors import AnyformerError, CheckpointError, RunFailed, UsageError
from anyformer.recipe import Recipe
from anyformer.spec import ModelSpec, Place, first_difference, short, tensors
from anyformer.training.checkpoint.provenance import code_fingerprint, provenance

FORMAT = 1

log = logging.getLogger(__name__)


class RunDirectory:
    """A run's directory, owned by this process until it is closed.

    It holds `spec.yaml`, `recipe.yaml`, `run.json` (what ran), `metrics.jsonl`, `checkpoints/` and `tokenizer/`.
    """

    def __init__(self, path: Path, record: dict[str, Any], lock: Lock) -> None:
        self.path, self.record, self._lock = path, record, lock

    @classmethod
    def create(
        cls,
        path: Path,
        spec: ModelSpec,
        recipe: Recipe,
        fingerprints: Mapping[str, str],
        extra: Mapping[str, Any] | None = None,
        files: Mapping[str, str] | None = None,
    ) -> RunDirectory:
        """Make the directory of a new run, whole or not at all; one that holds this very run is opened to go on.

        `fingerprints` of what is read (data, tokenizer); that of the code is added. `extra` JSON goes into `run.json`,
        such as `architecture`, the name to list it by; `files` are further texts by name. Raises UsageError for a directory
        that is in use or holds something else, CheckpointError for one of another run, RunFailed where it can't be written.
        """
        path = Path(path)
        if is_run(path):
            return cls.open(path, spec, recipe, fingerprints)
        _refuse_others(path)
        record = {
            "format": FORMAT,
            "architecture": f"{spec.n_layers} layers of {spec.stack.d_model}",
            "n_params": sum(weight.numel for _, weight in tensors(spec, Place())),
            "steps": recipe.steps,
            "seed": recipe.seed,
            "fingerprints": {**fingerprints, "code": code_fingerprint()},
            **provenance(),
            **(extra or {}),
        }
        lock: Lock | None = None
        try:
            with atomic.new_directory(path) as aside:
                lock = Lock(aside / LOCK, path)  # held before the directory can be seen
                atomic.write_file(aside / SPEC, specs.dumps(spec).encode())
                atomic.write_file(aside / RECIPE, recipes.dumps(recipe).encode())
                atomic.write_file(aside / RECORD, (json.dumps(record, indent=1) + "\n").encode())
                for name, text in (files or {}).items():
                    atomic.write_file(aside / name, text.encode())
                atomic.create_directories(aside / CHECKPOINTS)
        except BaseException as error:
            if lock is not None:
                lock.release()
            if not isinstance(error, OSError):
                raise
            if is_run(path):
                raise UsageError(f"output directory in use: another process has just begun a run in {path}") from None
            raise RunFailed(f"cannot create the run's directory {path}: {error.strerror or error}") from None
        return cls(path, record, lock)

    @classmethod
    def open(
        cls,
        path: Path,
        spec: ModelSpec | None = None,
        recipe: Recipe | None = None,
        fingerprints: Mapping[str, str] | None = None,
    ) -> RunDirectory:
        """Take over the directory of a run to go on with it, and remove what a killed process left unfinished.

        What is given must be what ran. Raises CheckpointError naming the field and both values where it isn't, and for
        a directory that holds no run or a damaged one; UsageError for one in use.
        """
        path = Path(path)
        record = read_record(path)
        try:
            lock = Lock(path / LOCK, path)
        except OSError as error:
            raise RunFailed(f"cannot write to the run's directory {path}: {error.strerror or error}") from None
        try:
            _refuse_other_run(path, record, spec, recipe, fingerprints)
            for directory in (path, path / CHECKPOINTS):
                if directory.is_dir():
                    atomic.remove_leftovers(directory)
        except OSError as error:
            lock.release()
            raise RunFailed(f"cannot clean up the run's directory {path}: {error.strerror or error}") from None
        except BaseException:
            lock.release()
            raise
        return cls(path, record, lock)

    def close(self) -> None:
        """Let others have the directory."""
        self._lock.release()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def read_record(path: Path) -> dict[str, Any]:
    """The content of `run.json`. Raises CheckpointError for a directory that holds no run, or a damaged one."""
    file = path / RECORD
    if not file.is_file():
        raise CheckpointError(f"{path} holds no run: it has no {RECORD}; `anyformer runs` lists those there are")
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise CheckpointError(f"{file} is in format {record['format']!r}; this version reads format {FORMAT}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file} is damaged ({error}); restore it from a copy, or begin a new run") from None
    return record


def _refuse_others(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; name a directory for the run")
    if path.is_dir() and (held := next(iter(sorted(path.iterdir())), None)) is not None:
        raise UsageError(f"{path} holds no run but other things, such as {held.name}; name a new or an empty directory")


def _refuse_other_run(
    path: Path,
    record: dict[str, Any],
    spec: ModelSpec | None,
    recipe: Recipe | None,
    fingerprints: Mapping[str, str] | None,
) -> None:
    remedy = "go on with what it was begun with, or name a new directory"
    pairs = ((SPEC, spec, specs.read), (RECIPE, recipe, recipes.read))
    for name, given, read in pairs:
        if given is None:
            continue
        try:
            saved = read(path / name)
        except AnyformerError as error:
            raise CheckpointError(f"{path / name} is damaged or missing: {error}") from None
        found = first_difference(saved, given)
        if found is not None:
            what, (field, there, here) = f"{path} holds a run of another {name.removesuffix('.yaml')}", found
            raise CheckpointError(f"{what}: {field} is {short(there)} there and {short(here)} here; {remedy}")
    saved_prints = record.get("fingerprints", {})
    for name, value in (fingerprints or {}).items():
        if saved_prints.get(name, value) != value:
            saved_value = saved_prints[name]
            raise CheckpointError(
                f"{path} holds a run on another {name}: {saved_value} there and {value} here; {remedy}"
            )
    if saved_prints.get("code") != code_fingerprint():
        log.warning("the code has changed since the run in %s was begun; its losses may differ in the last bits", path)
