"""The page at a server's root: its model in a browser, token by token, by the routes that everybody has. It loads nothing."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

from anyformer.amounts import count, counted
from anyformer.errors import InputError
from anyformer.generation.prompt import check_writes
from anyformer.notebook import page_template
from anyformer.screen import visible
from anyformer.serving.service import Service
from anyformer.spec import parameters

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


class Page:
    """The page of a service's model, of what it can do: talk, go on with a text, answer one, or tell texts apart."""

    def __init__(self, service: Service) -> None:
        template = page_template("anyformer.serving", "page")
        self.content = template.render(_facts(service))
        style, script = (_digest(template.globals[kind]) for kind in ("css", "js"))
        # No other script runs, whatever a model writes, and nothing is asked of anybody else.
        self.headers = {
            "Content-Security-Policy": f"default-src 'none'; style-src {style}; script-src {script}; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }

    async def get(self, request: Request) -> Response:
        """GET /."""
        from starlette.responses import HTMLResponse

        return HTMLResponse(self.content, headers=self.headers)


def _facts(service: Service) -> dict[str, Any]:
    """What the page says of the model, and its script is told of it."""
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
    return {"name": visible(service.name), "size": size, "ways": ways, "facts": facts}


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
