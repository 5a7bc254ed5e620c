"""The application: OpenAI's routes to one service, which begins with it and ends with its lifespan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from anyformer.generation import Sampling
from anyformer.inference.opened import Opened
from anyformer.serving.asked import USUAL
from anyformer.serving.limits import Limits, Refusal
from anyformer.serving.page import Page
from anyformer.serving.service import Service

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response


def application(
    found: Opened, name: str, limits: Limits | None = None, api_key: str | None = None, usual: Sampling = USUAL
) -> Starlette:
    """The application of a model under a name. `api_key`: what requests to /v1 must bring; `usual`: how tokens are chosen.

    Its engine begins with it and ends with its lifespan. Raises InputError for limits that the model has no room for.
    """
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    service = Service(found, name, limits or Limits(), api_key, usual)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        said = "there is no such route" if error.status_code == 404 else str(error.detail)
        return JSONResponse(
            Refusal(f"{request.method} {request.url.path}: {said}", error.status_code).as_json(), error.status_code
        )

    routes = [
        Route("/", Page(service).get),
        Route("/v1/completions", service.guarded(service.completions), methods=["POST"]),
        Route("/v1/chat/completions", service.guarded(service.chat), methods=["POST"]),
        Route("/v1/embeddings", service.guarded(service.embeddings), methods=["POST"]),
        Route("/v1/models", service.guarded(service.models)),
        Route("/v1/models/{name:path}", service.guarded(service.models)),
        Route("/health", service.health),
        Route("/metrics", service.counts),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: refused})
    app.state.service = service
    return app
