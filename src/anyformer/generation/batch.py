"""Continuous batching: rows that come and go between decoding steps, each of which grows as it would alone.

Yu et al. 2022 (Orca), OSDI, section 3.2: iteration-level scheduling.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.cache import KVCache
from anyformer.errors import InputError, RunFailed
from anyformer.generation.compiled import next_logits
from anyformer.generation.decode import growing_cache
from anyformer.generation.penalties import Penalties
from anyformer.generation.prefixes import Prefixes
from anyformer.generation.prompt import check_prompts, prompt_types
from anyformer.generation.sampling import GREEDY, Sampling
from anyformer.model import Transformer


@dataclass(frozen=True)
class Wanted:
    """A prompt and how it goes on. An encoder reads the prompt where the model has one, and `answer` starts what is written."""

    token_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling = GREEDY
    seed: int = 0
    closing_ids: tuple[int, ...] = ()
    answer: tuple[int, ...] = ()
    likeliest: int | None = None  # so many tokens are told of beside each that is chosen; None: no probability either
    echo: bool = False  # the prompt's own tokens have their probabilities too


class Chosen(NamedTuple):
    """A token of a row, and how likely it was."""

    token_id: int
    # natural, of the model itself, whatever the temperature; None: not asked, or the first
    logprob: float | None = None
    likeliest: tuple[tuple[int, float], ...] = ()  # (token id, logprob), the likeliest first


@dataclass(eq=False)
class BatchRow:
    """A prompt in the batch."""

    wanted: Wanted
    generator: torch.Generator
    penalties: Penalties
    echoed: list[Chosen] = field(default_factory=list)  # the prompt's tokens, where they are wanted
    known: int = 0  # tokens of the prompt that were read with an earlier one
    written: list[int] = field(default_factory=list)  # of which no cache holds the last yet
    ended: bool = False
    error: RunFailed | None = None  # that ended it


class ContinuousBatch:
    """Prompts in all states of growth, which read the model's weights once a step together.

    A prompt is read alone, as it would be without others, and then joins. What is written differs from what it is alone by
    rounding only: rows see nothing of each other, and each draws from a generator of its own seed. `longest`: tokens that a
    row may have at most; `prefixes`: what earlier rows read, which later ones that begin alike do not read again. A model with
    an encoder takes one row at a time (`most`).
    """

    def __init__(self, model: Transformer, longest: int, prefixes: Prefixes | None = None) -> None:
        self.model, self.longest, self.prefixes = model, longest, prefixes
        self.rows: list[BatchRow] = []
        self.cache: KVCache | None = None

    @property
    def most(self) -> int | None:
        """Rows that can grow together; None: any number."""
        return None if self.model.encoder is None else 1

    @torch.inference_mode()
    def add(self, wanted: Wanted) -> tuple[BatchRow, Chosen | None]:
        """Read a prompt; return its row and the first token after it, None where none is wanted.

        Raises InputError for a prompt that the model cannot continue, and where there is no room; RunFailed as a step does.
        """
        self.drop_ended()
        if self.most is not None and len(self.rows) >= self.most:
            raise InputError("a model with an encoder writes one answer at a time; add the next one when it has ended")
        read = torch.tensor([wanted.token_ids], dtype=torch.long, device=next(self.model.parameters()).device)
        answer = read.new_tensor([wanted.answer]) if wanted.answer else None
        check_prompts(self.model, read, None, answer, wanted.max_new_tokens)
        start = read if answer is None else answer
        if start.shape[1] + wanted.max_new_tokens > self.longest:
            raise InputError(
                f"a prompt of {start.shape[1]} tokens and {wanted.max_new_tokens} new ones are more than {self.longest}; "
                "ask for fewer or cut the prompt"
            )
        penalties = Penalties(
            wanted.sampling, start, None, self.model.spec.n_scored, wanted.closing_ids, wanted.max_new_tokens
        )
        row = BatchRow(wanted, torch.Generator().manual_seed(wanted.seed), penalties)
        length = start.shape[1] + wanted.max_new_tokens
        # Of what it echoes all probabilities are asked for.
        begun = None if self.prefixes is None or wanted.echo else self.prefixes.copied(wanted.token_ids)
        cache = growing_cache(self.model, 1, length, self.longest, room=0, begun=begun)
        row.known = cache.n
        types = prompt_types(self.model.spec, start)
        if wanted.echo and answer is None:
            all_logits = self.model(read, token_type_ids=types, cache=cache).logits
            row.echoed = [
                Chosen(wanted.token_ids[0]),
                *_told(all_logits[0, :-1], wanted.token_ids[1:], wanted.likeliest),
            ]
            logits = all_logits[:, -1]
        else:
            logits = next_logits(self.model, start[:, row.known :], types, cache, encoder_ids=read)
        self._keep(wanted.token_ids, cache, 0)
        if not wanted.max_new_tokens:
            row.ended = True
            return row, None
        chosen = self._choose(logits, [row]).get(row)
        if row.error is not None:
            raise row.error
        if not row.ended:
            if self.cache is None:
                self.cache = cache
            else:
                self.cache.join(cache)
            self.rows.append(row)
        return row, chosen

    @torch.inference_mode()
    def step(self) -> dict[BatchRow, Chosen]:
        """One more token of each row that grows, but of those that an `error` ends."""
        self.drop_ended()
        if not self.rows:
            return {}
        assert self.cache is not None
        ids = torch.tensor([row.written[-1:] for row in self.rows], device=self.cache.last.device)
        types = None if prompt_types(self.model.spec, ids) is None else torch.ones_like(ids)
        return self._choose(next_logits(self.model, ids, types, self.cache), self.rows)

    def clear(self) -> None:
        """Leave all rows, as after an error in the midst of a step."""
        self.rows, self.cache = [], None

    def _keep(self, token_ids: Sequence[int], cache: KVCache, row: int) -> None:
        if self.prefixes is not None:
            self.prefixes.keep(token_ids, cache, row)

    def _choose(self, logits: Tensor, rows: list[BatchRow]) -> dict[BatchRow, Chosen]:
        """The next token of each row, for logits [row, vocab]; rows that have all they wanted end."""
        found: dict[BatchRow, Chosen] = {}
        by_way: dict[Sampling, dict[int, Tensor]] = {}
        for i, row in enumerate(rows):
            try:
                lowered = row.penalties.applied(logits[i : i + 1])
            except RunFailed as error:  # of a grammar; others go on
                row.error, row.ended = error, True
            else:
                by_way.setdefault(row.wanted.sampling, {})[i] = lowered
        for sampling, places in by_way.items():
            ids = sampling(torch.cat(list(places.values())), [rows[i].generator for i in places]).tolist()
            for i, token in zip(places, ids, strict=True):
                row = rows[i]
                row.penalties.add([[token]])
                row.written.append(token)
                full = len(row.written) == row.wanted.max_new_tokens
                row.ended = row.ended or full or token in row.wanted.closing_ids
                found[row] = _told(logits[i : i + 1], (token,), row.wanted.likeliest)[0]
        return found

    def drop_ended(self) -> None:
        """Leave the rows that have ended."""
        kept = [i for i, row in enumerate(self.rows) if not row.ended]
        if len(kept) == len(self.rows):
            return
        for i, row in enumerate(self.rows):
            if row.ended and row.error is None and self.cache is not None:
                self._keep((*row.wanted.token_ids, *row.written[:-1]), self.cache, i)
        self.rows = [self.rows[i] for i in kept]
        if not self.rows:
            self.cache = None
        elif self.cache is not None:
            self.cache.select(kept)
            self.cache.trim()


def _told(logits: Tensor, token_ids: Iterable[int], likeliest: int | None) -> list[Chosen]:
    """What is said of tokens that were chosen by logits [token, vocab]."""
    token_ids = list(token_ids)
    if likeliest is None:
        return [Chosen(token) for token in token_ids]
    if not token_ids:
        return []
    logprobs = logits.float().log_softmax(-1)
    own = logprobs.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])[:, 0].tolist()
    best = logprobs.topk(min(likeliest, logits.shape[-1]))
    tops = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        Chosen(token, value, tuple(zip(ids, values, strict=True)))
        for token, value, (ids, values) in zip(token_ids, own, tops, strict=True)
    ]
