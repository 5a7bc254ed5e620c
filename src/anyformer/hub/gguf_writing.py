"""Writing GGUF files: by the tables that read them, a tensor at a time; what the tables would not read back is refused."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anyformer.disk.atomic import new_file
from anyformer.errors import AnyformerError, RunFailed, SpecError, UsageError, of_extra
from anyformer.families import FAMILIES, Family
from anyformer.families.gguf import DIALECTS, Dialect, config_of, key_of, llama3_scaling, metadata_of
from anyformer.families.hf.mapping import TensorRow, computed, distance, misfits, spec_of, their_shapes
from anyformer.families.hf.mapping import shapes as shapes_of
from anyformer.families.hf.pooling import NORMALIZE, modules_of, without_pooling
from anyformer.hub.contents import contents
from anyformer.hub.gguf import EMBEDDING, FREQUENCIES, POOLING
from anyformer.hub.prompts import prompts_of
from anyformer.hub.sentences import pooling_type
from anyformer.hub.source import ModelSource
from anyformer.hub.weights import narrowed
from anyformer.layers import Llama3Scaling, RotarySpec
from anyformer.spec import ModelSpec
from anyformer.spec.difference import Difference, first_difference, short
from anyformer.text import Tokenizer
from anyformer.text.gguf_vocabulary_writing import metadata_of_tokenizer

Quantisation = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]
BLOCK = 32  # numbers that share a scale
STEPS = {"q8_0": 127, "q4_0": 8}  # scales that the largest of them has
PLAIN: Mapping[torch.dtype, Quantisation] = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
FILE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 7, "bf16": 32}  # what llama.cpp calls a file that is mostly so
# float32 in llama.cpp, however many axes; it adds the rows of the last two to others as they are
PRECISE = re.compile(r".*(norm|conv|conv1d|gate_inp|gate_inp_shexp|position_embd|token_types)\.weight|.*ssm_[ad]")
MODEL = "the model"  # what errors of reading back speak of


class SavedFile(NamedTuple):
    """A GGUF file that was written: its architecture, how many tensors are of which type, and what is worth knowing."""

    path: Path
    architecture: str
    kinds: Mapping[str, int]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.kinds.items())
        return "; ".join([f"{self.path} is a GGUF file of {self.architecture} with {kinds} tensors", *self.notes])


class _Plan(NamedTuple):
    """How a model is said in a file."""

    dialect: Dialect
    metadata: dict[str, Any]
    rows: list[TensorRow]
    shapes: dict[str, tuple[int, ...]]  # of the tensors, in the file's order
    frequencies: Tensor | None
    note: str  # of what files hold otherwise than the model

    @property
    def architecture(self) -> str:
        """What the file calls it."""
        return self.dialect.architecture


def write_gguf(
    source: ModelSource, tokenizer: Tokenizer | None, target: Path, quantise: Quantisation | None = None
) -> SavedFile:
    """Write a model and its tokenizer as one file, which appears when it is whole.

    Matrices are of the type that `quantise` names, by default that of the source; vectors are f32, and rows that are no
    multiple of 32 long stay f16 where they were to be quantised. Raises SpecError for a model that no architecture of these
    files computes, TextError for a tokenizer that they cannot hold, RunFailed where writing fails.
    """
    with of_extra("gguf", f"{target}: writing GGUF files", "package gguf"):
        import gguf
    held = contents(source)
    stored = held.dtype()
    if quantise is None and stored not in PLAIN:
        raise UsageError(f"{target}: GGUF files hold no {stored}; give --quantise f32")
    kind = quantise or PLAIN[stored]
    pools, plan = pooling_type(source.spec), _planned(source.spec, source.family)
    words, notes = ({}, []) if tokenizer is None else metadata_of_tokenizer(tokenizer, source.spec.vocab_size)
    shapes = plan.shapes
    kinds: dict[str, Quantisation] = {name: _kind(name, shape, kind) for name, shape in shapes.items()}
    uneven = [name for name, each in kinds.items() if each == "f16" != kind and len(shapes[name]) > 1]
    if uneven:
        notes.append(f"{len(uneven)} whose rows are no multiple of {BLOCK} long, such as {uneven[0]}, are f16")
    notes += [
        f"llama.cpp leaves {key} out of what it computes" for key in plan.dialect.unheeded if key in plan.metadata
    ]
    notes += [plan.note] if plan.note else []
    prompts = prompts_of(source.modules).by_name if source.modules is not None else {}
    if named := [name for name, text in prompts.items() if text]:
        notes.append(f"its prompts, {' and '.join(named)}, have no key")
    if pools is not None:
        plan.metadata[POOLING] = pools
        scales = any(module.kind == NORMALIZE for module in modules_of(source.spec))
        notes += ["its readers scale its vectors to length 1 or do not"] if scales else []
    try:
        with new_file(target) as aside, closing(gguf.GGUFWriter(aside, plan.architecture)) as writer:
            _say(writer, {key_of(plan.dialect, key): value for key, value in plan.metadata.items()} | words)
            writer.add_name(target.stem)
            writer.add_file_type(FILE_TYPES[kind])
            if plan.frequencies is not None:
                found = plan.frequencies
                writer.add_tensor_info(FREQUENCIES, found.shape, np.dtype(np.float32), found.nbytes)
            for name, shape in shapes.items():
                _announce(writer, name, shape, kinds[name])
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            if plan.frequencies is not None:
                writer.write_tensor_data(plan.frequencies.numpy())
            tensors = held.through(plan.rows, alike=False)
            for (name, tensor), announced in zip(tensors, shapes, strict=True):
                assert name == announced
                writer.write_tensor_data(_packed(name, tensor.float(), kinds[name]))
    except OSError as error:
        raise RunFailed(f"could not write {target}: {error.strerror or error}") from None
    counted: Counter[str] = Counter(kinds.values())
    there = {each: counted[each] for each in FILE_TYPES if counted[each]}
    return SavedFile(target, plan.architecture, there, tuple(notes))


def _planned(spec: ModelSpec, preferred: Family | None) -> _Plan:
    """The first architecture whose file would be read back as this model. Raises SpecError naming what misfits."""
    own = [row for row in DIALECTS.values() if preferred and preferred.hf_type in (row.hf_type, *row.holds)]
    reasons: list[tuple[float, str]] = []
    for dialect in (*own, *(row for row in DIALECTS.values() if row not in own)):
        try:
            return _plan(spec, dialect)
        except AnyformerError as error:
            reasons.append((_far(spec, dialect), f"{dialect.architecture}: {error}"))
    if own:
        told = "; ".join(said for _, said in reasons[: len(own)])
    else:
        far, said = min(reasons)
        known = ", ".join(dict.fromkeys(row.architecture for row in DIALECTS.values()))
        told = (
            f"{'' if math.isinf(far) else f'the nearest, {said}; '}those that are written: {known}; keep the directory"
        )
    raise SpecError(f"no architecture of GGUF files that is written here computes this model; {told}")


def _far(spec: ModelSpec, dialect: Dialect) -> float:
    """How many values of a model its class would have otherwise; infinite where it lacks a part."""
    try:
        return distance(misfits(FAMILIES[dialect.hf_type], without_pooling(spec))[1])
    except AnyformerError:
        return math.inf


def _plan(spec: ModelSpec, dialect: Dialect) -> _Plan:
    dense, adapted = dialect.dense_rows(spec), dialect.adapted(without_pooling(spec))
    behind = {row.theirs[0]: shapes_of(spec)[row.ours[0]] for row in dense}
    spec = adapted.spec
    config, found = misfits(FAMILIES[dialect.hf_type], spec)
    _refuse(next(iter(found), None))
    metadata = metadata_of(dialect, config)
    held = dialect.rows(spec)
    rows, shapes = [adapted.row(row) for row in held], their_shapes(held, spec)
    frequencies = _frequencies(spec, config)
    whole = {"general.architecture": dialect.architecture}
    whole |= {key_of(dialect, key): value for key, value in metadata.items()}
    read = config_of(whole, shapes, shapes[EMBEDDING], MODEL)
    if frequencies is not None:
        read["rope_scaling"] = llama3_scaling(frequencies, float(config["rope_theta"]), MODEL)
    _, told = spec_of(FAMILIES, read, MODEL)
    _refuse(first_difference(computed(told), computed(spec)))
    for name, (n_out, n_in) in behind.items():
        layer = name.removesuffix(".weight")
        metadata |= {f"{layer}_feat_in": n_in, f"{layer}_feat_out": n_out}
    return _Plan(dialect, metadata, [*rows, *dense], shapes | behind, frequencies, adapted.note)


def _refuse(difference: Difference | None) -> None:
    if difference is not None:
        path, would, is_ = difference
        raise SpecError(f"its files would say {short(would)} for {path} = {short(is_)}")


def _frequencies(spec: ModelSpec, config: Mapping[str, Any]) -> Tensor | None:
    """What LLaMA 3's scaling divides frequencies by, for which files have a tensor instead of keys."""
    turning = {value for value in spec.nested() if isinstance(value, RotarySpec)}
    scaled = [(each.theta, each.scaling) for each in turning if isinstance(each.scaling, Llama3Scaling)]
    if not scaled:
        return None
    if len(turning) > 1:
        raise SpecError("GGUF files hold one set of frequencies, and layers turn by several; keep the directory")
    theta, scaling = scaled[0]
    n = (config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]) // 2
    plain = [theta ** (-i / n) for i in range(n)]
    return torch.tensor([f / s for f, s in zip(plain, scaling.scaled(plain), strict=True)], dtype=torch.float32)


def _kind(name: str, shape: tuple[int, ...], kind: Quantisation) -> Quantisation:
    """The type of a tensor in a file whose matrices are to be of a type."""
    if len(shape) < 2 or PRECISE.fullmatch(name):
        return "f32"
    return "f16" if kind.startswith("q") and shape[-1] % BLOCK else kind


def _announce(writer: Any, name: str, shape: tuple[int, ...], kind: Quantisation) -> None:
    """Say where a tensor will lie."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    plain = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16)}
    if kind in plain:
        writer.add_tensor_info(name, shape, plain[kind], math.prod(shape) * plain[kind].itemsize)
        return
    raw = GGMLQuantizationType[kind.upper()]
    block, nbytes = GGML_QUANT_SIZES[raw]
    packed = (*shape[:-1], shape[-1] // block * nbytes)
    writer.add_tensor_info(name, packed, np.dtype(np.uint8), math.prod(packed), raw_dtype=raw)


def _packed(name: str, tensor: Tensor, kind: Quantisation) -> np.ndarray:
    """A tensor of float32 as a file holds it. Raises CheckpointError for numbers beyond what that can hold."""
    from gguf import GGMLQuantizationType, quantize

    if kind == "f16":
        return narrowed(name, tensor, torch.float16).contiguous().numpy()
    values = tensor.contiguous().numpy()
    if kind == "f32":
        return values
    if kind in STEPS:
        narrowed(f"{name}, by scales of 16 bits,", tensor / STEPS[kind], torch.float16)
    return quantize(values, GGMLQuantizationType[kind.upper()])


def _say(writer: Any, metadata: Mapping[str, Any]) -> None:
    for key, value in metadata.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case list():
                writer.add_array(key, value)
