"""The one thread that runs the model: it takes prompts off a queue into a batch, and tells each what it is given."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from anyformer.generation import BatchRow, Chosen, ContinuousBatch, Prefixes, Wanted
from anyformer.model import Transformer

Told = list[Chosen] | Chosen | Exception | None
"""What a ticket is told: the tokens of its prompt where it asks for them, each new one, what went wrong; None: it has ended."""


class Busy(Exception):
    """As many wait as may."""


class Ticket:
    """A prompt that waits or grows. `tell` is called from the engine's thread."""

    def __init__(self, wanted: Wanted, tell: Callable[[Told], None]) -> None:
        self.wanted, self.tell = wanted, tell
        self.gone = False  # nobody listens any more
        self.known = 0  # tokens of the prompt that were read with an earlier one; known when a first token is told


class Engine:
    """Runs a model for everybody who asks: at most `most_rows` texts grow at once, and `most_waiting` wait for their turn.

    Between two steps of those that grow one prompt is read, and a piece of other work is done, so that a stream pauses for
    these at most. `longest`: tokens of a prompt and its continuation; `prefixes`: what was read before, None: nothing stays.
    """

    def __init__(
        self,
        model: Transformer,
        longest: int,
        most_rows: int = 32,
        most_waiting: int = 256,
        prefixes: Prefixes | None = None,
    ) -> None:
        self.batch = ContinuousBatch(model, longest, prefixes)
        self.most_rows, self.most_waiting = min(most_rows, self.batch.most or most_rows), most_waiting
        self.waiting: deque[Ticket] = deque()
        self.growing: dict[BatchRow, Ticket] = {}
        self._work: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._changed, self._closing = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Queue prompts, all of them or none. Raises Busy where there is no room."""
        with self._changed:
            free = self.most_rows - len(self.growing)
            if self._closing or len(self.waiting) + len(tickets) > self.most_waiting + free:
                raise Busy(f"{len(self.waiting)} requests wait already; try again later")
            self.waiting.extend(tickets)
            self._changed.notify()

    def leave(self, tickets: Sequence[Ticket]) -> None:
        """Take tickets out of the queue or the batch; who has ended may leave too."""
        with self._changed:
            for ticket in tickets:
                ticket.gone = True
            self.waiting = deque(ticket for ticket in self.waiting if not ticket.gone)

    def between_steps(self, work: Callable[[], Any]) -> Future[Any]:
        """What some other work with the model gives, done in the engine's thread. Raises Busy where too much waits."""
        done: Future[Any] = Future()
        with self._changed:
            if self._closing or len(self._work) >= self.most_waiting:
                raise Busy(f"{len(self._work)} requests wait already; try again later")
            self._work.append((work, done))
            self._changed.notify()
        return done

    def close(self) -> None:
        """End after the step at hand; what waits and grows is told so."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._closing or self.waiting or self._work or self.growing):
                    self._changed.wait()
                if self._closing:
                    break
                for row in [row for row, ticket in self.growing.items() if ticket.gone]:
                    row.ended = True
                    del self.growing[row]
                work = self._work.popleft() if self._work else None
                ticket = self.waiting.popleft() if self.waiting and len(self.growing) < self.most_rows else None
            if work is not None:
                _do(*work)
            if ticket is not None:
                self._begin(ticket)
            if self.growing:
                self._step()
            if not self.growing:
                self._rest()
        self._end_all(RuntimeError("the server is ending"))

    def _begin(self, ticket: Ticket) -> None:
        try:
            row, first = self.batch.add(ticket.wanted)
        except Exception as error:  # told to whoever asked: others go on
            ticket.tell(error)
            return
        ticket.known = row.known
        if ticket.wanted.echo:
            ticket.tell(row.echoed)
        self._tell(row, ticket, first)

    def _step(self) -> None:
        try:
            chosen = self.batch.step()
        except Exception as error:
            self.batch.clear()
            for ticket in self.growing.values():
                ticket.tell(error)
            self.growing.clear()
            return
        for row in [row for row in self.growing if row.error is not None]:
            self.growing.pop(row).tell(row.error)
        for row, token in chosen.items():
            ticket = self.growing.pop(row, None)
            if ticket is not None:
                self._tell(row, ticket, token)

    def _rest(self) -> None:
        """Leave the batch, as an idle engine does: with what of it stays, or, where that fails, without."""
        try:
            self.batch.drop_ended()
        except Exception:
            self.batch.clear()

    def _tell(self, row: BatchRow, ticket: Ticket, token: Chosen | None) -> None:
        if token is not None:
            ticket.tell(token)
        if row.ended:
            ticket.tell(None)
        else:
            self.growing[row] = ticket

    def _end_all(self, error: Exception) -> None:
        for ticket in (*self.growing.values(), *self.waiting):
            ticket.tell(error)
        for _, done in self._work:
            done.cancel()
        self.growing.clear()
        self.waiting.clear()


def _do(work: Callable[[], Any], done: Future[Any]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(work())
    except Exception as error:
        done.set_exception(error)
