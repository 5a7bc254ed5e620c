"""Values as one writes them in a line: `RMSNorm(eps=1e-6)`, `Causal & SlidingWindow(128)`, `none`, `2048`."""

from __future__ import annotations

import ast
from typing import Any

from anyformer.errors import SpecError
from anyformer.spec.part import Spec

WORDS = {"none": None, "None": None, "true": True, "false": False}
COMBINED = {ast.BitAnd: "And", ast.BitOr: "Or"}
FORM = "write a number, a word, a kind such as RMSNorm(eps=1e-6), masks as Causal & ~Prefix(4), or the name of a model"


def is_phrase(text: str) -> bool:
    """Whether a text says more than a name."""
    return any(sign in text for sign in "&|~(")


def parse(text: str) -> Any:
    """Plain data, as a file of a specification holds it: options without a name are a kind's fields in their order.

    Raises SpecError.
    """
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
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr() as sign, right=right):
            kind = COMBINED[type(sign)]
            return {"kind": kind, "masks": [mask for side in (left, right) for mask in _combined(_data(side), kind)]}
        case ast.UnaryOp(op=ast.Invert(), operand=mask):
            return {"kind": "Not", "mask": _data(mask)}
        case ast.Call(func=ast.Name(id=kind), args=unnamed, keywords=named) if all(option.arg for option in named):
            if unnamed and kind not in Spec.kinds_with(kind):
                return {"kind": kind}  # whoever reads it knows which kinds there are
            fields = [name for name in Spec.kinds[kind].types() if name != "shared"] if unnamed else []
            names = [*fields[: len(unnamed)], *(str(option.arg) for option in named)]
            values = [*unnamed, *(option.value for option in named)]
            if len(names) == len(values) == len(set(names)):
                return {"kind": kind, **dict(zip(names, map(_data, values), strict=True))}
    raise ValueError(node)


def _combined(data: Any, kind: str) -> list[Any]:
    """The masks that one of this kind holds, a mask alone else."""
    return data["masks"] if isinstance(data, dict) and data["kind"] == kind else [data]
