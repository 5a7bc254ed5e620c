"""What cannot be computed by several processes, and why: refused before anything begins."""

from __future__ import annotations

from anyformer.errors import UsageError
from anyformer.layers.batch_norm import BatchNormSpec
from anyformer.layers.embedding import TokensSpec
from anyformer.layers.moe import MoESpec
from anyformer.layers.token_dropout import TokenDropoutSpec
from anyformer.recipe import Recipe
from anyformer.spec import MixerSpec, ModelSpec
from anyformer.training.cluster.stages import unstaged
from anyformer.training.cluster.world import World

_TIED = (
    "its generator and the model are two roots of FSDP2, which cannot have one embedding; use an objective whose `embeddings` "
    "are separate or disentangled"
)


def refuse_on_mesh(
    spec: ModelSpec,
    recipe: Recipe,
    world: World,
    *,
    tied: bool = False,
    compiled: bool = False,
    beside: bool = False,
    by_place: bool = True,
    one_pass: bool = True,
    writes: bool = False,
) -> None:
    """Raise UsageError where the rows of a batch, or the weights, cannot be shared out, with the reason.

    `beside`: there is an auxiliary model; `tied`: it has tensors of the model; the last three are the objective's.
    """
    if world.size == 1:
        return
    copies, shards = f"use --mesh dp={world.size}", f"use --mesh fsdp={world.size}"

    def refused(why: str) -> UsageError:
        return UsageError(f"this cannot be trained on the mesh {world.mesh}: {why}")

    if world.tp > 1 and beside:
        raise refused(f"its generator's layers are not shared out under tp; {copies}")
    if max(world.tp, world.cp, world.pp) > 1 and writes:
        raise refused(f"{recipe.objective.kind} writes texts, each of which one process writes; {shards}")
    if max(world.tp, world.cp, world.pp) > 1 and recipe.distillation is not None:
        raise refused(f"a teacher reads whole rows, and is whole in each process; {shards}")
    if world.tp > 1 and compiled:
        what = "under tp processes speak to each other within a layer, which --compile takes whole; leave it out"
        raise refused(f"{what}, or {shards}")
    if world.mesh.ep > 1 and (reason := _unspreadable(spec, world.mesh.ep, compiled)):
        raise refused(f"{reason}, or use --mesh fsdp={world.mesh.fsdp}")
    if world.cp > 1 and (reason := _unstretchable(spec, recipe, world.cp, compiled, by_place)):
        raise refused(f"{reason}; {copies}")
    if world.pp > 1 and (reason := _unstageable(spec, recipe, world, compiled, one_pass)):
        raise refused(f"{reason}; {copies}")
    if world.sharded and tied:
        raise refused(f"{_TIED}, or {copies}")
    if world.sharded and recipe.lora is not None:
        what = "each process needs the weights that it is put on"
        raise UsageError(f"an adapter cannot be trained on the mesh {world.mesh}: {what}; {copies}")
    reason = indivisible(spec, recipe)
    if recipe.memory is not None:
        reason = "a memory of segments goes from row to row of a stream, and is kept by one process"
    if reason is not None:
        raise UsageError(f"this cannot be trained by {world.size} processes: {reason}; train it in one (--nproc 1)")


def _unspreadable(spec: ModelSpec, ep: int, compiled: bool) -> str | None:
    experts = {part.router.n_experts for part in spec.nested(MoESpec)}
    if not experts:
        return "it has no experts to spread; take a model that has"
    if uneven := [n for n in sorted(experts) if n % ep]:
        return f"ep = {ep} does not divide its {uneven[0]} experts; take an ep that does"
    if compiled:
        return "tokens travel within a layer, which --compile takes whole; leave it out"
    return None


def _unstretchable(spec: ModelSpec, recipe: Recipe, cp: int, compiled: bool, by_place: bool) -> str | None:
    for part in spec.nested(MixerSpec, TokenDropoutSpec, TokensSpec):
        if reason := part.together():
            return f"under cp a process has a stretch of each row, and {part.kind} {reason}"
    if not by_place:
        return f"the loss of {recipe.objective.kind} is of whole rows, of which a process has a stretch under cp"
    if recipe.seq_len < cp:
        return f"rows of {recipe.seq_len} tokens have no stretch for each of {cp} processes"
    if compiled:
        return "under cp processes speak to each other within a layer, which --compile takes whole; leave it out"
    return None


def _unstageable(spec: ModelSpec, recipe: Recipe, world: World, compiled: bool, one_pass: bool) -> str | None:
    if not one_pass:
        return f"{recipe.objective.kind} makes passes of its own, which no stage of a pipeline knows"
    if compiled:
        return "--compile is not there under pp yet; leave it out"
    return unstaged(spec, world.pp)


def indivisible(spec: ModelSpec, recipe: Recipe) -> str | None:
    """Why a batch has another loss as a whole than in parts; None where it has the same."""
    if not recipe.objective.divisible:
        return f"{recipe.objective.kind} tells the texts of a batch apart, and each part would have fewer negatives"
    if any(spec.nested(BatchNormSpec)):
        return "the statistics of its BatchNorm are those of all rows of a batch"
    return None
