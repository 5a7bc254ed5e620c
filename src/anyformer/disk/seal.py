"""Seals: a run and each of its checkpoints keep size and checksum of their files, so that nothing else is ever read as theirs."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from anyformer.disk.run_layout import (
    AUXILIARY_SPEC,
    BASE,
    LABELS,
    LOCK,
    MANIFEST,
    RECIPE,
    RECORD,
    SPEC,
    TOKENIZER,
    checkpoints_in,
    is_checkpoint,
    is_complete,
    is_run,
    measure,
    run_of,
    step_and_again,
)
from anyformer.errors import CheckpointError

FORMAT = 2  # raised when what is written, or what it means, changes; 1 sealed the files of checkpoints alone
EXTENDED = "extended"  # in a record: the tokens, steps and records of the run before each time it went on beyond them
_READ = (SPEC, RECIPE, LABELS, AUXILIARY_SPEC)  # of a run, beside its tokenizer: whether they are there matters too
_ALWAYS = ("architecture", "steps", "fingerprints")  # what records of all versions say
_told: set[tuple[str, Path]] = set()

log = logging.getLogger(__name__)


def seal(content: Mapping[str, Any]) -> bytes:
    """JSON that says its own checksum."""
    whole = {**content, "crc32": _checksum(content)}
    return json.dumps(whole, indent=1).encode()  # ends in its last brace, so that one byte less is no JSON


def sealing(
    directory: Path, content: Mapping[str, Any], measured: Mapping[str, Mapping[str, Any]] | None = None
) -> bytes:
    """The record or manifest of a directory: `content`, and what every file there is. Raises OSError.

    `measured`: what other processes have found of files that they wrote, by name.
    """
    names = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    known = measured or {}
    files = {name: known.get(name) or measure(directory / name) for name in names if name != LOCK}
    return seal({"format": FORMAT, **content, "files": files})


def read_seal(file: Path, remedy: str) -> dict[str, Any]:
    """What `seal` wrote into a file, or a version that knew no checksum yet. Raises CheckpointError."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        said = content.pop("crc32", None)
        if (written := content.get("format", 1)) not in (1, FORMAT):
            raise CheckpointError(f"{file} is in format {written!r}; this version reads formats 1 to {FORMAT}")
        if said != _checksum(content) and (said is not None or written != 1):
            raise ValueError("its checksum is another")
        if not all({"nbytes", "crc32"} == set(written) for written in content.get("files", {}).values()):
            raise ValueError("it lists files without their sizes")
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing{remedy}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file} is damaged ({error}){remedy}") from None
    return content


def read_record(run: Path) -> dict[str, Any]:
    """What `run.json` says of a run. Raises CheckpointError for a directory that holds none, or a damaged one."""
    if not is_run(run):
        raise CheckpointError(f"{run} holds no run: it has no {RECORD}; `anyformer runs` lists those there are")
    record = read_seal(run / RECORD, _remedy(run))
    if missing := [name for name in _ALWAYS if name not in record]:
        raise CheckpointError(f"{run / RECORD} is damaged (it does not say {missing[0]}){_remedy(run)}")
    return record


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """The manifest of a checkpoint whose files have the right sizes: step, metric, files. Raises CheckpointError."""
    if not checkpoint.is_dir():
        raise CheckpointError(f"there is no checkpoint {checkpoint}; the others are in {checkpoint.parent}")
    remedy = _remedy(checkpoint)
    if not is_complete(checkpoint):
        raise CheckpointError(f"the checkpoint {checkpoint} is incomplete: it has no {MANIFEST}{remedy}")
    content = read_seal(checkpoint / MANIFEST, remedy)
    if "files" not in content:
        raise CheckpointError(f"{checkpoint / MANIFEST} is damaged (it lists no files){remedy}")
    place = step_and_again(checkpoint)
    if place is not None and content.get("step", place[0]) != place[0]:
        raise CheckpointError(f"{checkpoint} was saved after step {content['step']}, and named otherwise since{remedy}")
    _compare(checkpoint, content, remedy, ())
    return content


def latest(checkpoints: Path, only: Collection[str] | None = None) -> Path | None:
    """The newest complete checkpoint of a run's directory of them, or None, where that or else the run is `sealed`.

    What is incomplete is passed over aloud, once nothing was refused: a refusal is one line.
    """
    newest_first = checkpoints_in(checkpoints)[::-1]
    found = next(filter(is_complete, newest_first), None)
    sealed(checkpoints.parent if found is None else found, only)
    for path in newest_first if found is None else newest_first[: newest_first.index(found)]:
        _tell_once("passing over the checkpoint %s: it is incomplete (it has no manifest.json)", path)
    return found


def sealed(directory: Path, only: Collection[str] | None = None) -> Path:
    """The directory of a run, or of a checkpoint and its run, all of whose files are what was written; any other as it is.

    Whoever reads of a run does so through this. Of a checkpoint the sizes are compared, and the checksums of the files
    `only`, by default of all. Raises CheckpointError naming the first file that is another.
    """
    for run in _older(directory, only):
        _tell_once("%s is of an older version, which sealed no specification, recipe and tokenizer", run)
    return directory


def _older(directory: Path, only: Collection[str] | None) -> tuple[Path, ...]:
    """The run, where its version sealed less than this one. Raises what `sealed` does."""
    if is_checkpoint(directory):
        manifest, run = read_manifest(directory), run_of(directory)
        if (record := manifest.get("run")) is not None:
            if run is None:
                raise CheckpointError(f"{directory} is not in its run, which says what it is of; move it back there")
            if not (run / RECORD).is_file() or record not in _records(run):
                raise CheckpointError(
                    f"{run / RECORD} is missing or not the one by which {directory} was saved, which was edited or is of "
                    f"another run{_remedy(run)}"
                )
        older = _older(run, None) if run is not None and (run / RECORD).is_file() else ()
        _compare(directory, manifest, _remedy(directory), manifest["files"] if only is None else only)
        return older
    if is_run(directory):
        record = read_record(directory)
        if "files" not in record:
            return (directory,)
        _compare(directory, record, _remedy(directory), record["files"])
    return ()


def _records(run: Path) -> list[Any]:
    """What the record of a run is, and what it was before the run went on beyond its recipe. Raises CheckpointError."""
    return [_measured(run / RECORD, _remedy(run)), *(each["record"] for each in read_record(run).get(EXTENDED, ()))]


def _measured(file: Path, remedy: str, written: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a file is; where it is told what was written, its size alone is looked at. Raises CheckpointError."""
    try:
        return measure(file) if written is None else {**written, "nbytes": file.stat().st_size}
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read ({error.strerror or error}){remedy}") from None


def _compare(directory: Path, seal: Mapping[str, Any], remedy: str, names: Collection[str]) -> None:
    """Refuse a file of another size, a file too many, and one of these names with another checksum."""
    for name, written in seal["files"].items():
        file = directory / name
        if not file.is_file():
            raise CheckpointError(f"{file} is missing{remedy}")
        found = _measured(file, remedy, written if name not in names else None)
        if found["nbytes"] != written["nbytes"]:
            raise CheckpointError(
                f"{file} is truncated or overwritten: it has {found['nbytes']:,} bytes and was written with "
                f"{written['nbytes']:,}{remedy}"
            )
        if found != written:
            raise CheckpointError(
                f"{file} is corrupted or edited: its checksum is not the one it was written with{remedy}"
            )
    for name in _found(directory, seal["files"]) - {MANIFEST, *seal["files"]}:
        raise CheckpointError(f"{directory / name} is none of the files that were written here; move it elsewhere")


def _found(directory: Path, files: Collection[str]) -> set[str]:
    """The files that a reader might take for those of a run or checkpoint."""
    folders = {directory, *((directory / name).parent for name in files)}
    beside = (path for folder in sorted(folders) for path in folder.iterdir())
    of_run = (path for name in (TOKENIZER, BASE) for path in (directory / name).rglob("*"))
    inside = of_run if is_run(directory) else beside
    visible = (path.relative_to(directory) for path in inside if path.is_file())
    named = (name for name in _READ if is_run(directory) and (directory / name).is_file())
    return {*named, *(path.as_posix() for path in visible if not path.name.startswith("."))}


def _remedy(directory: Path) -> str:
    if is_checkpoint(directory):
        return f"; restore it from a copy, or delete {directory} to go on from the checkpoint before it"
    return (
        "; restore it from a copy; for another specification or recipe begin a new run in another directory, with another "
        f"recipe from these weights (--init {directory})"
    )


def _tell_once(what: str, path: Path) -> None:
    if (what, path) not in _told:
        _told.add((what, path))
        log.warning(what, path)


def _checksum(content: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"
