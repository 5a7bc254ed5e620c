"""Values of a variant, read from the line in which one writes them, and written."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, get_args

from anyformer.layers import And
from anyformer.spec import Spec, decode
from anyformer.spec.phrase import WORDS


def text_of(value: Any) -> str:
    """The line that `parse` and `read` make this value of: fields at their defaults are left out."""
    if isinstance(value, And):
        return "&".join(text_of(mask) for mask in value.masks)
    if isinstance(value, Spec):
        said = (f.name for f in dataclasses.fields(value) if getattr(value, f.name) != f.default)  # type: ignore[arg-type]
        options = ",".join(f"{name}={text_of(getattr(value, name))}" for name in said)
        return f"{value.kind}({options})" if options else value.kind
    if isinstance(value, tuple):
        return f"[{','.join(text_of(item) for item in value)}]"
    if isinstance(value, bool) or value is None:
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return value if value.isidentifier() and value not in WORDS else json.dumps(value)
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else repr(value)


def read(data: Any, declared: Any, path: str) -> Any:
    """The value of a declared type. Raises SpecError naming the path, the value, the nearest name.

    Outermost, a kind may be written in small letters. Its owner holds it to the range of its type.
    """
    options = get_args(declared) or (declared,)
    if any(isinstance(option, type) and issubclass(option, Spec) for option in options):
        data = folded(data)
    return decode(data, declared, path)


def folded(data: Any) -> Any:
    """The data of a part with its kind as the language spells it: gelu is GELU."""
    known = {kind.lower(): kind for kind in Spec.kinds}
    if isinstance(data, str):
        return known.get(data.lower(), data)
    return data | {"kind": known.get(str(data["kind"]).lower(), data["kind"])} if isinstance(data, dict) else data
