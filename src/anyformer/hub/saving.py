"""Saving: a Hugging Face directory where transformers has a class for the model, else ours; whole or not at all.

A model is written from memory (`save`), or file to file, a tensor at a time (`convert`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from shutil import copyfile
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from anyformer.disk.atomic import new_directory
from anyformer.disk.run_layout import ADAPTER, ADAPTER_CONFIG, BASE, SPEC
from anyformer.errors import CheckpointError, RunFailed, SpecError, UsageError, among
from anyformer.families import FAMILIES, Family
from anyformer.families.hf.mapping import TensorRow, class_of, fitting, same, shapes, theirs_of
from anyformer.families.hf.pooling import module_tensors, without_pooling
from anyformer.families.hf.settings import TOKEN_IDS
from anyformer.hub.adapted import joined, named_by_class
from anyformer.hub.contents import contents, own_rows
from anyformer.hub.gguf import GGUF, SUFFIX
from anyformer.hub.gguf_writing import Quantisation, SavedFile, write_gguf
from anyformer.hub.labels import LABELS, judge_of, label_settings, labels_json, labels_of, with_types
from anyformer.hub.loading import filled, tokenizer_of
from anyformer.hub.merged import Others, merged_source
from anyformer.hub.merging import Merge
from anyformer.hub.onnx_writing import SUFFIX as GRAPH
from anyformer.hub.onnx_writing import SavedGraph, refuse_graph, write_onnx
from anyformer.hub.sentences import write_json, write_modules
from anyformer.hub.source import CONFIG, ModelSource, with_adapter
from anyformer.hub.weights import DTYPES, SHARD_NBYTES, narrowed, write_tensors
from anyformer.hub.wrapped import PREFIX, name_padding, wrapped_config
from anyformer.layers.held import HeldWeight
from anyformer.model import Transformer
from anyformer.spec import ModelSpec, dumps
from anyformer.text import Tokenizer
from anyformer.text.companions import read_companions, write_companions
from anyformer.text.generation_config import GENERATION, with_defaults

Form = Literal["hf", "anyformer", "transformers", "adapter"]
FORMS = ("hf", "anyformer", "transformers")  # that a whole model may be asked for in
# What is no name of a directory.
FILES = (SUFFIX, GRAPH, ".safetensors", ".bin", ".pt", ".pth", ".json", ".yaml", ".yml")


class SavedDirectory(NamedTuple):
    """What was written, and why it is no Hugging Face directory if it is none."""

    path: Path
    form: Form
    reason: str | None = None

    def __str__(self) -> str:
        kind = {
            "hf": "a Hugging Face directory",
            "anyformer": "a directory of ours",
            "adapter": "an adapter, for PEFT's PeftModel.from_pretrained",
            "transformers": "a directory that transformers reads by `import anyformer.integrations.transformers`",
        }[self.form]
        return f"{self.path} is {kind}" + (f": {self.reason}" if self.reason else "")


class FilePlan(NamedTuple):
    """How a model is written: for which class of transformers, or as ours because there is none."""

    spec: ModelSpec
    family: Family | None
    config: dict[str, Any]
    reason: str | None
    wrapped: bool = False  # as transformers' classes of ours read it

    @property
    def form(self) -> Form:
        """The form of the directory."""
        return "hf" if self.family else "transformers" if self.wrapped else "anyformer"

    def rows(self) -> list[TensorRow]:
        """The rows between our tensors and those of the files."""
        if self.family is None:
            return own_rows(self.spec, PREFIX if self.wrapped else "")
        return (self.family.files or self.family.rows)(without_pooling(self.spec))

    def beside(self) -> list[str]:
        """Our names of the tensors that have files of their own."""
        return module_tensors(self.spec) if self.family or self.wrapped else []

    def describe(
        self,
        directory: Path,
        dtype: torch.dtype,
        tokens: dict[str, Any],
        labels: tuple[str, ...] | None,
        tokenizer: Tokenizer | None,
        beside: Mapping[str, Tensor],
    ) -> None:
        """Write what says how the model computes, beside its tokenizer; `tokens` are the ids that open, close and pad a text.

        `beside`: the tensors that have files of their own, by our names.
        """
        if self.family is not None:
            about = {"architectures": [self.family.architecture], "model_type": self.family.hf_type}
        elif self.wrapped:
            about = wrapped_config(self.spec)
        else:
            (directory / SPEC).write_text(dumps(self.spec), encoding="utf-8")
            if labels:
                (directory / LABELS).write_text(labels_json(labels), encoding="utf-8")
            return
        if self.wrapped or without_pooling(self.spec) is not self.spec:  # those who read these pad
            tokens = {**tokens, "pad_token_id": name_padding(tokenizer, directory)}
        kind = {"dtype": str(dtype).removeprefix("torch.")}
        said = label_settings(self.spec, labels)
        write_json(directory / CONFIG, about | tokens | self.config | said | kind)
        write_modules(self.spec, directory, beside)
        if not (directory / GENERATION).exists():
            write_json(directory / GENERATION, {"_from_model_config": True, **tokens})


def save(
    model: Transformer,
    path: str | Path,
    tokenizer: Tokenizer | None = None,
    *,
    form: Form | None = None,
    shard_nbytes: int = SHARD_NBYTES,
) -> SavedDirectory:
    """Write a model and its tokenizer to a new directory, in files of at most `shard_nbytes`, or one tensor.

    `form` None takes "hf" where a class of transformers computes the model, and says which field has none otherwise;
    "transformers" is for `anyformer.integrations.transformers`, whatever the model.
    What lay beside the tokenizer where it was loaded (chat template, defaults for generation) is written too.
    A model with an adapter on, as a run trains on weights in few bits, is written as what both make together, in float32.
    Raises CheckpointError for a directory in use, for weights in few bits alone, for what was put on the model and is no LoRA,
    or a tokenizer with more tokens than the model, SpecError if `form` is "hf" and no class fits, RunFailed where writing
    fails; nothing half-written stays.
    """
    path = Path(path)
    refuse_in_use(path)
    weights, held = joined(model), dict(model.named_parameters())
    if held.keys() == weights.keys() and any(isinstance(each, HeldWeight) and each.rounded for each in held.values()):
        raise CheckpointError(
            "weights in few bits are held as this processor wants them; load the model without dtype, and save that"
        )
    if odd := weights.keys() - shapes(model.spec).keys():
        raise CheckpointError(
            f"{min(odd)} is no tensor of the model's specification; take off what was put on it, and save it"
        )
    refuse_larger(tokenizer, model.spec)
    plan = planned(model.spec, form)
    with whole(path) as aside:
        write_tensors(aside, theirs_of(plan.rows(), lambda name: weights[name]()), shard_nbytes)
        if tokenizer is not None:
            with_types(tokenizer, model.spec).save(aside)
        widest = reduce(torch.promote_types, {each.dtype for each in held.values() if each.is_floating_point()})
        beside = {name: weights[name]() for name in plan.beside()}
        plan.describe(aside, widest, special_tokens(tokenizer, model.spec), model.labels, tokenizer, beside)
    return SavedDirectory(path, plan.form, plan.reason)


def convert(
    source: str | Path,
    target: str | Path,
    *,
    form: Form | None = None,
    hf_type: str | None = None,
    dtype: torch.dtype | None = None,
    shard_nbytes: int | None = None,
    quantise: Quantisation | None = None,
    merge: bool = False,
    average: int | None = None,
    others: Others = (),
    by: str | Merge | None = None,
    base: str | Path | None = None,
) -> SavedDirectory | SavedFile | SavedGraph:
    """Write a checkpoint (Hugging Face's, ours, a run's, GGUF) anew in a new directory, without ever holding the model.

    A target that ends in .gguf is one file (`write_gguf`); `quantise` is the type of its matrices, by default the source's.
    One that ends in .onnx is a graph of one pass (`write_onnx`), for which the model is held.

    `form` None takes "hf" where a class of transformers computes the model, its own if it has one; `hf_type` asks for
    that of one model_type. `dtype` None keeps each tensor's. Files hold at most `shard_nbytes` (None: 5 GB), or one tensor; the
    memory needed is about that, or what the largest row of either side's table takes. Tokenizer, chat template and defaults for
    generation are copied byte for byte. Of a run that trained an adapter this alone is written, as PEFT puts it on that class, or
    on ours, where the class holds maps otherwise or `form` is "transformers", unless `merge` asks for weights in which it is, or
    several models become one. `average`: of a run, the mean of its last so many checkpoints; `others`: models of the same
    architecture that are merged with it, or what each weighs beside the source's 1;
    `by`: how, such as "ties,density=0.2", by default their mean; `base`: the model that all began as. Raises what `load`,
    `save` and `merged_source` do.
    """
    target = Path(target)
    suffix = target.suffix.lower()
    found = merged_source(source, average, others, by, base, torch.float32 if suffix in (SUFFIX, GRAPH) else dtype)
    if merge and not any(with_adapter(each.weights) is not None for each in (found, *found.others)):
        raise UsageError(f"{source} has no adapter to merge; leave --merge out")
    if with_adapter(found.weights) is not None and not (merge or found.others):
        if suffix in (SUFFIX, GRAPH) or form == "anyformer" or not (dtype is quantise is None):
            raise UsageError(f"{source} is an adapter, which goes into its weights by --merge; give that too")
        return _write_adapter(found, target, form, hf_type)
    if suffix == SUFFIX:
        if not (form is hf_type is dtype is shard_nbytes is None):
            raise UsageError(
                f"{target} is one GGUF file: leave --to, --class and --shard-size out, and give --quantise for --dtype"
            )
        _refuse_there(target)
        tokenizer = tokenizer_of(found)
        refuse_larger(tokenizer, found.spec)
        return write_gguf(found, tokenizer, target, quantise)
    if suffix == GRAPH:
        if not (form is hf_type is dtype is quantise is shard_nbytes is None):
            raise UsageError(
                f"{target} is one ONNX graph, in float32: leave --to, --class, --dtype, --quantise and --shard-size out"
            )
        _refuse_there(target)
        refuse_graph(found.spec)
        return write_onnx(filled(found), target)
    if quantise is not None:
        raise UsageError(f"--quantise {quantise} is for GGUF files; give a target that ends in .gguf, or --dtype")
    refuse_in_use(target)
    if form in ("anyformer", "transformers") and hf_type is not None:
        raise UsageError(
            f"a class of transformers ({hf_type}) is only for Hugging Face's form; leave one of the two out"
        )
    return _write_directory(found, target, form, hf_type, dtype, shard_nbytes or SHARD_NBYTES)


def _write_directory(
    found: ModelSource,
    target: Path,
    form: Form | None,
    hf_type: str | None,
    dtype: torch.dtype | None,
    shard_nbytes: int,
) -> SavedDirectory:
    """The tensors one by one, and the tokenizer with what lies beside it, in a new directory."""
    held = contents(found)
    widest = held.dtype()
    plan = planned(found.spec, form, hf_type, found.family)
    tokenizer = tokenizer_of(found)
    refuse_larger(tokenizer, found.spec)
    lying = (found.weights, found.tokenizer, found.modules)
    places = [place for place in lying if place is not None and place.is_dir()]
    files = {name: content for place in places for name, content in read_companions(place).items()}
    files = with_defaults(files, found.settings) if files else files
    cast = dtype or (widest if isinstance(held.weights, GGUF) else None)

    def kept(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in tensors:
            yield name, narrowed(name, tensor, cast) if cast and tensor.is_floating_point() else tensor

    with whole(target) as aside:
        tensors = held.through(plan.rows(), alike=plan.family is found.family)
        write_tensors(aside, kept(tensors), shard_nbytes, held.release)
        if files:
            write_companions(files, aside)
        elif tokenizer is not None:
            tokenizer.save(aside)
        tokens = special_tokens(tokenizer, found.spec)
        tokens |= {name: found.settings[name] for name in TOKEN_IDS if name in found.settings}
        beside = dict(kept(held.through([same(name, name) for name in plan.beside()], alike=False)))
        plan.describe(aside, dtype or _named(found.settings) or widest, tokens, labels_of(found), tokenizer, beside)
    return SavedDirectory(target, plan.form, plan.reason)


def _write_adapter(source: ModelSource, target: Path, form: Form | None, hf_type: str | None) -> SavedDirectory:
    """The adapter of a run's checkpoint, and its tokenizer, in a new directory; of a class of transformers where it can be."""
    refuse_in_use(target)
    plan = planned(source.spec, form, hf_type)
    on, why, named = f"our class, which `convert {source.run}/{BASE} DIR --to transformers` writes", plan.reason, None
    if plan.family is not None:
        kind = class_of(plan.family, plan.config)
        try:
            on, named = kind, named_by_class(source.weights, plan.family.rows(without_pooling(source.spec)))
        except SpecError as error:
            why = f"{kind} {error}"
            if form is not None or hf_type is not None:
                raise SpecError(f"{why}; leave --to and --class out, or give --merge") from None
    with whole(target) as aside:
        for name in (ADAPTER, ADAPTER_CONFIG):
            copyfile(source.weights / name, aside / name)
        if named is not None:
            save_file(named[0], aside / ADAPTER, {"format": "pt"})
            write_json(aside / ADAPTER_CONFIG, named[1])
        if source.tokenizer is not None:
            write_companions(read_companions(source.tokenizer), aside)
    because = f" ({why})" if why else ""
    return SavedDirectory(target, "adapter", f"it goes on {on}{because}; --merge writes the whole model")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a directory that becomes `path`, complete, when the block ends. Raises RunFailed where it can't be written."""
    try:
        with new_directory(path) as aside:
            yield aside
    except (OSError, SafetensorError) as error:  # an OSError's own words name the directory aside
        raise RunFailed(f"could not write {path}: {getattr(error, 'strerror', None) or error}") from None


def _refuse_there(path: Path) -> None:
    if path.exists():
        raise CheckpointError(f"{path} exists already; give a new name")


def refuse_in_use(path: Path) -> None:
    """Raise CheckpointError where there is something at a path already, UsageError for the name of a file."""
    if path.suffix.lower() in FILES:
        other = "; `anyformer convert` makes such a file of one" if path.suffix.lower() in (SUFFIX, GRAPH) else ""
        raise UsageError(
            f"{path} is the name of a file, and a directory is written; give a name without {path.suffix}{other}"
        )
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists():
        raise CheckpointError(f"{path} exists already and is not empty; give a new directory")


def planned(
    spec: ModelSpec, form: Form | None, hf_type: str | None = None, preferred: Family | None = None
) -> FilePlan:
    """How to write a model; `hf_type` names the one class that will do, `preferred` the first to try.

    Raises SpecError where a class is asked for and none computes the model, naming the field, UsageError for an unknown form.
    """
    if form not in (None, *FORMS):
        raise UsageError(f"there is no form {form!r} of a directory{among(form, FORMS)}")
    if form in ("anyformer", "transformers"):
        return FilePlan(spec, None, {}, None, wrapped=form == "transformers")
    if hf_type is not None and hf_type not in FAMILIES:
        raise SpecError(f"no class of transformers has the model_type {hf_type!r} here{among(hf_type, FAMILIES)}")
    preferred_first = sorted(FAMILIES.values(), key=lambda family: family is not preferred)
    tried = [FAMILIES[hf_type]] if hf_type else preferred_first
    try:
        family, config = fitting(tried, without_pooling(spec))
    except SpecError as error:
        if form == "hf" or hf_type is not None:
            raise
        return FilePlan(spec, None, {}, str(error))
    return FilePlan(spec, family, config, None)


def refuse_larger(tokenizer: Tokenizer | None, spec: ModelSpec) -> None:
    """Raise CheckpointError for a tokenizer with tokens that the model has no rows for."""
    if tokenizer is not None and tokenizer.vocab_size > spec.vocab_size:
        raise CheckpointError(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens, the model only {spec.vocab_size:,}; "
            "give the tokenizer that it was trained with"
        )


def special_tokens(tokenizer: Tokenizer | None, spec: ModelSpec) -> dict[str, Any]:
    """The ids that open and close a text, or a decoder's answer; null, lest transformers takes its own."""
    opening, closing = (tokenizer.begin_of_text, list(tokenizer.closing_ids)) if tokenizer else (None, [])
    found: dict[str, Any] = {
        "bos_token_id": opening,
        "eos_token_id": closing[0] if len(closing) == 1 else closing or None,
        "pad_token_id": tokenizer.padding if tokenizer and judge_of(spec) is not None else None,
    }
    if spec.encoder is not None:  # some of its classes refuse null; without a tokenizer nothing says more than 0
        start = tokenizer.start_of_answer if tokenizer else None
        found |= {"decoder_start_token_id": start or 0, "forced_eos_token_id": None}
    return found


def _named(settings: dict[str, Any]) -> torch.dtype | None:
    """The dtype that a configuration names, which transformers loads all tensors in."""
    said = str(settings.get("dtype") or settings.get("torch_dtype")).removeprefix("torch.")
    return next((dtype for dtype in DTYPES.values() if str(dtype) == f"torch.{said}"), None)
