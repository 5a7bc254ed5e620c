"""What a public function is given, held to the types that it declares: what is of none of them is refused in one line."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from anyformer.errors import UsageError, did_you_mean

F = TypeVar("F", bound=Callable[..., Any])
WORDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", Path: "a path"}


def held(function: F, module: str) -> F:
    """The function, found in a module, whose arguments are first held to its annotations; numpy's numbers become Python's.

    Only what a type can say is looked at, and that numbers are finite: the range of a number is the function's own affair.
    What is no list and gives items one after the other (an array, a generator) becomes one where a list is asked for;
    what has no order (a set), or values beside (a mapping), does not.
    """
    signature = inspect.signature(function)

    @functools.cache
    def hints() -> dict[str, tuple[Any, ...]]:
        return {name: _options(each.annotation, function) for name, each in signature.parameters.items()}

    @functools.wraps(function)
    def checked(*args: Any, **named: Any) -> Any:
        try:
            given = signature.bind(*args, **named)
        except TypeError:
            return function(*args, **named)  # Python says what is missing, or not known
        for name, value in given.arguments.items():
            options, kind = hints()[name], signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                given.arguments[name] = {key: _pythons(each) for key, each in value.items()}
            elif kind is not inspect.Parameter.VAR_POSITIONAL:
                given.arguments[name] = value = _plain(value, options)
                if options and not any(_is(value, option) for option in options):
                    raise UsageError(f"{function.__name__}: {name} = {_said(value)} must be {_wanted(value, options)}")
                for listed in filter(_is_list, options):
                    if _is(value, listed):
                        given.arguments[name] = _of_items(value, listed, f"{function.__name__}: {name}")
        return function(*given.args, **given.kwargs)

    checked.__module__ = module  # so that it is pickled as what is found there
    return checked  # type: ignore[return-value]


def _options(annotation: Any, function: Any) -> tuple[Any, ...]:
    """The types of which a value must have one; none where one of them is no class that a value can be asked for."""
    try:
        hint = eval(annotation, inspect.unwrap(function).__globals__) if isinstance(annotation, str) else annotation
    except NameError:  # imported for type checkers alone
        return ()
    return _types(hint)


def _types(hint: Any) -> tuple[Any, ...]:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if isinstance(hint, TypeVar):
        options = hint.__constraints__
    return options if all(map(_can_be_asked, options)) else ()


def _of_items(value: Any, listed: Any, where: str) -> Any:
    """A list whose items were held to what they are declared as; what may be gone through once alone is left as it is."""
    if not isinstance(value, Sequence) and issubclass(get_origin(listed), Sequence):
        value = list(value)
    kinds = set(get_args(listed)) - {...}
    types = _types(kinds.pop()) if len(kinds) == 1 else ()
    for i, each in enumerate(value if types and isinstance(value, Collection) else ()):
        if not any(_is(_pythons(each), option) for option in types):
            raise UsageError(f"{where}[{i}] = {_said(each)} must be {_wanted(each, types)}")
    return value


def _can_be_asked(option: Any) -> bool:
    if get_origin(option) is not None:
        return get_origin(option) is Literal or isinstance(get_origin(option), type)
    # What PyTorch calls a device is also a number.
    return isinstance(option, type) and not getattr(option, "_is_protocol", False) and option.__name__ != "device"


def _plain(value: Any, options: tuple[Any, ...]) -> Any:
    """Numbers as Python has them, where numbers are asked for: whole ones that come as 3e6 too, and others of any size."""
    if not {int, float, bool} & set(options):
        return value
    value = _pythons(value)
    if int in options and float not in options:
        return int(value) if isinstance(value, float) and value.is_integer() else value
    fractional = float in options and int not in options and _is(value, float)
    return float(value) if fractional else value


def _pythons(value: Any) -> Any:
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def _is(value: Any, option: Any) -> bool:
    origin = get_origin(option)
    if origin is Literal:
        return value in get_args(option)
    if option in (int, float):
        number = isinstance(value, (int, option)) and not isinstance(value, bool)
        return number and (option is int or abs(value) <= sys.float_info.max)
    if option is Path:
        return isinstance(value, os.PathLike)
    if origin is Callable:
        return callable(value)
    if _is_list(option):
        return hasattr(value, "__iter__") and not isinstance(value, str | bytes | Mapping | Set)
    return isinstance(value, origin or option)


def _is_list(option: Any) -> bool:
    origin = get_origin(option)
    return isinstance(origin, type) and issubclass(origin, Iterable) and not issubclass(origin, Mapping)


def _wanted(value: Any, options: tuple[Any, ...]) -> str:
    words = dict.fromkeys(_word(value, option) for option in options if option is not NoneType)
    return ", or ".join([*words, *(["None"] if NoneType in options else [])])


def _word(value: Any, option: Any) -> str:
    origin = get_origin(option)
    if origin is Literal:
        known = [str(each) for each in get_args(option)]
        return f"one of {', '.join(known)}{did_you_mean(value, known)}"
    if origin is Callable:
        return "a function"
    if origin is not None:
        listed = "a list" if not isinstance(value, str) else "a list; put one text into brackets"
        return "a mapping" if issubclass(origin, Mapping) else listed
    if option is float and isinstance(value, int | float):
        return "a finite number"
    return WORDS.get(option) or f"a {option.__name__}"


def _said(value: object) -> str:
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return f"a whole number of {value.bit_length():,} bits"
    plain = isinstance(value, bool | int | float | str | None)
    return repr(value) if plain else f"a value of the class {type(value).__name__}"
