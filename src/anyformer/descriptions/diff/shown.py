"""A diff in words: its rows with what each does, what all of them do, and what the marks mean."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from rich.text import Text

from anyformer.amounts import count, gibibytes, prefixed
from anyformer.screen import FIGURE, NAME, plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from anyformer.descriptions.diff.diff import DiffRow, Effect, Measure, SpecComparison

CORE = ("tokenization", "positions", "norm", "norm placement", "activation", "attention")  # told side by side always
HEADED = {"pad_edge": False, "header_style": "bold", "padding": (0, 2, 0, 0), "show_edge": False}
LONGEST_NAME = 32  # that heads a column; where one is longer, letters do
SIGNS = {"added": "+", "removed": "−", "reshaped": "~"}


def shown(found: SpecComparison, *, everything: bool = False) -> Iterator[RenderableType]:
    """What is printed of a comparison; `everything`: rows that are equal too."""
    if found.equal:
        yield f"{' and '.join(found.names)} are equal: every part, every tensor."
    elif max(map(len, found.names)) > LONGEST_NAME and len(found.names) <= len(ascii_uppercase):
        letters = tuple(ascii_uppercase[: len(found.names)])
        yield from (f"{letter}: {name}" for letter, name in zip(letters, found.names, strict=True))
        yield ""
        found = replace(found, names=letters)
    if not found.equal or everything:
        yield table(found, everything=everything)
        yield ""
        yield totals(found)
    effects = getattr(found, "effects", None)
    if effects is not None and not found.equal:
        yield from _footnotes(found.names[0], found.names[1], effects.values())


def table(found: SpecComparison, *, everything: bool = False) -> Table:
    """The rows, each with what its difference does where that was measured."""
    effects = getattr(found, "effects", None)
    cells = [{"header": name, "overflow": "fold", "ratio": 1} for name in found.names]
    measured = () if effects is None else ("parameters", "FLOPs/token", "cache/token", "tensors")
    cells += [{"header": title, "style": "dim", **FIGURE} for title in measured]
    made = plain_table("", {"header": "part", **NAME}, *cells, **HEADED)
    for row in found.rows:
        if row.differs or everything or (effects is None and row.part in CORE):
            cells = () if effects is None else _effect_cells(row, effects)
            made.add_row(row.part, *row.values, *cells, style=None if row.differs else "dim")
    return made


def totals(found: SpecComparison) -> Table:
    """What each architecture costs, and the whole difference of two."""
    change = getattr(found, "change", None)
    titles = found.names if change is None else (*found.names, "difference")
    cells = ({"header": title, **FIGURE} for title in titles)
    made = plain_table("", {"header": "all together", **NAME}, *cells, **HEADED)
    for title, name, text in FIGURES:
        values = [getattr(measure, name) for measure in found.totals]
        if name == "active" and all(m.active == m.parameters for m in found.totals):
            continue
        more = () if change is None else (_both(values[0], getattr(change, name), text),)
        made.add_row(title.format(seq_len=f"{found.seq_len:,}"), *(text(value) for value in values), *more)
    return made


FIGURES: tuple[tuple[str, str, Any], ...] = (
    ("parameters", "parameters", count),
    ("active parameters", "active", count),
    ("forward FLOPs/token at {seq_len} tokens", "flops_per_token", prefixed),
    ("cache/token at {seq_len} tokens, bfloat16", "cache_nbytes_per_token", gibibytes),
)


def _signed(value: float, text: Any) -> str:
    return "" if value == 0 else f"{'−' if value < 0 else '+'}{text(abs(value))}"


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
        _signed(change.flops_per_token, prefixed),
        _signed(change.cache_nbytes_per_token, gibibytes),
        keys,
    )
    return tuple(f"{cell or '0'}{mark}" for cell in cells)


def _footnotes(a: str, b: str, effects: Collection[Effect | None]) -> Iterator[Text]:
    said = [
        f"\nA figure in a row is what that difference does by itself: {a} with that one part of {b}. Such figures need not add "
        "up to the whole. Tensors of the state dict: + added, − removed, ~ reshaped."
    ]
    if any(effect and effect.measured_in == "b" for effect in effects):
        said.append(f"* {a} has no place for it: {b} against {b} with that part of {a}.")
    if any(effect is None for effect in effects):
        said.append("† changes only together with other rows.")
    return (Text(each, style="dim") for each in said)
