"""Loading: the model is built without memory and filled tensor by tensor, so that it is never held twice."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from anyformer.capacity import refuse_beyond_memory
from anyformer.errors import CheckpointError, UsageError
from anyformer.families.heads import JUDGES, with_rows
from anyformer.families.hf.mapping import computed, shapes
from anyformer.hub.contents import contents
from anyformer.hub.gguf import opened
from anyformer.hub.labels import labels_of, other_labels
from anyformer.hub.source import ModelSource, find, find_auxiliary, reading_as
from anyformer.hub.weights import listed, narrowed
from anyformer.layers.packed import PackedWeight
from anyformer.layers.packing import Packing, packed_weights
from anyformer.model import Transformer, build
from anyformer.spec import ModelSpec, first_difference, short
from anyformer.text import Tokenizer
from anyformer.text.generation_config import GENERATION


def load(
    path: str | Path,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | Packing | None = None,
    as_type: str | None = None,
) -> tuple[Transformer, Tokenizer | None]:
    """The model and the tokenizer, if there is one, of a directory (Hugging Face's, ours, a run's) or GGUF file.

    `dtype` None keeps that of the files (the widest, should they differ; float32 for quantised GGUF); `device` None is
    the CPU. "int8", "int4" and "nf4" hold linear maps in few bits, tables in 8, which get no gradient; all else is float32.
    Of a run the latest checkpoint is loaded; a checkpoint's own directory does for another. `as_type`: the model_type that a
    config.json is read as, whatever it says. Raises CheckpointError, naming the file, setting or tensor, KernelError for 4 bits
    of "int4" elsewhere than on a CPU.
    """
    with reading_as(as_type):
        source = find(path)
    tokenizer, n = tokenizer_of(source), source.spec.vocab_size
    first = tokenizer.answer_opening if tokenizer and source.spec.encoder else []
    if beyond := next((i for i in first if i >= n), None):
        raise CheckpointError(
            f"{path}: answers begin with the token {beyond}, and the model has {n}; mend {GENERATION}"
        )
    return filled(source, device, dtype), tokenizer


def load_auxiliary(path: str | Path, *, device: torch.device | str | None = None) -> Transformer:
    """What was trained beside the model of a run, or of one of its checkpoints. Raises CheckpointError without any."""
    return filled(find_auxiliary(path), device)


def filled(
    source: ModelSource, device: torch.device | str | None = None, dtype: torch.dtype | Packing | None = None
) -> Transformer:
    """The model of a source, as `load` gives it."""
    held = contents(source)
    stored, packing = held.dtype(), dtype if isinstance(dtype, str) else None
    kept = torch.float32 if isinstance(dtype, str) else dtype or stored
    model = holding(source.spec, held.ours(), kept, packing=packing, device=device, where=source.weights)
    held.release()
    model.labels = labels_of(source)
    return model


def holding(
    spec: ModelSpec,
    tensors: Iterable[tuple[str, Tensor]],
    dtype: torch.dtype,
    *,
    packing: Packing | None,
    device: torch.device | str | None,
    where: str | Path,
) -> Transformer:
    """A model that holds tensors by our names, read one by one, in a dtype; `packing`: those that can be in few bits.

    Raises CheckpointError where they are more than the memory that is free, and KernelError for few bits elsewhere.
    """
    schemes = {} if packing is None else packed_weights(spec, packing)
    model = build(spec, seed=None, device="meta")
    nbytes = sum(
        schemes[name].nbytes(tuple(each.shape)) if name in schemes else each.numel() * dtype.itemsize
        for name, each in model.named_parameters()
    )
    refuse_beyond_memory(
        nbytes, device, f"the model in {where}", "take another device or, for inference, a smaller --dtype"
    )

    kinds = {name: each.dtype for name, each in model.named_parameters()}

    def as_kept(name: str, tensor: Tensor) -> Tensor:
        own = kinds[name]  # of whole numbers: as it is
        moved = (narrowed(name, tensor, dtype) if own.is_floating_point else tensor.to(own)).to(device or "cpu")
        if name in schemes:
            return PackedWeight.of(moved, schemes[name])
        return moved.clone() if schemes else moved  # or the file stays in memory, whose other tensors are there anew

    filled = {name: as_kept(name, tensor) for name, tensor in tensors}
    if schemes:
        model.requires_grad_(False)  # a packed weight takes no gradient, so that none is made for what stands beside it
    model.load_state_dict(filled, assign=True)
    return model


def load_as(
    spec: ModelSpec,
    path: str | Path,
    packing: Packing | None,
    device: torch.device,
    labels: tuple[str, ...] | None = None,
) -> Transformer:
    """The model `spec` in float32, or in few bits, of the weights of a model that computes the same, however it is spelled.

    `labels`: what its rows tell apart. Raises CheckpointError, naming the first field that differs, UsageError for tensors that
    are lacking or of other labels, KernelError.
    """
    source = find(path)
    carried = carried_over(source.spec, spec, str(path))
    known = labels_of(source)
    if other_labels(known, labels) and (rows := _rows_of_labels(spec) & set(carried)):
        raise UsageError(
            f"the labels in {path} are {listed(known or ())}, and here {listed(labels or ())}; no adapter (--lora) trains "
            f"{listed(sorted(rows))}; train without --lora first"
        )
    if lacking := [name for name in shapes(spec) if name not in carried]:
        raise UsageError(
            f"{path} lacks {listed(lacking)}, which no adapter (--lora) trains; train without --lora first"
        )
    ours = {theirs: name for name, theirs in carried.items()}
    held = contents(source)
    tensors = ((ours[name], tensor) for name, tensor in held.ours() if name in ours)
    model = holding(spec, tensors, torch.float32, packing=packing, device=device, where=path)
    held.release()
    model.labels = labels
    return model


def load_tokenizer(path: str | Path) -> Tokenizer | None:
    """The tokenizer of what `load` takes, if there is one. Raises CheckpointError, TextError."""
    return tokenizer_of(find(path))


def tokenizer_of(source: ModelSource) -> Tokenizer | None:
    """The tokenizer that lies with a checkpoint, or inside its GGUF file, if there is one. Raises TextError."""
    if source.tokenizer is None:
        return None
    if source.tokenizer.is_dir():
        return Tokenizer.load(source.tokenizer, source.settings)
    return opened(source.tokenizer).tokenizer()


def load_into(model: Transformer, path: str | Path) -> list[str]:
    """Copy the weights of a directory into a model that computes the same, however either's specification spells it.

    Heads may be missing there: return the names of their tensors, which stay as they were. So does what says the labels,
    where the model's own are others. Raises CheckpointError, naming the first field that differs.
    """
    other = filled(find(path))
    carried = carried_over(other.spec, model.spec, str(path))
    if other_labels(other.labels, model.labels):
        carried = {name: theirs for name, theirs in carried.items() if name not in _rows_of_labels(model.spec)}
    theirs, ours = other.state_dict(), model.state_dict()
    model.load_state_dict({name: theirs[carried[name]] if name in carried else ours[name] for name in ours})
    return [name for name in ours if name not in carried]


def carried_over(theirs: ModelSpec, ours: ModelSpec, where: str) -> dict[str, str]:
    """By our names, the tensor of `theirs` that each of `ours` starts from; a new head's are not among them.

    A new head that has the pool and the layers of one of theirs starts from these layers, and one for other labels is new
    but for its layers. `where` names theirs in errors. Raises CheckpointError, naming the first field that differs.
    """
    places = {head.name: j for j, head in enumerate(theirs.heads)}
    pairs = [(i, places[head.name]) for i, head in enumerate(ours.heads) if head.name in places]
    known = [theirs.heads[j] for _, j in pairs]
    own = [ours.heads[i] for i, _ in pairs]
    alike = [with_rows(t, o.table.rows) if t.name in JUDGES and o.table else t for t, o in zip(known, own, strict=True)]
    ahead = theirs.ahead if ours.ahead else ()
    before, after = theirs.but(heads=tuple(alike), ahead=ahead), ours.but(heads=tuple(own))
    found = first_difference(computed(before), computed(after))
    if found is not None:
        field, there, here = found
        raise CheckpointError(
            f"the weights in {where} are of another architecture: {field} is {short(there)} there and {short(here)} here; "
            f"give {where} as the specification too, or leave --init out"
        )
    renamed = dict(zip(shapes(after), shapes(before), strict=True))  # their order follows from the architecture
    carried = {
        _moved(name, [i for i, _ in pairs]): _moved(source, [j for _, j in pairs]) for name, source in renamed.items()
    }
    old, new = shapes(theirs), shapes(ours)
    carried = {name: source for name, source in carried.items() if old[source] == new[name]}
    for i, head in enumerate(ours.heads):
        like = (j for j, t in enumerate(theirs.heads) if (t.pool, t.transform) == (head.pool, head.transform))
        if head.name not in places and (j := next(like, None)) is not None:
            layers = [name for name in new if name.startswith(f"heads.{i}.transform.")]
            carried |= {name: name.replace(f"heads.{i}.", f"heads.{j}.", 1) for name in layers}
    return carried


def _moved(name: str, places: list[int]) -> str:
    """The name of a head's tensor where the heads stand at these places."""
    return re.sub(r"^heads\.(\d+)\.", lambda found: f"heads.{places[int(found[1])]}.", name)


def _rows_of_labels(spec: ModelSpec) -> set[str]:
    """The tensors with a row for each label."""
    numbers = [i for i, head in enumerate(spec.heads) if head.name in JUDGES]
    return {f"heads.{i}.{name}" for i in numbers for name in ("table.weight", "bias")}
