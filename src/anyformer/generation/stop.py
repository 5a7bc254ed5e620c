"""Stop strings: text comes in pieces, and ends exactly before the first stop string that is complete."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.errors import InputError


class StopStrings:
    """Lets text through up to the stop string that is complete first (of several at once, the one that starts first).

    What may be the beginning of a stop string waits until it is clear, so where pieces are cut changes nothing.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str) or not all(stops):
            raise InputError(f"stop = {stops!r} must be a list of strings that are not empty")
        self._stops = tuple(stops)
        self._waiting = ""
        self.met: str | None = None  # the stop string that ended the text

    def push(self, piece: str) -> str:
        """What of the text is certain to come before a stop string; nothing once one is met."""
        if self.met is not None:
            return ""
        text = self._waiting + piece
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.met = min(found)
            self._waiting = ""
            return text[:at]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._waiting = text[len(text) - kept :]
        return text[: len(text) - kept]

    def finish(self) -> str:
        """What still waited when the text ended by itself."""
        text, self._waiting = self._waiting, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters of `text` are the first of `stop`, which is not yet complete."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
