"""Where commands print: tables as wide as the terminal, and text that a model wrote without what steers a terminal."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH = 120  # columns, where the output is a file or a pipe

# C0 but tab and line feed, DEL, C1: escape sequences move the cursor, rename the window, hide what was written.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    r"""Return the text with every control character but tab and line feed written out, as in \x1b."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def console(width: int = WIDTH) -> Console:
    """Where tables are printed: as wide as the terminal, or `width` columns into a file."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else width, highlight=False)


def figures(title: str) -> Table:
    """Return a table to fill with rows of a name, a figure and a remark."""
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, show_header=False, padding=(0, 2, 0, 0)
    )
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    return table
