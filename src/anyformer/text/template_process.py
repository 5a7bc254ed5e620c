"""The program that fills in chat templates: a checkpoint's author wrote them, so it has a process, little memory, and no more.

It reads a JSON object a line, {"template", "values"}, and answers {"text"} or {"error"}. Run by `text.chat`, never imported.
"""

import datetime
import json
import sys
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY_NBYTES = 1 << 29
LONGEST = 1 << 22  # characters of a text


class GenerationTag(Extension):
    """`{% generation %}`, by which training finds the assistant's words; what is between stands as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own way

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes up to `{% endgeneration %}`."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which what is unsafe ends the template instead of standing for nothing."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        """Raise SecurityError."""
        raise SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__} is unsafe")


def environment() -> Environment:
    """What templates of checkpoints are written for: transformers' names, and no file that could be included."""
    found = Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag])
    found.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.datetime.now().strftime(form)}
    found.filters["tojson"] = _as_json
    return found


def _refuse(message: object) -> None:
    raise TemplateError(str(message))


def _as_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as it is, not as HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=1)
def compiled(template: str) -> Template:
    """The template, compiled once for all conversations that it writes."""
    return environment().from_string(template)


def filled(template: str, values: dict[str, Any]) -> str:
    """The text of a template; it ends where it grows beyond what anyone reads."""
    pieces, length = [], 0
    for piece in compiled(template).generate(values):
        length += len(piece)
        if length > LONGEST:
            raise TemplateError(f"it writes more than {LONGEST:,} characters")
        pieces.append(piece)
    return "".join(pieces)


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # a system that has no such limits
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_NBYTES, MEMORY_NBYTES))


def main() -> None:
    """Answer lines until there are no more."""
    _limit_memory()
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            told = {"text": filled(asked["template"], asked["values"])}
        except Exception as error:  # whatever it is, it is the template's, and is said where it was asked
            told = {"error": f"{type(error).__name__}: {error}" if str(error) else type(error).__name__}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
