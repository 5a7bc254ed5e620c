"""How results show themselves: what `as_json` says, as tables; in HTML, of a notebook or a page, every text is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template

MOST_ROWS = 100  # of a table; how many more there are is said


class ShowsItself:
    """A result with `as_json`, which is shown as tables, printed or in a notebook."""

    def as_json(self) -> Any:
        """Plain data; keys are stable within a `version`."""
        raise TypeError(f"{type(self).__name__} has no as_json of its own, so there is nothing to show")

    def _repr_html_(self) -> str:
        return as_html(self.as_json(), type(self).__name__)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython shows where it has no HTML."""
        printer.text(str(self))

    def __str__(self) -> str:
        return as_text(self.as_json(), type(self).__name__)


def page_template(package: str, name: str) -> Template:
    """NAME.html of a package, to be rendered to a page that opens offline: its `css` and `js` are the files beside it."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=PackageLoader(package, ""), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    beside = {kind: (files(package) / f"{name}.{kind}").read_text(encoding="utf-8") for kind in ("css", "js")}
    made.globals |= {kind: Markup(text) for kind, text in beside.items()}  # ours, not the user's
    return made.get_template(f"{name}.html")


def as_html(value: Any, title: str = "") -> str:
    """Plain data as HTML: a mapping's figures are one table, a list of mappings another; what they hold is a section."""
    heading = f"<h4>{escape(title.replace('_', ' '))}</h4>" if title else ""
    if isinstance(value, Mapping):
        figures = {key: item for key, item in value.items() if not _is_inside(item)}
        rows = [f"<tr><th>{escape(str(key))}</th>{_cell(item)}</tr>" for key, item in figures.items()]
        inside = (as_html(item, str(key)) for key, item in value.items() if _is_inside(item))
        return heading + _table(rows) + "".join(inside)
    if _is_inside(value):
        columns = list(dict.fromkeys(key for row in value for key in row))
        head = "".join(f"<th>{escape(str(column).replace('_', ' '))}</th>" for column in columns)
        rows = ["".join(_cell(row.get(column)) for column in columns) for row in value]
        return heading + _table([f"<tr>{row}</tr>" for row in (head, *rows)])
    return heading + _table([f"<tr>{_cell(value)}</tr>"])


def as_text(value: Any, title: str = "") -> str:
    """Plain data as text, in the order of `as_html`."""
    heading, inside = [title.replace("_", " ")] if title else [], list[str]()
    if isinstance(value, Mapping):
        figures = {key: item for key, item in value.items() if not _is_inside(item)}
        lines = _aligned([[str(key), _words(item)] for key, item in figures.items()])
        inside = [as_text(item, str(key)) for key, item in value.items() if _is_inside(item)]
    elif _is_inside(value):
        columns = list(dict.fromkeys(key for row in value for key in row))
        lines = _aligned([columns, *([_words(row.get(column)) for column in columns] for row in value)])
    else:
        lines = [_words(value)]
    own = [*heading, *lines]
    return "\n\n".join(["\n".join(own), *inside] if own else inside)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, of whose cells those of a column begin below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _is_inside(value: Any) -> bool:
    """Whether a value is a section of its own: a mapping, or a list of mappings."""
    if isinstance(value, Mapping):
        return bool(value)
    return _is_list(value) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _table(rows: list[str]) -> str:
    if not rows:
        return ""
    more = len(rows) - 1 - MOST_ROWS
    shown = rows if more <= 0 else [*rows[: 1 + MOST_ROWS], f"<tr><td>… {more:,} more</td></tr>"]
    return f"<table>{''.join(shown)}</table>"


def _cell(value: Any) -> str:
    return f"<td>{escape(_words(value))}</td>"


def _words(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(item)}" for key, item in value.items())
    return ", ".join(_words(item) for item in value) if _is_list(value) else str(value)
