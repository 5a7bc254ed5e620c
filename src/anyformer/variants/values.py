"""Values as one writes them in a line: `RMSNorm(eps=1e-6)`, `Causal & SlidingWindow(size=128)`, `none`, `2048`."""

from __future__ import annotations

import ast
import dataclasses
import json
from typing import Any, get_args

from anyformer.errors import SpecError
from anyformer.layers import And
from anyformer.spec import Spec, decode

WORDS = {"none": None, "None": None, "true": True, "false": False}
FORM = "write a number, a word, a kind such as RMSNorm(eps=1e-6), or the name of a model"


def parse(text: str) -> Any:
    """Plain data, as a file of a specification holds it. Raises SpecError."""
    try:
        return _data(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        short = text if len(text) <= 60 else f"{text[:60]}…"
        raise SpecError(f"{short!r} cannot be read; {FORM}") from None


def _data(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Name(id=name):
            return WORDS.get(name, name)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_data(item) for item in items]
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return {"kind": "And", "masks": [mask for side in (left, right) for mask in _masks(_data(side))]}
        case ast.Call(func=ast.Name(id=kind), args=[], keywords=options) if all(o.arg for o in options):
            return {"kind": kind, **{str(option.arg): _data(option.value) for option in options}}
    raise ValueError(node)


def _masks(data: Any) -> list[Any]:
    return data["masks"] if isinstance(data, dict) and data["kind"] == "And" else [data]


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
