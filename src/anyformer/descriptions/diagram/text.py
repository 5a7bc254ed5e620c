"""A block diagram in characters, for the terminal."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from anyformer.descriptions.diagram.grid import Diagram, Frame, Point, Stroke

UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8
STROKES = {
    UP: "│", DOWN: "│", LEFT: "─", RIGHT: "─",
    UP | DOWN: "│", LEFT | RIGHT: "─",
    UP | LEFT: "┘", UP | RIGHT: "└", DOWN | LEFT: "┐", DOWN | RIGHT: "┌",
    UP | DOWN | LEFT: "┤", UP | DOWN | RIGHT: "├", LEFT | RIGHT | UP: "┴", LEFT | RIGHT | DOWN: "┬",
    UP | DOWN | LEFT | RIGHT: "┼",
}  # fmt: skip
HEADS = {(0, -1): "▲", (0, 1): "▼", (1, 0): "▶", (-1, 0): "◀"}
BITS = {(0, -1): (UP, DOWN), (0, 1): (DOWN, UP), (1, 0): (RIGHT, LEFT), (-1, 0): (LEFT, RIGHT), (0, 0): (0, 0)}
LONG = 3  # cells of a last stretch from which on there is room for an arrow's head


def as_text(drawn: Diagram) -> str:
    """The figure as lines of characters, without spaces at their ends."""
    cells: dict[Point, str] = {}
    for frame in drawn.frames:
        cells |= _frame(frame)
    strokes: dict[Point, int] = defaultdict(int)
    for box in drawn.boxes:
        right, below = box.x + box.width, box.y + box.height
        _stroke(strokes, (box.x, box.y), (right, box.y), (right, below), (box.x, below), (box.x, box.y))
    edges = set(strokes)
    for line in drawn.lines:
        _stroke(strokes, *line.points)
    cells |= {point: STROKES[bits] for point, bits in strokes.items()}
    for line in drawn.lines:
        cells |= _head(line, edges)
    for box in drawn.boxes:
        for i, said in enumerate(box.lines):
            middle = box.x + (box.width - len(said) + 1) // 2
            y = box.y + 1 + i if box.height else box.y
            start = middle if box.width else box.x
            cells |= {(start + j, y): character for j, character in enumerate(said)}
    for label in drawn.labels:
        cells |= {(label.x + i, label.y): character for i, character in enumerate(label.text)}
    rows = ("".join(cells.get((x, y), " ") for x in range(drawn.width + 1)).rstrip() for y in range(drawn.height + 1))
    return "\n".join(rows).strip("\n")


def _step(a: Point, b: Point) -> Point:
    return (b[0] > a[0]) - (b[0] < a[0]), (b[1] > a[1]) - (b[1] < a[1])


def _stroke(strokes: dict[Point, int], *points: Point) -> None:
    """Draw from point to point: each cell on the way is left towards the next and entered from the last."""
    for a, b in pairwise(points):
        step = _step(a, b)
        there, back = BITS[step]
        while a != b:
            strokes[a] |= there
            a = (a[0] + step[0], a[1] + step[1])
            strokes[a] |= back


def _frame(frame: Frame) -> dict[Point, str]:
    x, y, right, below = frame.x, frame.y, frame.x + frame.width, frame.y + frame.height
    cells = {(i, j): "╌" for i in range(x, right + 1) for j in (y, below)}
    cells |= {(i, j): "┊" for i in (x, right) for j in range(y, below + 1)}
    return cells | {(x, y): "╭", (right, y): "╮", (x, below): "╰", (right, below): "╯"}


def _head(line: Stroke, edges: set[Point]) -> dict[Point, str]:
    """The arrow's head: at the end, or before the edge of a box, where the last stretch is long enough."""
    start, end = line.points[-2:]
    step = _step(start, end)
    if not line.arrow or abs(end[0] - start[0]) + abs(end[1] - start[1]) < LONG:
        return {}
    return {(end[0] - step[0], end[1] - step[1]) if end in edges else end: HEADS[step]}
