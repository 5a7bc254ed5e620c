"""`anyformer diff`: where architectures part, and what each difference does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.text import Text

from anyformer.cli.answers import keeps_answers
from anyformer.cli.names import PresetName, import_option
from anyformer.cli.options import Amount, as_option, json_option
from anyformer.cli.terminal import console, tell
from anyformer.errors import UsageError
from anyformer.screen import NAME, plain_table, say
from anyformer.spec import split_variant

if TYPE_CHECKING:
    from rich.console import Console

    from anyformer.descriptions import SpecComparison
    from anyformer.descriptions.diff.diff import KeyChange

FEW = 12  # groups of keys that are listed without --keys


@click.command()
@click.argument("models", type=PresetName(), nargs=-1, metavar="A B [C …]")
@click.option("--all", "everything", is_flag=True, help="Show the parts that are equal too.")
@click.option("--keys", "with_keys", is_flag=True, help="List the tensors that are added, removed and reshaped.")
@click.option("--lineage", is_flag=True, help="Walk from A to B through the family tree, one step at a time.")
@click.option("--as-variant", is_flag=True, help="Print the name by which B is a variant of A: A+row=VALUE…")
@click.option("--seq-len", type=Amount(), help="Tokens that FLOPs and cache are for; the shorter context.")
@json_option(help="One JSON object with the same rows and figures.")
@as_option
@import_option
@keeps_answers()
def command(
    models: tuple[str, ...],
    everything: bool,
    with_keys: bool,
    lineage: bool,
    as_variant: bool,
    seq_len: int | None,
    as_json: bool,
) -> None:
    """Compare architectures part by part; of two, say what each difference does by itself.

    A model is a preset, a file of ours, an HF directory or its config.json, or a run, or a variant of one.

    \b
    anyformer diff llama2-7b gemma3-27b
    anyformer diff llama2 llama2+norm=LayerNorm+positions=alibi
    anyformer diff transformer llama llama2
    anyformer diff gpt2 mixtral --lineage
    """  # noqa: D301 - click's mark, a backspace
    from anyformer.descriptions import Diff, diff, side_by_side
    from anyformer.descriptions.diff.shown import shown
    from anyformer.families import find
    from anyformer.hub import load_spec

    if len(models) < 2:
        raise UsageError("diff compares two architectures or more; give another, as in `anyformer diff gpt2 llama2`")
    given = {"--all": everything, "--keys": with_keys, "--seq-len": seq_len, "--lineage": as_variant and lineage}
    if (as_variant or lineage) and (idle := [name for name, value in given.items() if value]):
        form = "--as-variant" if as_variant else "--lineage"
        raise UsageError(f"{form} has no use for {' and '.join(idle)}; leave out one or the other")
    if with_keys and len(models) > 2:
        raise UsageError("--keys lists the tensors of two models side by side; give two, or leave it out")
    if as_variant:
        _print_variant(models, as_json)
        return
    if lineage:
        _print_lineage(models, as_json)
        return
    chosen = [find(model) or load_spec(model) for model in models]
    names = tuple(getattr(each, "name", model) for each, model in zip(chosen, models, strict=True))
    if len(models) == 2:
        found: SpecComparison = diff(chosen[0], chosen[1], seq_len=seq_len, names=(names[0], names[1]))
    else:
        found = side_by_side(*chosen, seq_len=seq_len, names=names)
    if as_json:
        tell(found, as_json)
        return
    out = console()
    for each in shown(found, everything=everything):
        out.print(each)
    if isinstance(found, Diff) and not found.equal:
        _keys(out, found.keys, with_keys)


def _print_variant(models: tuple[str, ...], as_json: bool) -> None:
    from anyformer.descriptions import as_variant
    from anyformer.hub import load_spec

    if len(models) != 2:
        raise UsageError(f"--as-variant makes one architecture of another; give two, not {len(models)}")
    base = split_variant(models[0])[0]
    name = as_variant(load_spec(base), load_spec(models[1]), names=(base, models[1]))
    tell({"version": 1, "names": [base, models[1]], "variant": name} if as_json else name, as_json)


def _print_lineage(models: tuple[str, ...], as_json: bool) -> None:
    """The way from one preset to another, a generation at a time. Raises UsageError unless there are two presets."""
    from anyformer.descriptions import lineage
    from anyformer.families import find

    if len(models) != 2:
        raise UsageError(f"--lineage walks from one architecture to another; give two, not {len(models)}")
    presets = []
    for model in models:
        if (preset := find(model)) is None:
            raise UsageError(f"--lineage knows the ancestors of presets alone, and {model} is none; leave it out")
        presets.append(preset)
    steps, names = lineage(*presets), [preset.name for preset in presets]
    if as_json:
        tell({"version": 1, "names": names, "steps": [step.as_json() for step in steps]}, as_json)
        return
    out = console()
    if not steps:
        out.print(f"{' and '.join(names)} are equal: every part, every tensor.")
    for step in steps:
        back = ", back: what came later was" if step.back else ""
        out.print(
            Text.assemble(
                (" → ".join(step.names), "bold"), f" ({step.year}{back}) {step.changed} ", (step.source, "dim")
            )
        )
        looks = {**NAME, "min_width": 18}, {"overflow": "fold"}
        table = plain_table("", *looks, show_header=False, padding=(0, 2, 0, 2))
        for row in step.parts:
            table.add_row(row.part, " → ".join(row.values))
        sizes = [f"{row.part} {' → '.join(row.values)}" for row in step.rows if row not in step.parts]
        if sizes:
            table.add_row("sizes", "; ".join(sizes), style="dim")
        out.print(table)


def _keys(out: Console, keys: tuple[KeyChange, ...], listed: bool) -> None:
    from anyformer.descriptions.diff.shown import SIGNS

    numbers = {kind: sum(key.count for key in keys if key.change == kind) for kind in SIGNS}
    said = ", ".join(f"{n:,} {kind}" for kind, n in numbers.items() if n) or "the same names and shapes"
    more = "" if listed or len(keys) <= FEW else "; --keys lists them"
    out.print(Text.assemble(("\nstate dict", "bold"), f": {said}{more}"))
    for key in keys if listed or len(keys) <= FEW else ():
        shape = " → ".join("×".join(map(str, shape)) for shape in (key.before, key.after) if shape is not None)
        layers = f"  i = {key.layers}" if key.layers else ""
        lines = [f"  {SIGNS[key.change]} {key.key}", f"  {shape}{layers}"]
        say(("\n      " if sum(map(len, lines)) > out.width else "").join(lines))
