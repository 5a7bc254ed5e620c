"""The field's history: a table with a row for each generation of models, and what each generation changed of the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from anyformer.amounts import count
from anyformer.descriptions import feed_forwards, options, words
from anyformer.descriptions.diff.diff import DiffRow, rows_of
from anyformer.descriptions.diff.rows import SIZES
from anyformer.descriptions.facts import head_sharing, norm_places, position_parts, position_terms
from anyformer.families import PRESETS, Preset
from anyformer.families.lineage import Misprint
from anyformer.families.tree import TREE, lineage_of, path
from anyformer.layers import AttentionSpec, GQASpec, MoESpec, NormSpec, RouterSpec
from anyformer.notebook import ShowsItself
from anyformer.screen import WIDTH, plain_table, printed
from anyformer.spec import BlockSpec, parameters
from anyformer.tables import LEAST
from anyformer.variants.parts import attentions, feeds, layers, norms

if TYPE_CHECKING:
    from rich.console import RenderableType

NOTHING = ("", "–")  # what a cell says that has nothing to say
WIDE = 200  # columns that the whole table takes


@dataclass(frozen=True)
class Entry:
    """One generation."""

    year: int
    model: str  # the preset that it is known by
    parameters: int
    cells: Mapping[str, str]  # by column
    marks: tuple[Misprint, ...]  # where published versions of the table print another cell
    source: str


@dataclass(frozen=True)
class History(ShowsItself):
    """The table, by year."""

    columns: tuple[str, ...]
    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        return printed(*shown(self, WIDTH))

    def as_json(self) -> dict[str, Any]:
        """Plain data; keys are stable within a `version`."""
        entries = [{**asdict(entry), "marks": [mark._asdict() for mark in entry.marks]} for entry in self.entries]
        return {"version": 1, "columns": list(self.columns), "entries": entries}


@dataclass(frozen=True)
class Step:
    """From one generation to the next, or, `back`, to the one that it descends from."""

    names: tuple[str, str]  # presets
    back: bool
    year: int  # of the younger one
    changed: str  # in a phrase: what the younger one did
    source: str
    rows: tuple[DiffRow, ...]  # parts that differ, sizes last

    @property
    def parts(self) -> tuple[DiffRow, ...]:
        return tuple(row for row in self.rows if row.part not in SIZES)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def history() -> History:
    """The table of every lineage of the family tree, read off the preset that it is known by."""
    entries = []
    for line in sorted(TREE.values(), key=lambda line: line.year):
        preset = PRESETS[line.known]
        cells = {name: read(preset) for name, read in COLUMNS.items()}
        n_params = parameters(preset.spec).total
        entries.append(Entry(line.year, preset.name, n_params, cells, line.misprints, preset.source))
    return History(tuple(COLUMNS), tuple(entries))


def rows(found: History) -> tuple[list[list[str]], list[str]]:
    """The table's lines, marks numbered, and the notes to the marks."""
    lines, notes = [], []
    for entry in found.entries:
        cells = dict(entry.cells)
        for mark in entry.marks:
            notes.append(f"{entry.model}, {mark.column}: often printed as {mark.printed}; {mark.reason}")
            cells[mark.column] += f" [{len(notes)}]"
        lines.append(
            [str(entry.year), entry.model, count(entry.parameters), *(cells[column] for column in found.columns)]
        )
    return lines, notes


def shown(found: History, width: int) -> Iterator[RenderableType]:
    """What is printed of the table: lines of cells, or where no column could hold its words a paragraph each; notes."""
    from rich.padding import Padding
    from rich.text import Text

    lines, notes = rows(found)
    names = ("year", "model", "size", *found.columns)
    if width >= sum(1 + _least(column) for column in zip(names, *lines, strict=True)):
        looks = [{"header": name, "overflow": "fold", "no_wrap": name in ("year", "model")} for name in names]
        table = plain_table("", *looks, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
        for line in lines:
            table.add_row(*line)
        yield table
    else:
        for year, model, size, *cells in lines:
            yield Text(f"{year} {model}, {size}", style="bold")
            said = (f"{name} {cell}" for name, cell in zip(found.columns, cells, strict=True) if cell not in NOTHING)
            yield Padding("; ".join(said), (0, 0, 0, 5))
    if notes:
        yield "\nPrinted otherwise elsewhere:"
        yield from (Text(f"[{i}] {note}", style="dim") for i, note in enumerate(notes, start=1))


def _least(column: Sequence[str]) -> int:
    """The width that its words need, and that its sentences need to be read."""
    longest = max(len(word) for cell in column for word in cell.split())
    return max(longest, min(LEAST, max(map(len, column))))


def lineage(a: Preset, b: Preset) -> tuple[Step, ...]:
    """The steps from a to b: up to the common ancestor, and down; one step within a lineage."""
    lines = path(lineage_of(a.name), lineage_of(b.name))
    if len(lines) == 1:
        rows = _rows(a, b)
        return (Step((a.name, b.name), False, lines[0].year, "another size", lines[0].source, rows),) if rows else ()
    presets = [a, *(PRESETS[line.known] for line in lines[1:-1]), b]
    steps = []
    for (older, newer), (before, after) in zip(pairwise(presets), pairwise(lines), strict=True):
        back = before.parent == after.name
        younger = before if back else after
        rows = _rows(older, newer)
        steps.append(Step((older.name, newer.name), back, younger.year, younger.changed, younger.source, rows))
    return tuple(steps)


def _rows(a: Preset, b: Preset) -> tuple[DiffRow, ...]:
    found = [row for row in rows_of(a, b) if row.differs]
    return tuple(sorted(found, key=lambda row: row.part in SIZES))


def _blocks(preset: Preset) -> list[BlockSpec]:
    return [block for stack in preset.spec.stacks.values() for block in layers(stack)]


def _by_layer(read: Callable[[BlockSpec], Iterable[str | None]], none: str = "") -> Callable[[Preset], str]:
    """What is read of every layer of every stack, different phrases once each."""
    return lambda preset: words.each(said for block in _blocks(preset) for said in read(block)) or none


def _norm(preset: Preset) -> str:
    def of(norm: NormSpec) -> str:
        return words.norm(norm.but(weight_offset=0.0) if getattr(norm, "weight_offset", 0.0) else norm)

    return words.each(of(norm) for stack in preset.spec.stacks.values() for norm in norms(stack)) or "none"


def _branches(preset: Preset) -> str:
    parallel = [sublayer for block in _blocks(preset) for sublayer in block.sublayers if len(sublayer.branches) > 1]
    late = any(branch.late for sublayer in parallel for branch in sublayer.branches)
    return ("parallel, one late" if late else "parallel") if parallel else "serial"


def _experts(router: RouterSpec) -> str:
    return f"{router.top_k} of {router.n_experts}" + (f" and {router.n_identity} idle" if router.n_identity else "")


def _positions(preset: Preset) -> str:
    found: list[str] = []
    for stack in preset.spec.stacks.values():
        terms = position_terms(stack)
        found += map(words.kind, terms)
        for own in (position_parts(attention) for block in layers(stack) for attention in attentions(block)):
            found += map(words.kind, own) if own or terms else ["none in some layers"]
    return words.each(found, " + ") or "none"


def _sees(attention: AttentionSpec) -> str:
    best = f", {options.best(attention.indexer)}" if attention.indexer else ""
    beside = attention.compressor or attention.transient
    blocks = f", blocks of {beside.every:,}" if beside else ""
    memory = ", the encoder's tokens" if attention.memory else ""
    return words.seen(attention.mask) + blocks + memory + best


def _tricks(preset: Preset) -> str:
    spec, own = preset.spec, [a for block in _blocks(preset) for a in attentions(block)]
    projections = [a.projection for a in own]
    said = ["QK-norm"] if any(isinstance(p, GQASpec) and p.norm_query for p in projections) else []
    clips = dict.fromkeys(words.number(c) for p in projections if (c := getattr(p, "clip", None)) is not None)
    said += [f"q, k, v within ±{clip}" for clip in clips]
    caps = dict.fromkeys(words.number(a.softcap) for a in own if a.softcap is not None)
    said += [f"scores capped at {cap}" for cap in caps]
    said += [f"{n} streams"] if (n := spec.stack.residual.n_streams) > 1 else []
    said += ["sinks"] if any(a.sink for a in own) else []
    said += ["differences of heads"] if any(a.difference for a in own) else []
    said += ["convolved values"] if any(a.convolution for a in own) else []
    said += ["gated values"] if any(a.gate for a in own) else []
    said += [f"logits capped at {words.number(h.softcap)}" for h in spec.heads if h.softcap is not None]
    said += [f"logits × {words.scale(h.scale, 'd_model')}" for h in spec.heads if h.scale is not None]
    said += ["embedding norm"] if spec.stack.embedding.norm is not None else []
    for name, called in (("scale", "residual"), ("branch", "branches")):
        factor = getattr(spec.stack.residual.within(spec.stack.n_branches), name, 1.0)
        said += [f"{called} × {words.number(factor)}" if factor else f"no {called}"] if factor != 1 else []
    z_loss = preset.recipe.z_loss if preset.recipe else 0.0
    told = words.number(z_loss) if z_loss else (preset.training or {}).get("z-loss", "")
    said += [f"z-loss {told}"] if told else []
    return ", ".join(said) or "–"


COLUMNS: Mapping[str, Callable[[Preset], str]] = {
    "norm": _norm,
    "branches": _branches,
    "norm placed": _by_layer(lambda block: (words.PLACEMENTS[norm_places(sublayer)] for sublayer in block.sublayers)),
    "positions": _positions,
    "activation": _by_layer(lambda block: (feed_forwards.activation(mixer, exact=False) for mixer in feeds(block))),
    "attention": _by_layer(lambda block: (head_sharing(a.projection) for a in attentions(block))),
    "sees": _by_layer(lambda block: map(_sees, attentions(block))),
    "experts": _by_layer(lambda block: (_experts(m.router) for m in feeds(block) if isinstance(m, MoESpec)), "–"),
    "stability": _tricks,
}
