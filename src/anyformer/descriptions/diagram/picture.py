"""A block diagram as a file: SVG as it is, PNG and PDF by CairoSVG."""

from __future__ import annotations

from anyformer.descriptions.diagram.grid import Diagram
from anyformer.descriptions.diagram.svg import as_svg
from anyformer.errors import UsageError

FORMS = (".svg", ".png", ".pdf")
SCALE = 2  # pixels of a PNG for one of the SVG: letters are smooth on a page of print size


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
