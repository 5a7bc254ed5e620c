"""An architecture as changes of another: `BASE+row=VALUE…`, a value a kind, a word, a number, or a model whose part is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from anyformer.errors import SpecError, did_you_mean, errors_of
from anyformer.families import ALIASES, PRESETS
from anyformer.families.compose import changed
from anyformer.spec import ModelSpec, PartSpec, Spec, encode, is_path
from anyformer.spec.architecture import sized
from anyformer.spec.phrase import parse
from anyformer.variants.rows import FIELDS, ROWS
from anyformer.variants.values import read, text_of

Change = tuple[str, Any]  # a row's key or a field; a text, plain data, a part or an architecture
Find = Callable[[str], ModelSpec]  # the model of a name; raises SpecError
KEYS = {said.replace("-", "_").replace(" ", "_").lower(): key for key, row in ROWS.items() for said in (key, row.part)}
_ROWS = f"the rows are {', '.join(ROWS)}"


def apply(spec: ModelSpec, changes: Iterable[Change], find: Find) -> ModelSpec:
    """The architecture with these changes, from left to right. Raises SpecError that names the change and why it cannot be."""
    said: dict[str, str] = {}
    for left, value in changes:
        key = key_of(left)
        text = f"{left}={value if isinstance(value, str) else text_of(value) if _is_plain(value) else '…'}"
        if key in said:
            raise SpecError(f"{text}: {said[key]} is said before it; leave one out")
        said[key] = text
        with errors_of(text):
            spec = vary_one(spec, key, value, find)
    return sized(spec, " and ".join(said.values()))


def key_of(left: str) -> str:
    """The row's key that the left side of a change means, or the field that it names."""
    return KEYS.get(left.replace("-", "_").lower(), left)


def parsed(change: str) -> Change:
    """The two sides of `row=VALUE`."""
    left, _, value = change.partition("=")
    return left, value


def _is_plain(value: Any) -> bool:
    return value is None or (isinstance(value, bool | int | float | Spec) and not isinstance(value, ModelSpec))


def vary_one(spec: ModelSpec, key: str, value: Any, find: Find) -> ModelSpec:
    """The architecture with one change; its sizes need not go together yet."""
    row, model = ROWS.get(key), _model(value, find)
    if model is not None:
        if row is None:
            raise SpecError(f"a model's {key} is not taken by itself{did_you_mean(key, ROWS)}; {_ROWS}")
        return row.change(spec, model)
    try:
        data = parse(value) if isinstance(value, str) else encode(value)
        if row is not None and row.put is not None:
            return row.put(spec, data)
        if row is not None and key not in FIELDS:
            raise SpecError(f"{data!r} is no model; it takes one, and of it what `diff` calls {row.part}")
        return _with_field(spec, key, data)
    except SpecError as error:
        unknown = (
            row and isinstance(value, str) and f"{value!r} is no " in str(error) and "did you mean" not in str(error)
        )
        raise SpecError(f"{error}{did_you_mean(value, [*PRESETS, *ALIASES]) if unknown else ''}") from None


def _model(value: Any, find: Find) -> ModelSpec | None:
    if isinstance(value, str):
        return find(value) if value in PRESETS or value in ALIASES or is_path(value) else None
    if isinstance(value, ModelSpec):
        return value
    own = getattr(value, "spec", None)
    return own if isinstance(own, ModelSpec) else None


def _with_field(spec: ModelSpec, name: str, data: Any) -> ModelSpec:
    """The model with a field changed in every part that has it, or, as `Kind.field`, in every part of that kind."""
    kind, _, field = name.rpartition(".")
    kinds = dict.fromkeys(type(value) for value in spec.nested())
    if kind and kind not in (known := {each.kind: each for each in kinds}):
        where = (
            "there is none in the model" if kind in Spec.kinds else f"there is no such kind{did_you_mean(kind, known)}"
        )
        raise SpecError(f"{where}; it has {', '.join(sorted(known))}")
    owners = [each for each in kinds if field in each.types() and kind in ("", each.kind) and field != "shared"]
    if not owners:
        fields = {known for each in kinds if kind in ("", each.kind) for known in each.types()}
        near = did_you_mean(field, [*fields, *(() if kind else ROWS)])
        what = f"{kind} has" if kind else "it is no row of diff, and no part of the model has"
        raise SpecError(f"{what} no field {field!r}{near}" if kind else f"{what} such a field{near}; {_ROWS}")
    if data is not None and len({_ancestor(each) for each in owners}) > 1:
        each = ", ".join(f"{owner.kind}.{field}" for owner in owners)
        raise SpecError(f"several kinds of parts have it; say which: {each}")
    for owner in owners:
        spec = changed(spec, owner, **{field: read(data, owner.types()[field], f"{owner.kind}.{field}")})
    return spec


def _ancestor(kind: type[Spec]) -> type[Spec]:
    """What a part is, of which its kind is one: a norm, a feed-forward; itself where it is nothing more special."""
    plain = [each for each in kind.__mro__ if issubclass(each, Spec) and each not in (Spec, PartSpec)]
    return plain[-1]
