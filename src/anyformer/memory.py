"""Segment recurrence: a segment sees what the one before has left, without its gradient. Dai et al. 2019, arXiv:1901.02860.

The paper keeps hidden states and makes keys and values of them again, by the weights of now; kept here are the keys and values.
For weights that stay, as in evaluation, that is the same; in training no gradient reaches the projections through them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.cache import KVCache, LayerCache
from anyformer.errors import CacheError
from anyformer.layers import GroupsSpec, TokensSpec
from anyformer.layers.slots import SlotIndex
from anyformer.layers.tokens import Tokens
from anyformer.spec import ModelSpec, cached_calls


class _RecentSlots(SlotIndex):
    """Which tokens of segments before are seen: the last `most`."""

    def __init__(self, most: int, batch: int, vacant: int, device: torch.device | None) -> None:
        super().__init__(f"memory of {most}", batch, vacant, ring=False, device=device)
        self.most = most
        self.plain = not vacant

    def admit(self, new: Tokens) -> None:
        self.plain = self.plain and new.span is not None and new.segment is None and new.mark is None
        self.leaps = self.leaps or new.leaps
        seen: dict[str, Any] = {
            fact: torch.cat((self.facts[fact], value), -1) for fact, value in self.facts_of(new).items()
        }
        self.facts = {fact: self.kept(value, -1) for fact, value in seen.items()}
        self.n += new.n
        if self.plain:
            self.keys = Tokens(seen["position"], span=(self.n - seen["position"].shape[1], self.n), name=self.name)
        else:
            self.keys = Tokens(**seen, leaps=self.leaps, name=self.name)

    def kept(self, seen: Tensor, axis: int) -> Tensor:
        """The last tokens of [batch, …, key, …] along `axis`, which the next segment sees."""
        n = min(self.most, seen.shape[axis])
        return seen.narrow(axis, seen.shape[axis] - n, n)


class _RecentCache(LayerCache):
    """What one mixer call left of the last tokens."""

    def extend(self, new: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The memory and what is new, each [batch, …, key, width]."""
        assert isinstance(self.slot_index, _RecentSlots)
        seen = {name: torch.cat((self.held[name].to(value.dtype), value), -2) for name, value in new.items()}
        self.held = {name: self.slot_index.kept(value, -2).detach() for name, value in seen.items()}
        return seen


class SegmentMemory(KVCache):
    """The keys and values of the last `tokens` tokens, given to a model as its cache, segment after segment.

    Unlike a cache it keeps no more than that, whatever the model's masks see, and a segment may be trained on: what it adds
    has its gradient until the next one. Raises CacheError for a model whose positions are absolute, or which reads another.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tokens: int,
        batch: int = 1,
        *,
        vacant: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        """Start with so many places `vacant`, which no token sees: `tokens` of them, and every pass has the same shapes."""
        if reason := refusal(spec):
            raise CacheError(f"this model cannot have a memory of segments: {reason}")
        if tokens < 0:
            raise CacheError(f"a memory of {tokens} tokens is none; give 0 or more")
        super().__init__(spec, batch, length=1, device=device)
        device = None if device is None else torch.device(device)
        recent = _RecentSlots(tokens, batch, vacant, device)
        self.slot_indexes = {("tokens", None): recent}
        self.stores = [_RecentCache(recent, kept.shapes, torch.float32, device) for kept in cached_calls(spec)]

    def tensors(self) -> dict[str, Tensor]:
        """All that is held by name, each [batch, …]: a stream's own part is what `tensor[stream]` is."""
        (recent,) = self.slot_indexes.values()
        found = {"last": self.last.transpose(0, 1), **recent.facts}
        for i, store in enumerate(self.stores):
            found |= {f"{i}.{name}": value for name, value in store.held.items()}
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Hold what `tensors` returned, or the parts of some streams."""
        (recent,) = self.slot_indexes.values()
        self.last, self.plain = tensors["last"].transpose(0, 1), False
        recent.facts, recent.plain = {fact: tensors[fact] for fact in recent.facts}, False
        self.n = recent.n = recent.facts["position"].shape[1]
        for i, store in enumerate(self.stores):
            store.held = {name: tensors[f"{i}.{name}"] for name in store.held}

    def rewind(self, drop: int | Sequence[int]) -> None:
        """Refuse: what a memory has let go of is lost."""
        raise CacheError("a memory of segments cannot be rewound; use a KVCache")


def refusal(spec: ModelSpec) -> str | None:
    """Why a model cannot read a text segment by segment with a memory; None: it can."""
    if spec.encoder is not None:
        return "it reads an encoder's text beside its own"
    for term in spec.stack.embedding.terms:
        if not isinstance(term, TokensSpec | GroupsSpec):
            return f"its positions are absolute ({term.kind}), and those of a memory would lie before the first"
    if every := next((kept.every for kept in cached_calls(spec) if kept.every > 1), None):
        return f"it reads blocks of {every} tokens, of which segments would hold parts"
    for value in spec.nested():
        for caveat in value.caveats():
            if caveat.law == "cache":
                return f"its {value.kind} cannot be read in parts: {caveat.reason}"
    return None
