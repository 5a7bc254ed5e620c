"""The screen: all that is printed goes through it, so that no text steers a terminal, and none ends a command.

A name or a key of somebody else's may hold anything. Plain text passes `Screen`, which spells out what steers a terminal;
tables, bars and colours are rich's, and pass `console`, which does the same to their words and takes no word for markup.
"""

from __future__ import annotations

import codecs
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache, partial
from io import StringIO
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.segment import Segment
    from rich.table import Table

# C0 but tab and line feed, DEL, C1: escape sequences move the cursor, rename the window, hide what was written.
# Half a pair of UTF-16 is no character; those from U+DC80 are bytes of an argument that were no UTF-8.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

WIDTH = 120  # columns, where it is not known how many there are
READER_GONE = 141  # the status, as a shell has it for a command that SIGPIPE ended


def visible(text: str) -> str:
    r"""The text with every control character but tab and line feed written out, as in \x1b, and bytes that are no text."""
    return _CONTROL.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\u{number:04x}" if number >= 0xD800 and not 0xDC80 <= number < 0xDD00 else f"\\x{number & 0xFF:02x}"


def _nearest(error: UnicodeError) -> tuple[str, int]:
    """A sign of ASCII for each character that an encoding lacks: a minus stays one, and what has none is "?"."""
    assert isinstance(error, UnicodeEncodeError)
    said = error.object[error.start : error.end].translate(_SIGNS)
    return "".join(each if each.isascii() else "?" for each in said), error.end


_SIGNS = str.maketrans("−–─━│┌┐└┘├┤┬┴┼×·●…", "---=|+++++++++x*o.")
NEAREST = "anyformer.nearest"  # how an encoding is told of it
codecs.register_error(NEAREST, _nearest)


class Screen:
    """A text stream that writes what is visible of a text, near what its encoding lacks; `raw` is the stream itself."""

    buffer = None  # no way past it, for those who would rather write bytes

    def __init__(self, stream: TextIO) -> None:
        self.raw = stream
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors=NEAREST)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def write(self, text: str | bytes) -> int:
        said = text if isinstance(text, str) else text.decode(errors="replace")  # click writes completions as bytes
        with _to_a_reader(self.raw):
            self.raw.write(visible(said))
        return len(text)

    def flush(self) -> None:
        with _to_a_reader(self.raw):
            self.raw.flush()

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


class Unpadded:
    """A text stream that writes lines without spaces at their ends: tables fill their columns, which no file needs."""

    def __init__(self, stream: TextIO) -> None:
        self.raw = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def write(self, text: str) -> int:
        return self.raw.write(re.sub(r" +(?=\n|\Z)", "", text))


@contextmanager
def _to_a_reader(stream: TextIO) -> Iterator[None]:
    """End the program where who reads (head, less) has what it wanted and is gone."""
    try:
        yield
    except BrokenPipeError:
        forget_unwritten(stream)
        raise SystemExit(READER_GONE) from None


def forget_unwritten(stream: TextIO) -> None:
    """Have what could not be written to a stream go nowhere: Python would try it once more at its end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(text: object = "", *, end: str = "\n", stderr: bool = False) -> None:
    """Print a text, at once."""
    stream = sys.stderr if stderr else sys.stdout
    stream.write(f"{text}{end}")
    stream.flush()


@contextmanager
def on_screen(out: TextIO, errors: TextIO) -> Iterator[None]:
    """While it is entered, what goes to standard output and to standard error is shown on these."""
    with redirect_stdout(Screen(raw(out))), redirect_stderr(Screen(raw(errors))):  # type: ignore[type-var]
        yield


@contextmanager
def muted() -> Iterator[None]:
    """Without what other languages write to standard error by themselves: C++'s notices, the words of a panic in Rust."""
    with suppress(OSError, AttributeError):  # of a stream that is closed, or None
        sys.stderr.flush()
    try:
        kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except OSError:  # there is no standard error
        yield
        return
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def raw(stream: TextIO) -> TextIO:
    """The stream below a screen, or the stream that is none."""
    return getattr(stream, "raw", stream) if isinstance(stream, Screen) else stream


def console(width: int | None = None, *, stderr: bool = False) -> Console:
    """Where tables and bars are printed, `width` columns wide or as the terminal is; words are no markup."""
    stream = raw(sys.stderr if stderr else sys.stdout)
    file: Any = stream if stream.isatty() else Unpadded(stream)
    return _console()(file=file, width=width)


@cache
def _console() -> Callable[..., Console]:
    """Rich's console, whose words are visible ones and no markup."""
    from rich.console import Console  # late: most commands print no table, and all of them import this

    class Shown(Console):
        """Rich's console, whose words are visible ones."""

        def render_str(self, text: str, **options: Any) -> Any:
            return super().render_str(visible(text), **options)

        def render(self, *given: Any, **options: Any) -> Iterator[Segment]:
            for segment in super().render(*given, **options):
                yield segment if segment.control else segment._replace(text=visible(segment.text))

        def on_broken_pipe(self) -> None:
            with _to_a_reader(self.file):  # type: ignore[arg-type]
                raise BrokenPipeError

    return partial(Shown, markup=False, emoji=False, highlight=False)


def printed(*what: RenderableType, width: int = WIDTH) -> str:
    """What `console` prints of each, as one text without colours."""
    out = StringIO()
    shown = _console()(file=Unpadded(out), width=width, color_system=None)
    for each in what:
        shown.print(each)
    return out.getvalue().rstrip("\n")


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


@contextmanager
def silent() -> Iterator[None]:
    """Within it nothing shows of what packages of others say of their steps: by printing, by logging, by warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
