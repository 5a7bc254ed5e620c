"""The page at a server's root: its model in a browser, token by token, by the routes that everybody has. It loads nothing."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING

from anyformer.amounts import count, counted
from anyformer.errors import InputError
from anyformer.generation.prompt import check_writes
from anyformer.screen import visible
from anyformer.serving.service import Service
from anyformer.spec import parameters

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


class Page:
    """The page of a service's model, of what it can do: talk, go on with a text, answer one, or tell texts apart."""

    def __init__(self, service: Service) -> None:
        own = files("anyformer.serving")
        css, script = (own.joinpath(f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
        self.content = _render(service, css, script)
        # No other script runs, whatever a model writes, and nothing is asked of anybody else.
        self.headers = {
            "Content-Security-Policy": f"default-src 'none'; style-src {_digest(css)}; script-src {_digest(script)}; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }

    async def get(self, request: Request) -> Response:
        """GET /."""
        from starlette.responses import HTMLResponse

        return HTMLResponse(self.content, headers=self.headers)


def _render(service: Service, css: str, script: str) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    template = Environment(
        loader=PackageLoader("anyformer.serving", ""), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    ).get_template("page.html")  # fmt: skip
    spec = service.found.model.spec
    n_layers = sum(len(stack.blocks) for stack in spec.stacks.values())
    size = f"{count(parameters(spec).total)} parameters in {counted(n_layers, 'layer')}, {service.longest:,} tokens of context"
    ways = _ways(service)
    tokenizer = service.found.tokenizer
    facts = {
        "model": service.name,
        "ways": ways,
        "new_tokens": min(200, service.limits.max_tokens, service.longest // 2),
        "ends": [tokenizer.spelling(token) for token in tokenizer.closing_ids],  # tokens that no text goes on from
    }
    return template.render(
        name=visible(service.name), size=size, ways=ways, facts=facts, css=Markup(css), script=Markup(script)
    )


def _ways(service: Service) -> list[str]:
    """What can be done with the model here, the likeliest first: "chat", "text", "answer", "vectors"."""
    try:
        check_writes(service.found.model.spec)
    except InputError:
        return ["vectors"]
    if service.found.model.encoder is not None:
        return ["answer"]
    return ["text"] if service.chat_template is None else ["chat", "text"]


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
