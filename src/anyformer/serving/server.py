"""The process of a server: one address, until it is told to end, and then what is being answered is answered."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING

from anyformer.errors import UsageError
from anyformer.screen import say

if TYPE_CHECKING:
    from starlette.applications import Starlette


def serve(app: Starlette, host: str, port: int, *, grace_seconds: int = 30) -> None:
    """Answer at an address until SIGTERM or Ctrl-C; answers that have begun have `grace_seconds` to end.

    Raises UsageError for an address that cannot be had.
    """
    import uvicorn

    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(address[0], socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address[4])
        listener.listen()  # whoever reads the address may ask at once
    except OSError as error:
        raise UsageError(f"--host {host} --port {port}: {error.strerror or error}; take another") from None
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=grace_seconds
    )
    server = uvicorn.Server(config)

    def end(number: int, frame: object) -> None:
        """Obey a signal that comes before uvicorn runs, which takes both while it does; it raises them once more at its end."""
        server.should_exit = True

    shown = f"[{host}]" if ":" in host else host
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        url = f"http://{shown}:{listener.getsockname()[1]}"
        say(f"serving at {url}/v1; a page for the browser is {url}; Ctrl-C or SIGTERM ends it")
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        listener.close()
