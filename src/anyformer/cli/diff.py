"""`anyformer diff`: where architectures part, and what each difference does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from anyformer.cli.answers import keeps_answers
from anyformer.cli.names import PresetName, import_option
from anyformer.cli.options import Amount, as_option, json_option
from anyformer.cli.terminal import FIGURE, NAME, console, plain_table, tell
from anyformer.errors import UsageError
from anyformer.screen import say
from anyformer.spec import split_variant

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from anyformer.descriptions import Comparison, Diff, DiffRow, Effect, Measure
    from anyformer.descriptions.diff.diff import KeyChange

CORE = ("tokenization", "positions", "norm", "norm placement", "activation", "attention")  # told side by side always
HEADED = {"pad_edge": False, "header_style": "bold", "padding": (0, 2, 0, 0), "show_edge": False}
SIGNS = {"added": "+", "removed": "−", "reshaped": "~"}
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
        found: Comparison = diff(chosen[0], chosen[1], seq_len=seq_len, names=(names[0], names[1]))
    else:
        found = side_by_side(*chosen, seq_len=seq_len, names=names)
    if as_json:
        tell(found, as_json)
        return
    out = console()
    if found.equal:
        out.print(f"{' and '.join(names)} are equal: every part, every tensor.")
    if not found.equal or everything:
        out.print(table(found, everything=everything))
        out.print()
        out.print(totals(found))
    if isinstance(found, Diff) and not found.equal:
        _footnotes(out, found)
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


def table(found: Comparison, *, everything: bool = False) -> Table:
    """The rows, each with what its difference does where that was measured."""
    effects = getattr(found, "effects", None)
    cells = [{"header": name, "overflow": "fold", "ratio": 1} for name in found.names]
    measured = () if effects is None else ("parameters", "FLOPs/token", "cache/token", "tensors")
    cells += [{"header": title, "style": "dim", **FIGURE} for title in measured]
    shown = plain_table("", {"header": "part", **NAME}, *cells, **HEADED)
    for row in found.rows:
        if row.differs or everything or (effects is None and row.part in CORE):
            cells = () if effects is None else _effect_cells(row, effects)
            shown.add_row(row.part, *row.values, *cells, style=None if row.differs else "dim")
    return shown


def totals(found: Comparison) -> Table:
    """What each architecture costs, and the whole difference of two."""
    change = getattr(found, "change", None)
    titles = found.names if change is None else (*found.names, "difference")
    cells = ({"header": title, **FIGURE} for title in titles)
    shown = plain_table("", {"header": "all together", **NAME}, *cells, **HEADED)
    for title, name, text in FIGURES:
        values = [getattr(measure, name) for measure in found.totals]
        if name == "active" and all(m.active == m.parameters for m in found.totals):
            continue
        more = () if change is None else (_both(values[0], getattr(change, name), text),)
        shown.add_row(title.format(seq_len=f"{found.seq_len:,}"), *(text(value) for value in values), *more)
    return shown


def _prefixed(step: int, units: Sequence[str], gap: str, value: float) -> str:
    size, i = abs(value), 0
    while size >= step * (1 if step == 1024 else 0.9995) and i + 1 < len(units):
        size, i = size / step, i + 1
    whole = size >= 999.5 or (i == 0 and size == int(size))
    text = f"{size:,.0f}" if whole else f"{size:#.3g}".rstrip(".")
    return f"{'−' if value < 0 else ''}{text}{gap if units[i] else ''}{units[i]}"


count = partial(_prefixed, 1000, ("", "k", "M", "B", "T", "Q"), "")  # of things: 6.74B
flops = partial(_prefixed, 1000, ("", "k", "M", "G", "T", "P"), " ")  # 13.3 G
nbytes = partial(_prefixed, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"), " ")  # 512 KiB
FIGURES: tuple[tuple[str, str, Any], ...] = (
    ("parameters", "parameters", count),
    ("active parameters", "active", count),
    ("forward FLOPs/token at {seq_len} tokens", "flops_per_token", flops),
    ("cache/token at {seq_len} tokens, bfloat16", "cache_nbytes_per_token", nbytes),
)


def _signed(value: float, text: Any) -> str:
    return "" if value == 0 else text(value) if value < 0 else f"+{text(value)}"


def _both(before: float, change: float, text: Any) -> str:
    share = "" if not before or not change else f" ({_percent(change / before)})"
    return (_signed(change, text) or "none") + share


def _percent(share: float) -> str:
    if share >= 9.995:
        return f"× {share + 1:,.0f}" if share >= 99 else f"× {share + 1:.1f}"
    return f"{'−' if share < 0 else '+'}{abs(share):.0%}".replace("%", " %")


def _effect_cells(row: DiffRow, effects: Any) -> tuple[str, ...]:
    if not row.differs or row.part not in effects:
        return ("",) * 4
    effect: Effect | None = effects[row.part]
    if effect is None:
        return ("†",) * 4
    change: Measure = effect.change
    mark = "*" if effect.measured_in == "b" else ""
    keys = " ".join(f"{sign}{n:,}" for kind, sign in SIGNS.items() if (n := getattr(effect, kind)))
    cells = (
        _signed(change.parameters, count),
        _signed(change.flops_per_token, flops),
        _signed(change.cache_nbytes_per_token, nbytes),
        keys,
    )
    return tuple(f"{cell or '0'}{mark}" for cell in cells)


def _footnotes(out: Console, found: Diff) -> None:
    a, b = found.names
    out.print(
        f"\nA figure in a row is what that difference does by itself: {a} with that one part of {b}. Such figures need not add "
        "up to the whole. Tensors of the state dict: + added, − removed, ~ reshaped.",
        style="dim",
    )
    if any(effect and effect.measured_in == "b" for effect in found.effects.values()):
        out.print(f"* {a} has no place for it: {b} against {b} with that part of {a}.", style="dim")
    if any(effect is None for effect in found.effects.values()):
        out.print("† changes only together with other rows.", style="dim")


def _keys(out: Console, keys: tuple[KeyChange, ...], listed: bool) -> None:
    numbers = {kind: sum(key.count for key in keys if key.change == kind) for kind in SIGNS}
    said = ", ".join(f"{n:,} {kind}" for kind, n in numbers.items() if n) or "the same names and shapes"
    more = "" if listed or len(keys) <= FEW else "; --keys lists them"
    out.print(Text.assemble(("\nstate dict", "bold"), f": {said}{more}"))
    for key in keys if listed or len(keys) <= FEW else ():
        shape = " → ".join("×".join(map(str, shape)) for shape in (key.before, key.after) if shape is not None)
        layers = f"  i = {key.layers}" if key.layers else ""
        lines = [f"  {SIGNS[key.change]} {key.key}", f"  {shape}{layers}"]
        say(("\n      " if sum(map(len, lines)) > out.width else "").join(lines))
