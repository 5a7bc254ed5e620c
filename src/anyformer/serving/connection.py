"""A client that may hang up before its answer is there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from starlette.requests import Request

T = TypeVar("T")


class Gone(Exception):
    """The client hung up."""


async def unless_gone(request: Request, work: asyncio.Future[T]) -> T:
    """What some work gives. Raises Gone, and ends the work, when the client hangs up before."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    watch = asyncio.ensure_future(gone())
    try:
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise Gone
        return work.result()
    finally:
        for task in (work, watch):
            task.cancel()
        await asyncio.gather(work, watch, return_exceptions=True)
