"""Tables that fit: what is printed at a width is written here by hand."""

import io
import itertools
from importlib.metadata import version

import pytest
from rich.console import Console

from anyformer.tables import FittedTable, shares

# Earlier ones give what is left of a line to other columns.
shares_as_shown = pytest.mark.skipif(
    tuple(map(int, version("rich").split(".")[:2])) < (14, 3), reason="rich before 14.3 shares out columns otherwise"
)


def printed(table: FittedTable, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def parts() -> FittedTable:
    table = FittedTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header, justify in (("part", "left"), ("old", "left"), ("new", "left"), ("tensors", "right")):
        table.add_column(header, justify=justify, no_wrap=justify == "right")  # type: ignore[arg-type]
    table.add_row("norm", "LayerNorm with a bias", "RMSNorm without one", "−64")
    table.add_row("layers", "12", "32", "")
    return table


def test_where_there_is_room_it_is_a_table() -> None:
    assert printed(parts(), 65) == [
        "part    old                    new                  tensors",
        "norm    LayerNorm with a bias  RMSNorm without one      −64",
        "layers  12                     32",
    ]


@shares_as_shown
def test_columns_wrap_between_words() -> None:
    assert printed(parts(), 54) == [
        "part    old                 new                tensors",
        "norm    LayerNorm with a    RMSNorm without        −64",
        "        bias                one",
        "layers  12                  32",
    ]


def test_where_no_column_can_be_read_rows_are_paragraphs() -> None:
    assert printed(parts(), 40) == [
        "norm",
        "  old  LayerNorm with a bias",
        "  new  RMSNorm without one",
        "  tensors −64",
        "layers",
        "  old  12",
        "  new  32",
    ]


def test_figures_without_headers_stand_beside_their_name() -> None:
    table = FittedTable(box=None, show_header=False, padding=(0, 2, 0, 0), title="memory")
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    table.add_row("weights of the model", "1,234,567,890", "and what goes with them on this machine")
    assert printed(table, 50) == [
        "memory",
        "weights of the model  1,234,567,890",
        "  and what goes with them on this machine",
    ]


def test_headers_that_were_cut_are_whole_again() -> None:
    table = FittedTable(box=None)
    table.add_column("name")
    for header in ("per-\nplexity", "tokens\n/s", "FLOPs/\ntoken", "bits per\nbyte"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_row("an-architecture-of-a-long-name", *("1,000,000",) * 4)
    said = "perplexity 1,000,000; tokens/s 1,000,000; FLOPs/token 1,000,000; bits per byte 1,000,000"
    assert " ".join(line.strip() for line in printed(table, 45)[1:]) == said


@pytest.mark.parametrize("room", range(6, 30))
def test_shares_are_the_evenest_of_all(room: int) -> None:
    """Against all widths there are: none leaves less room unused, and of those none has a wider widest column."""
    natural, least = (9, 4, 12), (3, 2, 5)
    widths = shares(natural, least, room)
    ways = itertools.product(*(range(low, high + 1) for low, high in zip(least, natural, strict=True)))
    fitting = [way for way in ways if sum(way) <= room]
    if not fitting:
        assert widths is None
        return
    assert widths is not None
    assert tuple(widths) in fitting
    most = max(map(sum, fitting))
    assert sum(widths) == most
    assert max(widths) == min(max(way) for way in fitting if sum(way) == most)
