"""The model at a path: a Hugging Face directory, one of ours, a run with its checkpoints, a GGUF file, a specification."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from anyformer.disk.foreign import inside
from anyformer.disk.hub_cache import located
from anyformer.disk.run_layout import (
    ADAPTER,
    ADAPTER_CONFIG,
    AUXILIARY_PARTS,
    AUXILIARY_SPEC,
    AUXILIARY_WEIGHTS,
    BASE,
    CHECKPOINTS,
    MODEL_PARTS,
    SPEC,
    TOKENIZER,
    checkpoints_in,
    is_checkpoint,
    is_complete,
    is_run,
    run_of,
)
from anyformer.disk.seal import latest, sealed
from anyformer.errors import CheckpointError, SpecError, did_you_mean
from anyformer.families import FAMILIES, Family, preset
from anyformer.families.hf.composite import HEAD, TIED, composite_of, known_as, text_config
from anyformer.families.hf.mapping import shapes, spec_of
from anyformer.hub.adapted import AdaptedWeights
from anyformer.hub.gguf import SUFFIX, opened
from anyformer.hub.merging import Merging
from anyformer.hub.mxfp4 import SETTING, MXFP4Weights, is_packed
from anyformer.hub.sentences import folder_of, is_listed, pooled, read_table, with_pooling
from anyformer.hub.shards import ShardedWeights
from anyformer.hub.weights import Weights, holds_weights
from anyformer.hub.wrapped import is_wrapped, wrapped_spec
from anyformer.spec import Architecture, ModelSpec, is_path, read, specification, split_variant
from anyformer.variants.variant import apply, parsed

CONFIG = "config.json"  # Hugging Face's
SHOWN = 5  # models that are named where the directory that holds them is given for one
_as_type: ContextVar[str | None] = ContextVar("as_type", default=None)


class ModelSource(NamedTuple):
    """Where a model lies and what it is."""

    spec: ModelSpec
    weights: Path  # the directory of the tensors, or the GGUF file
    tokenizer: Path | None  # a directory with a tokenizer.json, or the GGUF file
    family: Family | None  # whose names the tensors have; None: ours
    settings: dict[str, Any]  # of its config.json; empty for ours
    modules: Path | None = None  # the directory of sentence-transformers that it lies in
    run: Path | None = None  # that trained it
    stored: ModelSpec | None = None  # the model that the tensors were written of, where `spec` is a change of it
    others: tuple[ModelSource, ...] = ()  # models of the same tensors
    merging: Merging | None = None  # how each tensor is read of all of them; None: there are no others


@contextmanager
def reading_as(hf_type: str | None) -> Iterator[None]:
    """Within it, a config.json is read as one of this model_type, whatever it says; None: as it says.

    Raises CheckpointError for a type that is not read here.
    """
    if hf_type is not None and hf_type not in FAMILIES:
        raise CheckpointError(f"no model_type {hf_type!r} is read here{did_you_mean(hf_type, FAMILIES)}")
    token = _as_type.set(hf_type or _as_type.get())
    try:
        yield
    finally:
        _as_type.reset(token)


def load_spec(name: str | Path) -> ModelSpec:
    """The specification that a name, a .yaml or .json file of ours, a config.json or a directory stands for.

    Each may carry changes: `llama2+norm=LayerNorm+d_ff=2048`. Raises SpecError for an unknown preset, a file that holds no
    specification or a change that cannot be, CheckpointError for a directory without one.
    """
    base, changes = split_variant(name)
    if changes:
        return apply(load_spec(base), map(parsed, changes), load_spec)
    if not is_path(name):
        return preset(str(name)).spec
    path = located(name)
    if path.is_dir() or path.suffix.lower() == SUFFIX:
        spec, family, *_ = _described(path)
        return with_pooling(spec, family, path)
    if path.suffix.lower() == ".json" and {"model_type", "architectures"} & set(read_table(path)):
        return _computed(read_table(path), path)[0]
    if path.suffix.lower() in {".json", ".yaml", ".yml"}:
        return read(path)
    raise SpecError(f"{path} is no specification; give a .yaml or .json file, or a model's directory")


def vary(base: str | Path | Architecture, /, **changes: Any) -> ModelSpec:
    """An architecture with changes, by row of `diff` or by field: `vary("llama2", norm="LayerNorm", d_ff=2048)`.

    A value is what stands right of `=` in a name, a number, a part, or an architecture whose part is taken. Raises SpecError
    for a change that cannot be.
    """
    spec = load_spec(base) if isinstance(base, str | Path) else specification(base)
    return apply(spec, changes.items(), load_spec)


def find(path: str | Path) -> ModelSource:
    """The model that a directory holds, or the file that describes what was trained beside a run's model (`companion.yaml`).

    Of a run with an adapter, `base/` holds the model that it is put on.

    A path may carry changes that leave every tensor as it is, of masks, positions or scales: `DIR+mask=Everything`. Raises
    CheckpointError for a path without a model that can be read, SpecError for a change that cannot be.
    """
    base, changes = split_variant(path)
    if changes:
        return _changed(find(base), changes, str(path))
    path = located(path)
    if path.name == AUXILIARY_SPEC and path.is_file():
        return find_auxiliary(path.parent)
    if path.name == BASE and is_run(run := path.parent):
        return ModelSource(read(sealed(run) / SPEC), path, _tokenizer(run / TOKENIZER), None, {}, run=run)
    if (run := _run_of(path)) is not None:
        checkpoint = _checkpoint(path)
        weights = checkpoint / MODEL_PARTS if (checkpoint / MODEL_PARTS).is_dir() else checkpoint
        return ModelSource(read(run / SPEC), weights, _tokenizer(run / TOKENIZER), None, {}, run=run)
    spec, family, settings, folder = _described(path)
    if not path.is_dir():
        return ModelSource(spec, path, path, family, settings)
    tokenizer = _tokenizer(folder) or _tokenizer(folder / TOKENIZER)
    modules = path if is_listed(path) else None
    return ModelSource(with_pooling(spec, family, path), folder, tokenizer, family, settings, modules)


def _changed(source: ModelSource, changes: Iterable[str], name: str) -> ModelSource:
    """The same tensors read as those of a changed model. Raises SpecError where one would be another, or of another size."""
    spec = apply(source.spec, map(parsed, changes), load_spec)
    before, after = shapes(source.spec), shapes(spec)
    for tensor in (*before, *after):
        if (was := before.get(tensor)) != (now := after.get(tensor)):
            sizes = [f"of {list(each)}" if each else "not there" for each in (now, was)]
            raise SpecError(
                f"{name}: {tensor} would be {sizes[0]}, and in the files it is {sizes[1]}; given weights leave room for "
                "changes of masks, positions and scales alone"
            )
    return source._replace(spec=spec, stored=source.stored or source.spec)


def find_auxiliary(directory: str | Path) -> ModelSource:
    """The model that was trained beside that of a run, or of one of its checkpoints. Raises CheckpointError without any."""
    directory = located(directory)
    run = _run_of(directory) or directory
    if not (run / AUXILIARY_SPEC).is_file():
        raise CheckpointError(
            f"{directory} holds nothing that was trained beside a model: there is no {run / AUXILIARY_SPEC}; "
            "give the run that trained both"
        )
    checkpoint = _checkpoint(directory)
    parts = checkpoint / AUXILIARY_PARTS
    weights = parts if parts.is_dir() else checkpoint / AUXILIARY_WEIGHTS
    return ModelSource(read(run / AUXILIARY_SPEC), weights, _tokenizer(run / TOKENIZER), None, {})


def opened_weights(directory: Path, settings: dict[str, Any]) -> Weights:
    """The tensors of a directory, unpacked where its configuration says that they are packed, joined where they are in parts.

    Those of a checkpoint that is an adapter are what it and the weights in its run make together.
    """
    if (run := with_adapter(directory)) is not None:
        return AdaptedWeights(run / BASE, directory)
    if directory.is_dir() and is_checkpoint(directory.parent):
        return ShardedWeights(directory)
    packed = is_packed(settings, str(directory / CONFIG))
    return MXFP4Weights(directory) if packed else Weights(directory, known_as(settings))


def with_adapter(weights: Path) -> Path | None:
    """The run of a checkpoint that is an adapter; None for the weights of any other model."""
    return run_of(weights) if is_checkpoint(weights) and (weights / ADAPTER).is_file() else None


def _described(path: Path) -> tuple[ModelSpec, Family | None, dict[str, Any], Path]:
    """(the model, its family, its settings, the directory of its tensors), by the files there."""
    directory = folder_of(path)
    if not directory.is_dir():
        if directory.suffix.lower() != SUFFIX:
            remedy = (
                "give the directory that holds it"
                if is_path(directory.name)
                else "give a model's directory or a GGUF file"
            )
            raise CheckpointError(f"{directory} is a file; {remedy}")
        file, where = opened(directory), str(directory)
        family, spec = spec_of(FAMILIES, file.config, where)
        return pooled(spec, file.pooling_type, file.dense(), where), family, {}, directory
    if (run := _run_of(directory)) is not None:
        return read(sealed(run) / SPEC), None, {}, directory
    if (directory / SPEC).is_file():
        return read(directory / SPEC), None, {}, directory
    config = inside(directory / CONFIG, CheckpointError)
    if not config.is_file():
        if (directory / ADAPTER_CONFIG).is_file():
            raise CheckpointError(
                f"{directory} is an adapter without the weights that it is put on; give the run that trained it, or what "
                "`convert --merge` makes of that run"
            )
        models = filter(_holds_a_model, sorted(directory.iterdir()))
        held = [str(each) for each in islice(models, SHOWN + 1)]
        more = " …" if len(held) > SHOWN else ""
        remedy = f"give one of the models in it: {', '.join(held[:SHOWN])}{more}" if held else "give that of a model"
        raise CheckpointError(
            f"{directory} holds neither {CONFIG} nor {SPEC}, so its architecture is unknown; {remedy}"
        )
    settings = read_table(config)
    spec, family = _computed(settings, config)
    if holds_weights(directory):
        spec, family = _of_files(spec, family, settings, directory)
    return spec, family, settings, directory


def _holds_a_model(directory: Path) -> bool:
    return is_run(directory) or any((directory / name).is_file() for name in (CONFIG, SPEC))


def _computed(settings: dict[str, Any], file: Path) -> tuple[ModelSpec, Family | None]:
    """The model and the family of a config.json, however its weights are packed; no family where it holds a specification."""
    if is_wrapped(settings):
        return wrapped_spec(settings, str(file)), None
    is_packed(settings, str(file))
    said = {name: value for name, value in settings.items() if name != SETTING}
    said = text_config(said, str(file)) or said
    said |= {"model_type": hf_type} if (hf_type := _as_type.get()) else {}
    family, spec = spec_of(FAMILIES, said, str(file))
    return spec, family


def _of_files(
    spec: ModelSpec, family: Family | None, settings: dict[str, Any], folder: Path
) -> tuple[ModelSpec, Family | None]:
    """The model and the family where the tensors of a directory say what its config.json does not."""
    if composite_of(settings) is not None and TIED not in settings:
        settings |= {TIED: f"{HEAD}weight" not in opened_weights(folder, settings)}
        spec, family = _computed(settings, folder / CONFIG)
    if family is not None and family.of_files is not None:
        spec = family.of_files(spec, opened_weights(folder, settings))
    return spec, family


def _run_of(path: Path) -> Path | None:
    """The run that a path is, or is a checkpoint of; None for anything else."""
    if is_checkpoint(path):
        return run_of(path) or path
    return path if is_run(path) else None


def _checkpoint(path: Path) -> Path:
    """A checkpoint, or the latest complete one of a run, whose every file is what was written. Raises CheckpointError."""
    if is_checkpoint(path):
        return sealed(path)
    if not any(map(is_complete, checkpoints_in(path / CHECKPOINTS))):
        sealed(path)
        raise CheckpointError(f"{path} is a run without a complete checkpoint; let it train on")
    checkpoint = latest(path / CHECKPOINTS)
    assert checkpoint is not None
    return checkpoint


def _tokenizer(directory: Path) -> Path | None:
    return directory if inside(directory / "tokenizer.json", CheckpointError).is_file() else None
