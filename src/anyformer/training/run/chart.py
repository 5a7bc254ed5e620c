"""Loss curves in characters: what is looked at while models train."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

COLUMNS, ROWS = 64, 10  # cells of the plot
SCALE = 6  # cells of a number beside it
MARKS = "o+x*#@"  # of the curves, of which the last so many are drawn
STYLES = ("cyan", "magenta", "yellow", "green", "red", "blue")
STEEP = 1 / 8  # of the tokens: losses there may lie above the plot, so that what comes later is told apart


class ChartPoint(NamedTuple):
    """The mean loss, in nats a token, of the steps that one column shows."""

    column: int
    loss: float
    n_steps: int


class LossCurves:
    """Training losses over tokens, a curve a run, in the order in which the runs began."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}  # of each whole run
        self._points: dict[str, list[ChartPoint]] = {}

    def begin(self, title: str, tokens: int) -> None:
        """A run of so many tokens; one of the same title starts its curve anew."""
        self._tokens.pop(title, None)
        self._tokens[title], self._points[title] = max(1, tokens), []

    def add(self, title: str, tokens: int, loss: float) -> None:
        """The loss of one step, `tokens` after the run's start; what is no number is left out."""
        points = self._points[title]
        column = min(COLUMNS - 1, (tokens - 1) * COLUMNS // self._tokens[title])
        if loss != loss:
            return
        if points and points[-1].column == column:
            _, mean, n = points[-1]  # replaced at once: another thread draws
            points[-1] = ChartPoint(column, mean + (loss - mean) / (n + 1), n + 1)
        else:
            points.append(ChartPoint(column, loss, 1))

    def drawn(self, columns: int) -> Text | None:
        """The chart in at most so many columns; None: there is nothing yet, or no room."""
        from rich.text import Text

        width = min(COLUMNS, columns - SCALE - 3)
        titles = [title for title, points in self._points.items() if points][-len(MARKS) :]
        if not titles or width < COLUMNS // 2:
            return None
        end = max(self._tokens[title] for title in titles)
        curves = {title: list(self._scaled(title, end, width)) for title in titles}
        every = [point for points in curves.values() for point in points]
        low = min(loss for _, loss in every)
        high = max([loss for column, loss in every if column >= STEEP * width] or [loss for _, loss in every])
        cells: dict[tuple[int, int], int] = {}
        for i, points in enumerate(curves.values()):
            for column, loss in points:
                row = round((high - min(loss, high)) / (high - low or 1.0) * (ROWS - 1))
                cells[row, column] = i
        text = Text("loss\n")
        for row in range(ROWS):
            value = high - (high - low) * row / (ROWS - 1)
            text.append(f"{value:{SCALE}.3f} ┤" if row % 3 == 0 else f"{'':{SCALE}} │")
            line = [cells.get((row, column)) for column in range(width)]
            while line and line[-1] is None:
                line.pop()
            for i in line:
                text.append(" " if i is None else MARKS[i], style="" if i is None else STYLES[i])
            text.append("\n")
        text.append(f"{'':{SCALE}} └{'─' * width}\n{'':{SCALE}}  0{f'{end:,} tokens':>{width - 1}}\n")
        for i, (title, points) in enumerate(curves.items()):
            text.append(f"{'':{SCALE}}  {MARKS[i]} {title} {points[-1][1]:.3f}\n", style=STYLES[i])
        text.right_crop(1)
        return text

    def _scaled(self, title: str, end: int, width: int) -> Iterator[tuple[int, float]]:
        """(column, loss) of a curve where `width` columns stand for `end` tokens."""
        for column, loss, _ in self._points[title]:
            yield int(column / COLUMNS * self._tokens[title] / end * width), loss

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        chart = self.drawn(options.max_width)
        if chart is not None and console.height > ROWS + len(MARKS) + 4:
            yield chart
