"""Checks tensor shapes at run time, and shapes only: the other types are pyright's."""

import ast
import inspect
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

from beartype import beartype
from jaxtyping import AbstractArray

Function = typing.TypeVar("Function", bound=Callable[..., object])


def mentions_shape(annotation: object) -> bool:
    """Whether a jaxtyping annotation such as ``Float[Tensor, "batch token"]`` stands anywhere inside `annotation`."""
    if inspect.isclass(annotation) and issubclass(annotation, AbstractArray):
        return True
    return any(mentions_shape(part) for part in typing.get_args(annotation))


def checked(function: Function) -> Function:
    """Let beartype check those arguments and results of `function` whose annotation states a shape."""
    shapes = {name: hint for name, hint in function.__annotations__.items() if mentions_shape(hint)}
    if not shapes:
        return function
    function.__annotations__ = shapes
    return beartype(function)


def modules_with_shapes(package: Path) -> Iterator[str]:
    """Dotted names of the modules under `package` that import jaxtyping when they run, not for the type checker alone.

    Only they need instrumenting; a module that states no shape keeps its speed.
    """
    for path in sorted(package.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "jaxtyping" not in source:
            continue
        imports = (node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom))
        if any(node.module == "jaxtyping" for node in imports):
            name = path.relative_to(package.parent).with_suffix("")
            yield ".".join(part for part in name.parts if part != "__init__")
