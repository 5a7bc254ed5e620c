"""A cache whose tensors keep their shapes from token to token, so that one graph does for every step of decoding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.cache import CrossAttentionCache, KVCache, LayerCache, StateCache, cache_kinds
from anyformer.errors import CacheError
from anyformer.layers.slots import BlockIndex, SlotIndex
from anyformer.layers.tokens import FACTS, Tokens
from anyformer.model import Transformer
from anyformer.spec import StackSpec

LEAST = 64  # slots of the shortest cache, and tokens of the shortest memory


def static_length(tokens: int) -> int:
    """Slots for so many tokens: the next of 64, 96, 128, 192, 256 …, so that texts of like length share a graph."""
    power = 1 << (tokens - 1).bit_length()
    return max(LEAST, power if tokens > power * 3 // 4 else power * 3 // 4)


def static_nbytes(model: Transformer, rows: int, tokens: int, source_tokens: int) -> int:
    """What slots for so many tokens a row take, beside what cross-attention keeps of so many of an encoder."""
    lengths = {"seq_len": static_length(tokens), "source_len": static_length(source_tokens)}
    return sum(kind.nbytes for kind in cache_kinds(model.spec, batch=rows, dtype=model.kept_dtype, **lengths))


def takes_several(cache: KVCache) -> bool:
    """Whether static slots take several tokens at once: no ring, whose oldest ones these would still see, and no blocks."""
    return not any(index.ring or isinstance(index, BlockIndex) for index in cache.slot_indexes.values())


class StaticSlots(SlotIndex):
    """Which tokens slots hold, all of them always seen: those that are empty are of document 0, which masks hide."""

    def __init__(self, read: SlotIndex) -> None:
        self.name, self.batch, self.slots, self.ring = read.name, read.batch, read.slots, read.ring
        self.n, self.plain, self.leaps = read.n, False, read.leaps
        self.facts = {name: read.facts[name].clone() for name in FACTS}
        self.at = torch.full((1,), read.n - 1, device=self.facts["position"].device)  # the slot written last
        if self.ring:
            self.at %= self.slots
        self.written = self.at  # the slots of this pass
        self.keys = None

    def admit(self, new: Tokens) -> None:
        """Write down new tokens of each row, one where this is a ring."""
        self.at += new.n
        if self.ring:
            self.at %= self.slots
        self.written = self.at if new.n == 1 else self.at + torch.arange(1 - new.n, 1, device=self.at.device)
        for fact, value in self.facts_of(new).items():
            self.facts[fact].index_copy_(-1, self.written, value)
        seen: dict[str, Any] = dict(self.facts)
        self.keys = Tokens(**seen, leaps=self.leaps, name=self.name)

    def extend(self, held: Tensor, new: Tensor, axis: int) -> Tensor:
        """All slots of [batch, …, slot, …], the new tokens written along `axis`."""
        return held.index_copy_(held.dim() + axis, self.written, new.to(held.dtype))


class StaticBlocks(BlockIndex):
    """Which blocks slots hold, all of them always seen, as of `StaticSlots`."""

    def __init__(self, read: BlockIndex) -> None:
        self.name, self.batch, self.slots, self.ring, self.every = read.name, read.batch, read.slots, False, read.every
        self.n, self.plain, self.keys = read.n, False, None
        self.source, self.fresh, self.before = read.source, read.fresh, read.before.clone()
        self.facts = {name: read.facts[name].clone() for name in FACTS}

    @property
    def seen(self) -> int:
        return self.slots

    def admit(self, new: Tokens) -> None:
        """Nothing: slots are as many as they will be."""


class StaticState(StateCache):
    """What a recurrence has made of the tokens so far; what it makes next is written in its place."""

    def __init__(self, read: StateCache, last: Tensor) -> None:
        self.held = {name: value.clone(memory_format=torch.contiguous_format) for name, value in read.held.items()}
        self.last, self.blocks, self.parts = last, read.blocks, read.parts

    @property
    def document(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Of the last token; no view of `last` beside it, as whose other name a compiler would have to see it."""
        return self.last[1] if self.blocks is None else self.blocks.before

    def keep(self, state: Mapping[str, Tensor]) -> None:
        """Write the state after this pass."""
        for name, value in state.items():
            self.held[name].copy_(value)


class StaticMemory(CrossAttentionCache):
    """What cross-attention made of the memory, which has been read."""

    def __init__(self, read: CrossAttentionCache, slots: int) -> None:
        self._in_8_bits, self._made = read._in_8_bits, dict(read._made)
        self.held = {name: F.pad(value, (0, 0, 0, slots - value.shape[-2])) for name, value in read.held.items()}


class StaticCache(KVCache):
    """What a cache holds once it has read a prompt, for passes over one further token of each row, or several (`takes_several`).

    It takes over the tensors of `read`, which is not used until they are given back (`thawed`); a pass changes what is in them,
    and nothing else. `room`: how many tokens it has slots for beside those it `holds`; `n` is what it may hold. Its rows cannot
    part: no `rewind`, `select` or `join`. Raises CacheError for a cache that has read nothing.
    """

    def __init__(self, read: KVCache) -> None:
        if not read.n:
            raise CacheError("a static cache goes on where a prompt ends; run the prompt with the cache first")
        self.batch, self.slack, self.plain = read.batch, 0, False
        self.read = read if read.memory_tokens is None else None
        self.holds, self.last = read.n, read.last.clone()
        slots: dict[tuple[str, int | None], StaticSlots | StaticBlocks] = {
            key: StaticBlocks(index) if isinstance(index, BlockIndex) else StaticSlots(index)
            for key, index in read.slot_indexes.items()
        }
        full = [index for index in slots.values() if not index.ring]
        ends = [
            (index.slots + 1) * index.every - 1 if isinstance(index, StaticBlocks) else index.slots for index in full
        ]
        self.slot_indexes = dict[tuple[str, int | None], SlotIndex](slots)
        rooms = (end - index.n for end, index in zip(ends, full, strict=True))
        self.room = min(rooms, default=None)  # None: any number
        self._count()
        self.memory_tokens = None if read.memory_tokens is None else _padded(read.memory_tokens)
        self.stores = []
        for store in read.stores:
            if isinstance(store, LayerCache):
                self.stores.append(store)
            elif isinstance(store, StateCache):
                self.stores.append(StaticState(store, self.last))
            else:
                assert self.memory_tokens is not None
                self.stores.append(StaticMemory(store, self.memory_tokens.n))
        self._refer(read)
        written = (index.at for index in slots.values() if isinstance(index, StaticSlots))
        for value in (self.last, *written, *self._tensors()):
            if value.is_cuda:  # whose graphs are recorded with what lies at one address, and write to nothing else
                torch._dynamo.mark_static_address(value, guard=False)

    def _count(self) -> None:
        # Not how many tokens it holds: a compiler would make a graph for each such number.
        self.n = max((index.slots for index in self.slot_indexes.values()), default=1)

    def lengthen(self) -> None:
        """Have a quarter more slots, 64 at least; rings stay."""
        more = max(LEAST, self.n // 4)
        if self.room is not None:
            self.room += more
            self.make_room(self.holds + self.room)
        self._count()

    def take_room(self, tokens: int = 1) -> None:
        """Take the slots of a further pass. Raises CacheError where there are too few."""
        if self.room is not None:
            if self.room < tokens:
                raise CacheError("the static cache is full; make it of a longer one")
            self.room -= tokens
        self.holds += tokens

    def thawed(self) -> KVCache:
        """The cache that it took over, with what this one holds, which is used no more. Raises CacheError beside an encoder."""
        read = self.read
        if read is None:
            raise CacheError("what is kept of an encoder's text is not given back; read the text again")
        more = self.holds - read.n
        for old, new in zip(read.slot_indexes.values(), self.slot_indexes.values(), strict=True):
            old.n, old.slots, old.facts = old.n + more, new.slots, new.facts
        for old, new in zip(read.stores, self.stores, strict=True):
            old.held = new.held
        read._refer(self)
        read.n, read.behind, read.last = self.holds, max(0, read.behind - more), self.last
        return read

    def _tensors(self) -> Iterator[Tensor]:
        """What passes write to, and what cross-attention reads."""
        for index in self.slot_indexes.values():
            yield from index.facts.values()
        for store in self.stores:
            yield from store.held.values()

    def admit(self, tokens: Tokens, batch: int, stack: StackSpec | None = None) -> None:
        """Take note of the new tokens of each row."""
        if batch != self.batch or (tokens.n > 1 and not takes_several(self)):
            raise CacheError(
                f"a static cache takes one token of each of its {self.batch} rows, not {tokens.n} of {batch}"
            )
        for slot_index in self.slot_indexes.values():
            slot_index.admit(tokens)
        self.last[0].copy_(tokens.position[:, -1:].expand(self.batch, 1))

    def settle(self) -> None:
        """Nothing: a compiler need not see it."""

    def rewind(self, drop: int | Sequence[int]) -> NoReturn:
        """Not of this cache."""
        raise CacheError("a static cache takes no token back; decode without compiling")

    def select(self, rows: Sequence[int] | Tensor) -> NoReturn:
        """Not of this cache."""
        raise CacheError("the rows of a static cache stay as they are; decode without compiling")

    def join(self, other: KVCache) -> NoReturn:
        """Not of this cache."""
        raise CacheError("a static cache takes no further rows; decode without compiling")

    def trim(self) -> None:
        """Nothing: slots stay as they are."""


def _padded(memory: Tokens) -> Tokens:
    """The tokens of an encoder's memory, and behind them empty ones, to a static length."""
    document = torch.ones_like(memory.position) if memory.document is None else memory.document
    missing = static_length(memory.n) - memory.n
    known = replace(memory, document=document, span=None)
    return known.each(lambda fact: F.pad(fact, (0, missing)))
