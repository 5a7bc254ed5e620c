"""The fields of a recipe as options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import wraps
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from anyformer.cli.options import Amount, Number, chosen
from anyformer.recipe import OBJECTIVES, OPTIMIZERS, ObjectiveSpec, OptimizerSpec, Recipe

# The words by which a field of such a type is named.
NAMED: Mapping[Any, Collection[str]] = {ObjectiveSpec: OBJECTIVES, OptimizerSpec: OPTIMIZERS}


class OrNone(click.ParamType):
    """What another type takes, or the word none."""

    def __init__(self, inner: click.ParamType) -> None:
        self.inner, self.name = inner, inner.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return None if value == "none" else self.inner.convert(value, param, ctx)


def recipe_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each field of a recipe that has help; those given come as one argument, `changes`."""
    hints = get_type_hints(Recipe, include_extras=True)
    said = {name: get_args(hint)[-1] for name, hint in hints.items() if get_origin(hint) is Annotated}
    fields = {name: help_text for name, help_text in said.items() if isinstance(help_text, str)}

    @wraps(command)
    def gathered(**values: Any) -> Any:
        source = click.get_current_context().get_parameter_source
        given = {name: values.pop(name) for name in fields}
        changes = {name: value for name, value in given.items() if source(name) is not ParameterSource.DEFAULT}
        return command(changes=changes, **values)

    found: Callable[..., Any] = gathered
    for name, help_text in reversed(fields.items()):
        option = _option_type(Recipe.types()[name], least=0 if getattr(Recipe, name) == 0 else 1)
        told: dict[str, Any] = {"type": option, "help": help_text}
        told |= chosen(option.choices, help_text) if isinstance(option, click.Choice) else {}
        told["help"] += "  [default: the recipe's]"
        found = click.option(f"--{name.replace('_', '-')}", **told)(found)
    return found


def _option_type(kind: Any, least: int) -> click.ParamType:
    """What takes a value of this type; whole numbers from `least`."""
    if kind is int:
        return Amount(least)
    if kind is float:
        return Number()
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if kind in NAMED:
        return click.Choice(list(NAMED[kind]))
    (inner,) = (each for each in get_args(kind) if each is not NoneType)
    return OrNone(_option_type(inner, least))
