"""Loss curves in characters: where a mark must stand is worked out by hand."""

from itertools import pairwise

import pytest

from anyformer.training.run.chart import COLUMNS, MARKS, ROWS, SCALE, LossCurves


def plot(curves: LossCurves, columns: int = 80) -> list[str]:
    """The rows of the plot, without the scale beside them."""
    chart = curves.drawn(columns)
    assert chart is not None
    lines = chart.plain.splitlines()
    assert lines[0] == "loss"
    return [line[SCALE + 2 :] for line in lines[1 : ROWS + 1]]


def filled(*losses: float, tokens: int = 6_400, title: str = "a") -> LossCurves:
    curves = LossCurves()
    curves.begin(title, tokens)
    for i, loss in enumerate(losses):
        curves.add(title, (i + 1) * tokens // len(losses), loss)
    return curves


def test_two_levels_are_two_rows() -> None:
    rows = plot(filled(*[2.0] * 32, *[1.0] * 32))
    assert rows[0].rstrip() == "o" * 32
    assert rows[-1] == " " * 32 + "o" * 32
    assert not any(row.strip() for row in rows[1:-1])


def test_a_straight_line_falls_evenly() -> None:
    rows = plot(filled(*(10.0 - i / COLUMNS for i in range(COLUMNS))))
    firsts = [len(row) - len(row.lstrip()) for row in rows if row]
    assert len(firsts) == ROWS
    assert firsts == sorted(firsts)
    # The first row holds what is above the plot too.
    steps = [after - before for before, after in pairwise(firsts[1:])]
    assert set(steps) <= {6, 7}  # 56 columns below the steep beginning, over 9 rows


def test_a_column_is_the_mean_of_its_steps() -> None:
    curves = filled(*[4.0, 2.0] * COLUMNS)
    assert plot(curves)[0] == "o" * COLUMNS  # all of them 3: one row
    chart = curves.drawn(80)
    assert chart is not None
    assert chart.plain.endswith("a 3.000")


def test_what_is_steep_lies_above_the_plot() -> None:
    """Else the end of a run, where models differ by hundredths, would be one row."""
    losses = [9.0] * 4 + [3.0 - i / 60 for i in range(60)]
    chart = filled(*losses).drawn(80)
    assert chart is not None
    assert float(chart.plain.splitlines()[1].split()[0]) < 3.01
    assert plot(filled(*losses))[0].lstrip().startswith("ooo")


def test_each_run_has_its_mark_and_its_last_loss() -> None:
    curves = filled(2.0, 1.5)
    curves.begin("b", 6_400)
    curves.add("b", 6_400, 1.25)
    chart = curves.drawn(80)
    assert chart is not None
    assert [line.split() for line in chart.plain.splitlines()[-2:]] == [["o", "a", "1.500"], ["+", "b", "1.250"]]
    assert "6,400 tokens" in chart.plain
    for i in range(10):
        curves.begin(f"more {i}", 100)
        curves.add(f"more {i}", 50, 2.0)
    many = curves.drawn(80)
    assert many is not None
    assert [line.split()[0] for line in many.plain.splitlines()[-len(MARKS) :]] == list(MARKS)
    assert "more 9 2.000" in many.plain
    assert "a 1.500" not in many.plain


def test_a_run_of_fewer_tokens_ends_earlier() -> None:
    curves = filled(*[2.0] * 64)
    curves.begin("half", 3_200)
    for i in range(64):
        curves.add("half", (i + 1) * 50, 1.0)
    assert plot(curves)[-1].rstrip() == "+" * 32


@pytest.mark.parametrize("columns", [42, 60, 80, 200])
def test_it_is_no_wider_than_its_terminal(columns: int) -> None:
    chart = filled(*[2.0] * 32, *[1.0] * 32).drawn(columns)
    assert chart is not None
    assert max(map(len, chart.plain.splitlines()[: ROWS + 3])) <= columns


def test_where_there_is_nothing_to_draw_there_is_nothing() -> None:
    assert LossCurves().drawn(80) is None
    assert filled(2.0).drawn(30) is None
    assert filled(float("nan")).drawn(80) is None
