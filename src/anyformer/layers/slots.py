"""Which tokens the slots of a cache hold: of all that came, of the last ones in a ring, or of blocks of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.tokens import FACTS, Tokens


class SlotIndex:
    """Which tokens the slots of all stores of one reach hold, and where those of this pass go."""

    before: Tensor  # of blocks: the document of each row's last one before this pass [batch, 1]; 0: there was none
    # of a ring with padding behind tokens: which of what it held and what is new each slot takes [batch, slot]
    sources: Tensor | None = None

    def __init__(
        self, name: str, batch: int, slots: int, ring: bool, device: torch.device | None, slack: int = 0
    ) -> None:
        self.name, self.batch, self.slots, self.ring, self.slack = name, batch, slots, ring, slack
        self.n = self.start = self.n_new = 0  # tokens written; where this pass starts; how many it brings
        self.plain = True  # so far every row is one unpadded document
        self.leaps = False  # whether positions left out numbers
        # document 0: empty
        self.facts = {fact: torch.zeros(batch, slots, dtype=torch.long, device=device) for fact in FACTS}
        self.keys: Tokens | None = None

    def admit(self, new: Tokens) -> None:
        """Write down the new tokens and say which keys this pass sees."""
        self.start, self.n_new = self.n, new.n
        if not self.ring and self.n + new.n > self.slots:
            self.slots = max(self.n + new.n, 2 * self.slots)
        self.plain = self.plain and new.span is not None and new.segment is None and new.mark is None
        self.leaps = self.leaps or new.leaps
        seen, facts = {}, self.facts_of(new)
        self.sources = None if self.plain or not self.ring else self._sources(facts["document"])
        for fact, value in facts.items():
            self.facts[fact] = self.roomy(self.facts[fact], -1)
            seen[fact] = self.extend(self.facts[fact], value, -1)
        self.n += new.n
        if self.plain:
            span = (self.n - seen["position"].shape[1], self.n)
            held = self.n if self.n_new == 1 else self.start  # tokens before what was appended in order
            self.keys = Tokens(seen["position"], span=span, turned=self.ring and held > self.slots, name=self.name)
        else:
            self.keys = Tokens(**seen, leaps=self.leaps, name=self.name)

    def facts_of(self, new: Tokens) -> dict[str, Tensor]:
        """Every fact about new tokens [batch, token], as it is meant where nothing is said."""
        given = {
            "position": new.position,
            "document": new.documents,
            "order": new.position if new.order is None else new.order,
            "segment": torch.ones_like(new.position) if new.segment is None else new.segment,
            "mark": torch.zeros_like(new.position) if new.mark is None else new.mark,
        }
        return {fact: value.expand(self.batch, -1) for fact, value in given.items()}

    def slots_for(self, tokens: int) -> int:
        """Slots that so many tokens take, where this is no ring."""
        return tokens

    def roomy(self, held: Tensor, axis: int) -> Tensor:
        """`held` [batch, …, slot, …], with as many slots along `axis` as the index has."""
        missing = self.slots - held.shape[axis]
        return padded(held, axis, 0, missing) if missing else held

    def extend(self, held: Tensor, new: Tensor, axis: int) -> Tensor:
        """All that this pass sees of [batch, …, slot, …], the new tokens written along `axis`; a ring's are in no order."""
        if not self.ring:
            held.narrow(axis, self.start, self.n_new).copy_(new)
            return held.narrow(axis, 0, self.start + self.n_new)
        new = new.to(held.dtype)  # autocast may have made it in half precision
        if self.n_new == 1 and self.sources is None:
            held.narrow(axis, self.start % self.slots, 1).copy_(new)
            return held.narrow(axis, 0, min(self.start + 1, self.slots))
        seen = torch.cat((held.narrow(axis, 0, min(self.start, self.slots)), new), axis)
        if self.sources is not None:
            held.copy_(taken(seen, axis, self.sources))
            return seen
        kept, end = min(self.n_new, self.slots), self.start + self.n_new
        slots = torch.arange(end - kept, end, device=held.device) % self.slots
        held.index_copy_(held.dim() + axis, slots, new.narrow(axis, self.n_new - kept, kept))
        return seen

    def _sources(self, new: Tensor) -> Tensor | None:
        """What fills the slots where padding would push out tokens that a window still sees, of new documents [batch, token].

        The last columns, which `rewind` may take back, stay as they are; before them stand the last real tokens.
        """
        end, held = self.start + self.n_new, min(self.start, self.slots)
        if end <= self.slots:
            return None
        column = torch.arange(self.start - held, end, device=new.device)
        source = torch.where(column < self.start, column % self.slots, column - self.start + held)
        real = torch.cat((self.facts["document"][:, :held], new), 1)[:, source] > 0
        if not bool((real[:, :-1] & ~real[:, 1:]).any()):
            return None
        kept = real | (column >= end - self.slack - 1)
        order = kept.byte().argsort(dim=1, stable=True)[:, -self.slots :]
        return torch.empty_like(order).index_copy_(1, column[-self.slots :] % self.slots, source[order])

    def shift(self, by: int) -> None:
        """Count so many more slots before the tokens, as `shifted` puts them there."""
        self.n += by
        self.slots = self.slots if self.ring else self.n

    def shifted(self, held: Tensor, axis: int, by: int) -> Tensor:
        """`held` [batch, …, slot, …] with `by` empty slots before its tokens, or without as many that are empty."""
        if self.ring:
            return held.roll(by, axis)
        return padded(held.narrow(axis, 0, self.n), axis, by, 0)

    def last_before(self, drop: Tensor, last: Tensor) -> Tensor:
        """Position and document [2, batch, 1] of each row's last real token before its last drop[b] tokens; -1: there is none.

        `last` is that of all its tokens, which stays where only padding is dropped: a ring may hold it no more.
        """
        column = torch.arange(max(0, self.n - self.slots), self.n, device=drop.device)
        held = torch.stack([self.facts[fact][:, column % self.slots] for fact in ("position", "document")])
        real, kept = held[1] > 0, column < self.n - drop[:, None]
        at = (real * kept * (column + 1)).argmax(1, keepdim=True)
        found = held.gather(2, at.expand(2, -1, -1))
        dropped = (real & ~kept).any(1, keepdim=True)
        return torch.where((real & kept).any(1, keepdim=True), found, torch.where(dropped, -1, last))

    def rewound(self, drop: Tensor, least: int) -> tuple[Tensor, Tensor]:
        """Forget the last drop[b] tokens of each row; return (slot each slot is filled from, whether it holds a token).

        Rows that lose more than the `least` are moved to the right, as if they had been padded on the left.
        """
        first, self.n = max(0, self.n - self.slots) if self.ring else 0, self.n - least
        targets = torch.arange(first, self.n, device=drop.device)
        sources = targets - (drop - least)[:, None]
        index = torch.zeros(self.batch, self.slots, dtype=torch.long, device=drop.device)
        alive = torch.zeros(self.batch, self.slots, dtype=torch.bool, device=drop.device)
        index[:, targets % self.slots] = sources.clamp(min=first) % self.slots
        alive[:, targets % self.slots] = sources >= first
        self.plain = self.plain and not self.ring and bool((drop == least).all())
        return index, alive


class BlockIndex(SlotIndex):
    """Which blocks of `every` tokens the slots hold: those of each row one after the other, wherever its tokens stand.

    `n` counts tokens; slots are as many as their blocks can be.
    """

    def __init__(self, every: int, batch: int, length: int, device: torch.device | None) -> None:
        self.every = every
        super().__init__(f"blocks of {every}", batch, self.slots_for(length), ring=False, device=device)
        self.source = self.fresh = torch.zeros(batch, 0, device=device)
        self.before = self.facts["document"].new_zeros(batch, 1)

    @property
    def seen(self) -> int:
        """Slots that may hold a block by now."""
        return self.n // self.every

    def admit(self, new: Tokens) -> None:
        """Count the new tokens; which blocks end with them, the first layer to make such says by `put`."""
        self.n += new.n
        self.before = self.facts["document"].new_zeros(self.batch, 1)
        if self.seen > self.slots:
            self.slots = max(self.seen, 2 * self.slots)

    def slots_for(self, tokens: int) -> int:
        return tokens // self.every

    def put(self, blocks: Tokens) -> None:
        """Write down the blocks of this pass; a row's of document 0 are none."""
        document = self.facts_of(blocks)["document"] > 0
        filled = (self.facts["document"] > 0).sum(1, keepdim=True)
        self.before.copy_(F.pad(self.facts["document"], (1, 0)).gather(1, filled))
        self.source = torch.arange(self.seen, device=filled.device) - filled
        self.fresh = (self.source >= 0) & (self.source < document.sum(1, keepdim=True))
        for fact, value in self.facts_of(blocks).items():
            self.facts[fact] = self.roomy(self.facts[fact], -1)
            self.extend(self.facts[fact], value, -1)
        seen: dict[str, Any] = {fact: held[:, : self.seen] for fact, held in self.facts.items()}
        self.keys = Tokens(**seen, name=self.name)

    def extend(self, held: Tensor, new: Tensor, axis: int) -> Tensor:
        """All that this pass sees of [batch, …, slot, …], its own blocks written along `axis`."""
        seen = held.narrow(axis, 0, self.seen)
        if not self.seen or not new.shape[axis]:
            return seen
        fresh = along(self.fresh, held, axis)
        made = taken(new.to(held.dtype), axis, self.source.clamp(0, new.shape[axis] - 1))
        return seen.copy_(torch.where(fresh, made, seen))

    def shift(self, by: int) -> None:
        self.n += by
        self.slots = self.seen

    def shifted(self, held: Tensor, axis: int, by: int) -> Tensor:
        """`held` [batch, …, slot, …] with as many slots as there are blocks of so many more tokens, behind those it has."""
        n = (self.n + by) // self.every
        held = held.narrow(axis, 0, min(n, held.shape[axis]))
        return padded(held, axis, 0, n - held.shape[axis])


def padded(held: Tensor, axis: int, before: int, behind: int) -> Tensor:
    """`held` [batch, …, slot, …] with so many empty slots before and behind its own along the `axis`, -1 or -2."""
    return F.pad(held, (before, behind) if axis == -1 else (0, 0, before, behind))


def along(index: Tensor, value: Tensor, axis: int) -> Tensor:
    """Index [batch, slot] as [batch, 1 …, slot, 1 …], beside value [batch, …, slot, …] with slots at the `axis`, from the end."""
    return index.view(index.shape[0], *(1,) * (value.dim() + axis - 1), index.shape[1], *(1,) * (-1 - axis))


def taken(value: Tensor, axis: int, index: Tensor) -> Tensor:
    """Value [batch, …, slot, …] with its slots along `axis`, from the end, taken from index [batch, slot]."""
    shape = list(value.shape)
    shape[axis] = index.shape[1]
    return value.gather(axis, along(index, value, axis).expand(shape))
