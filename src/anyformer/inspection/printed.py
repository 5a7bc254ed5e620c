"""An inspection as tables for a terminal: layers, the heads that matter most, and what would be said half way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from anyformer.amounts import counted
from anyformer.inspection.page_tokens import MARKS
from anyformer.screen import columns, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from anyformer.inspection.results import HeadFigures, Inspection, LayerFigures, PartsFigures, Reading

MOST_HEADS, MOST_PARTS, MOST_TOKENS = 12, 3, 12  # that are shown
SHARE = 0.2  # of a head's weight, to be said of it
KINDS = {
    "induction": "what came next the last time",
    "previous": "the token before",
    "itself": "itself",
    "first": "the first token",
}


def sections(found: Inspection) -> Iterator[RenderableType]:
    """What `anyformer inspect` prints."""
    from rich.text import Text

    yield Text(f"{found.loss:.4f} {found.unit} by {found.objective} ({counted(found.labels, 'label')})")
    yield _layers(found)
    if found.heads:
        yield _heads(found)
    if found.parts:
        yield _parts(found)
    if found.reading is not None and found.reading.answers:
        yield _answers(found.reading)


def _place(figures: LayerFigures | HeadFigures | PartsFigures) -> str:
    return f"{figures.stack} {figures.layer}".strip()


def _layers(found: Inspection) -> RenderableType:
    kinds = list(dict.fromkeys(branch.kind for layer in found.layers for branch in layer.branches))
    headers = ("ended here", "without it", *(f"without {kind}" for kind in kinds), "turns by")
    table = columns("what layers do for the loss", "layer", *headers)
    for layer in found.layers:
        of_kinds = {kind: [b.without for b in layer.branches if b.kind == kind] for kind in kinds}
        ended = "" if layer.ended is None else f"{layer.ended:.3f}"
        alone = (", ".join(f"{without:+.3f}" for without in each) for each in of_kinds.values())
        table.add_row(_place(layer), ended, f"{layer.without:+.3f}", *alone, f"{layer.turned:.3f}")
    return table


def _heads(found: Inspection) -> RenderableType:
    ranked = sorted(found.heads, key=lambda head: -(head.importance or 0))[:MOST_HEADS]
    title = (
        "heads"
        if len(ranked) == len(found.heads)
        else f"the {len(ranked)} of {len(found.heads)} heads that matter most"
    )
    table = columns(title, "layer", "head", "matters", "spread", "tokens back", "looks at")
    for head in ranked:
        matters = "" if head.importance is None else f"{head.importance:.4f}"
        back = "" if head.distance is None else f"{head.distance:.1f}"
        table.add_row(_place(head), f"{head.head}", matters, f"{head.entropy:.0%}", back, _looks_at(head))
    return table


def _looks_at(head: HeadFigures) -> str:
    """What a head has a good share of its weight on."""
    shares = {words: getattr(head, name) or 0.0 for name, words in KINDS.items()}
    return ", ".join(f"{words} {share:.0%}" for words, share in shares.items() if share >= SHARE)


def _parts(found: Inspection) -> RenderableType:
    table = columns("how few neurons and experts do most", "layer", "of", "half by", "90% by", "matters most")
    for each in found.parts:
        first = ", ".join(f"{i}" for i in each.importance.argsort(descending=True)[:MOST_PARTS].tolist())
        shares = (f"{each.share_with(share):.0%}" for share in (0.5, 0.9))
        table.add_row(_place(each), f"{len(each.importance):,} {each.parts}", *shares, first)
    return table


def _answers(reading: Reading) -> RenderableType:
    shown = range(min(MOST_TOKENS, len(reading.tokens)))
    table = columns("what it would say if it ended there", "layer", *(_mark(reading.tokens[i]) for i in shown))
    for answer in reversed(reading.answers):
        table.add_row(answer.layer, *(_mark(answer.says[i]) for i in shown))
    if any(each is not None for each in reading.right):
        table.add_row("right", *(_mark(reading.right[i] or "") for i in shown))
    return table


def _mark(token: str) -> str:
    """A token whose white space shows."""
    return visible(token.translate(str.maketrans(MARKS)))
