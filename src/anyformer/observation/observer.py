"""Watches a pass on fake tensors: every operator, the bytes that autograd keeps, and those alive at each moment."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from anyformer.layers.head import watcher
from anyformer.layers.part import Part
from anyformer.observation.operators import FREE, Operator, observed, tensors_in
from anyformer.spec import BlockSpec

CASTS = "weights in bf16"  # autocast's copies, which all layers of one weight share


class Where(NamedTuple):
    """Where in a pass something happens."""

    part: str
    layer: int | None  # the call of a block, counted over the pass; None: between blocks
    steps: int = 1  # equal ones of a loop, of which one is run


class Event(NamedTuple):
    """Bytes that come, or go: nbytes < 0."""

    nbytes: int
    storage: int
    where: Where
    forward: bool


class Observer(TorchDispatchMode):
    """Give it the model; run a pass inside it. Parts are called in the record as in reports.

    A backward pass is told apart by autograd's running node, and belongs to the layer that made the node. `layers` are the
    blocks in the order of calls; `kept` has bytes by the number of a storage.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.operators: list[tuple[Operator, Where]] = []
        self.events: list[Event] = []
        self.layers: list[Any] = []  # the specification of each call of a block
        self.kept: dict[int, tuple[int, Where]] = {}  # what autograd keeps of storages that the pass made
        self.born: dict[int, Where] = {}
        self.gradients: set[int] = set()  # storages that became gradients of weights
        self._weights = {p.untyped_storage()._cdata for p in model.parameters()}
        self._alive: dict[int, tuple[int, Any]] = {}  # by address: the storage's number, since addresses are used again
        self._spans: list[tuple[int, Where]] = []  # from which of autograd's sequence numbers on nodes are of what
        self._where = [Where("other", None)]
        self._back = self._where[0]  # what runs in a backward pass
        self._model = model

    @contextmanager
    def watching(self) -> Iterator[Observer]:
        """Within it the model's parts are known by name, and what autograd keeps is written down."""
        names, parts = dict(_names(self._model)), {id(part) for part in self._model.modules() if isinstance(part, Part)}

        def enter(module: nn.Module, _: Any) -> None:
            if id(module) in parts:
                self._enter(module, names[id(module)])

        def leave(module: nn.Module, *_: Any) -> None:
            if id(module) in parts:
                self._pop()

        # Hooks of all modules: with one of its own a part would be called where else its weights are read.
        handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
        handles += [
            p.register_post_accumulate_grad_hook(self._gradient) for p in self._model.parameters() if p.requires_grad
        ]
        token = watcher.set(self._steps)
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor), self:
                yield self
        finally:
            watcher.reset(token)
            for handle in handles:
                handle.remove()

    def part(self, name: str) -> AbstractContextManager[None]:
        """What runs inside is called by this name."""
        return self._within(Where(name, None))

    def _steps(self, n: int) -> AbstractContextManager[None]:
        return self._within(self._where[-1]._replace(steps=n))

    @contextmanager
    def _within(self, where: Where) -> Iterator[None]:
        self._push(where)
        try:
            yield
        finally:
            self._pop()

    def _enter(self, module: Any, name: str | None) -> None:
        layer = self._where[-1].layer
        # A layer that is checkpointed calls itself: once more, and again in the backward pass.
        if isinstance(module.spec, BlockSpec) and layer is None and torch._C._current_autograd_node() is None:
            layer = len(self.layers)
            self.layers.append(module.spec)
        self._push(Where(name or self._where[-1].part, layer, self._where[-1].steps))

    def _push(self, where: Where) -> None:
        self._where.append(where)
        self._mark()

    def _pop(self) -> None:
        self._where.pop()
        self._mark()

    def _mark(self) -> None:
        """Nodes made from here on belong to what runs now."""
        if torch._C._current_autograd_node() is None:
            self._spans.append((torch.autograd._get_sequence_nr(), self._where[-1]))

    def where(self) -> tuple[Where, bool]:
        """(what runs now, whether it runs forward)."""
        node = torch._C._current_autograd_node()
        if node is None:
            return self._where[-1], True
        number = node._sequence_nr()
        if number < self._spans[-1][0]:  # else the node was made on the way back, inside of the one before
            self._back = self._spans[bisect_right(self._spans, number, key=lambda span: span[0]) - 1][1]
        again = len(self._where) > 1  # modules run in a backward pass where layers are made again
        return self._back._replace(part=(self._where if again else [self._back])[-1].part), False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return args[0].fake_device
        out = func(*args, **kwargs)
        where, forward = self.where()
        cast = func.overloadpacket is torch.ops.aten._to_copy and self._is_weight(args[0]) and forward
        for tensor in tensors_in(out):
            self._write(tensor, Where(CASTS, where.layer) if cast else where, forward)
        if func.is_view or func.overloadpacket in FREE:
            return out
        phase = "forward" if forward else "backward"
        figures = observed(func, args, kwargs, out, self._is_weight)
        self.operators.append((Operator(part=where.part, phase=phase, **figures), where))
        return out

    def _is_weight(self, tensor: Tensor) -> bool:
        address = tensor.untyped_storage()._cdata
        return address in self._weights or self._where_made(address).part == CASTS

    def _where_made(self, address: int) -> Where:
        return self.born[self._alive[address][0]] if address in self._alive else self._where[0]

    def _write(self, tensor: Tensor, where: Where, forward: bool) -> None:
        storage = tensor.untyped_storage()
        address, nbytes, number = storage._cdata, storage.nbytes(), len(self.born)
        if address in self._weights or address in self._alive:
            return
        self.born[number] = where
        self._alive[address] = number, weakref.ref(storage, lambda _: self._free(address, number, nbytes))
        self.events.append(Event(nbytes, number, where, forward))

    def _free(self, address: int, number: int, nbytes: int) -> None:
        del self._alive[address]
        self.events.append(Event(-nbytes, number, *self.where()))

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata in self._alive and torch._C._current_autograd_node() is None:
            number = self._alive[storage._cdata][0]
            # Of the layer that keeps it first, for which another may have made it: what is undone keeps the last state alone.
            self.kept.setdefault(number, (storage.nbytes(), self.born[number]._replace(layer=self._where[-1].layer)))
        return tensor

    def _gradient(self, parameter: Tensor) -> None:
        """A gradient of a weight is counted with the state of training: it is let go, and its bytes are no activation's."""
        assert parameter.grad is not None
        self.gradients.add(self._alive[parameter.grad.untyped_storage()._cdata][0])
        parameter.grad = None

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor's storage."""
        return self._alive[tensor.untyped_storage()._cdata][0]

    def alive(self) -> dict[int, tuple[int, Where]]:
        """Bytes of the storages that are there now and where they were made, by storage."""
        sizes = {event.storage: event.nbytes for event in self.events if event.nbytes >= 0}
        return {number: (sizes[number], self.born[number]) for number, _ in self._alive.values()}


def observed_call(work: Callable[..., Any], *tensors: Tensor) -> list[Operator]:
    """The operators of one call on tensors of these shapes."""
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, torch.no_grad():
        inputs = [fake.from_tensor(tensor.cpu()) for tensor in tensors]
        observer = Observer(nn.Module())
        with observer:
            work(*inputs)
    return [operator for operator, _ in observer.operators]


def _names(module: nn.Module, outer: str | None = None, inner: str | None = None) -> Iterator[tuple[int, str | None]]:
    """(id, name in reports) of a module and those inside: the innermost `observed_as`, else the outermost `counted_as`."""
    spec = getattr(module, "spec", None)
    if spec is not None:
        outer, inner = outer or type(spec).counted_as, type(spec).observed_as or inner
    yield id(module), inner or outer or ("residual" if isinstance(spec, BlockSpec) else None)
    for child in module.children():
        yield from _names(child, outer, inner)
