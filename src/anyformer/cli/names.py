"""The arguments that commands share: the name of an architecture, and the file of a user's own parts."""

import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
from click.shell_completion import CompletionItem

from anyformer.disk.hub_cache import located
from anyformer.disk.run_layout import SPEC
from anyformer.errors import AnyformerError, CheckpointError, UsageError
from anyformer.screen import say
from anyformer.spec import is_path, no_preset, split_variant
from anyformer.spec.outside import installed

if TYPE_CHECKING:
    from anyformer.families import Preset

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
IMPORTED = "anyformer.imported"  # in the `meta` of a context: the files of --import


@cache
def catalogue(of: Literal["presets", "undisclosed"] = "presets") -> tuple[dict[str, Any], ...]:
    """One record a preset, or a model whose architecture is not public, read from data so that no model code is imported.

    Both have `name`, `family` and `source`; what is not public has `public` and `missing` besides.
    """
    text = resources.files("anyformer").joinpath("families", "catalogue.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)[of])


def from_outside() -> "tuple[Preset, ...]":
    """The presets that a file or an installed package has registered."""
    if "anyformer.families" not in sys.modules and not installed():
        return ()
    from anyformer.families import registry

    return registry.from_outside()


class PresetName(click.ParamType):
    """The name of a preset, or the path of a spec file, a configuration or a model's directory; `+row=VALUE…` changes it."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        whole = str(value)
        name, _ = split_variant(whole)
        if is_path(name):
            try:
                located(name)
            except CheckpointError as error:
                self.fail(str(error), param, ctx)
            return whole
        known = [known for preset in catalogue() for known in (preset["name"], *preset.get("aliases", ()))]
        if name not in known:
            known += [known for preset in from_outside() for known in preset.names]
        if any(model["name"] == name for model in catalogue("undisclosed")):
            return whole  # `show` says what is public of it, everything else that it cannot be built
        if name not in known:
            self.fail(no_preset(name, known), param, ctx)
        if any((Path(name) / file).is_file() for file in ("config.json", SPEC)):
            say(f"{name} is the preset of that name; the model in this directory is ./{name}", stderr=True)
        return whole

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        start, plus, change = incomplete.rpartition("+")
        if plus and "=" not in change:
            from anyformer.variants.rows import ROWS

            return [
                CompletionItem(f"{start}+{key}=", help=row.part) for key, row in ROWS.items() if key.startswith(change)
            ]
        if is_path(incomplete):
            return [CompletionItem(incomplete, type="file")]
        return [
            CompletionItem(preset["name"], help=preset["family"])
            for preset in catalogue()  # not those from outside: nobody's code is run for a list
            if preset["name"].startswith(incomplete)
        ]


def import_parts(path: Path) -> None:
    """Run a user's Python file, so that the parts it defines and the families it registers are known by name.

    Raises UsageError, naming the file and the line, when the file cannot be imported.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path.absolute())
    if spec is None or spec.loader is None:
        raise UsageError(f"--import {path}: not a Python file; give one that ends in .py")
    if any(_is_of(module, path) for module in list(sys.modules.values())):
        return
    if path.stem in sys.modules:
        raise UsageError(f"--import {path}: a module '{path.stem}' is imported already; give the file another name")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pickle look a class's module up here
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script that ends itself has not done what was asked for
        del sys.modules[path.stem]
        if isinstance(error, AnyformerError):
            raise UsageError(f"--import {path}: {error}") from error
        message = error.msg if isinstance(error, SyntaxError) else error
        raise UsageError(f"--import {path}: {type(error).__name__}{_line(error, path)}: {message}") from error


def _is_of(module: ModuleType, path: Path) -> bool:
    """Whether a module was made of this file, by whatever name and path."""
    file = getattr(module, "__file__", None)
    return bool(file) and os.path.basename(file) == path.name and os.path.samefile(file, path)


def _line(error: BaseException, path: Path) -> str:
    """``" on line 12"``: the last line of `path` on the way to the error, if any."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f" on line {error.lineno}"
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if Path(frame.f_code.co_filename) == path.absolute()]
    return f" on line {lines[-1]}" if lines else ""


def _import_each(ctx: click.Context, param: click.Parameter, paths: tuple[Path, ...]) -> None:
    ctx.meta[IMPORTED] = paths
    if not ctx.resilient_parsing:  # the shell asks for completions: run nobody's code for that
        for path in paths:
            import_parts(path)


def import_option(command: Decorated) -> Decorated:
    """Add `--import FILE` to a command; run before anything else is read, they are its context's `meta[IMPORTED]`."""
    return click.option(
        "--import",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        multiple=True,
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_import_each,
        help="Python file with your own parts or families; it is run. May be given several times.",
    )(command)
