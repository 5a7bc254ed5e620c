"""A head for labels put on any architecture: its own, that of its class in transformers, or the usual one of its kind."""

from __future__ import annotations

from typing import Literal

from anyformer.errors import SpecError, among
from anyformer.families.heads import JUDGES, last_token_classes, row_classes, token_classes, with_rows
from anyformer.families.hf import FAMILIES
from anyformer.families.hf.mapping import fitting
from anyformer.layers.causality import later_tokens_seen
from anyformer.spec import Architecture, HeadSpec, ModelSpec, specification

LabelsOf = Literal["classes", "token_classes"]


def with_classifier(architecture: Architecture, n: int, head: LabelsOf = "classes") -> ModelSpec:
    """The architecture with one head alone, for `n` labels of a text ("classes") or of each word ("token_classes").

    One that it has already keeps its shape. An encoder gets that of its class in transformers, else BERT's: the first token's
    vector through a layer and tanh; a decoder, alone or beside an encoder, the last token's vector as it is. `n` = 1 is for
    a number. Raises SpecError for another name of the head.
    """
    if head not in JUDGES:
        raise SpecError(f"there is no head {head!r} for labels{among(head, JUDGES)}")
    spec = specification(architecture)
    own = next((own for own in spec.heads if own.name == head), None)
    found = with_rows(own, n) if own is not None else _of_class(spec, n, head) or _of_kind(spec, n, head)
    return spec.but(heads=(found,), ahead=())


def _of_class(spec: ModelSpec, n: int, name: str) -> HeadSpec | None:
    with_heads = [family for family in FAMILIES.values() if family.head is not None]
    try:
        family, _ = fitting(with_heads, spec)
    except SpecError:
        return None
    return family.head(spec, n, name) if family.head is not None else None


def _of_kind(spec: ModelSpec, n: int, name: str) -> HeadSpec:
    if name == "token_classes":
        return token_classes(n)
    decodes = later_tokens_seen(spec.stack, after_prefix=True) is None
    return last_token_classes(n) if decodes else row_classes(n)
