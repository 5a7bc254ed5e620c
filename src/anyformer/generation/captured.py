"""Decoding by a CUDA graph of the step as it is written: nothing is compiled, and what Python and launches take goes away.

A small model's step asks a GPU for hundreds of operators, each of which takes longer to ask for than to compute.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any
from weakref import WeakSet, ref

import torch
from torch import Tag, Tensor, nn
from torch._ops import OpOverload
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

from anyformer.capacity import free_nbytes
from anyformer.generation.compiled import not_in_slots, step_logits
from anyformer.generation.static_cache import StaticCache, static_nbytes
from anyformer.layers.tokens import autocast_dtype, recording
from anyformer.model import Transformer

LEAST_STEPS = 8  # from which on recording one, some hundredths of a second, is worth it
SMALL = 1 << 28  # bytes of a cache that a GPU reads in less time than a graph saves
SHARE = 0.5  # of the weights' bytes that a larger cache may take: all its slots are read at each step

Replay = Callable[[], Tensor]


def captured(model: Transformer, prompt: Tensor, max_new_tokens: int, source_tokens: int = 0) -> CapturedStep | None:
    """A step for so many tokens behind a prompt [batch, token], and an encoder's, where it pays and can be recorded, on a GPU;
    else None."""
    if not prompt.is_cuda or max_new_tokens < LEAST_STEPS or model in _READ_ON_THE_WAY:
        return None
    if not_in_slots(model.spec) or not _plain(model, prompt.device):
        return None
    rows, n = prompt.shape
    nbytes = static_nbytes(model, rows, n + max_new_tokens - 1, source_tokens)
    of_weights = sum(each.nbytes for each in model.parameters())
    free = free_nbytes(prompt.device)
    if nbytes > max(SMALL, SHARE * of_weights) or (free is not None and nbytes > free / 2):
        return None
    return CapturedStep(model)


class CapturedStep:
    """The next logits of a model by a graph of its own operators, which each text records at its second step.

    The first is computed by the same operators one by one, and loads what is loaded once. Where it reads numbers on its way, as
    a part of one's own may, nothing can be recorded: all steps of that model are computed as they are written.
    """

    ahead = True  # the next step is asked for while this one's tokens are read

    def __init__(self, model: Transformer, record: Callable[[Replay], Replay] | None = None) -> None:
        self.model, self.record = model, record or _recorded
        self._text: Callable[[], StaticCache | None] = lambda: None
        self._replay: Replay | None = None

    @torch.inference_mode()
    def __call__(self, ids: Tensor, types: Tensor | None, cache: StaticCache) -> Tensor:
        """Logits [batch, vocab] of the token after `ids` [batch, 1], which the cache does not hold yet; the next call overwrites
        them. Raises CacheError where it has no room."""
        cache.take_room()
        first = self._text() is not cache
        if first:
            self._text, self._replay = ref(cache), None
        # A graph would go on with the weights that autocast has cast, and lets go where it ends.
        if self.model in _READ_ON_THE_WAY or autocast_dtype(ids) is not None:
            return step_logits(self.model, ids, types, cache)
        with recording():
            if first:
                with Reading() as seen:
                    logits = step_logits(self.model, ids, types, cache)
                if seen.reads:
                    _READ_ON_THE_WAY.add(self.model)
                return logits
            if self._replay is None:
                self._ids, self._types = ids.clone(), None if types is None else types.clone()
                try:
                    with torch.cuda.device_of(ids):  # others' streams would not record a thing
                        self._replay = self.record(lambda: step_logits(self.model, self._ids, self._types, cache))
                except RuntimeError:  # CUDA's, for a reason that the first step did not show
                    _READ_ON_THE_WAY.add(self.model)
        if self._replay is None:
            return step_logits(self.model, ids, types, cache)
        self._ids.copy_(ids)
        return self._replay()


_READ_ON_THE_WAY = WeakSet[Transformer]()  # models of which no step could be recorded


class Reading(TorchDispatchMode):
    """Whether operators wait for a device: for numbers that Python is given, that say a result's size, or that leave or come.

    Asked beforehand: a recording that fails leaves PyTorch's allocator, and what it draws, as if it went on.
    """

    reads = False
    supports_higher_order_operators = True  # FlexAttention, which has no overloads

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What is compiled stays so."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not isinstance(func, OpOverload):
            return made
        self.reads |= isinstance(made, bool) or Tag.data_dependent_output in func.tags
        packet = func.overloadpacket
        if packet in INDEXING:  # by flags, which are counted first
            self.reads |= any(each.dtype == torch.bool for each in tree_leaves(args[1]) if isinstance(each, Tensor))
        else:
            self.reads |= Tag.dynamic_output_shape in func.tags
        if packet in COPYING:
            devices = {each.device for each in tree_leaves((args, made)) if isinstance(each, Tensor)}
            self.reads |= packet is ATEN.lift_fresh or len(devices) > 1
        return made


ATEN = torch.ops.aten
INDEXING = (ATEN.index, ATEN.index_put, ATEN.index_put_)
COPYING = (ATEN.to, ATEN._to_copy, ATEN.copy_, ATEN.lift_fresh)  # the last of what Python has

_ONE = Lock()  # PyTorch records one graph at a time


def _recorded(step: Replay) -> Replay:
    graph, before, aside = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), torch.cuda.Stream()
    how: dict[str, Any] = {"stream": aside, "capture_error_mode": "thread_local"}
    # A recording that fails does not go back by itself to the stream of before.
    with _ONE, torch.cuda.stream(before), torch.cuda.graph(graph, **how):
        logits = step()

    def replay() -> Tensor:
        graph.replay()
        return logits

    return replay


def _plain(model: Transformer, device: torch.device) -> bool:
    """Whether a replayed graph is all that a step does: whole weights on one device, nobody who watches modules or operators."""
    if _get_current_dispatch_mode() is not None or _has_any_global_hook():
        return False
    weights = (*model.parameters(), *model.buffers())
    if any(each.device != device or type(each) not in (nn.Parameter, Tensor) for each in weights):
        return False
    return not any(
        each._forward_hooks or each._forward_pre_hooks or "forward" in vars(each) for each in model.modules()
    )
