"""Passes of a model on fake tensors, each kind of layer twice: what the first does, and what each further one adds.

Nothing is allocated and nothing computed, so that a model of any size takes well under a second. Layers that are equal do the
same, but for what the first of them prepares for all (masks, rotations); so a stack is thinned to the last two of each kind,
and what the second does counts for all further ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from anyformer.cache import KVCache
from anyformer.errors import SpecError
from anyformer.layers.causality import has_prefix
from anyformer.layers.context import Dropout
from anyformer.layers.cross_entropy import cross_entropy
from anyformer.layers.head import Head
from anyformer.model import Output, Transformer
from anyformer.observation.gpu import GPU
from anyformer.observation.observer import Observer, Where
from anyformer.observation.operators import Operator
from anyformer.spec import ModelSpec, Recompute, StackSpec

DeviceKind = Literal["cpu", "cuda"]


class TrainingPass(NamedTuple):
    """A forward pass, its loss and its backward pass."""

    operators: tuple[Operator, ...]
    kept: Mapping[str, int]  # bytes by part that stay from the forward to the backward pass
    peak: int  # bytes of all that is there at the worst time, beside weights and their gradients
    peak_part: str  # what runs then


@lru_cache(maxsize=64)
def training_pass(
    spec: ModelSpec,
    *,
    batch: int,
    seq_len: int,
    source_len: int = 0,
    half: bool = False,
    dtype: torch.dtype = torch.float32,
    recompute: Recompute = "none",
    device: DeviceKind = "cuda",
    dropout: Dropout | None = None,
) -> TrainingPass:
    """What training on `batch` rows of `seq_len` tokens does, each row one document; `half`: under autocast to bf16.

    `dtype` is of the weights, and so of the stream.

    The loss is the first head's cross-entropy, as `training` computes it, and that of what predicts further tokens.
    """
    with _countable(batch, max(seq_len, source_len)), _fake(spec, device, dtype) as (model, times):
        model.recompute = recompute
        observer = Observer(model)
        with observer.watching():
            with observer.part("embedding"):
                ids = torch.zeros(batch, seq_len, dtype=torch.long)
                sources = torch.zeros(batch, source_len or seq_len, dtype=torch.long)
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = loss_of(model, ids, sources, dropout, observer.part)
            end, held = len(observer.events), observer.alive()
            del held[observer.number(loss)]
            _backward(loss)
    held |= {number: at for number, at in observer.kept.items() if number in held}  # as often as who keeps it
    kept: dict[str, int] = {}
    early = {number: at for number, at in held.items() if at[1].part == "loss"}  # gradients that the loss makes at once
    for nbytes, where in (observer.kept | early).values():
        kept[where.part] = kept.get(where.part, 0) + nbytes * _runs(where, times)
    return TrainingPass(_times(observer, times), kept, *_peak(observer, end, held, times))


@lru_cache(maxsize=64)
def forward_pass(
    spec: ModelSpec,
    *,
    batch: int,
    query: int,
    past: int = 0,
    source_len: int = 0,
    logits_to_keep: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    device: DeviceKind = "cuda",
) -> tuple[Operator, ...]:
    """The operators of reading `query` tokens a row after `past` cached ones, and of the last tokens' logits; 0: of all."""
    longest = max(past + query, source_len)
    with _countable(batch, longest), _fake(spec, device, dtype) as (model, times), torch.no_grad():
        observer = Observer(model)
        ids = torch.zeros(batch, past + query, dtype=torch.long)
        cache = KVCache(model.spec, batch, past + query, dtype=dtype) if past else None
        if cache is not None:
            _run(model, ids[:, :past], torch.zeros(batch, source_len, dtype=torch.long), cache=cache)
            ids = ids[:, past:]
        with observer.watching():
            _run(
                model, ids, torch.zeros(batch, source_len, dtype=torch.long), cache=cache, logits_to_keep=logits_to_keep
            )
    return _times(observer, times)


def thinned(spec: ModelSpec) -> tuple[ModelSpec, list[int]]:
    """(the model with the last two of each kind of layer in each stack, how often each layer left stands for one)."""
    encoder, encoder_times = _thinned(spec.encoder) if spec.encoder else (None, [])
    stack, times = _thinned(spec.stack)
    least = max((head.layers.before for head in spec.heads if head.layers is not None), default=0)
    if len(stack.blocks) < least:
        stack, times = spec.stack, [1] * len(spec.stack.blocks)
    return spec.but(encoder=encoder, stack=stack), [*encoder_times, *times]


def _thinned(stack: StackSpec) -> tuple[StackSpec, list[int]]:
    numbers: dict[object, list[int]] = {}
    for i, block in enumerate(stack.blocks):
        numbers.setdefault(block, []).append(i)
    kept = {i for same in numbers.values() for i in same[-2:]}
    asked = list(kept)
    while asked:  # what a layer reads of an earlier one has to be lent
        i = asked.pop()
        lenders = _lenders(stack, i) - kept
        kept |= lenders
        asked += lenders
    times = dict.fromkeys(kept, 1) | {same[-1]: 1 + len(set(same) - kept) for same in numbers.values()}
    left = sorted(kept)
    return stack.but(blocks=tuple(stack.blocks[i] for i in left)), [times[i] for i in left]


def _lenders(stack: StackSpec, layer: int) -> set[int]:
    """The layers of which this one reads what none of its own mixers lends before."""
    found: set[int] = set()
    own: set[tuple[str, str]] = set()
    for mixer in stack.blocks[layer].mixers:
        found |= {_lender(stack, layer, *each) for each in mixer.borrows().items() if each not in own}
        own |= set(mixer.lends().items())
    return found


def _lender(stack: StackSpec, layer: int, what: str, name: str) -> int:
    """The last layer before this one that lends such."""
    lends = (any(mixer.lends().get(what) == name for mixer in block.mixers) for block in stack.blocks[:layer])
    return max(i for i, lent in enumerate(lends) if lent)


def _runs(where: Where, times: list[int]) -> int:
    """How often what was seen at one place happens in the whole model; between layers, and in those of heads, once."""
    return where.steps * (times[where.layer] if where.layer is not None and where.layer < len(times) else 1)


@contextmanager
def _fake(
    spec: ModelSpec, device: DeviceKind, dtype: torch.dtype = torch.float32
) -> Iterator[tuple[Transformer, list[int]]]:
    few, times = thinned(spec)
    rules: AbstractContextManager[object] = GPU() if device == "cuda" else nullcontext()
    before = torch.get_default_dtype()
    with FakeTensorMode(), rules:
        torch.set_default_dtype(dtype)
        try:
            model = Transformer(few)
        finally:
            torch.set_default_dtype(before)
        model.runs_on = device
        yield model, times


@contextmanager
def _countable(batch: int, tokens: int) -> Iterator[None]:
    """Refuse, as SpecError, a pass with a tensor of more bytes than PyTorch's 64 bits count, fake as it is."""
    try:
        yield
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise SpecError(
            f"batch = {batch:,} sequences of {tokens:,} tokens make tensors of more than 2^63 bytes in this model, "
            "which are not counted; take fewer tokens"
        ) from None


def _run(model: Transformer, ids: Tensor, sources: Tensor, **options: object) -> Output:
    if has_prefix(model.spec):  # no token is of the prefix, as long as nobody says how long it is
        options["token_type_ids"] = torch.ones_like(ids)
    if model.encoder is None:
        return model(ids, **options)
    return model(sources if sources.shape[1] else None, decoder_input_ids=ids, **options)


def loss_of(
    model: Transformer,
    ids: Tensor,
    sources: Tensor,
    dropout: Dropout | None = None,
    part: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
    carried: Sequence[Tensor] = (),
) -> Tensor:
    """What training reduces, of tokens [batch, token] that are their own labels; `part` is told where the loss begins.

    `carried`: what the process that has the layers before these gives.
    """
    out = given_by(model, ids, sources, dropout=dropout, carried=carried)
    with part("loss"):
        return scored(next(iter(model.heads), None), out, ids)[0]


def scored(head: Head | None, out: Output, labels: Tensor) -> tuple[Tensor, Tensor | None]:
    """(what training reduces of a pass, the first head's losses [batch, token]) where every token has a label [batch, token].

    Without a head that scores, the stack's output stands in for losses, of which there are none.
    """
    if head is None or head.table is None:
        return out.last_hidden_state.sum(), None
    total, each = cross_entropy(head, out.read_by(head), labels)
    for k, hidden in enumerate(out.ahead, 1):
        total = total + cross_entropy(head, hidden, labels[:, k:])[0]
    return total, each


def given_by(model: Transformer, ids: Tensor, sources: Tensor, **options: object) -> Output:
    """A pass of training without its loss."""
    return _run(model, ids, sources, output_logits=False, output_ahead=bool(model.spec.ahead), **options)


def _backward(loss: Tensor) -> None:
    """`loss.backward()`, which would take the rules of the device away while layers are made again."""
    one = (torch.ones_like(loss),)
    torch.autograd.graph._engine_run_backward(
        (loss,), one, False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def _times(observer: Observer, times: list[int]) -> tuple[Operator, ...]:
    return tuple(operator._replace(times=_runs(where, times)) for operator, where in observer.operators)


def _peak(observer: Observer, end: int, held: Mapping[int, tuple[int, Where]], times: list[int]) -> tuple[int, str]:
    """(the most bytes that are alive at once, what runs then).

    What a layer leaves is there so often as the layer stands for others: from its forward pass on, until the backward pass
    has gone through the first of its kind.
    """
    more: dict[int, int] = {}  # bytes by layer that others like it hold
    for nbytes, where in held.values():
        if where.layer is not None:
            more[where.layer] = more.get(where.layer, 0) + nbytes * (_runs(where, times) - 1)
    first = {
        layer: min(i for i, spec in enumerate(observer.layers) if spec == observer.layers[layer]) for layer in more
    }
    begins, ends = dict.fromkeys(more, 0), dict.fromkeys(more, end)
    for i, event in enumerate(observer.events):
        for layer in more:
            if event.forward and event.where.layer == layer and i < end:
                begins[layer] = i
            if not event.forward and event.where.layer == first[layer]:
                ends[layer] = i
    born_late = {event.storage for event in observer.events[end:] if event.nbytes > 0}
    passing_gradients = observer.gradients & born_late
    live, most, part = 0, 0, "other"
    for i, event in enumerate(observer.events):
        if event.storage not in passing_gradients:
            live += event.nbytes
        total = live + sum(nbytes for layer, nbytes in more.items() if begins[layer] <= i <= ends[layer])
        if total > most:
            most, part = total, event.where.part
    return most, part
