"""What is known about the tokens of one forward pass, and how the pass is to be run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from anyformer.spec import Recompute

Span = tuple[int, int]  # positions from the first up to, not including, the second


@dataclass(frozen=True)
class Tokens:
    """Facts about tokens, each [batch or 1, token]; masks and scores are functions of these, never of indices."""

    position: Tensor
    document: Tensor | None = None  # 0: padding; equal numbers see each other; None: all are of one document
    order: Tensor | None = None  # what causality goes by; None: the position
    segment: Tensor | None = None
    language: Tensor | None = None  # read as tokens are embedded, and kept nowhere; None: none is said
    # not 0: what a mask singles out (Longformer's global tokens, XLNet's blanks); None: no token
    mark: Tensor | None = None
    # the position of the last token of each token's document, where whoever asks of a part of the tokens worked it out
    end: Tensor | None = None
    span: Span | None = None  # positions are start … stop - 1 in every row, one document, no padding; else None
    turned: bool = False  # the span's positions are in another order: keys of a ring that has come round
    # a query and a key may be further apart than the keys of a row are many: positions leave numbers out, or are of two texts
    leaps: bool = False
    name: str = ""  # of the set of tokens, for memos within one pass: "" the new ones, else those of a cache

    @property
    def n(self) -> int:
        """How many tokens a row has."""
        return self.position.shape[1]

    @property
    def marked(self) -> Tensor:
        """Whether each token is marked, of the facts' shape."""
        return self.position < 0 if self.mark is None else self.mark > 0

    @property
    def documents(self) -> Tensor:
        """The document of each token, of the facts' shape: 1 where all are of one."""
        return torch.ones_like(self.position) if self.document is None else self.document

    @property
    def ends(self) -> Tensor:
        """The position of the last token of each token's document, of the facts' shape, or one for each row."""
        if self.end is not None:
            return self.end
        if self.document is None:
            return self.position.amax(-1, keepdim=True)
        together = self.document[..., :, None] == self.document[..., None, :]
        return torch.where(together, self.position[..., None, :], -1).amax(-1)

    def each(self, function: Callable[[Tensor], Tensor]) -> Tokens:
        """Apply `function` to every fact that is there."""
        facts = {n: getattr(self, n) for n in (*FACTS, "language", "end")}
        return replace(self, **{n: None if fact is None else function(fact) for n, fact in facts.items()})

    def as_queries(self) -> Tokens:
        """The facts as [batch, 1, token, 1]."""
        return self.each(lambda fact: fact[:, None, :, None])

    def as_keys(self) -> Tokens:
        """The facts as [batch, 1, 1, token]."""
        return self.each(lambda fact: fact[:, None, None, :])


FACTS = ("position", "document", "order", "segment", "mark")

# What positions add to scores [batch or 1, heads or 1, query, key], asked of some queries and keys; None: nothing.
Bias = Callable[[Tokens, Tokens], Tensor | None]


def numberless(fact: Tensor) -> bool:
    """Whether it is known of a tensor only what shape it has."""
    return isinstance(fact, FakeTensor) or fact.is_meta


def plain_tokens(n: int, device: torch.device, start: int = 0) -> Tokens:
    """`n` tokens of one document, at positions from `start` on."""
    return Tokens(torch.arange(start, start + n, device=device)[None], span=(start, start + n))


@dataclass(frozen=True)
class Dropout:
    """Rates of dropout, from the recipe."""

    embedding: float = 0.0
    attention: float = 0.0  # of attention's weights
    residual: float = 0.0  # of what a branch writes
    activation: float = 0.0  # inside a feed-forward, and between the layers of an LSTM
    router_jitter: float = 0.0  # what a router sees is multiplied by numbers from 1 - jitter to 1 + jitter
    recurrent: float = 0.0  # of the matrices that map a state to gates (DropConnect)


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


class How(NamedTuple):
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

    def refuses(self, spec: Any) -> str | None:
        """Why it cannot compute the attention of an `AttentionSpec`, or None."""
        ...

    def prepare(self, mask: Any, bias: Bias | None, query: Tokens, key: Tokens, n_heads: int) -> Any:
        """What all layers of one mask share in a pass."""
        ...

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, seen: Any, how: How) -> tuple[Tensor, Tensor | None]:
        """(values [batch, heads, query, value_dim], the weights [batch, heads, query, key] if the kernel has them).

        q is [batch, heads, query, head_dim], k and v are [batch, kv heads, key, head_dim or value_dim].
        """
        ...


class Memo:
    """What layers share within a pass. It is no dict, nor a dataclass: of these FSDP2 gives each layer a copy of its own."""

    def __init__(self, found: Mapping[str, Any] | None = None) -> None:
        self.found = dict(found or {})


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


def as_given(x: Tensor) -> AbstractContextManager[object]:
    """A context in which operations on the device of x keep the dtypes that they are given."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def exporting() -> bool:
    """Whether a graph is exported: PyTorch 2.11's compiler says so of one that it compiles, too."""
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


_RECORDING = ContextVar("recording", default=False)


@contextmanager
def recording() -> Iterator[None]:
    """What is asked for here, a CUDA graph will do again without Python."""
    before = _RECORDING.set(True)
    try:
        yield
    finally:
        _RECORDING.reset(before)


def recorded() -> bool:
    """Whether what is asked for now goes into a graph, a compiler's or one of CUDA's: then no number is read from the device."""
    return torch.compiler.is_compiling() or _RECORDING.get()


_CONSTANTS = dict[tuple[Any, ...], Tensor]()  # for good: CUDA graphs read what lies here


def constant(numbers: Sequence[float], beside: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The numbers [n] on the device of a tensor, which holds them from then on: a GPU waits for what comes from the CPU."""
    dtype, device = dtype or torch.get_default_dtype(), beside.device
    if torch.compiler.is_compiling() or numberless(beside):
        return torch.tensor(numbers, dtype=dtype, device=device)
    key = (tuple(numbers), dtype, device)
    if key not in _CONSTANTS:
        with torch.inference_mode(False):
            _CONSTANTS[key] = torch.tensor(numbers, dtype=dtype, device=device)
    return _CONSTANTS[key]


def sent_to(x: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, which nobody waits for: a GPU takes what is pinned when it comes to it."""
    pinned = x.pin_memory() if x.is_cpu and device.type == "cuda" and not numberless(x) else x
    return pinned.to(device, non_blocking=True)


def at_every_length(*conditions: Any) -> bool:
    """Whether all of them hold; where a graph is exported, at every length that it is for, and not for its example alone."""
    if not exporting():
        return all(conditions)
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return all(statically_known_true(condition) for condition in conditions)


def transformed() -> bool:
    """Whether torch.func transforms this pass: it sees into no operator of ours, and would lose what depends on one."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which products with x are made now: its own, or autocast's."""
    return autocast_dtype(x) or x.dtype


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype to which autocast would cast the operands of products with x now; None where it would not."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if not x.is_meta and torch.is_autocast_enabled(kind) else None
