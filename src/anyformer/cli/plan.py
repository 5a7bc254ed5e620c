"""`anyformer plan`: does it fit, how, how long, and what it takes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from anyformer.amounts import gigabytes
from anyformer.cli.answers import keeps_answers
from anyformer.cli.names import IMPORTED, PresetName, import_option
from anyformer.cli.options import (
    ABOVE_ZERO,
    NEW_FILE,
    READ_AS,
    Amount,
    Number,
    as_option,
    json_option,
    params_option,
    vocab_option,
)
from anyformer.cli.terminal import console, tell
from anyformer.disk.atomic import refuse_place, write_named
from anyformer.errors import AnyformerError, UsageError
from anyformer.screen import figures, say

if TYPE_CHECKING:
    from anyformer.costs.hardware.plan import Plan
    from anyformer.costs.scaling_law import ScalingLaw
    from anyformer.spec import ModelSpec
    from anyformer.training.cluster.mesh import Mesh


@click.command(epilog="Example: anyformer plan llama3-70b --hardware 256xH100 --tokens 15T --price-per-hour 2.5")
@click.argument("model", type=PresetName())
@click.option("--hardware", required=True, metavar="NxDEVICE", help="8xH100, H200, 4xMINE.yaml, or this: this machine.")
@click.option("--tokens", type=Amount(), help="To train on: how long does it take?")
@click.option("--hours", type=ABOVE_ZERO, help="To train for: how many tokens is that?")
@click.option("--seq-len", type=Amount(), help="Tokens of a sequence.  [default: the context, at most 8192]")
@click.option("--source-len", type=Amount(), help="Tokens that an encoder reads.  [default: as many as the decoder]")
@click.option("--batch-tokens", type=Amount(), help="Tokens of a step.  [default: 4Mi; on one device 64Ki]")
@click.option("--mesh", metavar="AXES", help="This one and no other: dp=4,tp=8,pp=2; also cp, vp, ep, zero.")
@click.option("--precision", help="mixed-main-grads, mixed, bf16 or float32: what is kept of a parameter.")
@params_option
@vocab_option
@click.option("--price-per-hour", type=Number(0), help="Of one device, in your currency.")
@click.option("--law", metavar="FILE[:MODEL]", help="A study's findings.json: tokens by the law of one's own runs.")
@click.option(
    "--inference", is_flag=True, help="Not to train but to serve: tp, bits, sequences at once, seconds, speed."
)
@click.option(
    "--simulate",
    is_flag=True,
    help="Run a step of the mesh without numbers too: what it sends, beside what is planned.",
)
@click.option("--write", type=NEW_FILE, help="A recipe for `train`, where it can run the mesh.")
@json_option(help="One JSON object with the same figures.")
@as_option
@import_option
@keeps_answers("write")
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    hardware: str,
    n_params: int | None,
    vocab_size: int | None,
    as_json: bool,
    inference: bool,
    simulate: bool,
    write: Path | None,
    **given: Any,
) -> None:
    """Say whether and how MODEL can be trained, or served, on some hardware, how fast, and what it needs.

    All meshes, micro-batches and recomputations are worked out; nothing is run. Exit status 1: it does not fit.
    """
    from anyformer.costs.hardware.sections import plan_sections
    from anyformer.hub import load_spec
    from anyformer.measure import plan
    from anyformer.measure.here import found_device

    if write is not None and write.suffix.lower() not in (".yaml", ".yml", ".json"):
        raise UsageError(f"--write {write}: a recipe is a file that ends in .yaml or .json; name one")
    if write is not None:
        refuse_place("--write", write)
    spec = load_spec(model)
    if n_params is not None or vocab_size is not None:
        from anyformer.resizing import resize

        spec = resize(spec, n_params=n_params, vocab_size=vocab_size)
    if inference:
        from anyformer.costs.hardware.inference import plan_inference
        from anyformer.costs.hardware.plan import hardware as hardware_of
        from anyformer.costs.hardware.sections import serving_section

        seq_len = given.pop("seq_len")
        of_training = {**given, "write": write, "simulate": simulate or None}
        if other := next((name for name, value in of_training.items() if value is not None), None):
            raise UsageError(f"--{other.replace('_', '-')} is of training; leave it out with --inference")
        served = plan_inference(spec, hardware_of(hardware, found_device), seq_len=seq_len)
        if as_json:
            tell({"model": model, **served.as_json()}, as_json)
        else:
            console().print(serving_section(served, model).table())
        ctx.exit(0 if served.best else 1)
    law = given.pop("law")
    found, train = plan(spec, hardware, law=None if law is None else _law(law), **given), None
    sent = _sent(found, spec, simulate)
    if write is not None and found.best is not None:
        same = [("--params", n_params), ("--vocab", vocab_size), ("--as", ctx.meta.get(READ_AS))]
        same += [("--import", path) for path in ctx.meta[IMPORTED]]
        train = _write(
            found, spec, write, model, [word for pair in same if pair[1] is not None for word in map(str, pair)]
        )
    if as_json:
        recipe = {"recipe": None if train is None else str(write), "train": train}
        traffic = {"traffic": sent and [row._asdict() for row in sent]}
        tell({"model": model, **found.as_json(), **traffic, **recipe}, as_json)
    else:
        for section in plan_sections(found, model):
            console().print(section.table())
        _show_sent(sent or [])
        if train is not None:
            say(f"\nwritten to {write}; train with\n  {train}")
    ctx.exit(0 if found.best else 1)


def _law(text: str) -> ScalingLaw:
    """The law in a file, or that of a model named behind it."""
    from anyformer.study.scaling import read_law

    file, _, model = text.rpartition(":")
    return read_law(text) if not file or Path(text).exists() else read_law(file, model)


class _Sent(NamedTuple):
    """Bytes that a device of the stage that sends most sends in a step."""

    stage: int
    axis: str
    collective: str
    planned_nbytes: int
    simulated_nbytes: int | None


def _sent(plan: Plan, spec: ModelSpec, simulate: bool) -> list[_Sent] | None:
    """What is sent on the mesh of a plan, by axis and kind; None where `train` has no such mesh, or nothing fits.

    Raises UsageError where it is to be simulated and cannot be.
    """
    from anyformer.costs.hardware.roofline import device_kind
    from anyformer.training.cluster.traffic import TrainingStep, planned

    best, why = plan.best, "one device sends nothing"
    if best is None:
        return None
    if plan.hardware.devices > 1:
        try:
            mesh = _mesh(plan, spec)
            step = TrainingStep(
                best.micro_batch,
                plan.seq_len,
                plan.source_len or 0,
                best.micro_batches,
                best.recompute,
                device_kind(plan.hardware.device),
            )
            by_stage = [planned(spec, mesh, step, stage) for stage in range(mesh.pp)]
            stage = max(range(mesh.pp), key=lambda stage: sum(by_stage[stage].values()))
            foreseen = by_stage[stage]
            if not simulate:
                return [_Sent(stage, *key, foreseen[key], None) for key in sorted(foreseen)]
            from anyformer.training.cluster.simulated import simulated

            seen = simulated(spec, mesh, step, stage).traffic
            return [_Sent(stage, *key, foreseen.get(key, 0), seen.get(key, 0)) for key in sorted({**foreseen, **seen})]
        except AnyformerError as error:
            why = str(error)
    if simulate:
        raise UsageError(f"--simulate: {why}")
    return None


def _show_sent(sent: list[_Sent]) -> None:
    if not sent:
        return
    of = f" of stage {sent[0].stage}, which sends most," if any(row.axis == "pp" for row in sent) else ""
    said = figures(f"what a device{of} sends in a step, were all in float32")
    for row in sent:
        seen = row.simulated_nbytes
        says = "" if seen is None else f"simulated {gigabytes(seen)}, difference {seen - row.planned_nbytes:,}"
        said.add_row(f"{row.axis} {row.collective}", gigabytes(row.planned_nbytes), says)
    console().print(said)


def _write(plan: Plan, spec: ModelSpec, path: Path, model: str, same: Sequence[str]) -> str:
    """Write the recipe and return the command that trains by it, with the `same` options of what is trained.

    Raises UsageError where `train` cannot do it.
    """
    from anyformer.recipe import RECIPES
    from anyformer.recipe.file import dumps

    best = plan.best
    assert best is not None
    before, behind = _processes(plan, spec)
    # Products in bf16 with state in float32 hold no more than weights twice, as mixed precision has them.
    precision = "float32" if plan.precision == "float32" else "bf16"
    tokens = plan.tokens or int(plan.tokens_reached or plan.optimal_tokens["20_per_parameter"])
    recipe = RECIPES["small"].but(
        tokens=max(tokens, plan.batch_tokens),
        batch_tokens=plan.batch_tokens,
        seq_len=plan.seq_len,
        precision=precision,
    )
    write_named(path, dumps(recipe, "json" if path.suffix == ".json" else "yaml").encode(), "the recipe ")
    words = ["train", model, "--data", "TEXT", "--recipe", str(path), *same]
    words += ["--micro-tokens", str(best.micro_batch * plan.seq_len)]
    words += ["--recompute", best.recompute] if best.recompute != "none" else []
    return shlex.join([*before, *words, *behind, "--out", "run"])


def _mesh(plan: Plan, spec: ModelSpec) -> Mesh:
    """The mesh of a plan as `train` has it. Raises UsageError or SpecError for one that it cannot run."""
    from anyformer.recipe import Recipe
    from anyformer.training.cluster.mesh import Mesh
    from anyformer.training.cluster.narrowing import narrowed
    from anyformer.training.cluster.refusals import refuse_on_mesh
    from anyformer.training.cluster.world import World

    assert plan.best is not None
    mesh, n = plan.best.mesh, plan.hardware.devices
    both = mesh.ep > 1 and mesh.tp > 1
    beyond = [f"ep = {mesh.ep} beside tp = {mesh.tp}"] if both else []
    beyond += [f"vp = {mesh.vp}"] if mesh.vp > 1 else []
    if beyond:
        other = f"dp={n},zero=3" if both else str(replace(mesh, vp=1)) + ",vp=1"
        raise UsageError(
            f"the fastest mesh has {', '.join(beyond)}, which can be planned and not run yet; plan one that runs "
            f"with --mesh {other}"
        )
    # Moments alone (ZeRO 1), or experts among whole copies, are not shared out: gradients are too, which takes less memory.
    whole = mesh.zero == 0 and mesh.ep == 1
    dp, fsdp = (mesh.dp, 1) if whole else (1, mesh.dp)
    found = Mesh(dp, fsdp, mesh.tp, mesh.ep, mesh.cp, 3 if mesh.zero == 3 else 2, mesh.pp)
    recipe = Recipe(tokens=plan.seq_len, batch_tokens=plan.seq_len, seq_len=plan.seq_len)
    refuse_on_mesh(spec, recipe, World(0, n, mesh=found))
    if found.tp > 1:
        narrowed(spec, 0, found.tp)
    return found


def _processes(plan: Plan, spec: ModelSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the words before `train`, those behind it) that start it on the devices of a plan.

    Raises UsageError for a mesh that it cannot run.
    """
    n, node = plan.hardware.devices, plan.hardware.device.devices_per_node
    if n == 1:
        return ("anyformer",), ()
    try:
        axes = str(_mesh(plan, spec))
    except AnyformerError as error:
        raise UsageError(f"--write: {error}") from None
    if n <= node:
        return ("anyformer",), ("--nproc", str(n), "--mesh", axes)
    at = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:29500")
    nodes = next(nodes for nodes in range(-(-n // node), n + 1) if n % nodes == 0)  # each starts as many as any other
    torchrun = ("torchrun", "--nnodes", str(nodes), "--nproc-per-node", str(n // nodes), *at, "-m", "anyformer")
    return torchrun, ("--mesh", axes)
