"""Stages of a pipeline: which layers each process has, what crosses their cuts, and which weights several have.

Huang et al. 2019, arXiv:1811.06965. Pure arithmetic on the specification, but for the names of weights, which a model without
numbers tells; all processes come to the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate

import torch.distributed as dist
from torch import nn

from anyformer.errors import UsageError
from anyformer.layers.stage import PipelineStage, StageInput
from anyformer.model import Transformer, build
from anyformer.spec import MixerSpec, ModelSpec, Place, Workload, inside, tensors
from anyformer.training.cluster.meeting import reached
from anyformer.training.cluster.mesh import Mesh
from anyformer.training.cluster.world import World, groups_of

ROW = 4096  # tokens of the rows by which the work of layers is told


def unstaged(spec: ModelSpec, n: int) -> str | None:
    """Why the layers of an architecture cannot be shared out over n stages; None: they can."""
    if spec.encoder is not None:
        return "every stage of its decoder would read what its encoder makes"
    if spec.stack.residual.undoes:
        return f"its residual {spec.stack.residual.kind} makes the input of layers again from the output of all"
    if n > spec.n_layers:
        return f"pp = {n} is more than its {spec.n_layers} layers, of which each stage has one at least"
    if (most := _least_of_last(spec)) > spec.n_layers - n + 1:
        return (
            f"a head reads the stream {most} layers before the end, and the last of {n} stages would begin behind that"
        )
    frozen = {name for name, weight in tensors(spec, Place()) if not weight.trainable}
    if moved := [name for stage in stages(spec, n) for name in stage.common if name in frozen]:
        return f"{moved[0]} goes by the load of layers in several stages"
    return None


@cache
def stages(spec: ModelSpec, n: int) -> tuple[PipelineStage, ...]:
    """The n stages of an architecture, as even in work as whole layers can be; the heads' is the last's."""
    layers = _cut(_work(spec), _work_of_heads(spec), n, _least_of_last(spec))
    carried = [(), *(_carried(spec, each.start) for each in layers[1:]), ()]
    found = [PipelineStage(k, n, each, carried[k], carried[k + 1]) for k, each in enumerate(layers)]
    whole = build(spec, None, device="meta")
    names = {p: name for name, p in whole.named_parameters()}
    held = [
        {names[p] for module in _modules(whole, stage) for p in module.parameters(recurse=False)} for stage in found
    ]
    every = {name: tuple(k for k in range(n) if name in held[k]) for name in names.values()}
    common = {name: which for name, which in every.items() if len(which) > 1}
    return tuple(
        replace(stage, own=frozenset(held[stage.number]), common=common, names=tuple(names.values())) for stage in found
    )


def stage_of(spec: ModelSpec, mesh: Mesh, number: int) -> PipelineStage:
    """One of a mesh. Raises UsageError where the layers cannot be shared out so."""
    if reason := unstaged(spec, mesh.pp):
        raise UsageError(f"this cannot be trained on the mesh {mesh}: {reason}; use --mesh dp={mesh.processes}")
    return stages(spec, mesh.pp)[number]


def keep(model: Transformer, stage: PipelineStage) -> None:
    """Leave of a whole model, without numbers, what a stage has. Its weights keep their names."""
    kept, stack = set(_modules(model, stage)), model.stack
    stack.stage = stage
    stack.blocks.keep(stage.layers)
    for name in _unread(model, stage):
        stack.residual.register_module(name, None)
    if not stage.first:
        stack.register_module("embedding", None)
    if not stage.last:
        stack.register_module("norm", None)
        model.heads.keep(range(0))
        model.ahead.keep(range(0))
    for name in [name for name, module in model.shared.items() if module not in kept]:
        del model.shared[name]


def lenders(spec: ModelSpec, cut: int) -> dict[tuple[str, str], MixerSpec]:
    """By what is lent and its name, the last of the layers before this number that lends it."""
    before = [mixer for block in spec.stack.layers[:cut] for mixer in block.mixers]
    return {(what, name): mixer for mixer in before for what, name in mixer.lends().items()}


def column(world: World, numbers: Sequence[int]) -> dist.ProcessGroup | None:
    """The processes that have this one's part of the stages with these numbers; None where its own is none. All call it."""
    each = world.size // world.pp
    columns = tuple(tuple(number * each + place for number in numbers) for place in range(each))
    return groups_of(columns, dist.group.WORLD).get(world.rank)


def _modules(model: Transformer, stage: PipelineStage) -> Iterator[nn.Module]:
    """All that a stage has of a whole model, shared parts too."""
    stack = model.stack
    ends = [stack.norm, model.heads, model.ahead] if stage.last else []
    unread = _unread(model, stage)
    of_residual = [part for name, part in stack.residual.named_children() if name not in unread]
    yield stack.residual
    for part in ([stack.embedding] if stage.first else []) + [*of_residual, *ends]:
        yield from [] if part is None else reached(part)
    for i in stage.layers:
        yield from reached(stack.blocks[i])


def _unread(model: Transformer, stage: PipelineStage) -> list[str]:
    """The parts of the residual that a stage has no use for: by their names those that open streams, or close them."""
    opens = stage.first or (stage.last and bool(model.spec.ahead or any(head.layers for head in model.spec.heads)))
    return [
        name
        for name, _ in model.stack.residual.named_children()
        if (name == "begin" and not opens) or (name == "end" and not stage.last)
    ]


def _work(spec: ModelSpec) -> list[float]:
    """FLOPs of each layer."""
    stream = next(place for name, _, place in inside(spec, Place()) if name == "stack")
    blocks = [(block, place) for name, block, place in inside(spec.stack, stream) if name.startswith("blocks.")]
    known: dict[int, float] = {}  # a layer that is tiled is counted once
    for block, place in blocks:
        if id(block) not in known:
            known[id(block)] = block.cost(place, Workload(1, ROW, causal_exact=True)).flops
    return [known[id(block)] for block, _ in blocks]


def _work_of_heads(spec: ModelSpec) -> float:
    """FLOPs of what stands behind the last layer."""
    work = Workload(1, ROW, causal_exact=True)
    heads = [(head, place) for name, head, place in inside(spec, Place()) if name.startswith("heads.")]
    return sum(head.cost(place, work).flops for head, place in heads) + spec.cost_ahead(Place(), work).flops


def _least_of_last(spec: ModelSpec) -> int:
    return max([1, *(head.layers.before for head in spec.heads if head.layers is not None)])


def _cut(work: Sequence[float], behind: float, n: int, least: int) -> list[range]:
    """Layers in n stretches, the last of at least so many, whose most work, with what lies `behind`, is the least there is."""
    before = [0.0, *accumulate(work)]

    @cache
    def most(k: int, end: int) -> tuple[float, int]:
        """(the most work of a stretch where the first layers, up to `end`, are k of them, where the last of these begins)."""
        last = k == n
        begins = range(k - 1, end - (least if last else 1) + 1) if k > 1 else (0,)
        more = behind if last else 0.0
        return min((max(most(k - 1, at)[0] if k > 1 else 0.0, before[end] - before[at] + more), at) for at in begins)

    found, end = [], len(work)
    for k in range(n, 0, -1):
        begin = most(k, end)[1]
        found.append(range(begin, end))
        end = begin
    return found[::-1]


def _carried(spec: ModelSpec, cut: int) -> tuple[StageInput, ...]:
    """What layers from this number on, and what stands behind them, read of those before beside the stream."""
    place, lent = Place(spec.stack.d_model, (spec.stack.d_model,)), lenders(spec, cut)
    behind = [mixer for block in spec.stack.layers[cut:] for mixer in block.mixers]
    found = {StageInput("input"): None} if spec.ahead or any(mixer.reads_input() for mixer in behind) else {}
    own: set[tuple[str, str]] = set()
    of_heads = [block for head in spec.heads if head.layers is not None for block in head.layers.blocks]
    for mixer in (*behind, *(mixer for block in of_heads for mixer in block.mixers)):
        for what, name in mixer.borrows().items():
            if (what, name) not in own:
                parts = tuple(sorted(lent[what, name].cache_shapes(place) or {})) if what == "keys" else ("",)
                found[StageInput(what, name, parts)] = None  # type: ignore[arg-type]  # of the words that lends knows
        own |= set(mixer.lends().items())
    return tuple(found)
