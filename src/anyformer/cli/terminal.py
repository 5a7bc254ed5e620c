"""How commands print: tables as wide as the terminal, times and bytes as people read them, text without what steers it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH = 120  # columns, where the output is a file or a pipe

# C0 but tab and line feed, DEL, C1: escape sequences move the cursor, rename the window, hide what was written.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def tell(result: Any, as_json: bool, **more: Any) -> None:
    """Print a result: its figures as one JSON object, after those in `more`, or what it says in words."""
    told = result if isinstance(result, Mapping) else result.as_json() if as_json else result
    click.echo(json.dumps({**more, **told}, indent=1, ensure_ascii=False) if as_json else str(told))


def visible(text: str) -> str:
    r"""The text with every control character but tab and line feed written out, as in \x1b."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def console(width: int = WIDTH) -> Console:
    """Where tables are printed: as wide as the terminal, or `width` columns into a file."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else width, highlight=False)


def figures(title: str) -> Table:
    """A table to fill with rows of a name, a figure and a remark."""
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, show_header=False, padding=(0, 2, 0, 0)
    )
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    return table


def columns(title: str, *names: str) -> Table:
    """A table to fill, its first column of names and the others of figures."""
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for i, name in enumerate(names):
        table.add_column(
            name, justify="right" if i else "left", style=None if i else "cyan", header_style="dim", overflow="fold"
        )
    return table


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
        if nbytes >= 1000**power:
            return (
                f"{nbytes / 1000**power:,.3g} {unit}"
                if nbytes < 999.5 * 1000**power
                else f"{nbytes / 1000**power:,.0f} {unit}"
            )
    return f"{nbytes:.0f} bytes"


def short(value: float) -> str:
    """A number with a prefix: "3.4 T"; a space ends it where there is none."""
    for power, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power:
            return f"{value / 10**power:.3g} {prefix}"
    return f"{value:.3g} "
