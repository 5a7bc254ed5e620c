"""The card of an architecture: the field's rows, read off the specification, the recipe and the source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from anyformer.descriptions import words
from anyformer.descriptions.card.row import CardRow, joined
from anyformer.descriptions.card.stack import stack_rows
from anyformer.descriptions.card.training import training_rows
from anyformer.families import Preset
from anyformer.layers import ByRole, Normal, Xavier
from anyformer.recipe import Recipe
from anyformer.spec import Architecture, HeadSpec, InitSpec, ModelSpec, TableSpec, parameters, specification

PUBLISHED = ", as published"


@dataclass(frozen=True)
class Card:
    """All rows, in the order in which they are shown."""

    rows: tuple[CardRow, ...]

    def __getitem__(self, key: str) -> CardRow:
        """The first row of this key: of an encoder–decoder, the encoder's."""
        return next(row for row in self.rows if row.key == key)

    def section(self, name: str) -> tuple[CardRow, ...]:
        """The rows of one section."""
        return tuple(row for row in self.rows if row.section == name)

    @property
    def sections(self) -> tuple[str, ...]:
        """The sections that it has, in order."""
        return tuple(dict.fromkeys(row.section for row in self.rows))

    def as_json(self) -> list[dict[str, Any]]:
        """Plain data: one object a row."""
        return [asdict(row) for row in self.rows]


def card(model: Architecture, recipe: Recipe | None = None) -> Card:
    """Everything about an architecture, row by row; rows that do not apply are left out.

    Of a preset, its tokenizer, source and recipe too, unless another `recipe` is given. Nothing is allocated. Raises
    SpecError for what has no specification or whose parts do not fit together.
    """
    spec = specification(model)
    rows = [*_stacks(spec), *_whole(spec)]
    preset = model if isinstance(model, Preset) else None
    recipe = recipe or (preset and preset.recipe)
    rows += training_rows(recipe, spec.stack.d_model) if recipe else ()
    if preset:
        told = list(_told(preset)) if recipe is preset.recipe else []
        better = {row.name.removesuffix(PUBLISHED) for row in told}
        rows = [row for row in rows if row.key not in ("gradient_dtype", "state_dtype") or row.name not in better]
        rows += [*told, *_published(preset)]
    return Card(tuple(rows))


def _stacks(spec: ModelSpec) -> Iterator[CardRow]:
    for name, stack in spec.stacks.items():
        read = spec.encoder.d_model if spec.encoder and name == "decoder" else 0
        yield from stack_rows(stack, name or "architecture", read)


def _whole(spec: ModelSpec) -> Iterator[CardRow]:
    section, count = "model", parameters(spec)
    yield CardRow(section, "vocab_size", "vocabulary", f"{spec.vocab_size:,}", spec.vocab_size)
    if spec.context:
        yield CardRow(section, "context", "sequence length", f"{spec.context:,}", spec.context)
    for head in spec.heads:
        which = "" if len(spec.heads) == 1 else f" ({head.name})"
        yield CardRow(section, "head", "head" if not which else f"head{which}", _head(head))
        if head.table is not None and head.table.rows == spec.vocab_size:
            yield CardRow(
                section, "tied", f"embedding tied{which}", "yes" if _tied(head, spec) else "no", _tied(head, spec)
            )
        if head.scale is not None:
            yield CardRow(section, "logit_scale", f"logit scale{which}", words.scale(head.scale, "d_model"))
        if head.softcap is not None:
            yield CardRow(section, "logit_softcap", f"logit softcap{which}", words.number(head.softcap), head.softcap)
    yield CardRow(section, "init", "initialisation", init(spec.init))
    yield CardRow(section, "n_params", "parameters", f"{count.total:,}", count.total)
    yield CardRow(section, "n_params_embedding", "parameters in tables", f"{count.embedding:,}", count.embedding)
    if spec.ahead:
        n = len(spec.ahead)
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
    named = (
        ("tokenizer", "tokenizer"),
        ("published", "published parameters"),
        ("erratum", "erratum"),
        ("source", "source"),
    )
    for key, name in named:
        if value := getattr(preset, key):
            yield CardRow("source", key, name, value)


def _head(head: HeadSpec) -> str:
    steps = [*([words.part(head.pool)] if head.pool else []), *map(words.step, head.transform)]
    steps = [words.of_a_head(head.layers), *steps] if head.layers else steps
    table = f"{head.table.rows:,} logits" if head.table else None
    return ", ".join(filter(None, (head.name, *steps, table, "bias" if head.bias else None)))


def _tied(head: HeadSpec, spec: ModelSpec) -> bool:
    tables = {value.shared for value in spec.stack.embedding.nested() if isinstance(value, TableSpec)}
    return head.table is not None and head.table.shared is not None and head.table.shared in tables


def init(value: InitSpec) -> str:
    """From what distributions weights start."""
    if not isinstance(value, ByRole):
        return words.part(value)
    named = (
        ("tables", value.table),
        ("matrices", value.matrix),
        ("into the stream", value.output),
        ("values and into feed-forwards", value.inner),
    )
    roles: dict[str, list[str]] = {}
    for role, distribution in named:
        if distribution is not None:
            roles.setdefault(_distribution(distribution), []).append(role)
    if len(roles) == 1:
        return next(iter(roles))
    return "; ".join(f"{joined(which)}: {said}" for said, which in roles.items())


def _distribution(value: Any) -> str:
    if not isinstance(value, Normal | Xavier):
        return words.part(value)
    depth = (
        ""
        if not value.depth_power
        else " / √branches"
        if value.depth_power == -0.5
        else f" · branches^{value.depth_power:g}"
    )
    if isinstance(value, Xavier):
        return f"Xavier uniform, gain {value.gain:g}{depth}"
    fan_in = (
        ""
        if not value.fan_in_power
        else "/√fan-in"
        if value.fan_in_power == -0.5
        else f" · fan-in^{value.fan_in_power:g}"
    )
    return f"normal, std {value.scale:g}{fan_in}{depth}"
