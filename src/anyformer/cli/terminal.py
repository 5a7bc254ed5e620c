"""How commands print: tables as wide as the terminal, times and bytes as people read them."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from anyformer import screen
from anyformer.screen import say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from anyformer.generation import CompiledStep
    from anyformer.model import Transformer

WIDTH = 120  # columns, where the output is a file or a pipe


def tell(result: Any, as_json: bool, **more: Any) -> None:
    """Print a result: its figures as one JSON object, after those in `more`, or what it says in words."""
    told = result if isinstance(result, Mapping) else result.as_json() if as_json else result
    say(_json({**more, **told}) if as_json else str(told))


def compiled_step(model: Transformer) -> CompiledStep:
    """A model's step of decoding as one graph, after how long that takes is said."""
    from anyformer.generation import CompiledStep

    step = CompiledStep(model)
    say(step.notice, stderr=True)
    return step


def _json(told: Mapping[str, Any]) -> str:
    r"""JSON whose strings hold what they hold on any terminal: what one cannot show is written as \u001b is."""
    told = _finite(told)
    text = json.dumps(told, indent=1, ensure_ascii=False)
    shown = (
        screen.visible(text).encode(sys.stdout.encoding or "ascii", "replace").decode(sys.stdout.encoding or "ascii")
    )
    return text if text == shown else json.dumps(told, indent=1).replace("\x7f", "\\u007f")


def _finite(value: Any) -> Any:
    """The same with null for numbers that JSON does not have."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(each) for key, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
    return value


def console(width: int = WIDTH) -> Console:
    """Where tables are printed: as wide as the terminal; into a file or a pipe as $COLUMNS says, or `width` columns."""
    told = os.environ.get("COLUMNS", "")
    return screen.console(None if sys.stdout.isatty() else int(told) if told.isdecimal() and int(told) else width)


def plain_table(title: str = "", *columns: Mapping[str, Any], **options: Any) -> Table:
    """A table without a frame; `columns`, more of which may be added, and `options` are rich's."""
    from anyformer.tables import FittedTable

    table = FittedTable(title=title or None, title_justify="left", title_style="bold", box=None, **options)
    for column in columns:
        table.add_column(**column)
    return table


NAME, FIGURE = {"style": "cyan", "no_wrap": True}, {"justify": "right", "no_wrap": True}


def facts(title: str) -> Table:
    """A table to fill with rows of a name and what is said of it."""
    return plain_table(title, NAME, {"overflow": "fold"}, show_header=False)


def figures(title: str) -> Table:
    """A table to fill with rows of a name, a figure and a remark."""
    return plain_table(title, NAME, FIGURE, {"style": "dim"}, show_header=False, padding=(0, 2, 0, 0))


def columns(title: str, *names: str) -> Table:
    """A table to fill, its first column of names and the others of figures."""
    looks = [{"style": "cyan"}, *[{"justify": "right"}] * (len(names) - 1)]
    cells = [
        {"header": name, "header_style": "dim", "overflow": "fold", **look}
        for name, look in zip(names, looks, strict=True)
    ]
    return plain_table(title, *cells, padding=(0, 2, 0, 0))


def seconds(value: float) -> str:
    """A time in the unit that suits it."""
    if value >= 3600:
        return f"{value / 3600:,.3g} h" if value < 72 * 3600 else f"{value / 86400:,.3g} days"
    if value >= 1:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"


def gigabytes(nbytes: float) -> str:
    """Bytes in decimal units."""
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if nbytes >= 0.9995 * 1000**power:
            return f"{_three(nbytes / 1000**power)} {unit}"
    return f"{nbytes:.0f} bytes"


def short(value: float) -> str:
    """A number with a prefix: "3.4 T"; a space ends it where there is none."""
    for power, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 0.9995 * 10**power:
            return f"{_three(value / 10**power)} {prefix}"
    return f"{_three(value)} "


def _three(value: float) -> str:
    """Three digits, or all of a larger number."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"
