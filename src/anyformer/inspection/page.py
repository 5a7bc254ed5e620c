"""An inspection as one HTML file that needs nothing else: figures, maps and styles are inside, and it opens offline."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

from anyformer.amounts import counted
from anyformer.disk.atomic import refuse_place, write_named
from anyformer.errors import UsageError
from anyformer.inspection.page_figures import (
    MEASURES,
    expert_grids,
    figure,
    head_grids,
    known,
    layer_tables,
    named,
    neuron_tables,
)
from anyformer.inspection.page_tokens import lens_rows, map_data, shown
from anyformer.inspection.results import Inspection
from anyformer.notebook import page_template
from anyformer.screen import visible


def refuse_page(target: Path) -> None:
    """Raise UsageError for what is no name of a page, such as a model's, and for a folder that is not there."""
    if target.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--out {target}: a page is a file that ends in .html; name one")
    refuse_place("--out", target)


def write_page(found: Inspection, path: str | Path, *, title: str) -> Path:
    """Write the page of `found` to `path` (an .html file, replaced as a whole) and return the path.

    Raises RunFailed if the file cannot be written; a former page is then still there; and what `refuse_page` does.
    """
    target = Path(path)
    refuse_page(target)
    write_named(target, render_page(found, title).encode(errors="replace"), "the page ")
    return target


def render_page(found: Inspection, title: str) -> str:
    """The page as one HTML document. All text of `found` is escaped, and what does not print is spelled out."""
    measures = [each for each in MEASURES if any(getattr(head, each.name) is not None for head in found.heads)]
    reading = found.reading
    return page_template("anyformer.inspection", "page").render(
        found=found, title=visible(title), headline=_headline(found), measures=measures, reading=reading,
        stacks=layer_tables(found.layers), grids=head_grids(found.heads, measures), lens=lens_rows(reading) if reading else [],
        experts=expert_grids(found.parts), neurons=neuron_tables(found.parts),
        data={"measures": [each._replace(words=each.words.format(unit=found.unit))._asdict() for each in measures],
              "heads": [[known(getattr(head, each.name)) for each in measures] for head in found.heads],
              "maps": map_data(reading.maps, found.heads) if reading else []},
        counted=counted, figure=figure, shown=shown,
    )  # fmt: skip


def _headline(found: Inspection) -> list[tuple[str, str]]:
    """The page's first sentences as pairs of text and style: which layers matter most and least, and which head does."""
    costs = [
        (each.without, f"{each.stack} layer {each.layer}".strip()) for each in found.layers if isfinite(each.without)
    ]
    if not costs:
        return [(f"A loss of {figure(found.loss)} {found.unit}.", "")]
    (most, first), (least, last) = max(costs), min(costs)
    text = [("Passing over ", ""), (first, "strong"), (f" costs {figure(most)} {found.unit}", "")]
    if last != first:
        text += [(", the most; " if least >= 0 else ", the most; without ", ""), (last, "strong")]
        text += [
            (f" costs {figure(least)}, the least", "") if least >= 0 else (f" the loss is {figure(-least)} lower", "")
        ]
    heads = [
        (each.importance, each) for each in found.heads if each.importance is not None and isfinite(each.importance)
    ]
    if len(heads) > 1:
        head = max(heads, key=lambda each: each[0])[1]
        text += [(". The head that matters most is ", ""), (named(head), "strong")]
    return [*text, (".", "")]
