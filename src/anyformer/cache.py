"""The cache: full for what sees everything, a ring for a window, fixed for the encoder's memory, a state for a recurrence.

The caller owns it and hands each cached mixer call its own store: depth decides, not the module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from anyformer.errors import CacheError
from anyformer.layers.causality import later_tokens_seen
from anyformer.layers.context import Store
from anyformer.layers.int8_vectors import SCALE, group, nbytes, packed, unpacked
from anyformer.layers.slots import BlockIndex, SlotIndex, taken
from anyformer.layers.tokens import Tokens
from anyformer.spec import KeptCall, ModelSpec, StackSpec, cached_calls

STATE_NBYTES = 4  # a number of a state: float32, in which rounding does not add up


def _scales(name: str) -> str:
    """What the scales of what is held in 8 bits are held as."""
    return f"{name} scales"


class LayerCache(Store):
    """What one mixer call keeps of each token, each [batch, …, slot, width]; in int8 with scales beside it."""

    def __init__(
        self,
        slot_index: SlotIndex,
        shapes: Mapping[str, tuple[int, ...]],
        dtype: torch.dtype,
        device: torch.device | None,
    ) -> None:
        self.slot_index = slot_index
        kinds = {name: (shape, dtype) for name, shape in shapes.items()}
        if dtype == torch.int8:
            each = {name: (*shape[:-1], shape[-1] // group(shape[-1])) for name, shape in shapes.items()}
            kinds |= {_scales(name): (shape, SCALE) for name, shape in each.items()}
        self.held = {
            name: torch.zeros(slot_index.batch, *shape[:-1], slot_index.slots, shape[-1], dtype=kind, device=device)
            for name, (shape, kind) in kinds.items()
        }

    @property
    def keys(self) -> Tokens | None:  # type: ignore[override]
        """The tokens this pass sees."""
        return self.slot_index.keys

    def extend(self, new: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """All that this pass sees, each [batch, …, key, width]. Raises CacheError for what has a gradient."""
        seen = {}
        for name, value in new.items():
            if value.requires_grad:
                raise CacheError("a cache keeps no gradients; call the model under torch.no_grad() or without a cache")
            if self.held[name].dtype != torch.int8:
                seen[name] = self._extended(name, value).to(value.dtype)
                continue
            # What is new is seen as it is held, so that it does not matter in what chunks a text is read.
            numbers, scales = packed(value)
            held = self._extended(name, numbers), self._extended(_scales(name), scales)
            seen[name] = unpacked(*held, value.dtype)
        return seen

    def put(self, blocks: Tokens) -> None:
        assert isinstance(self.slot_index, BlockIndex)
        self.slot_index.put(blocks)

    def make_room(self, name: str) -> None:
        """Hold as many slots of it as the index has."""
        self.held[name] = self.slot_index.roomy(self.held[name], -2)

    def _extended(self, name: str, value: Tensor) -> Tensor:
        self.make_room(name)
        return self.slot_index.extend(self.held[name], value, -2)


class CrossAttentionCache(Store):
    """What cross-attention makes of the memory once; in int8 with scales beside it."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.held: dict[str, Tensor] = {}
        self._in_8_bits, self._made = dtype == torch.int8, dict[str, torch.dtype]()

    def once(self, make: Callable[[], Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """What `make` gave first, each [batch, …, source, width]."""
        if not self._in_8_bits:
            self.held = self.held or dict(make())
            return self.held
        if not self.held:
            for name, value in make().items():
                self._made[name] = value.dtype
                self.held[name], self.held[_scales(name)] = packed(value)
        return {name: unpacked(self.held[name], self.held[_scales(name)], kind) for name, kind in self._made.items()}


class StateCache(Store):
    """What one recurrence has made of the tokens so far, each [batch, …]; in float32 at first, then as it was made."""

    blocks: SlotIndex | None = None  # that it is a state of; None: of tokens

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], batch: int, device: torch.device | None) -> None:
        self.held = {name: torch.zeros(batch, *shape, device=device) for name, shape in shapes.items()}

    @property
    def state(self) -> Mapping[str, Tensor]:  # type: ignore[override]
        """The state before this pass, each [batch, …]; empty before the first token."""
        return {} if self.document is None else self.held

    def keep(self, state: Mapping[str, Tensor]) -> None:
        """Hold the state after this pass. Raises CacheError for what has a gradient."""
        if any(value.requires_grad for value in state.values()):
            raise CacheError("a cache keeps no gradients; call the model under torch.no_grad() or without a cache")
        self.held = dict(state)


class KVCache:
    """One store for each cached mixer call of a model.

    `length`: tokens to make room for (a full store grows when it is exceeded); `longest`: tokens that it may ever hold, by
    which a window is a ring or full, as many as `length` by default; `slack`: how many tokens, beyond one, `rewind` can take
    back from a ring; `dtype` int8: up to 32 numbers side by side share a scale, and states stay float32. Raises CacheError
    where `rewind` or the model asks for what is no longer held.
    """

    def __init__(
        self,
        spec: ModelSpec,
        batch: int = 1,
        length: int = 256,
        *,
        longest: int | None = None,
        slack: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        device = None if device is None else torch.device(device)
        longest = length if longest is None else longest
        for name, number in (("batch", batch), ("length", length), ("longest", longest), ("slack", slack)):
            if number < 0:
                raise CacheError(f"{name} = {number} of a cache must be 0 or more")
        self.batch, self.slack, self.n = batch, slack, 0
        # by ("tokens", reach), ("blocks", how many tokens) and ("numbered", how many tokens)
        self.slot_indexes: dict[tuple[str, int | None], SlotIndex] = {}
        self.stores: list[LayerCache | CrossAttentionCache | StateCache] = []
        self.memory_tokens: Tokens | None = None
        # each row's last position and document
        self.last = torch.full((2, batch, 1), -1, dtype=torch.long, device=device)
        self.plain = True
        self.under_way = False  # whether a pass has begun and not come to its end
        self.behind = 0  # how far `n` is behind the most tokens that were written, for the row that went back furthest
        self.stack = spec.stack
        for kept in cached_calls(spec):
            if kept.how == "memory":
                self.stores.append(CrossAttentionCache(dtype))
            elif kept.how == "state":
                self.stores.append(state := StateCache(kept.shapes, batch, device))
                state.blocks = self._index(kept, length, longest, device) if kept.every > 1 else None
            else:
                self.stores.append(LayerCache(self._index(kept, length, longest, device), kept.shapes, dtype, device))
            if kept.name:
                owner = self.stores[-1 - kept.number]
                owner.parts = {**owner.parts, kept.name: self.stores[-1]}

    def _index(self, kept: KeptCall, length: int, longest: int, device: torch.device | None) -> SlotIndex:
        """The slots of what is kept: those of one reach, and of blocks of one length, are one."""
        reach = kept.reach if kept.reach is not None and kept.reach <= longest else None
        blocks = "numbered" if kept.numbered else "blocks"
        key = (blocks, kept.every) if kept.every > 1 else ("tokens", reach)
        if key not in self.slot_indexes:
            if kept.every > 1:
                index = BlockIndex(kept.every, self.batch, length, device)
            elif reach is None:
                index = SlotIndex("full", self.batch, length, False, device, self.slack)
            else:  # a ring, of two at least: where the last is taken back, the one before says the position
                slots = min(max(reach, 2), longest) + self.slack
                index = SlotIndex(f"ring of {slots}", self.batch, slots, True, device, self.slack)
            self.slot_indexes[key] = index
        return self.slot_indexes[key]

    def admit(self, tokens: Tokens, batch: int, stack: StackSpec | None = None) -> None:
        """Take note of the tokens of a pass over `batch` rows, by this stack, before its layers run. Raises CacheError."""
        if batch != self.batch:
            raise CacheError(f"the cache holds {self.batch} rows and was given {batch}; make one of that batch")
        if stack is not None and stack is not self.stack and stack != self.stack:
            raise CacheError("the cache is of another model; make one of this, by its new_cache()")
        if self.under_way:
            raise CacheError(
                "a pass over this cache failed before its end, so that it holds parts of it; make a new one"
            )
        self.under_way = True
        for slot_index in self.slot_indexes.values():
            slot_index.admit(tokens)
        for store in self.stores:
            blocks = store.blocks if isinstance(store, StateCache) else None
            store.document = None if not self.n else self.last[1] if blocks is None else blocks.before
        self.n += tokens.n
        self.behind = max(0, self.behind - tokens.n)
        self.plain = self.plain and tokens.span is not None
        if tokens.document is None:  # nothing is padding: the last token is the last real one
            last = tokens.position[:, -1:]
            self.last = torch.stack((last, torch.ones_like(last))).expand(2, self.batch, 1)
            return
        position, document = (fact.expand(self.batch, -1) for fact in (tokens.position, tokens.document))
        real = (document > 0) * torch.arange(1, tokens.n + 1, device=document.device)
        at = real.argmax(-1, keepdim=True)  # the last real token of each row; rows of padding alone keep what they had
        now = torch.stack((position.gather(1, at), document.gather(1, at)))
        self.last = torch.where(now[1] > 0, now, self.last)

    def settle(self) -> None:
        """Take note that the pass has come to its end."""
        self.under_way = False

    def rewind(self, drop: int | Sequence[int]) -> None:
        """Forget the last tokens: `drop` of every row, or drop[b] of row b, which then stands as if padded on the left."""
        drops = [drop] * self.batch if isinstance(drop, int) else list(drop)
        if len(drops) != self.batch or min(drops) < 0 or max(drops) > self.n:
            raise CacheError(f"rewind({drop}) does not fit {self.batch} rows of {self.n} tokens")
        if gone := self.gone(max(drops)):
            raise CacheError(f"rewind({drop}){gone}")
        if not max(drops):
            return
        self.behind += max(drops)
        amounts = torch.tensor(drops, device=self.last.device)
        of_tokens = [index for index in self.slot_indexes.values() if not isinstance(index, BlockIndex)]
        if of_tokens:  # what is full holds all
            self.last = min(of_tokens, key=lambda index: index.ring).last_before(amounts, self.last)
        for slot_index in self.slot_indexes.values():
            if not slot_index.ring and min(drops) == max(drops):  # what is forgotten is written over
                slot_index.n -= drops[0]
                continue
            index, alive = slot_index.rewound(amounts, min(drops))
            self._move(slot_index, partial(taken, index=index))
            slot_index.facts["document"] *= alive
        self.n -= min(drops)
        self.plain = self.plain and len(set(drops)) == 1

    def gone(self, drop: int, more: int = 0) -> str | None:
        """What `rewind` by so many tokens lacks when `more` have come, in words; None: nothing."""
        if not drop:
            return None
        if any(isinstance(store, StateCache) for store in self.stores):
            return ": a state holds all tokens as one sum; select() copies rows before they part"
        behind, most = self.behind + drop, self.n + self.behind + more
        if behind > 1 + self.slack and any(index.ring and most > index.slots for index in self.slot_indexes.values()):
            return f" asks for tokens that a window's ring no longer holds; make the cache with slack={behind - 1}"
        return None

    def alone(self, row: int, n: int, drop: int = 0) -> KVCache:
        """Another cache, of one row: of its last n tokens, all but padding, without the last `drop`; with slots for no more.

        Raises CacheError where `rewind` by `drop` does.
        """
        one = copy(self)
        one.slot_indexes = {key: copy(index) for key, index in self.slot_indexes.items()}
        one.stores = [copy(store) for store in self.stores]
        one._refer(self)
        one._pick(slice(row, row + 1), 1)
        one.rewind(drop)
        one._shift(n - self.n)  # which makes tensors of its own of all that has slots
        for store in one.stores:
            if not isinstance(store, LayerCache):
                store.held = {name: value.clone() for name, value in store.held.items()}
        return one

    def _refer(self, other: KVCache) -> None:
        """Let each store stand by slots and stores of this cache, where it stood by those of another of the same model."""
        slots = dict(zip(other.slot_indexes.values(), self.slot_indexes.values(), strict=True))
        stores: dict[Store, Store] = dict(zip(other.stores, self.stores, strict=True))
        for store in self.stores:
            if isinstance(store, StateCache) and store.blocks is not None:
                store.blocks = slots.get(store.blocks, store.blocks)
            store.parts = {name: stores.get(part, part) for name, part in store.parts.items()}
            if isinstance(store, LayerCache):
                store.slot_index = slots[store.slot_index]

    def make_room(self, tokens: int) -> None:
        """Have slots for so many tokens, rather than grow when they come; rings stay."""
        for index in self.slot_indexes.values():
            index.slots = index.slots if index.ring else max(index.slots, index.slots_for(tokens))
            index.facts = {name: index.roomy(held, -1) for name, held in index.facts.items()}
        for store in self.stores:
            if isinstance(store, LayerCache):
                for name in store.held:
                    store.make_room(name)

    def select(self, rows: Sequence[int] | Tensor) -> None:
        """Keep, repeat or reorder rows: row i becomes what row rows[i] was (beam search, finished sequences)."""
        index = torch.as_tensor(rows, device=self.last.device)
        self._pick(index, len(index))

    def _pick(self, index: Tensor | slice, n: int) -> None:
        """Have the n rows of an index."""
        self.batch = n
        for slot_index in self.slot_indexes.values():
            slot_index.batch = self.batch
            slot_index.facts = {fact: value[index] for fact, value in slot_index.facts.items()}
        for store in self.stores:
            store.held = {name: value[index] for name, value in store.held.items()}
        self.last = self.last[:, index]
        if self.memory_tokens is not None:
            self.memory_tokens = self.memory_tokens.each(lambda fact: fact[index] if fact.shape[0] > 1 else fact)

    def join(self, other: KVCache) -> None:
        """Take the rows of another cache of the same model and `longest`, behind these, and use it no more.

        Of both the rows that are shorter then stand as if padded on the left. Raises CacheError for caches that hold nothing
        yet, or the memory of an encoder.
        """
        if not self.n or not other.n or self.memory_tokens is not None:
            raise CacheError(
                "join() takes rows that have read their prompts, of a model without an encoder; run one alone"
            )
        self.plain = self.plain and other.plain and self.n == other.n
        self.behind = max(self.behind, other.behind)
        n = max(self.n, other.n)
        for cache in (self, other):
            cache._shift(n - cache.n)
        for own, new in zip(self.slot_indexes.values(), other.slot_indexes.values(), strict=True):
            own.plain, own.leaps = own.plain and new.plain and self.plain, own.leaps or new.leaps
            own.batch += new.batch
            own.facts = {fact: torch.cat((value, new.facts[fact])) for fact, value in own.facts.items()}
        for own, new in zip(self.stores, other.stores, strict=True):
            own.held = {name: torch.cat((value, new.held[name])) for name, value in own.held.items()}
        self.last = torch.cat((self.last, other.last), 1)
        self.batch += other.batch

    def trim(self) -> None:
        """Give back the slots before the first token of the longest row, as rows that were longer leave them."""
        for index in self.slot_indexes.values():
            if not index.ring and not isinstance(index, BlockIndex) and not self.plain:
                self._shift(-int((index.facts["document"][:, : index.n] > 0).any(0).long().argmax()))
                return

    def _shift(self, by: int) -> None:
        """Put `by` empty slots before the tokens of all rows; fewer than none takes away those that are empty."""
        for index in self.slot_indexes.values():
            self._move(index, partial(index.shifted, by=by))
            index.shift(by)
        self.n += by

    def _move(self, index: SlotIndex, moved: Callable[[Tensor, int], Tensor]) -> None:
        """Put what the slots of an index hold where `moved` has it, given [batch, …, slot, …] and the axis of the slots."""
        index.facts = {fact: moved(value, -1) for fact, value in index.facts.items()}
        for store in self.stores:
            if isinstance(store, LayerCache) and store.slot_index is index:
                store.held = {name: moved(value, -2) for name, value in store.held.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept."""
        return sum(value.nbytes for store in self.stores for value in store.held.values())


@dataclass(frozen=True)
class CacheKind:
    """The cached calls of one reach."""

    kind: str  # "full", "window of 512", "blocks of 4", "memory", "state"
    calls: int
    nbytes_per_token: int  # of a state: 0, whatever it holds
    tokens: int  # that it holds of the context; of a state: 0, it is of all
    nbytes: int  # for the batch


def cache_kinds(
    spec: ModelSpec, *, batch: int, seq_len: int, source_len: int, dtype: torch.dtype
) -> tuple[CacheKind, ...]:
    """The cache of `batch` rows of `seq_len` tokens after `source_len` of an encoder, by reach.

    What sees later tokens cannot be continued, and keeps nothing.
    """
    kinds: dict[str, CacheKind] = {}
    for kept in () if later_tokens_seen(spec.stack, after_prefix=True) else cached_calls(spec):
        if not kept.shapes:  # slots alone, by which others count
            continue
        shapes = kept.shapes.values()
        vectors, state = [(math.prod(shape[:-1]), shape[-1]) for shape in shapes], kept.how == "state"
        held = seq_len if kept.reach is None else min(kept.reach, seq_len)
        name, tokens = {"memory": ("memory", source_len), "state": ("state", 0)}.get(
            kept.how, ("full" if kept.reach is None else f"window of {kept.reach}", held)
        )
        if kept.every > 1 and kept.how == "tokens":
            name, tokens = f"blocks of {kept.every}", seq_len // kept.every
        each = nbytes if dtype == torch.int8 else lambda width: dtype.itemsize * width
        per_token = 0 if state else sum(n * each(width) for n, width in vectors)
        known = kinds.get(name, CacheKind(name, 0, 0, tokens, 0))
        more = batch * (STATE_NBYTES * sum(map(math.prod, shapes)) if state else per_token * tokens)
        kinds[name] = CacheKind(name, known.calls + 1, known.nbytes_per_token + per_token, tokens, known.nbytes + more)
    return tuple(kinds.values())
