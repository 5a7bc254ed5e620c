"""What a process sends in a step, as arithmetic on the specification: nothing is built."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anyformer.layers.attention import AttentionSpec
from anyformer.layers.indexer import INDEX, IndexerSpec
from anyformer.layers.moe import MoESpec
from anyformer.layers.stage import PipelineStage, StageInput
from anyformer.layers.stretch import meeting, stretch
from anyformer.observation.passes import DeviceKind
from anyformer.spec import (
    AheadSpec,
    BlockSpec,
    BranchSpec,
    HeadSpec,
    MixerSpec,
    ModelSpec,
    PartSpec,
    Place,
    Recompute,
    TableSpec,
    inside,
    tensors,
)
from anyformer.training.cluster.mesh import Mesh
from anyformer.training.cluster.narrowing import TensorPart, cuts, narrowed
from anyformer.training.cluster.stages import lenders, stage_of

NUMBER, INTEGER = 4, 8  # bytes
ACTIVATIONS, GRADIENTS = "activations", "gradients"  # that a stage sends to the next, and to the one before
# Bytes of a step, by axis of the mesh and kind of message: of what is gathered, scattered or added up those of the whole, of what
# is sent to one process or travels, those that go out.
Traffic = Mapping[tuple[str, str], int]


class _Call(NamedTuple):
    """A mixer where it is called, or a table where it is read."""

    part: PartSpec
    place: Place
    path: str  # as tensors inside are called
    of: str  # "stack", "encoder", or k tokens further: "ahead k"
    read: bool  # whether the loss hangs on it
    ends: bool  # whether nothing of its layer needs what it writes, which is not made again then


@dataclass(frozen=True)
class TrainingStep:
    """What the processes that compute one share of a batch make of it: micro-batches of so many whole sequences, in turn."""

    micro_batch: int  # sequences
    seq_len: int
    source_len: int = 0  # tokens of an encoder's sequences; 0: as many as the decoder's
    micro_batches: int = 1
    recompute: Recompute = "none"
    device: DeviceKind = "cpu"  # on a GPU there is no ring under cp


def planned(spec: ModelSpec, mesh: Mesh, step: TrainingStep, stage: int = 0) -> Traffic:
    """What the first process of a stage sends in a step in float32.

    Raises SpecError or UsageError for an architecture that has no narrower one or no such stages; what else cannot be trained
    on a mesh, `refusals` knows.
    """
    found: Counter[tuple[str, str]] = Counter()
    narrow = narrowed(spec, 0, mesh.tp) if mesh.tp > 1 else spec
    cut = cuts(spec, narrow, 0, mesh.tp) if mesh.tp > 1 else {}
    here = stage_of(spec, mesh, stage) if mesh.pp > 1 else None
    _weights(found, spec, narrow, mesh, cut, here, step)
    full, undone = step.recompute == "full", spec.stack.residual.undoes
    lengths = _Lengths(step.micro_batch, step.seq_len, step.source_len or step.seq_len, mesh.cp)
    one: Counter[tuple[str, str]] = Counter()
    for call, own in zip(_calls(spec, here), _calls(narrow, here), strict=True):
        tokens, width = lengths.tokens(call.of), call.place.d_model
        passes = 2 if (full or undone) and call.read else 1  # forward
        if isinstance(call.part, TableSpec):
            if own.part != call.part and call.of != "head":
                one["tp", "all-reduce"] += tokens * _width(call)
            continue
        mixer = own.part
        if isinstance(mixer, MixerSpec) and mixer != call.part:
            reads = isinstance(mixer, AttentionSpec) and mixer.reads_memory
            memory = lengths.tokens("encoder") * call.place.d_source if reads else 0
            back = (1 + mixer.reads_input()) * tokens * width + memory
            one["tp", "all-reduce"] += (1 if call.ends and not undone else passes) * tokens * width + call.read * back
        if mesh.cp > 1 and isinstance(mixer, AttentionSpec):
            way = meeting(mixer, lengths.whole(call.of), mesh.cp, joins=step.device == "cpu")
            if way == "gathering":
                kept = mixer.cache_shapes(own.place) or {}
                gathered = lengths.gathered("encoder" if mixer.kept_as() == "memory" else call.of)
                numbers = sum(math.prod(shape) for shape in kept.values())
                one["cp", "all-gather"] += passes * gathered * numbers
                one["cp", "reduce-scatter"] += call.read * gathered * (numbers - math.prod(kept.get(INDEX, (0,))))
            else:
                sent = _round if way == "ring" else _by_heads
                forward, backward = sent(mixer, own.place, lengths, call.of)
                again = call.read and (undone or step.recompute != "none")
                one["cp", "send"] += (1 + again) * forward + call.read * backward
        if mesh.ep > 1 and isinstance(mixer, MoESpec):
            choices, width = tokens * mixer.router.top_k, mixer.latent or width
            one["ep", "all-to-all"] += (2 * passes + 2) * choices * width
            found["ep", "all-to-all"] += step.micro_batches * passes * INTEGER * (choices + mesh.ep)
    if here is None or here.last:
        _losses(one, spec, narrow, mesh, lengths)
    if here is not None:
        one["pp", ACTIVATIONS] += sum(_crossing(narrow, here.gives, here.layers.stop, lengths)) * (not here.last)
        one["pp", GRADIENTS] += _crossing(narrow, here.takes, here.layers.start, lengths)[0] * (not here.first)
    for key, numbers in one.items():
        found[key] += step.micro_batches * NUMBER * numbers
    return {key: nbytes for key, nbytes in found.items() if nbytes}


def _round(mixer: AttentionSpec, place: Place, lengths: _Lengths, of: str) -> tuple[int, int]:
    """Numbers that the first of those with a stretch sends in a pass (forward, backward): its keys and values to those half
    the way round, twice, and to the others what it makes of their queries, and the gradients of these."""
    n_heads, width, _ = mixer.projection.sizes(place)
    kept = sum(math.prod(shape) for shape in (mixer.cache_shapes(place) or {}).values())
    to_half = lengths.cp // 2 * kept * lengths.tokens(of)
    helped = n_heads * sum(lengths.tokens(of, lengths.cp - t) for t in range(1, (lengths.cp + 1) // 2))
    return to_half + (width + 1) * helped, to_half + width * helped


def _by_heads(mixer: AttentionSpec, place: Place, lengths: _Lengths, of: str) -> tuple[int, int]:
    """Numbers that the first of those with a stretch sends in a pass (forward, backward): the others' heads of its queries, keys
    and values, and what its heads give of the others' tokens; backward the gradients of these."""
    n_heads, width, value_width = mixer.projection.sizes(place)
    given, made = n_heads * width + mixer.projection.stored_heads * (width + value_width), n_heads * value_width
    own, cp = lengths.tokens(of), lengths.cp
    others = lengths.rows * lengths.whole(of) - own
    return (own * (cp - 1) * given + others * made) // cp, (own * (cp - 1) * made + others * given) // cp


def _crossing(spec: ModelSpec, carried: Sequence[StageInput], cut: int, lengths: _Lengths) -> tuple[int, int]:
    """Numbers that go from one stage to the next, where layers from this number on begin: (that have a gradient, the others)."""
    tokens, d_model, lent = lengths.tokens("stack"), spec.stack.d_model, lenders(spec, cut)
    learnt, fixed = tokens * d_model * spec.stack.residual.n_streams, 0
    for what, name, parts in carried:
        if what == "input":
            learnt += tokens * d_model
        elif what == "choice":
            choices = next(lent[what, name].nested(IndexerSpec)).choices
            fixed += choices * tokens * lengths.whole("stack")
        elif isinstance(lender := lent[what, name], MoESpec):
            learnt += tokens * (lender.router.stream.width if lender.router.stream else 0)
        else:
            kept = lent[what, name].cache_shapes(Place(d_model, (d_model,))) or {}
            numbers = {part: math.prod(kept[part]) * lengths.rows * lengths.whole("stack") for part in parts}
            fixed += numbers.pop(INDEX, 0)
            learnt += sum(numbers.values())
    return learnt, fixed


class _Lengths(NamedTuple):
    """Tokens that a process computes of its rows."""

    rows: int
    seq_len: int
    source_len: int
    cp: int

    def whole(self, of: str) -> int:
        """Of a row."""
        if of == "encoder":
            return self.source_len
        return self.seq_len - (int(of.removeprefix("ahead ")) if of.startswith("ahead") else 0)

    def tokens(self, of: str, rank: int = 0) -> int:
        """Of all rows, those of a stretch."""
        here = stretch(self.whole(of), rank, self.cp)
        return self.rows * (here.stop - here.start)

    def gathered(self, of: str) -> int:
        """That come together, filled up so that all send as many."""
        return self.rows * self.cp * -(-self.whole(of) // self.cp)


def _losses(one: Counter[tuple[str, str]], spec: ModelSpec, narrow: ModelSpec, mesh: Mesh, lengths: _Lengths) -> None:
    """Where processes meet in the loss: at the table, and to know what each label cost."""
    tables = [
        [call for call in _calls(each, None) if call.of == "head" and call.path.startswith("heads.0.")]
        for each in (spec, narrow)
    ]
    for wide, own in zip(*tables, strict=True):
        if wide.part != own.part:
            tokens = sum(lengths.tokens(f"ahead {k}") for k in range(len(spec.ahead) + 1))
            one["tp", "all-reduce"] += tokens * (wide.place.shape[-1] + 4)
        if mesh.cp > 1:
            one["cp", "all-gather"] += lengths.gathered("stack")


def _width(table: _Call) -> int:
    assert isinstance(table.part, TableSpec)
    return table.part.width or table.place.shape[-1]


def _weights(
    found: Counter[tuple[str, str]],
    spec: ModelSpec,
    narrow: ModelSpec,
    mesh: Mesh,
    cut: Mapping[str, TensorPart | None],
    stage: PipelineStage | None,
    step: TrainingStep,
) -> None:
    """Weights that are brought together for a pass, and gradients that are added up."""
    blocks, split = Counter(_blocks(spec, Place(), "", stage)), _split(spec, narrow)
    # (gathered, scattered) numbers, of a block and of so many processes
    groups: dict[tuple[str, int], tuple[int, int]] = {}
    shards, copies, unlearnt = mesh.shards, mesh.dp, tuple(_unlearnt(spec, Place(), ""))
    for (name, wide), (_, own) in zip(tensors(spec, Place()), tensors(narrow, Place()), strict=True):
        if not wide.trainable or (stage is not None and name not in stage.own):
            continue
        each = cut.get(name)
        shape = (wide.shape if each is None or each.shared else own.shape) or (1,)
        group = next((path for path in _prefixes(name) if path in blocks), "")
        among = shards
        if mesh.ep > 1 and wide.used is not None:
            shape, among, group = (shape[0] // mesh.ep, *shape[1:]), shards // mesh.ep, f"{group} experts"
        learns = wide.plain and not name.startswith(unlearnt)
        filled = -(-shape[0] // among) * among * math.prod(shape[1:])
        gathered, scattered = groups.get((group, among), (0, 0))
        groups[group, among] = gathered + filled, scattered + filled * learns
        if learns and (each is None or each.shared) and not split.isdisjoint(_prefixes(name)):
            found["tp", "all-reduce"] += NUMBER * filled // among
        if learns and stage is not None and name in stage.common:
            found["pp", "all-reduce"] += NUMBER * filled // among
    for (group, among), (gathered, scattered) in groups.items():
        passes = blocks.get(group.removesuffix(" experts"), 1)
        again = mesh.zero == 3 and group != ""
        if among > 1:
            found["fsdp", "all-gather"] += step.micro_batches * NUMBER * gathered * (2 * passes if again else 1)
            found["fsdp", "reduce-scatter"] += step.micro_batches * NUMBER * scattered
        if copies > 1:
            found["dp", "all-reduce"] += NUMBER * scattered // among


def _unlearnt(part: PartSpec, place: Place, path: str) -> Iterator[str]:
    """How the names of tensors begin that a step has no gradient of: of heads but a first with logits, and what says so."""
    for name, inner, inner_place in inside(part, place):
        at = _named(f"{path}.{name}" if path else name, inner)
        other = isinstance(inner, HeadSpec) and (name != "heads.0" or inner.table is None)
        if other or any(caveat.law == "gradients" for caveat in inner.caveats()):
            yield f"{at}."
        else:
            yield from _unlearnt(inner, inner_place, at)


def _prefixes(name: str) -> Iterator[str]:
    """The names of all that a tensor is in, from the innermost on."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _split(spec: ModelSpec, narrow: ModelSpec) -> frozenset[str]:
    """The mixers of which each process has a part, and what they share with others."""
    pairs = zip(_calls(spec, None), _calls(narrow, None), strict=True)
    split = [wide for wide, own in pairs if isinstance(wide.part, MixerSpec) and wide.part != own.part]
    shared = {part.shared for call in split for part in _parts(call.part, call.place) if part.shared is not None}
    return frozenset({call.path for call in split} | {f"shared.{name}" for name in shared})


def _parts(part: PartSpec, place: Place) -> Iterator[PartSpec]:
    for _, inner, inner_place in inside(part, place):
        yield inner
        yield from _parts(inner, inner_place)


def _blocks(part: PartSpec, place: Place, path: str, stage: PipelineStage | None) -> Iterator[str]:
    """The names of layers, as often as they are called."""
    for name, inner, inner_place in inside(part, place):
        at = f"{path}.{name}" if path else name
        if not _has(stage, at):
            continue
        at = _named(at, inner)
        if isinstance(inner, BlockSpec):
            yield at
        else:
            yield from _blocks(inner, inner_place, at, stage)


def _has(stage: PipelineStage | None, path: str) -> bool:
    """Whether a stage computes what is called so."""
    if stage is None:
        return True
    if path.startswith("stack.blocks."):
        return int(path.split(".")[2]) in stage.layers
    if path.startswith("stack.embedding"):
        return stage.first
    return stage.last or not path.startswith(("stack.norm", "heads", "ahead"))


def _calls(spec: ModelSpec, stage: PipelineStage | None) -> Iterator[_Call]:
    """Each mixer as often as it is called, and each table that tokens are looked up in or that makes logits."""
    unread = _unread(spec)

    def walked(part: PartSpec, place: Place, path: str, of: str, last: PartSpec | None = None) -> Iterator[_Call]:
        for name, inner, inner_place in inside(part, place):
            at = f"{path}.{name}" if path else name
            if not _has(stage, at):
                continue
            read = not any(at.startswith(each) for each in unread)
            if isinstance(inner, BranchSpec):
                named = _named(f"{at}.mixer", inner.mixer)
                yield _Call(inner.mixer, inner_place, named, of, read, inner is last)
            elif isinstance(inner, TableSpec):
                yield _Call(inner, inner_place, at, "head" if isinstance(part, HeadSpec) else of, read, False)
            elif isinstance(inner, AheadSpec):
                yield from walked(inner, inner_place, at, f"ahead {int(name.removeprefix('ahead.')) + 1}")
            else:
                where, ending = "encoder" if name == "encoder" else of, _ending(inner) or last
                yield from walked(inner, inner_place, _named(at, inner), where, ending)

    yield from walked(spec, Place(), "", "stack")


def _unread(spec: ModelSpec) -> tuple[str, ...]:
    """What begins so gives nothing to the loss: layers in whose place the trained head has its own."""
    layers = spec.heads[0].layers if spec.heads else None
    n = len(spec.stack.blocks)
    return () if layers is None else tuple(f"stack.blocks.{i}." for i in range(n - layers.before, n))


def _ending(part: PartSpec) -> BranchSpec | None:
    """Of a layer, the branch that it ends with, where no norm comes after it."""
    if not isinstance(part, BlockSpec) or part.connection is not None:
        return None
    sublayer = part.sublayers[-1]
    branch = sublayer.branches[-1]
    return None if branch.norm_out or branch.then or sublayer.norm_out or sublayer.norm_sum else branch


def _named(path: str, part: PartSpec) -> str:
    """How tensors inside a part are called."""
    return path if part.shared is None else f"shared.{part.shared}"
