"""The card of an architecture: the field's rows, read off the specification, the recipe and the source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from anyformer.descriptions import words
from anyformer.descriptions.card.stack import CardRow, stack_rows
from anyformer.descriptions.card.training import training_rows
from anyformer.descriptions.facts import place_in
from anyformer.families import Preset, as_preset
from anyformer.recipe import Recipe
from anyformer.screen import facts, printed
from anyformer.spec import Architecture, HeadSpec, ModelSpec, parameters, parameters_by_part, specification
from anyformer.variants.parts import is_tied

if TYPE_CHECKING:
    from rich.table import Table

PUBLISHED = ", as published"


@dataclass(frozen=True)
class Card:
    """All rows, in the order in which they are shown."""

    rows: tuple[CardRow, ...]

    def __getitem__(self, key: str) -> CardRow:
        """The first row of this key: of an encoder–decoder, the encoder's."""
        return next(row for row in self.rows if row.key == key)

    def section(self, name: str) -> tuple[CardRow, ...]:
        return tuple(row for row in self.rows if row.section == name)

    @property
    def sections(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.section for row in self.rows))

    def table(self, title: str = "") -> Table:
        """The rows as they are printed."""
        from rich.text import Text

        found = facts(title)
        for i, section in enumerate(self.sections):
            if i:
                found.add_row("", "")
            if len(self.sections) > 1:
                found.add_row(Text(section, style="bold"), "")
            for row in self.section(section):
                found.add_row(row.name, row.words)
        return found

    def __str__(self) -> str:
        return printed(self.table())

    def _repr_html_(self) -> str:
        """The rows as a table, for a notebook."""
        lines = []
        for section in self.sections:
            lines.append(f'<tr><th colspan="2">{escape(section)}</th></tr>')
            lines += [f"<tr><td>{escape(r.name)}</td><td>{escape(r.words)}</td></tr>" for r in self.section(section)]
        return f"<table>{''.join(lines)}</table>"

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(row) for row in self.rows]


def card(model: Architecture, recipe: Recipe | None = None) -> Card:
    """Everything about an architecture, row by row; rows that do not apply are left out.

    Of a preset, its tokenizer, source and recipe too, unless another `recipe` is given. Nothing is allocated. Raises
    SpecError for what has no specification or whose parts do not fit together.
    """
    model = as_preset(model)
    spec = specification(model)
    rows = [
        row
        for name, stack in spec.stacks.items()
        for row in stack_rows(stack, name or "architecture", place_in(spec, stack))
    ]
    rows += _whole(spec)
    preset = model if isinstance(model, Preset) else None
    recipe = recipe or (preset and preset.recipe)
    rows += training_rows(recipe, spec.stack.d_model) if recipe else ()
    if preset:
        told = list(_told(preset)) if recipe is preset.recipe else []
        better = {row.name.removesuffix(PUBLISHED) for row in told}
        rows = [row for row in rows if row.key not in ("gradient_dtype", "state_dtype") or row.name not in better]
        rows += [*told, *_published(preset)]
    return Card(tuple(rows))


def _whole(spec: ModelSpec) -> Iterator[CardRow]:
    section, count = "model", parameters(spec)
    yield CardRow(section, "vocab_size", "vocabulary", f"{spec.vocab_size:,}", spec.vocab_size)
    if spec.context:
        yield CardRow(section, "context", "sequence length", f"{spec.context:,}", spec.context)
    for head in spec.heads:
        which = "" if len(spec.heads) == 1 else f" ({head.name})"
        yield CardRow(section, "head", f"head{which}", _head(head))
        if head.table is not None and head.table.rows == spec.vocab_size:
            tied = is_tied(head, spec)
            yield CardRow(section, "tied", f"embedding tied{which}", "yes" if tied else "no", tied)
        if head.scale is not None:
            yield CardRow(section, "logit_scale", f"logit scale{which}", words.scale(head.scale, "d_model"))
        if head.softcap is not None:
            yield CardRow(section, "logit_softcap", f"logit softcap{which}", words.number(head.softcap), head.softcap)
    yield CardRow(section, "init", "initialisation", words.start(spec.init))
    yield CardRow(section, "n_params", "parameters", f"{count.total:,}", count.total)
    by_part = dict(parameters_by_part(spec))
    said = ", ".join(f"{name} {n:,}" for name, n in by_part.items())
    yield CardRow(section, "n_params_by_part", "parameters by part", said, by_part)
    yield CardRow(section, "n_params_embedding", "parameters in tables", f"{count.embedding:,}", count.embedding)
    if n := len(spec.ahead):
        said = f"{n} further token{'s' if n > 1 else ''}, in training alone"
        yield CardRow(section, "n_ahead", "multi-token prediction", said, n)
    if count.inactive:
        yield CardRow(section, "n_params_active", "active parameters", f"{count.active:,}", count.active)
    if count.frozen:
        yield CardRow(section, "n_frozen", "numbers never trained", f"{count.frozen:,}", count.frozen)


def _told(preset: Preset) -> Iterator[CardRow]:
    """What a source says of training that a recipe cannot: in its words, beside the recipe's rows."""
    for name, said in (preset.training or {}).items():
        key = "published_" + "_".join(name.replace(",", " ").replace("-", " ").split())
        yield CardRow("training", key, "source of training" if name == "source" else name + PUBLISHED, said)


def _published(preset: Preset) -> Iterator[CardRow]:
    for key in ("tokenizer", "published", "erratum", "source"):
        if value := getattr(preset, key):
            yield CardRow("source", key, "published parameters" if key == "published" else key, value)


def _head(head: HeadSpec) -> str:
    steps = [*([words.phrase(head.pool)] if head.pool else []), *map(words.step, head.transform)]
    steps = [words.of_a_head(head.layers), *steps] if head.layers else steps
    table = f"{head.table.rows:,} logits" if head.table else None
    table = f"{table} by features beside the table's too" if head.beside else table
    return ", ".join(filter(None, (head.name, *steps, table, "bias" if head.bias else None)))
