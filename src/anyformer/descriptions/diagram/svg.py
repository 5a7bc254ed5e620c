"""A block diagram as an SVG picture, in the style of the papers, for light and dark pages alike; as PNG and PDF by CairoSVG."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from anyformer.descriptions.diagram.grid import Box, Diagram, Frame, Stroke
from anyformer.errors import UsageError

FORMS = (".svg", ".png", ".pdf")
SCALE = 2  # pixels of a PNG for one of the SVG: letters are smooth on a page of print size
CELL = (7.5, 18.0)  # pixels of a cell
FONT = 12  # pixels
RADIUS = 7.5  # of the circle around a sum: where the line that comes from the side ends
LIGHT = {
    "page": "#ffffff", "ink": "#1f2328", "line": "#57606a", "frame": "#f3f4f6", "other": "#e7e9ec",
    "attention": "#ffe0b8", "feed-forward": "#c6e6f5", "norm": "#f4f2b8", "embedding": "#fbd9dc",
    "head": "#d3ecd2", "router": "#e3d8f5", "state": "#cdeae4", "map": "#e7e9ec", "input": "#ffffff", "sum": "#ffffff",
}  # fmt: skip
DARK = {
    "page": "#0d1117", "ink": "#e6edf3", "line": "#9aa4af", "frame": "#171d25", "other": "#30363d",
    "attention": "#6b4513", "feed-forward": "#154a63", "norm": "#55521a", "embedding": "#6a2f38",
    "head": "#1f5130", "router": "#46336b", "state": "#155048", "map": "#30363d", "input": "#0d1117", "sum": "#0d1117",
}  # fmt: skip


def as_picture(drawn: Diagram, form: str, title: str = "block diagram") -> bytes:
    """The bytes of a file that ends in `form`, one of `FORMS`. Raises UsageError for others, and without what draws it."""
    if form not in FORMS:
        raise UsageError(
            f"pictures are written as {', '.join(FORMS)}, not '{form}'; give a name that ends in one of these"
        )
    svg = as_svg(drawn, title).encode()
    if form == ".svg":
        return svg
    try:
        import cairosvg  # pyright: ignore[reportMissingImports]
    except (ImportError, OSError) as error:  # OSError: the package is there, and the cairo library is not
        missing = "the package cairosvg" if isinstance(error, ImportError) else "the library cairo (libcairo2)"
        raise UsageError(f"{form} needs {missing}; pip install 'anyformer[pictures]', or write an .svg") from None
    if form == ".png":
        return cairosvg.svg2png(bytestring=svg, scale=SCALE)
    return cairosvg.svg2pdf(bytestring=svg)


def as_svg(drawn: Diagram, title: str = "block diagram") -> str:
    """The text of an SVG file: the same for the same figure. `title` is what readers of the page are told."""
    width, height = drawn.width * CELL[0], drawn.height * CELL[1]
    size = {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size, "role": "img"})
    SubElement(root, "title").text = title
    SubElement(root, "style").text = _style()
    definitions = SubElement(root, "defs")
    marker = {"id": "head", "viewBox": "0 0 8 8", "refX": "8", "refY": "4", "orient": "auto"}
    arrow = SubElement(definitions, "marker", {**marker, "markerWidth": "7", "markerHeight": "7"})
    SubElement(arrow, "path", {"d": "M0 0.5 L8 4 L0 7.5 Z", "class": "tip"})
    SubElement(root, "rect", {"class": "page", "width": "100%", "height": "100%"})
    for frame in drawn.frames:
        _rectangle(root, frame, "frame", radius=10)
    for line in drawn.lines:
        _line(root, line)
    for box in drawn.boxes:
        _box(root, box)
    for label in drawn.labels:
        _text(root, label.x * CELL[0], label.y, label.text, "label")
    indent(root, " ")
    return tostring(root, encoding="unicode") + "\n"


def _style() -> str:
    """Rules with the colours written out, since not all that draws an SVG knows variables; a dark page's come after them."""
    rules = [
        f"text {{ font: {FONT}px system-ui, -apple-system, 'Segoe UI', Roboto, Arial, 'DejaVu Sans', sans-serif; "
        "text-anchor: middle; dominant-baseline: central; }",
        "text.name { font-weight: 600; }",
        "text.label { text-anchor: start; }",
        "rect, circle { stroke-width: 1; }",
        ".line { fill: none; stroke-width: 1.25; }",
        *_colours(LIGHT),
    ]
    dark = "\n".join(_colours(DARK))
    return "\n".join([*rules, f"@media (prefers-color-scheme: dark) {{\n{dark}\n}}"])


def _colours(of: Mapping[str, str]) -> list[str]:
    return [
        f"text {{ fill: {of['ink']}; }}",
        f"rect, circle {{ stroke: {of['line']}; }}",
        f".line {{ stroke: {of['line']}; }}",
        f".tip {{ fill: {of['line']}; }}",
        f".page {{ fill: {of['page']}; stroke: none; }}",
        *(f".{kind} {{ fill: {colour}; }}" for kind, colour in of.items() if kind not in ("page", "ink", "line")),
    ]


def _box(root: Element, box: Box) -> None:
    x = (box.x + box.width / 2) * CELL[0]
    if not box.width:
        y, arm = box.y * CELL[1], RADIUS - 3
        SubElement(root, "circle", {"class": box.kind, "cx": f"{x:g}", "cy": f"{y:g}", "r": f"{RADIUS:g}"})
        d = f"M{x - arm:g} {y:g} h{2 * arm:g} M{x:g} {y - arm:g} v{2 * arm:g}"
        SubElement(root, "path", {"class": "line", "d": d})
        return
    _rectangle(root, box, box.kind, radius=4)
    for i, said in enumerate(box.lines):
        _text(root, x, box.y + 1 + i, said, "name" if i == 0 and len(box.lines) > 1 else "")


def _rectangle(root: Element, place: Frame, kind: str, radius: int) -> None:
    x, y, width, height = place.x * CELL[0], place.y * CELL[1], place.width * CELL[0], place.height * CELL[1]
    at = {"x": f"{x:g}", "y": f"{y:g}", "width": f"{width:g}", "height": f"{height:g}", "rx": f"{radius}"}
    SubElement(root, "rect", {"class": kind, **at})


def _line(root: Element, line: Stroke) -> None:
    points = [f"{x * CELL[0]:g} {y * CELL[1]:g}" for x, y in line.points]
    head = {"marker-end": "url(#head)"} if line.arrow else {}
    SubElement(root, "path", {"class": "line", "d": "M" + " L".join(points), **head})


def _text(root: Element, x: float, row: float, said: str, kind: str) -> None:
    kinds = {"class": kind} if kind else {}
    SubElement(root, "text", {**kinds, "x": f"{x:g}", "y": f"{row * CELL[1]:g}"}).text = said
