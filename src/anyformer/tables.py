"""Tables that fit: columns wrap between words; where no width would do, each row is a paragraph of what its columns say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

LEAST = 16  # columns below which sentences are no longer read
INDENT = 2


class FittedTable(Table):
    """A rich table that never breaks a word, nor hides one, while its longest word fits the terminal."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = (self.width or options.max_width) - self._gaps()
        natural = [_natural(column) for column in self.columns]
        if sum(natural) > room:
            least = [min(width, _least(column, width)) for width, column in zip(natural, self.columns, strict=True)]
            widths = shares(natural, least, room)
            if widths is None:
                yield from self._paragraphs()
                return
            for column, width in zip(self.columns, widths, strict=True):
                column.width, column.no_wrap, column.overflow = width, False, "fold"
        yield from super().__rich_console__(console, options)

    def _gaps(self) -> int:
        """The cells beside what the columns hold."""
        _, right, _, left = self.padding
        gaps = len(self.columns) * (left + right)
        gaps -= (len(self.columns) - 1) * min(left, right) if self.collapse_padding else 0
        return gaps if self.pad_edge else gaps - left - right

    def _paragraphs(self) -> Iterator[RenderableType]:
        """Each row: its first cell; below it the others, each behind its column's header, and figures behind one another.

        Figures of a table without headers stand beside the first cell.
        """
        if self.title:
            yield Text(str(self.title), style=self.title_style or "")
        first, *others = self.columns
        rows = zip(self.rows, first.cells, zip(*(column.cells for column in others), strict=True), strict=True)
        for row, name, cells in rows:
            style = str(row.style or first.style or "bold")
            said, figures = Table.grid(padding=(0, 2, 0, 0)), []
            for column, cell in zip(others, cells, strict=True):
                words = _plain(cell)
                header = _in_a_line(_plain(column.header))
                if words and column.justify == "right":
                    figures.append(f"{header} {', '.join(words.splitlines())}".strip())
                elif words:
                    said.add_row(*([Text(header, style="dim", no_wrap=True)] if header else []), cell, style=row.style)
            beside = not any(_plain(column.header) for column in others)
            yield Text("  ".join([_plain(name), *(figures if beside else [])]), style=style)
            if said.columns:
                said.columns[-1].overflow = "fold"
                yield Padding(said, (0, 0, 0, INDENT))
            if figures and not beside:
                yield Padding(Text("; ".join(figures), style=row.style or ""), (0, 0, 0, INDENT))


def shares(natural: Sequence[int], least: Sequence[int], room: int) -> list[int] | None:
    """Widths from `least` to `natural` that fill `room`, the widest ones giving way first; None: not even the least fit."""
    if sum(least) > room:
        return None

    def at_most(cap: int) -> list[int]:
        return [min(most, max(fewest, cap)) for most, fewest in zip(natural, least, strict=True)]

    cap = max(cap for cap in range(room + 1) if sum(at_most(cap)) <= room)
    widths = at_most(cap)
    for i, most in enumerate(natural):
        if sum(widths) < room and widths[i] < most:
            widths[i] += 1
    return widths


def _plain(cell: RenderableType) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


def _in_a_line(header: str) -> str:
    """A header that was cut into lines, at a hyphen of its own or beside a stroke."""
    return re.sub(r"(?<=/)\n|\n(?=/)", "", header.replace("-\n", "")).replace("\n", " ")


def _texts(column: Column) -> Iterator[str]:
    yield _plain(column.header)
    yield from map(_plain, column.cells)


def _natural(column: Column) -> int:
    """The cells of its longest line, within what the column allows."""
    longest = max((cell_len(line) for text in _texts(column) for line in text.split("\n")), default=0)
    return max(min(longest, column.max_width or longest), column.min_width or 0)


def _least(column: Column, natural: int) -> int:
    """The cells that its words need, and that its sentences need to be read."""
    if column.no_wrap:
        return natural
    longest = max((cell_len(word) for text in _texts(column) for word in text.split()), default=0)
    return max(longest, LEAST)
