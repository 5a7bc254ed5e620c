"""Decoding: tokens out of a model one at a time, through a key/value cache that gives what no cache would give."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import torch
from torch import Tensor

from anyformer.cache import KVCache
from anyformer.capacity import refuse_beyond_memory
from anyformer.errors import CacheError, UsageError
from anyformer.generation.captured import CapturedStep, captured
from anyformer.generation.compiled import CompiledStep, next_logits
from anyformer.generation.penalties import Penalties
from anyformer.generation.prompt import check_begun, check_prompts, competing, prompt_types, rotating_by_length
from anyformer.generation.sampling import GREEDY, Sampling, check_numbers, generators
from anyformer.generation.static_cache import LEAST, StaticCache, static_length, static_nbytes, takes_several
from anyformer.model import Transformer
from anyformer.spec import ModelSpec

ROOM = 4096  # tokens to be written that a cache has room for at first


class Decoding(Iterator[dict[int, int]]):
    """The rows of a batch while they grow: each step gives {row: its next token id} of the rows that still grow.

    `input_ids` [batch, token] with padding, if any, on the left, where `attention_mask` is 0; they are the encoder's
    where the model has one, and `decoder_input_ids` [batch, token] then start the decoder. Row i draws from a generator
    of its own, of seed + i, or of seed i of several. A row ends with any of the `closing_ids` (which it gives), after
    `max_new_tokens`, or when `stop` is called on it. Ended rows leave the batch and the cache. `cache=False` computes
    every step anew, the slow way to the same tokens; a cache goes on behind the tokens that it holds, with which `input_ids`
    begin, and `read` gives it with all that was read. `compiled`: what steps behind the prompt run by; without, they are
    recorded and replayed where that pays (`captured`). By either, rows that have ended stay in the batch, whose shape it is
    made for. Tokens that a grammar leaves no choice of, in any row, are not waited for: the next pass reads them with what
    follows. Raises InputError for prompts that the model cannot continue.
    """

    def __init__(
        self,
        model: Transformer,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        max_new_tokens: int,
        decoder_input_ids: Tensor | None = None,
        sampling: Sampling = GREEDY,
        seed: int | Sequence[int] = 0,
        closing_ids: Collection[int] = (),
        cache: bool | KVCache = True,
        compiled: CompiledStep | None = None,
    ) -> None:
        check_prompts(model, input_ids, attention_mask, decoder_input_ids, max_new_tokens)
        begun = cache if isinstance(cache, KVCache) else None
        if begun is not None:
            check_begun(model.spec, begun, input_ids)
        if compiled is not None and cache is False:
            raise UsageError("a compiled step goes on from a cache; decode without compiling, or with a cache")
        if compiled is not None and compiled.model is not model:
            raise UsageError("the compiled step is of another model; make one of this, or decode without compiling")
        self.model, self.sampling, self.closing_ids = model, sampling, closing_ids
        self.rows = list(range(input_ids.shape[0]))  # that still grow, in the order of the batch
        self.steps_left = max_new_tokens
        self.encoder_ids = input_ids if model.encoder is not None else None
        self.mask = attention_mask
        self.ids = input_ids if decoder_input_ids is None else decoder_input_ids  # not yet in the cache, or all of them
        self.types = prompt_types(model.spec, self.ids)
        self.generators = generators(seed, len(self.rows))
        counted = attention_mask if model.encoder is None else None
        self.penalties = Penalties(sampling, self.ids, counted, model.spec.n_scored, closing_ids, max_new_tokens)
        self.ended: set[int] = set()
        self.graph: CompiledStep | CapturedStep | None = compiled
        source_tokens = 0 if self.encoder_ids is None else self.encoder_ids.shape[1]
        if cache is not False and compiled is None:
            self.graph = captured(model, self.ids, max_new_tokens, source_tokens)
        lengthens = self.graph is not None and self.graph.lengthens
        static, room = self.graph is not None and not lengthens, LEAST if lengthens else ROOM
        self.cache: KVCache | None = None
        if cache is not False:
            self.cache = cache_for(
                model, self.ids, max_new_tokens, source_tokens, static=static, room=room, begun=begun
            )
        if begun is not None:
            self.ids, self.mask = self.ids[:, begun.n :], None if self.mask is None else self.mask[:, begun.n :]
        self.skips = sampling.grammar is not None and self._reads_several(max_new_tokens)  # passes that no choice needs
        self._ahead: Callable[[], list[int]] | None = None  # tokens that a device was asked for already
        self._begun = False  # whether the prompt was read

    @torch.inference_mode()
    def __next__(self) -> dict[int, int]:
        self._drop_ended()
        if not self.rows or not self.steps_left:
            raise StopIteration
        self.steps_left -= 1
        read = self._ahead or self._step()
        # A GPU computes the next tokens while these are read; a step that no row wants is lost.
        goes_on = self.steps_left and isinstance(self.cache, StaticCache)
        self._ahead = self._step() if goes_on and self.graph and self.graph.ahead else None
        tokens = {row: token for row, token in zip(self.rows, read(), strict=True) if row not in self.ended}
        self.ended.update(row for row, token in tokens.items() if token in self.closing_ids)
        return tokens

    def _step(self) -> Callable[[], list[int]]:
        """Ask for the next token of each row; what is returned waits for them. It raises RunFailed where none is likeliest."""
        forced = self.skips and self.penalties.forced
        logits = self.ids.new_zeros(len(self.ids), self.model.spec.n_scored) if forced else self._logits()
        new, finite = self.sampling.unchecked(self.penalties.applied(logits), self.generators)
        self.penalties.add(new[:, None])
        # What a cache holds it knows the mask of; only of what is still to be read is it needed.
        unread = forced or self.cache is None
        self.ids = torch.cat((self.ids, new[:, None]), -1) if unread else new[:, None]
        if self.mask is not None and self.encoder_ids is None:
            self.mask = torch.cat((self.mask, torch.ones_like(self.mask[:, :1])), -1) if unread else None
        if self.types is not None:
            written = torch.ones_like(new[:, None])
            self.types = torch.cat((self.types, written), -1) if unread else written
        return arriving(torch.where(finite, new, -1))

    def _reads_several(self, max_new_tokens: int) -> bool:
        """Whether a pass over several tokens gives what passes over each would."""
        spec, n_prompt = self.model.spec, self.ids.shape[1]
        if competing(spec) or rotating_by_length(spec, 1, n_prompt + max_new_tokens):
            return False
        return self.graph is None or (self.graph.lengthens and self.cache is not None and takes_several(self.cache))

    def stop(self, row: int) -> None:
        """Let a row grow no more."""
        self.ended.add(row)

    def read(self) -> KVCache:
        """The cache of what was read, the last token never; no step follows. Raises CacheError where none is kept."""
        if self.cache is None:
            raise CacheError("nothing is kept without a cache; decode with one")
        return self.cache.thawed() if isinstance(self.cache, StaticCache) else self.cache

    def _logits(self) -> Tensor:
        """Logits [batch, vocab] of each row's next token."""
        if self.graph is None or self.cache is None or not self._begun:
            self._begun = True
            return next_logits(self.model, self.ids, self.types, self.cache, self.mask, self.encoder_ids)
        if not isinstance(self.cache, StaticCache):
            self.cache = StaticCache(self.cache)
        return self.graph(self.ids, self.types, self.cache)

    def _drop_ended(self) -> None:
        kept = [i for i, row in enumerate(self.rows) if row not in self.ended]
        if len(kept) == len(self.rows) or (kept and isinstance(self.cache, StaticCache)):
            return
        self.rows, self.generators = [self.rows[i] for i in kept], [self.generators[i] for i in kept]
        if not self.rows:
            return
        self.ids = self.ids[kept]
        facts = (self.mask, self.types, self.encoder_ids)
        self.mask, self.types, self.encoder_ids = (fact if fact is None else fact[kept] for fact in facts)
        self.penalties.select(kept)
        if self.cache is not None:
            self.cache.select(kept)


def generate_ids(
    model: Transformer,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    max_new_tokens: int,
    decoder_input_ids: Tensor | None = None,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    end_of_text: int | None = None,
    cache: bool | KVCache = True,
    compiled: CompiledStep | None = None,
) -> Tensor:
    """The new ids [batch, at most max_new_tokens]; a row that ends early is filled with `end_of_text`.

    The other arguments are those of `Decoding`, which gives the same ids step by step. Raises InputError as it does.
    """
    steps = Decoding(
        model,
        input_ids,
        attention_mask,
        max_new_tokens=max_new_tokens,
        decoder_input_ids=decoder_input_ids,
        sampling=sampling,
        seed=seed,
        closing_ids=() if end_of_text is None else (end_of_text,),
        cache=cache,
        compiled=compiled,
    )
    n_rows = input_ids.shape[0]
    columns = [[step.get(row, end_of_text) for row in range(n_rows)] for step in steps]
    return torch.tensor(columns, dtype=torch.long, device=input_ids.device).reshape(-1, n_rows).T.contiguous()


def arriving(ids: Tensor) -> Callable[[], list[int]]:
    """Token ids [batch], -1 where there is none, on their way from their device; what is asked of it later is not waited for."""
    here = ids.to("cpu", non_blocking=ids.is_cuda)
    there = torch.cuda.Event() if ids.is_cuda else None
    if there is not None:
        there.record(torch.cuda.current_stream(ids.device))  # which need not be the current device's

    def read() -> list[int]:
        if there is not None:
            there.synchronize()
        found = here.tolist()
        check_numbers(-1 not in found)
        return found

    return read


def cache_for(
    model: Transformer,
    prompt: Tensor,
    max_new_tokens: int,
    source_tokens: int = 0,
    *,
    static: bool = False,
    room: int = ROOM,
    begun: KVCache | None = None,
) -> KVCache:
    """A cache for a prompt [batch, token] and what is written after it, beside an encoder's tokens; the last is never read.

    With `room` for so many of those at first, a full one grows while a long text is written. One that is `static` cannot:
    UsageError is raised where it has no room. `begun` holds the beginning of the prompt, and is given the room.
    """
    n = prompt.shape[1]
    length = n + max_new_tokens - 1
    if not static:
        return growing_cache(model, len(prompt), n, length, room=room, begun=begun)
    nbytes, slots = static_nbytes(model, len(prompt), length, source_tokens), static_length(length)
    remedy = "ask for fewer new tokens, or decode without compiling"
    refuse_beyond_memory(nbytes, prompt.device, f"a cache of {slots:,} tokens", remedy)
    return growing_cache(model, len(prompt), slots, slots, begun=begun)


def growing_cache(
    model: Transformer,
    rows: int,
    n_prompt: int,
    length: int,
    *,
    slack: int = 0,
    spec: ModelSpec | None = None,
    room: int = ROOM,
    begun: KVCache | None = None,
) -> KVCache:
    """A cache with `room` for some tokens behind a prompt, for as many as `length` in all; the one `begun`, if there is one."""
    slots = min(length, n_prompt + room)
    if begun is None:
        return model.new_cache(rows, slots, longest=length, slack=slack, spec=spec)
    begun.make_room(slots)
    return begun
