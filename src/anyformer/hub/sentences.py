"""Directories of sentence-transformers: a model, and how its tokens become one vector. Reimers & Gurevych 2019, arXiv:1908.10084.

`modules.json` lists a Transformer, a Pooling, and the Dense layers and Normalize that follow, each with a folder of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from anyformer.disk.foreign import inside, named_in, read_json
from anyformer.errors import CheckpointError
from anyformer.families import Family
from anyformer.families.heads import EMBEDDING
from anyformer.families.hf.headings import without_head, writes_alone
from anyformer.families.hf.pooling import ACTIVATIONS, DENSE, NORMALIZE, POOLS, UNIT, head_of, modules_of, tensors_of
from anyformer.families.hf.settings import Settings
from anyformer.hub.weights import FILE, Weights
from anyformer.layers import LinearSpec
from anyformer.spec import HeadSpec, Length, MapSpec, ModelSpec, PoolSpec, Width

MODULES = "modules.json"
ABOUT = "sentence_bert_config.json"
LIMITS = {ABOUT: "max_seq_length", "tokenizer_config.json": "model_max_length"}  # what longer texts are cut to there
POOLING = "pooling_mode_"
UNLIMITED = 10**12  # tokens; transformers writes 10**30 where there is no limit
POOLING_TYPES = ("", "mean_tokens", "cls_token", "lasttoken")  # by the number that a GGUF file says; the first is none
# What some files say in one field, pooling_mode.
SHORT = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}


def folder_of(directory: Path) -> Path:
    """Where the model itself lies: the directory, or what its modules.json names. Raises CheckpointError."""
    return directory if not is_listed(directory) else _modules(directory)[0][1]


def with_pooling(spec: ModelSpec, family: Family | None, directory: Path) -> ModelSpec:
    """The model with the head that a directory's modules make, after its own; as it is where there is no modules.json.

    A decoder's own is left out where the files lack it: sentence-transformers loads none. Raises CheckpointError for a module or
    a way of pooling that there is no part for.
    """
    if family is None or not is_listed(directory):
        return spec  # a specification of ours says all
    (_, folder), *others = _modules(directory)
    names = [kind for kind, _ in others]
    if names[:1] != ["Pooling"] or not set(names[1:]) <= {DENSE, NORMALIZE}:
        other = next((name for name in names if name not in ("Pooling", DENSE, NORMALIZE)), None)
        raise CheckpointError(
            f"{directory / MODULES} lists {', '.join(('Transformer', *names))}; only a Transformer, a Pooling and then Dense "
            f"and Normalize are read here" + (f", and {other} computes something else" if other else "")
        )
    pool = _pool(inside(others[0][1] / "config.json", CheckpointError))
    then = [part for kind, place in others[1:] for part in (_layer(place) if kind == DENSE else UNIT)]
    head = HeadSpec(name=EMBEDDING, pool=pool, transform=tuple(then))
    if writes_alone(spec) and _lacks_head(spec, family, folder):
        spec = spec.but(heads=(), ahead=())
    limits = [*_limits(directory), *([spec.context] if spec.context else [])]
    return spec.but(heads=(*spec.heads, head), context=Length(min(limits)) if limits else None)


def pooling_of(directory: Path) -> Path:
    """The file that says how a directory of sentence-transformers pools."""
    return inside(_modules(directory)[1][1] / "config.json", CheckpointError)


def pooled(spec: ModelSpec, kind: Any, widths: Iterable[int], where: str) -> ModelSpec:
    """The model with the head that a GGUF file's pooling_type makes, and plain layers of these widths behind it.

    Raises CheckpointError for one that there is no part for.
    """
    if type(kind) is not int or not 0 <= kind < len(POOLING_TYPES):
        raise CheckpointError(
            f"{where}: pooling_type = {kind!r} is not computed here; 0 to {len(POOLING_TYPES) - 1} are"
        )
    layers = tuple(LinearSpec(d_out=Width(width)) for width in widths)
    if not kind:
        if layers:
            raise CheckpointError(
                f"{where}: pooling_type = 0 gives the {len(layers)} layers behind the pool nothing to read; say how it pools"
            )
        return spec
    head = HeadSpec(name=EMBEDDING, pool=POOLS[POOLING_TYPES[kind]], transform=layers)
    return spec.but(heads=(*spec.heads, head))


def pooling_type(spec: ModelSpec) -> int | None:
    """The number that a GGUF file says of how a model's tokens become one vector; None where it has no head that says so."""
    if (head := head_of(spec)) is None:
        return None
    return next(i for i, name in enumerate(POOLING_TYPES) if name and POOLS[name] == head.pool)


def write_modules(spec: ModelSpec, directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write beside a model's files how its tokens become one vector, if it has a head that says so, with its tensors."""
    if (head := head_of(spec)) is None:
        return
    then = modules_of(spec)
    kinds = ["Transformer", "Pooling", *(module.kind for module in then)]
    folders = [directory / (f"{i}_{kind}" if i else "") for i, kind in enumerate(kinds)]
    listed = [
        {"idx": i, "name": str(i), "path": folder.name if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, folder) in enumerate(zip(kinds, folders, strict=True))
    ]
    write_json(directory / MODULES, listed)
    for folder in folders[1:]:
        folder.mkdir()
    modes = {POOLING + name: pool == head.pool for name, pool in POOLS.items()}
    write_json(folders[1] / "config.json", {"word_embedding_dimension": spec.stack.width, **modes})
    for module, folder in zip(then, folders[2:], strict=True):
        if module.layer is None:
            continue
        held = {f"linear.{end}": tensors[name] for name, end in tensors_of(spec, module).items()}
        n_out, n_in = held["linear.weight"].shape
        sizes = {"in_features": n_in, "out_features": n_out, "bias": module.layer.bias}
        write_json(folder / "config.json", {**sizes, "activation_function": module.activation})
        save_file({name: tensor.contiguous() for name, tensor in held.items()}, folder / FILE, {"format": "pt"})
    write_json(directory / ABOUT, {"max_seq_length": spec.context, "do_lower_case": False})


def module_files(spec: ModelSpec, directory: Path) -> dict[Path, dict[str, str]]:
    """The folders of a directory that hold such tensors: the name of each, and what the folder's file calls it."""
    folders = [folder for _, folder in _modules(directory)[2:]]
    return {
        folder: {name: f"linear.{end}" for name, end in tensors_of(spec, module).items()}
        for module, folder in zip(modules_of(spec), folders, strict=True)
        if module.layer is not None
    }


def _layer(folder: Path) -> tuple[MapSpec, ...]:
    """What a Dense's config.json says: a linear map and its activation, tanh where nothing is said."""
    file = inside(folder / "config.json", CheckpointError)
    settings = Settings(read_table(file), str(file))
    layer = LinearSpec(
        d_out=Width(settings.positive("out_features", int)), bias=settings.take("bias", bool, default=True)
    )
    activation = settings.take("activation_function", str, "torch.nn.modules.activation.Tanh")
    if activation not in ACTIVATIONS:
        raise settings.refusal("activation_function", f"is not computed here; {', '.join(ACTIVATIONS)} are")
    for name in ("module_input_name", "module_output_name"):
        settings.require(name, "sentence_embedding")
    settings.require("use_residual", False)
    settings.positive("in_features", int)
    settings.close()
    return (layer, *ACTIVATIONS[activation])


def _lacks_head(spec: ModelSpec, family: Family, folder: Path) -> bool:
    """Whether there are weights, none of them of the head."""
    if not any(folder.glob("*.safetensors")):
        return False
    _, head = without_head(family.rows(spec))
    return not {name for row in head for name in (*row.theirs, *row.also)} & set(Weights(folder).listed())


def is_listed(directory: Path) -> bool:
    """Whether a directory lists modules of sentence-transformers."""
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
    said = read_table(file)
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
        if isinstance(limit, int) and limit < UNLIMITED:
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
