"""Decoders with a head for labels in the place of the one for tokens: transformers' …ForSequenceClassification and its like.

The last token's vector times a matrix without a bias (`score`) is what such a class says of a text; of words, each token's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from anyformer.families.heads import last_token_classes, token_classes
from anyformer.families.hf.headings import labels_of, numbered_labels
from anyformer.families.hf.mapping import Family, TensorRow, one, same, shapes
from anyformer.families.hf.settings import Settings
from anyformer.layers import TokensSpec
from anyformer.spec import HeadSpec, ModelSpec, TableSpec


class ClassificationHead(NamedTuple):
    """A class with a head for labels: the head's name here, and the module that holds it there."""

    head: str
    module: str = "score"


def classifying(family: Family, judges: Mapping[str, ClassificationHead]) -> Family:
    """A family of decoders that has these classes too, by their names."""

    def to_spec(settings: Settings) -> ModelSpec:
        named = next((name for name in settings.strings("architectures") or () if name in judges), None)
        if named is None:
            return family.to_spec(settings)
        n = labels_of(settings)
        return family.to_spec(settings).but(heads=(head_of(n, judges[named].head),))

    def to_config(spec: ModelSpec) -> dict[str, Any]:
        named, head = _named(spec, judges), spec.heads[0] if spec.heads else None
        if named is None or head is None or head.table is None:
            return family.to_config(spec)
        return {**family.to_config(_writing(spec)), "architectures": [named], **numbered_labels(head.table.rows)}

    def rows(spec: ModelSpec) -> list[TensorRow]:
        named = _named(spec, judges)
        if named is None:
            return family.rows(spec)
        module = judges[named].module
        kept = [row for row in family.rows(_writing(spec)) if not any(name.startswith("heads.") for name in row.ours)]
        ends = {"table.weight": "weight", "bias": "bias"}
        return [
            *kept,
            *(same(f"heads.0.{o}", f"{module}.{t}") for o, t in ends.items() if f"heads.0.{o}" in shapes(spec)),
        ]

    return family._replace(to_spec=to_spec, to_config=to_config, rows=rows)


def head_of(n: int, name: str) -> HeadSpec:
    """A decoder's head for `n` labels of a text ("classes") or of each token ("token_classes")."""
    return last_token_classes(n) if name == "classes" else token_classes(n)


def _named(spec: ModelSpec, judges: Mapping[str, ClassificationHead]) -> str | None:
    """The class that has a model's head for labels, if there is one."""
    names = [head.name for head in spec.heads]
    return next((name for name, judge in judges.items() if names == [judge.head]), None)


def _writing(spec: ModelSpec) -> ModelSpec:
    """The model with a head for tokens again, tied where the embedding's table could be."""
    table = one(spec.stack.embedding, TokensSpec, "table of tokens").table
    own = table if table.shared else TableSpec(rows=table.rows)
    return spec.but(heads=(HeadSpec(table=own),))
