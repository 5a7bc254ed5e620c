"""How commands print: a result in words or as JSON, tables as wide as the terminal; and what several say of a model."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer import screen
from anyformer.errors import UsageError
from anyformer.screen import WIDTH, say

if TYPE_CHECKING:
    from rich.console import Console

    from anyformer.generation import BeamSearch, CompiledStep, Released
    from anyformer.model import Transformer


def tell(result: Any, as_json: bool, **more: Any) -> None:
    """Print a result: its figures as one JSON object, after those in `more`, or what it says in words."""
    if as_json:
        say(_json({**more, **(result if isinstance(result, Mapping) else result.as_json())}))
    else:
        say(str(result))


def compiled_step(model: Transformer) -> CompiledStep:
    """A model's step of decoding as one graph, after how long that takes is said."""
    from anyformer.generation import CompiledStep

    step = CompiledStep(model)
    say(step.notice, stderr=True)
    return step


def what_is_released(model: str | Path, asked: bool) -> Released:
    """How the files of a model say that texts are written; nothing where nobody asks."""
    from anyformer.generation import UNSAID, released
    from anyformer.hub import load_tokenizer

    tokenizer = load_tokenizer(model) if asked else None
    return UNSAID if tokenizer is None else released(tokenizer.generation)


def refuse_search(search: BeamSearch | None, remedy: str = "leave --as-released out") -> None:
    """Raise UsageError for a search that a model's files ask for where texts are written token by token."""
    if search is not None:
        raise UsageError(
            f"the model's files ask for {search.beams} beams, and here a text is written token by token; {remedy}"
        )


def refuse_guesses(guesses: Mapping[str, Any], compiled: bool) -> None:
    """Raise UsageError for guesses, which several tokens a pass check, where a compiled step writes one."""
    if guesses and compiled:
        raise UsageError("--compile writes a token a pass; leave --draft, --lookup and --ahead out, or --compile")


def _json(told: Mapping[str, Any]) -> str:
    r"""JSON whose strings hold what they hold on any terminal: what one cannot show is written as \u001b is."""
    told = _finite(told)
    text = json.dumps(told, indent=1, ensure_ascii=False)
    shown = (
        screen.visible(text).encode(sys.stdout.encoding or "ascii", "replace").decode(sys.stdout.encoding or "ascii")
    )
    return text if text == shown else json.dumps(told, indent=1).replace("\x7f", "\\u007f")


def _finite(value: Any) -> Any:
    """The same with null for numbers that JSON does not have."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(each) for key, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
    return value


def console(width: int = WIDTH) -> Console:
    """Where tables are printed: as wide as the terminal; into a file or a pipe as $COLUMNS says, or `width` columns."""
    if sys.stdout.isatty():
        return screen.console()
    told = os.environ.get("COLUMNS", "")
    return screen.console(int(told) if told.isdecimal() and int(told) else width)
