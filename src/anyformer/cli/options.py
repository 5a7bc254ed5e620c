"""What options take: amounts as people write them, devices by name, learning rates, and the fields of a recipe."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from anyformer.recipe import OBJECTIVES, ObjectiveSpec, Recipe

PATH = click.Path(path_type=Path)
FILE = click.Path(exists=True, path_type=Path)  # or a directory
ONE_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
DIRECTORY = click.Path(file_okay=False, path_type=Path)

# Options that mean the same wherever they stand.
device_option = click.option("--device", help="cpu, cuda, mps …; the best there is by default.")
run_option = click.option("--model", required=True, type=PATH, metavar="DIR", help="A run, or an HF directory.")
truncate_option = click.option(
    "--truncate", is_flag=True, help="Cut texts that the model has no room for.  [default: as trained]"
)
json_option = partial(click.option, "--json", "as_json", is_flag=True)


def choice(name: str, values: Sequence[str], default: str, help_text: str | None = None) -> Callable[..., Any]:
    """An option that takes one of a few words and says which it takes by default."""
    return click.option(name, type=click.Choice(values), default=default, show_default=True, help=help_text)


PRECISIONS = ("float32", "bf16")
RECOMPUTE = ("none", "selective", "full")
precision_option = choice("--precision", PRECISIONS, "float32")

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


class Amount(click.ParamType):
    """A whole number of `least` or more, with k, M, B or T behind it or not."""

    name = "number"
    pattern = r"([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([kmbgt]?)"
    what, remedy = "", "write it as 3000000, 3M or 1.5B"

    def __init__(self, least: int = 1) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(self.pattern, str(value).strip(), re.IGNORECASE)
        number = round(float(re.sub("[_,]", "", match[1])) * _UNITS[match[2].lower()]) if match else -1
        if number < self.least:
            self.fail(f"'{value}' is no number {self.what}above {self.least - 1}; {self.remedy}", param, ctx)
        return number


class Nbytes(Amount):
    """A number of bytes above 0: 5GB, 500MB, powers of ten."""

    name = "bytes"
    pattern = r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)b?"
    what, remedy = "of bytes ", "write it as 5GB or 500MB"


NAMES = (
    *("H100", "H800", "H200", "B200", "A100-40GB", "A100-80GB", "V100", "L4", "RTX4090"),
    *("TPUv4", "TPUv5e", "TPUv5p", "MI300X"),
)
THIS = "this"


class DeviceName(click.ParamType):
    """The name of a device, `this`, or the YAML file of one; it is looked up when the command runs."""

    name = "device"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in (THIS, *NAMES) if name.lower().startswith(incomplete.lower())]


class Rates(click.ParamType):
    """Learning rates, separated by commas."""

    name = "lr[,lr…]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            rates = tuple(dict.fromkeys(float(rate) for rate in str(value).split(",")))
        except ValueError:
            rates = ()
        if not rates or min(rates) <= 0:
            self.fail(f"'{value}' is no list of learning rates above 0; write 3e-4,1e-3", param, ctx)
        return rates


class OrNone(click.ParamType):
    """What another type takes, or the word none."""

    def __init__(self, inner: click.ParamType) -> None:
        self.inner, self.name = inner, inner.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return None if value == "none" else self.inner.convert(value, param, ctx)


def recipe_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each field of a recipe that has help; those given come as one argument, `changes`."""
    hints = get_type_hints(Recipe, include_extras=True)
    fields = {name: hint for name, hint in hints.items() if get_origin(hint) is Annotated}

    @wraps(command)
    def gathered(**values: Any) -> Any:
        source = click.get_current_context().get_parameter_source
        given = {name: values.pop(name) for name in fields}
        said = {name: value for name, value in given.items() if source(name) is not ParameterSource.DEFAULT}
        return command(changes=said, **values)

    found: Callable[..., Any] = gathered
    for name, hint in reversed(fields.items()):
        kind, help_text = get_args(hint)
        option = _option_type(kind, least=0 if getattr(Recipe, name) == 0 else 1)
        found = click.option(f"--{name.replace('_', '-')}", type=option, help=f"{help_text}  [default: the recipe's]")(
            found
        )
    return found


def _option_type(kind: Any, least: int) -> click.ParamType:
    """What takes a value of this type; whole numbers from `least`."""
    if kind is int:
        return Amount(least)
    if kind is float:
        return click.FLOAT
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if kind is ObjectiveSpec:
        return click.Choice(list(OBJECTIVES))
    (inner,) = (each for each in get_args(kind) if each is not NoneType)
    return OrNone(_option_type(inner, least))
