"""What is answered to a request that cannot be served: a status, and OpenAI's form of an error."""

from __future__ import annotations

from typing import Any

from anyformer.errors import bounded

KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class Refusal(Exception):
    """A request that is refused: `param` is the field at fault, `code` a word that programs look at."""

    def __init__(self, message: str, status: int = 400, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(bounded(message))
        self.status, self.param, self.code = status, param, code

    def as_json(self) -> dict[str, Any]:
        """The body of the answer."""
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}
