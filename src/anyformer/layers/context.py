"""One forward pass: what its layers are given, what they share, and where they keep what later passes need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from anyformer.layers.tokens import Bias, Tokens
from anyformer.spec import Recompute


@dataclass(frozen=True)
class Dropout:
    """Rates of dropout, from the recipe."""

    embedding: float = 0.0
    attention: float = 0.0  # of attention's weights
    residual: float = 0.0  # of what a branch writes
    activation: float = 0.0  # inside a feed-forward, and between the layers of an LSTM
    router_jitter: float = 0.0  # what a router sees is multiplied by numbers from 1 - jitter to 1 + jitter
    recurrent: float = 0.0  # of the matrices that map a state to gates (DropConnect)


NO_DROPOUT = Dropout()


class Store:
    """Where a mixer call keeps what later tokens need; this one keeps nothing (training, encoders)."""

    keys: Tokens | None = None  # the tokens that `extend` answers for; None: the new ones
    # what `keep` was given last, each [batch, …], empty at first; None: none is kept
    state: Mapping[str, Tensor] | None = None
    document: Tensor | None = None  # of the last real token before this pass [batch, 1]; None: there is none
    parts: Mapping[str, Store] = {}  # what the call keeps beside, by name

    def part(self, name: str) -> Store:
        """The store of this name beside it; where nothing is kept, itself."""
        return self.parts.get(name, self)

    def put(self, blocks: Tokens) -> None:
        """Take note of which blocks of tokens end in this pass, before `extend` is given what is made of them."""

    def extend(self, new: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """All that is seen, each [batch, …, key, width]: what is new [batch, …, token, width] among it."""
        return new

    def once(self, make: Callable[[], Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """What was made at the first call, each [batch, …, source, width]."""
        return make()

    def keep(self, state: Mapping[str, Tensor]) -> None:
        """Put the state after this pass, each [batch, …], in place of the one before."""


class KeepNothing:
    """A store for each mixer call, without end, that keeps nothing. A compiler follows it, unlike itertools.repeat."""

    store = Store()

    def __iter__(self) -> KeepNothing:
        return self

    def __next__(self) -> Store:
        return self.store


class SoftmaxOptions(NamedTuple):
    """How a kernel makes weights of products."""

    scale: float  # of the products of queries and keys
    softcap: float | None = None  # cap · tanh(scores / cap), before anything is added
    sink: Tensor | None = None  # what each head's weights leave a share to [heads]
    scores: Tensor | None = None  # what is added beside the bias [batch, heads, query, key]
    dropout: float = 0.0  # of the weights


class Kernel(Protocol):
    """A way to compute attention. Kernels live in the room of that name."""

    name: str
    # whether it brings together what it needs of keys and values, where processes have a stretch of the rows each
    brings: bool

    def prepare(self, mask: Any, bias: Bias | None, query: Tokens, key: Tokens, n_heads: int) -> Any:
        """What all layers of one mask share in a pass."""
        ...

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, seen: Any, how: SoftmaxOptions) -> tuple[Tensor, Tensor | None]:
        """(values [batch, heads, query, value_dim], the weights [batch, heads, query, key] if the kernel has them).

        q is [batch, heads, query, head_dim], k and v are [batch, kv heads, key, head_dim or value_dim].
        """
        ...


class Memo:
    """What layers share within a pass. It is no dict, nor a dataclass: of these FSDP2 gives each layer a copy of its own."""

    def __init__(self, found: Mapping[str, Any] | None = None) -> None:
        self.found = dict(found or {})

    def copied(self) -> Memo:
        """One that has found what this one has by now, as have those inside it, of layers on fewer tokens."""
        return Memo({key: each.copied() if isinstance(each, Memo) else each for key, each in self.found.items()})


Decided = Callable[[Callable[[], Tensor]], Tensor]  # ForwardContext.decided


class Decisions:
    """What a layer chooses by content: `made` the first time, and found there in turn when the layer is made again."""

    def __init__(self, made: list[Tensor], again: bool) -> None:
        self.made, self.left = made, iter(made) if again else None

    def __call__(self, make: Callable[[], Tensor]) -> Tensor:
        """The flags, or the whole numbers, which are kept in 32 bits."""
        if self.left is not None:
            found = next(self.left)
            return found if found.dtype == torch.bool else found.long()
        chosen = make()
        self.made.append(chosen if chosen.dtype == torch.bool else chosen.int())
        return chosen


@dataclass
class ForwardContext:
    """One forward pass: its tokens, its memory, how it runs, and what layers share within it."""

    tokens: Tokens
    kernels: Mapping[str, Kernel]  # by the key of the attention's spec
    memory: Tensor | None = None  # the encoder's output [batch, source, d_source]
    memory_tokens: Tokens | None = None
    input: Tensor | None = None  # the embedding's output [batch, token, d_model]
    dropout: Dropout | None = None  # None: evaluation
    weights: bool = False  # note attention's weights
    experts: Literal["sorted", "loop"] = "sorted"  # how a mixture runs its experts
    trains: bool = False  # a backward pass may follow, and no cache is written to, so that layers can be made again
    recompute: Recompute = "none"  # what is made again in the backward pass: attention (selective), whole layers (full)
    within: bool = False  # a layer that is made again in the backward pass, where nothing stays
    again: bool = False  # it is being made again
    decisions: Decisions | None = None  # of a layer that is made again from an input that is the same but for rounding
    memo: Memo = field(default_factory=lambda: Memo())  # by its name, by which a compiler finds the class
    ids: Tensor | None = None  # of the tokens [batch, token]
    outer: Tensor | None = None  # the stream around the layer's bottleneck [batch, token, d_outer]

    @property
    def rates(self) -> Dropout:
        """The rates of dropout, which are 0 in evaluation."""
        return NO_DROPOUT if self.dropout is None else self.dropout

    def given(self, what: Literal["memory", "input", "outer"]) -> Tensor:
        """The encoder's output, the embedding's, or the stream around a bottleneck."""
        source = {"memory": self.memory, "input": self.input, "outer": self.outer}[what]
        assert source is not None, (
            f"{what} is not here; under pp a mixer says in `reads_input` that it reads the latter"
        )
        return source

    def decided(self, make: Callable[[], Tensor]) -> Tensor:
        """What `make` chooses by content, flags or whole numbers: rounding must not have it choose otherwise the second time."""
        return make() if self.decisions is None else self.decisions(make)

    def once(self, key: str | None, make: Callable[[], Any]) -> Any:
        """What `make` gave for the key in this pass; without a key it is made anew."""
        if key is None:
            return make()
        if key not in self.memo.found:
            self.memo.found[key] = make()
        return self.memo.found[key]


Notes = dict[str, Tensor]  # what a mixer reports beside its result: attention weights, expert loads
