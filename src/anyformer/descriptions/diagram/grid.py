"""A block diagram as data: boxes, frames, lines and labels on a grid of cells, from which pictures and text are made.

Points are whole numbers of cells, (0, 0) at the top left. A box of height h has its edges on rows y and y + h and one
line of text on each row between; a character is one cell wide.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

Point = tuple[int, int]
MARGIN = 2  # cells between a box's edge and its text, and around the whole
GAP = 1  # rows between boxes
ASIDE = 3  # columns between what stands side by side


@dataclass(frozen=True)
class Frame:
    """What encloses the parts of one layer, or of layers that repeat."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True)
class Box(Frame):
    """What encloses one part of the model. `kind` is what it is drawn as: attention, norm, embedding, head, sum …"""

    lines: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class Label:
    """Text without a box, from x on."""

    x: int
    y: int
    text: str


@dataclass(frozen=True)
class Stroke:
    """Horizontal and vertical stretches from point to point; `arrow`: it ends in a head."""

    points: tuple[Point, ...]
    arrow: bool = True


Mark = Frame | Label | Stroke


@dataclass(frozen=True)
class Diagram:
    """A whole figure, in cells."""

    width: int
    height: int
    marks: tuple[Mark, ...]

    def __str__(self) -> str:
        from anyformer.descriptions.diagram.text import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        """The picture, for a notebook: in an image of its own, since a style inside a page holds for all of it."""
        from anyformer.descriptions.diagram.svg import as_svg

        data = base64.b64encode(as_svg(self).encode()).decode()
        return f'<img alt="block diagram" src="data:image/svg+xml;base64,{data}">'

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The boxes, from the bottom."""
        return tuple(mark for mark in self.marks if isinstance(mark, Box))

    @property
    def lines(self) -> tuple[Stroke, ...]:
        return tuple(mark for mark in self.marks if isinstance(mark, Stroke))

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The frames, outer ones first."""
        return tuple(mark for mark in self.marks if isinstance(mark, Frame) and not isinstance(mark, Box))

    @property
    def labels(self) -> tuple[Label, ...]:
        return tuple(mark for mark in self.marks if isinstance(mark, Label))


@dataclass(frozen=True)
class FigurePart:
    """Part of a figure while it is put together: y counts up from its foot, and `axis` is where it is entered and left.

    `reads` are the points at which it wants to be handed the encoder's output.
    """

    left: int  # cells left of the axis
    right: int
    height: int
    marks: tuple[Mark, ...]  # x from the axis, y from the foot upward; a box's y is its upper edge
    reads: tuple[Point, ...] = ()

    def moved(self, dx: int, dy: int) -> FigurePart:
        """It shifted; its extent is no longer meant."""

        def to(at: Point) -> Point:
            return at[0] + dx, at[1] + dy

        return replace(self, marks=tuple(_mapped(mark, to) for mark in self.marks), reads=tuple(map(to, self.reads)))


def box(lines: Sequence[str], kind: str, *, reads: bool = False) -> FigurePart:
    """One box around its axis."""
    inside = max(map(len, lines))
    half = (inside + 2 * MARGIN + 1) // 2
    height = len(lines) + 1
    mark = Box(-half, height, 2 * half, height, tuple(lines), kind)
    return FigurePart(half, half, height, (mark,), ((-half, height - 1),) if reads else ())


def stacked(pieces: Sequence[FigurePart], gap: int = GAP) -> FigurePart:
    """Pieces one above the other, from the bottom, with arrows between them."""
    marks: list[Mark] = []
    reads: list[Point] = []
    height = 0
    for i, piece in enumerate(pieces):
        if i:
            marks.append(Stroke(((0, height), (0, height + gap))))
            height += gap
        placed = piece.moved(0, height)
        marks += placed.marks
        reads += placed.reads
        height += piece.height
    return FigurePart(max(p.left for p in pieces), max(p.right for p in pieces), height, tuple(marks), tuple(reads))


def beside(pieces: Sequence[FigurePart], *, joined: bool = True, fed: Sequence[bool] = ()) -> FigurePart:
    """Pieces side by side, fed from one point below (or only some), leading to one above if `joined`."""
    if len(pieces) == 1:
        return pieces[0]
    width = sum(p.left + p.right for p in pieces) + ASIDE * (len(pieces) - 1)
    tallest, x = max(p.height for p in pieces), -(width // 2)
    marks: list[Mark] = []
    reads: list[Point] = []
    for i, piece in enumerate(pieces):
        axis = x + piece.left
        placed = piece.moved(axis, 2)
        marks += [Stroke(((0, 0), (0, 1), (axis, 1), (axis, 2)))] if not fed or fed[i] else []
        marks += placed.marks
        if joined:
            way = ((axis, 2 + piece.height), (axis, 3 + tallest), (0, 3 + tallest), (0, 4 + tallest))
            marks.append(Stroke(way, arrow=False))
        reads += placed.reads
        x = axis + piece.right + ASIDE
    height = tallest + (4 if joined else 2)
    return FigurePart(width // 2, width - width // 2, height, tuple(marks), tuple(reads))


def added(inner: FigurePart, around: FigurePart | None = None) -> FigurePart:
    """A piece with the way around it: what goes in, or what stands on that way makes of it, is added to what comes out."""
    on_way = around or FigurePart(0, 0, 0, ())
    start, top = 1, max(inner.height, on_way.height) + 3
    channel = inner.right + 2 + on_way.left
    placed, end = inner.moved(0, 2), 2 + on_way.height
    way = (Stroke(((0, start), (channel, start), (channel, top), (1, top))),)
    if around is not None:
        into = Stroke(((0, start), (channel, start), (channel, 2)), True)
        way = (into, *around.moved(channel, 2).marks, Stroke(((channel, end), (channel, top), (1, top))))
    marks = (
        Stroke(((0, 0), (0, 2))),
        *placed.marks,
        Stroke(((0, inner.height + 2), (0, top))),
        Box(0, top, 0, 0, ("⊕",), "sum"),
        *way,
    )
    return FigurePart(max(inner.left, 1), channel + on_way.right + 1, top, marks, placed.reads)


def summed(inner: FigurePart) -> FigurePart:
    """A piece whose ways lead to one sum above it."""
    marks = (*inner.marks, Box(0, inner.height, 0, 0, ("⊕",), "sum"))
    return replace(inner, marks=marks)


def framed(inner: FigurePart, says: Sequence[str]) -> FigurePart:
    """A piece in a frame, with words at its upper right."""
    wide = max(inner.right, *(len(text) + MARGIN for text in says), 0)
    left, right, rows = inner.left + MARGIN, wide + MARGIN, max(1, len(says))
    height = inner.height + rows + 2
    placed = inner.moved(0, 1)
    marks: tuple[Mark, ...] = (
        Frame(-left, height, left + right, height),
        Stroke(((0, 0), (0, 1)), False),
        *placed.marks,
        Stroke(((0, inner.height + 1), (0, height)), False),
        *(Label(MARGIN, height - 1 - i, text) for i, text in enumerate(says)),
    )
    return FigurePart(left, right, height, marks, placed.reads)


def figure(main: FigurePart, encoder: FigurePart | None) -> Diagram:
    """The whole, the encoder to the left of what reads it; y now counts from the top."""
    marks, left, height = main.marks, main.left, main.height
    if encoder is not None:
        channel, top = -(main.left + ASIDE), encoder.height + 1
        shift = channel - ASIDE - encoder.right
        start = ((shift, encoder.height), (shift, top), (channel, top))
        leads = (Stroke((*start, (channel, y), (x, y))) for x, y in main.reads)
        marks = (*encoder.moved(shift, 0).marks, *main.marks, *leads)
        left, height = encoder.left - shift, max(main.height, top)
    flipped = tuple(_mapped(mark, lambda at: (at[0] + left + MARGIN, height + 1 - at[1])) for mark in marks)
    return Diagram(left + main.right + 2 * MARGIN, height + 2, tuple(_tidied(flipped)))


def wrapped(said: Iterable[str], width: int) -> list[str]:
    """Short phrases in lines of at most so many characters, with commas between them; a longer phrase is cut at words."""
    lines: list[str] = []
    for phrase in said:
        if lines and len(lines[-1]) + 2 + len(phrase) <= width:
            lines[-1] += f", {phrase}"
            continue
        rest = phrase
        while len(rest) > width:
            at = rest.rfind(" ", 0, width + 1)
            at = width if at <= 0 else at
            lines.append(rest[:at])
            rest = rest[at:].lstrip()
        if rest:
            lines.append(rest)
    return lines


def _tidied(marks: Sequence[Mark]) -> Iterator[Mark]:
    """The marks without lines of no length, and with arrow heads only where something is entered."""
    sums = {(mark.x, mark.y) for mark in marks if isinstance(mark, Box) and not mark.width}
    entered = [mark for mark in marks if isinstance(mark, Frame) and mark.width]
    for mark in marks:
        if not isinstance(mark, Stroke):
            yield mark
        elif len(set(mark.points)) > 1:
            end = mark.points[-1]
            beside_a_sum = (end[0] - 1, end[1]) in sums
            yield replace(mark, arrow=mark.arrow and (beside_a_sum or any(_on_edge(end, each) for each in entered)))


def _on_edge(point: Point, place: Frame) -> bool:
    x, y = point[0] - place.x, point[1] - place.y
    inside = 0 <= x <= place.width and 0 <= y <= place.height
    return inside and (x in (0, place.width) or y in (0, place.height))


def _mapped(mark: Mark, to: Callable[[Point], Point]) -> Mark:
    if isinstance(mark, Stroke):
        return replace(mark, points=tuple(map(to, mark.points)))
    x, y = to((mark.x, mark.y))
    return replace(mark, x=x, y=y)
