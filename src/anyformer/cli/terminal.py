"""How commands print: tables as wide as the terminal, times and bytes as people read them, text without what steers it."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

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

    columns = None if sys.stdout.isatty() else width
    if isinstance(sys.stdout, Recorder):
        return sys.stdout.console(columns)
    return Console(width=columns, highlight=False)


class Recorder:
    """A stream that hands on what is written to it, and holds it as plain data: text, and tables to be laid out anew."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.printed: list[Any] = []
        self.width: int | None = None  # of the terminal, where what was printed depends on it
        self.whole = True  # nothing was printed that is neither text nor a table of text

    def __getattr__(self, name: str) -> Any:
        self.whole = self.whole and name != "buffer"  # bytes that are written there go past this
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Hand text on, and hold it."""
        written = self.stream.write(text)
        self.printed.append(text)
        return written

    def console(self, width: int | None) -> Console:
        """A console that prints to the stream and holds what it was given to print."""
        from rich.console import Console

        recorder = self

        class Recording(Console):
            @Console.width.getter
            def width(self) -> int:
                recorder.width = self.size.width
                return recorder.width

            def print(self, *objects: Any, **options: Any) -> None:
                try:
                    said = {"objects": [_encoded(each) for each in objects], "options": options}
                    recorder.printed.append(json.loads(json.dumps(said)))
                except TypeError:
                    recorder.whole = False
                super().print(*objects, **options)

        return Recording(width=width, highlight=False, file=self.stream)

    @staticmethod
    def replay(printed: Iterable[Any]) -> None:
        """Print again what was held."""
        for each in printed:
            if isinstance(each, str):
                sys.stdout.write(each)
            else:
                console().print(*map(_decoded, each["objects"]), **each["options"])


def _encoded(printed: Any) -> Any:
    """Text, or a table without a frame, as plain data. Raises TypeError for anything else."""
    from rich.table import Table

    if isinstance(printed, Table) and printed.box is None:
        names = set(inspect.signature(Table).parameters) - {"headers", "box"}
        options = {name: getattr(printed, name) for name in names}
        return {"table": options, "columns": [*map(vars, printed.columns)], "rows": [*map(vars, printed.rows)]}
    if not isinstance(printed, str):
        raise TypeError
    return printed


def _decoded(data: Any) -> Any:
    from rich.table import Column, Row, Table

    if isinstance(data, str):
        return data
    table = Table(box=None, **data["table"])
    table.columns = [Column(**column) for column in data["columns"]]
    table.rows = [Row(**row) for row in data["rows"]]
    return table


def plain_table(title: str = "", **options: Any) -> Table:
    """A table without a frame, its columns to be added; `options` are rich's."""
    from rich.table import Table

    return Table(title=title or None, title_justify="left", title_style="bold", box=None, **options)


def facts(title: str) -> Table:
    """A table to fill with rows of a name and what is said of it."""
    table = plain_table(title, show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def figures(title: str) -> Table:
    """A table to fill with rows of a name, a figure and a remark."""
    table = plain_table(title, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    return table


def columns(title: str, *names: str) -> Table:
    """A table to fill, its first column of names and the others of figures."""
    table = plain_table(title, padding=(0, 2, 0, 0))
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
            size = nbytes / 1000**power
            return f"{size:,.3g} {unit}" if size < 999.5 else f"{size:,.0f} {unit}"
    return f"{nbytes:.0f} bytes"


def short(value: float) -> str:
    """A number with a prefix: "3.4 T"; a space ends it where there is none."""
    for power, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power:
            return f"{value / 10**power:.3g} {prefix}"
    return f"{value:.3g} "
