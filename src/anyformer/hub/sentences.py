"""Directories of sentence-transformers: a model, and how its tokens become one vector. Reimers & Gurevych 2019, arXiv:1908.10084.

`modules.json` lists a Transformer, a Pooling and maybe a Normalize, each with a folder of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from anyformer.disk.foreign import inside, named_in, read_json
from anyformer.errors import CheckpointError
from anyformer.families.heads import EMBEDDING
from anyformer.layers import FirstTokenSpec, LastTokenSpec, MeanTokensSpec, UnitLengthSpec
from anyformer.spec import HeadSpec, Length, ModelSpec, PoolSpec

MODULES = "modules.json"
ABOUT = "sentence_bert_config.json"
LIMITS = {ABOUT: "max_seq_length", "tokenizer_config.json": "model_max_length"}  # what longer texts are cut to there
POOLING = "pooling_mode_"
POOLS: Mapping[str, PoolSpec] = {
    "cls_token": FirstTokenSpec(),
    "mean_tokens": MeanTokensSpec(),
    "lasttoken": LastTokenSpec(),
}
POOLING_TYPES = ("", "mean_tokens", "cls_token", "lasttoken")  # by the number that a GGUF file says; the first is none
# What some files say in one field, pooling_mode.
SHORT = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}


def folder_of(directory: Path) -> Path:
    """Where the model itself lies: the directory, or what its modules.json names. Raises CheckpointError."""
    return directory if not _is_one(directory) else _modules(directory)[0][1]


def with_pooling(spec: ModelSpec, directory: Path) -> ModelSpec:
    """The model with the head that a directory's modules make, after its own; as it is where there is no modules.json.

    Raises CheckpointError for a module or a way of pooling that there is no part for.
    """
    if not _is_one(directory):
        return spec
    kinds = _modules(directory)
    names = [kind for kind, _ in kinds]
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        other = next((name for name in names if name not in ("Transformer", "Pooling", "Normalize")), None)
        raise CheckpointError(
            f"{directory / MODULES} lists {', '.join(names) or 'nothing'}; only Transformer, Pooling and Normalize, in this "
            f"order, are read here" + (f", and {other} computes something else" if other else "")
        )
    unit = (UnitLengthSpec(),) if len(names) == 3 else ()
    head = HeadSpec(name=EMBEDDING, pool=_pool(kinds[1][1] / "config.json"), transform=unit)
    limits = [*_limits(directory), *([spec.context] if spec.context else [])]
    return spec.but(heads=(*spec.heads, head), context=Length(min(limits)) if limits else None)


def pooled(spec: ModelSpec, kind: Any, where: str) -> ModelSpec:
    """The model with the head that a GGUF file's pooling_type makes. Raises CheckpointError for one that there is no part for."""
    if type(kind) is not int or not 0 <= kind < len(POOLING_TYPES):
        raise CheckpointError(
            f"{where}: pooling_type = {kind!r} is not computed here; 0 to {len(POOLING_TYPES) - 1} are"
        )
    if not kind:
        return spec
    return spec.but(heads=(*spec.heads, HeadSpec(name=EMBEDDING, pool=POOLS[POOLING_TYPES[kind]])))


def pooling_type(spec: ModelSpec) -> int | None:
    """The number that a GGUF file says of how a model's tokens become one vector; None where it has no head that says so."""
    if (head := _head_of(spec)) is None:
        return None
    return next(i for i, name in enumerate(POOLING_TYPES) if name and POOLS[name] == head.pool)


def without_pooling(spec: ModelSpec) -> ModelSpec:
    """The model that a class of transformers may compute: without the head that other files speak of."""
    return spec.but(heads=spec.heads[:-1]) if _head_of(spec) is not None else spec


def write_modules(spec: ModelSpec, directory: Path) -> None:
    """Write beside a model's files how its tokens become one vector, if it has a head that says so."""
    head = _head_of(spec)
    if head is None:
        return
    kinds = ["Transformer", "Pooling", *(["Normalize"] if head.transform else [])]
    listed = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    write_json(directory / MODULES, listed)
    modes = {POOLING + name: pool == head.pool for name, pool in POOLS.items()}
    for i, kind in enumerate(kinds[1:], 1):
        (directory / f"{i}_{kind}").mkdir()
    width = spec.stack.width
    write_json(directory / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **modes})
    write_json(directory / ABOUT, {"max_seq_length": spec.context, "do_lower_case": False})


def _head_of(spec: ModelSpec) -> HeadSpec | None:
    """The last head, where it is one that modules of sentence-transformers make."""
    last = spec.heads[-1] if spec.heads else None
    kinds = [(pool, transform) for pool in POOLS.values() for transform in ((), (UnitLengthSpec(),))]
    return last if last in [HeadSpec(name=EMBEDDING, pool=pool, transform=then) for pool, then in kinds] else None


def _is_one(directory: Path) -> bool:
    return inside(directory / MODULES, CheckpointError).is_file()


def _modules(directory: Path) -> list[tuple[str, Path]]:
    """(kind, folder) of each module; one without a folder of its own lies in the directory."""
    file = directory / MODULES
    listed = read_json(file, CheckpointError)
    try:
        said = [(str(each["type"]).rpartition(".")[2], each["path"]) for each in listed]
    except (TypeError, KeyError):
        raise CheckpointError(
            f"{directory / MODULES} is no list of modules with type and path; copy it again"
        ) from None
    found = [
        (kind, named_in(directory, path, str(file), CheckpointError) if path else directory) for kind, path in said
    ]
    if not found or found[0][0] != "Transformer":
        raise CheckpointError(f"{directory / MODULES} does not begin with a Transformer, so there is no model to read")
    return found


def _pool(file: Path) -> PoolSpec:
    """How a Pooling's config.json makes one vector of the tokens."""
    said = read_table(inside(file, CheckpointError))
    on = [name.removeprefix(POOLING) for name, value in said.items() if name.startswith(POOLING) and value is True]
    named = said.get("pooling_mode")
    on += [SHORT.get(name, name) for name in map(str, named if isinstance(named, list) else [named] if named else [])]
    if len(on) != 1 or on[0] not in POOLS:
        raise CheckpointError(
            f"{file} pools by {' and '.join(on) or 'nothing'}; one of {', '.join(POOLS)} is computed here"
        )
    return POOLS[on[0]]


def _limits(directory: Path) -> Iterator[int]:
    """The lengths that longer texts are cut to, as far as they are said. Raises CheckpointError for one that is none."""
    for name, key in LIMITS.items():
        file = inside(directory / name, CheckpointError)
        limit = read_table(file).get(key) if file.is_file() else None
        if isinstance(limit, bool | str | list | dict) or (limit is not None and limit < 1):
            raise CheckpointError(f"{file}: {key} = {limit!r} is no number of tokens; mend or remove it")
        if isinstance(limit, int):
            yield limit


def read_table(path: Path) -> dict[str, Any]:
    """The settings in a file. Raises CheckpointError where it holds something else."""
    data = read_json(path, CheckpointError)
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds no table of settings; copy it again")
    return data


def write_json(path: Path, data: Any) -> None:
    """Write settings as Hugging Face does."""
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
