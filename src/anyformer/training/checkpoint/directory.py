"""The directory of a run: what ran, by what recipe, on what, how far; and one owner at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, TypeVar

from anyformer import recipe as recipes
from anyformer import spec as specs
from anyformer.disk import atomic
from anyformer.disk.lock import Lock
from anyformer.disk.run_layout import BASE, CHECKPOINTS, LOCK, RECIPE, RECORD, SPEC, is_run, measure
from anyformer.disk.seal import EXTENDED, latest, read_record, seal, sealed, sealing
from anyformer.errors import AnyformerError, CheckpointError, DiskFailed, UsageError
from anyformer.recipe import Mixture, Recipe
from anyformer.spec import ModelSpec, Place, first_difference, short, tensors
from anyformer.training.checkpoint.checkpoints import step_of
from anyformer.training.checkpoint.provenance import code_fingerprint, provenance

log = logging.getLogger(__name__)
S = TypeVar("S", ModelSpec, Recipe)
REMEDY = "go on with what it was begun with, or name a new directory"


def own(
    path: Path,
    spec: ModelSpec,
    recipe: Recipe,
    fingerprints: Mapping[str, str],
    name: str | None = None,
    fill: Callable[[Path], None] | None = None,
) -> Lock:
    """Make the directory of a new run, whole or not at all; one that holds this very run is taken over to go on.

    A run of fewer tokens is the same run, which goes on beyond them from then on: its record says so, in one write.

    It holds `spec.yaml`, `recipe.yaml`, `run.json` (what ran, and the seal of the others), `metrics.jsonl`, `checkpoints/` and
    `tokenizer/`, and is this process's until the lock is released. `fingerprints` of what is read (data, tokenizer); that of
    the code is added. `name` is what the run is listed by, its sizes unless it has one; `fill` writes into a new run's
    directory what else belongs to it.
    Raises UsageError for a directory that is in use or holds something else, CheckpointError for one of another run, naming
    the field and both values, or a damaged one, DiskFailed where it can't be written.
    """
    if is_run(path):
        return _taken_over(path, spec, recipe, fingerprints)
    _refuse_others(path)
    record = {
        "architecture": name or f"{spec.n_layers} layers of {spec.stack.d_model}",
        "n_params": sum(weight.numel for _, weight in tensors(spec, Place())),
        "steps": recipe.steps,
        "seed": recipe.seed,
        "fingerprints": {**fingerprints, "code": code_fingerprint()},
        **provenance(),
    }
    lock: Lock | None = None
    try:
        with atomic.new_directory(path) as aside:
            lock = Lock(aside / LOCK, path)  # held before the directory can be seen
            atomic.write_file(aside / SPEC, specs.dumps(spec).encode())
            atomic.write_file(aside / RECIPE, recipes.dumps(recipe).encode())
            if fill is not None:
                fill(aside)
            atomic.create_directories(aside / CHECKPOINTS)
            atomic.write_file(aside / RECORD, sealing(aside, record))
    except BaseException as error:
        if lock is not None:
            lock.release()
        if not isinstance(error, OSError):
            raise
        if is_run(path):
            raise UsageError(f"output directory in use: another process has just begun a run in {path}") from None
        raise DiskFailed(f"cannot create the run's directory {path}: {error.strerror or error}") from None
    return lock


def made(path: Path) -> int:
    """The steps that are saved in a directory, be it a run's. Raises CheckpointError."""
    found = latest(path / CHECKPOINTS, only=())
    return step_of(found) if found is not None else 0


def holds_weights(path: Path) -> bool:
    """Whether a run goes on with weights of its own: a checkpoint's, or those that its adapter is put on."""
    return (path / BASE).is_dir() or made(path) > 0


def was_given_weights(path: Path) -> bool:
    """Whether a run lies there that began from given weights. Raises CheckpointError."""
    return is_run(path) and "init" in read_record(path).get("fingerprints", {})


def refuse(path: Path, spec: ModelSpec, recipe: Recipe, fingerprints: Mapping[str, str]) -> None:
    """Raise what `own` would of what the directory holds, which is left as it is."""
    if is_run(path):
        _refuse_other_run(path, read_record(sealed(path)), spec, recipe, fingerprints)
    else:
        _refuse_others(path)


def refuse_another(path: Path, spec: ModelSpec, recipe: Recipe) -> None:
    """Raise CheckpointError, naming the field, for a run of another specification or recipe, UsageError for what is no run."""
    if is_run(path):
        _begun(path, read_record(sealed(path)), spec, recipe)
    else:
        _refuse_others(path)


def _taken_over(path: Path, spec: ModelSpec, recipe: Recipe, fingerprints: Mapping[str, str]) -> Lock:
    """The lock on the directory of this very run; what a killed process left unfinished is removed."""
    record = read_record(sealed(path))
    try:
        lock = Lock(path / LOCK, path)
    except OSError as error:
        raise DiskFailed(f"cannot write to the run's directory {path}: {error.strerror or error}") from None
    try:
        begun = _refuse_other_run(path, record, spec, recipe, fingerprints)
        for directory in (path, path / CHECKPOINTS):
            if directory.is_dir():
                atomic.remove_leftovers(directory)
        if recipe.tokens > begun.tokens:
            former = {"tokens": begun.tokens, "steps": begun.steps, "record": measure(path / RECORD)}
            now = {"tokens": recipe.tokens, "steps": recipe.steps, EXTENDED: [*record.get(EXTENDED, []), former]}
            atomic.replace_file(path / RECORD, seal({**record, **now}))
    except BaseException as error:
        lock.release()
        if not isinstance(error, OSError):
            raise
        raise DiskFailed(f"cannot clean up the run's directory {path}: {error.strerror or error}") from None
    return lock


def _refuse_others(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; name a directory for the run")
    if path.is_dir() and (held := next(iter(sorted(path.iterdir())), None)) is not None:
        raise UsageError(f"{path} holds no run but other things, such as {held.name}; name a new or an empty directory")


def _refuse_other_run(
    path: Path, record: dict[str, Any], spec: ModelSpec, recipe: Recipe, fingerprints: Mapping[str, str]
) -> Recipe:
    """The recipe of the run so far, which may be of fewer tokens. Raises CheckpointError for another run."""
    begun = _begun(path, record, spec, recipe)
    if recipe.mixture is not None and begun.steps != recipe.steps:
        so_far = made(path)
        if _weights(recipe.mixture, begun, so_far) != _weights(recipe.mixture, recipe, so_far):
            than = f"its mixture had other weights in its first {so_far:,} steps than one of {recipe.steps:,} has"
            raise CheckpointError(f"{path} cannot go on so far: {than}; {REMEDY}")
    saved_prints = record.get("fingerprints", {})
    for name in dict.fromkeys((*fingerprints, *saved_prints)):
        there, here = (prints.get(name, "none") for prints in (saved_prints, fingerprints))
        if name == "init" and holds_weights(path):
            if here == "none" or Path(there).resolve() == Path(here).resolve():
                continue  # it goes on with its own
            why = "; leave --init out to go on with the run's own weights"
        else:
            why = " (other texts, names of texts, or another --validation)" if name == "data" else ""
        if name != "code" and there != here:
            raise CheckpointError(f"{path} holds a run on another {name}: {there} there and {here} here{why}; {REMEDY}")
    if saved_prints.get("code") != code_fingerprint():
        log.warning("the code has changed since the run in %s was begun; its losses may differ in the last bits", path)
    return begun


def _begun(path: Path, record: dict[str, Any], spec: ModelSpec, recipe: Recipe) -> Recipe:
    """The recipe of the run so far, which may be of fewer tokens. Raises CheckpointError for one of another model or recipe."""
    begun = recipes.extended(_read(path / RECIPE, recipes.read), record)
    longer = begun.but(tokens=max(begun.tokens, recipe.tokens))
    for what, saved, given in (("spec", _read(path / SPEC, specs.read), spec), ("recipe", longer, recipe)):
        found = first_difference(saved, given)
        if found is not None:
            field, there, here = found
            other = f"{path} holds a run of another {what}"
            raise CheckpointError(f"{other}: {field} is {short(there)} there and {short(here)} here; {REMEDY}")
    return begun


def _read(file: Path, read: Callable[[Path], S]) -> S:
    try:
        return read(file)
    except AnyformerError as error:
        raise CheckpointError(f"{file} is damaged or missing: {error}") from None


def _weights(mixture: Mixture, recipe: Recipe, steps: int) -> list[tuple[float, ...]]:
    """Of a mixture's texts, at each of the first steps of a run."""
    stages = mixture.by_step(recipe.steps, recipe.batch_tokens)
    each = chain.from_iterable(repeat(weights, n) for n, weights in stages)
    return list(islice(chain(each, repeat(stages[-1][1])), steps))
