"""Decoding by a recorded step: nothing is compiled, and what Python takes between the operators goes away.

A small model's step asks a GPU for hundreds of operators, each of which takes longer to ask for than to compute: there a CUDA
graph replays them as one launch. On a CPU a tape makes the same calls of PyTorch again.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode

from anyformer.capacity import free_nbytes
from anyformer.generation.compiled import next_logits, not_in_slots
from anyformer.generation.reading import HostReads
from anyformer.generation.static_cache import StaticCache, static_nbytes
from anyformer.generation.tape import taped
from anyformer.layers.execution import autocast_dtype, recording
from anyformer.layers.experts import Experts
from anyformer.layers.held import HeldWeight
from anyformer.model import Transformer

LEAST_STEPS = {"cuda": 8, "cpu": 16}  # from which on recording one, some hundredths of a second, is worth it
SMALL = 1 << 28  # bytes of a cache that a GPU reads in less time than a graph saves
SHARE = 0.5  # of the weights' bytes that a larger cache may take: all its slots are read at each step
SMALL_LAYER = 1 << 24  # bytes of a layer's cache whose empty slots a CPU reads in less time than a tape saves

Replay = Callable[[], Tensor]
Record = Callable[[Replay], tuple[Tensor, Replay | None]]  # what a step gives, and what makes it again, if anything can


def captured(model: Transformer, prompt: Tensor, max_new_tokens: int, source_tokens: int = 0) -> CapturedStep | None:
    """A step for so many tokens behind a prompt [batch, token], and an encoder's, where recording it pays; else None."""
    device = prompt.device
    if max_new_tokens < LEAST_STEPS.get(device.type, math.inf) or model in _READ_ON_THE_WAY:
        return None
    if not_in_slots(model.spec) or not _plain(model, device):
        return None
    rows, n = prompt.shape
    nbytes = static_nbytes(model, rows, n + max_new_tokens - 1, source_tokens)
    if device.type == "cpu":
        # Of several rows those that end would stay; of experts those that nobody chose would be read.
        alone = rows == 1 and not any(isinstance(each, Experts) for each in model.modules())
        return CapturedStep(model) if alone and nbytes <= SMALL_LAYER * len(model.stack.blocks) else None
    of_weights = sum(each.nbytes for each in model.parameters())
    free = free_nbytes(device)
    if nbytes > max(SMALL, SHARE * of_weights) or (free is not None and nbytes > free / 2):
        return None
    return CapturedStep(model)


class CapturedStep:
    """The next logits of a model by a record of its own operators, which each text makes at its first step or its second.

    With `looks` at the second: the first is computed by the same operators one by one, and loads what is loaded once, as a GPU
    needs it, and whoever compiles a part of a step. Where a step reads numbers on its way, as a part of one's own may, nothing
    can be recorded: all steps of that model are computed as they are written.
    """

    def __init__(self, model: Transformer, record: Record | None = None, looks: bool | None = None) -> None:
        on_gpu = next(model.parameters()).is_cuda
        self.model, self.record = model, record or (_recorded if on_gpu else taped)
        self._looks = True if on_gpu else looks
        self.ahead = on_gpu  # whether the next step is asked for while this one's tokens are read
        self.lengthens = not on_gpu  # whether a cache that is full gets more slots, and the step is recorded anew
        self._text: Callable[[], StaticCache | None] = lambda: None
        self._replay: Replay | None = None

    @property
    def looks(self) -> bool:
        """Whether the first step is only looked at; nothing of it is compiled while PyTorch's compiler has not been loaded."""
        return "torch._dynamo" in sys.modules if self._looks is None else self._looks

    @torch.inference_mode()
    def __call__(self, ids: Tensor, types: Tensor | None, cache: StaticCache) -> Tensor:
        """Logits [batch, vocab] of the token after `ids` [batch, token], which the cache does not hold yet; the next call
        overwrites them. Several at once are read without a record. Raises CacheError where it has no room."""
        n = ids.shape[1]
        while self.lengthens and cache.room is not None and cache.room < n:
            cache.lengthen()
            self._text = lambda: None
        cache.take_room(n)
        if n > 1:
            return next_logits(self.model, ids, types, cache)
        first = self._text() is not cache
        if first:
            self._text, self._replay = ref(cache), None
        # A graph would go on with the weights that autocast has cast, and lets go where it ends.
        if self.model in _READ_ON_THE_WAY or autocast_dtype(ids) is not None:
            return next_logits(self.model, ids, types, cache)
        with recording():
            if first and self.looks:
                with HostReads() as seen:
                    logits = next_logits(self.model, ids, types, cache)
                if seen.reads:
                    _READ_ON_THE_WAY.add(self.model)
                return logits
            if self._replay is None:
                self._ids, self._types = ids.clone(), None if types is None else types.clone()
                try:
                    with torch.cuda.device_of(ids):  # others' streams would not record a thing
                        logits, self._replay = self.record(
                            partial(next_logits, self.model, self._ids, self._types, cache)
                        )
                except RuntimeError:  # CUDA's, for a reason that the first step did not show
                    logits = next_logits(self.model, ids, types, cache)
                if self._replay is None:
                    _READ_ON_THE_WAY.add(self.model)
                return logits
        self._ids.copy_(ids)
        return self._replay()


_READ_ON_THE_WAY = WeakSet[Transformer]()  # models of which no step could be recorded


_ONE = Lock()  # PyTorch records one graph at a time


def _recorded(step: Replay) -> tuple[Tensor, Replay]:
    graph, before, aside = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), torch.cuda.Stream()
    how: dict[str, Any] = {"stream": aside, "capture_error_mode": "thread_local"}
    # A recording that fails does not go back by itself to the stream of before.
    with _ONE, torch.cuda.stream(before), torch.cuda.graph(graph, **how):
        logits = step()

    def replay() -> Tensor:
        graph.replay()
        return logits

    return replay(), replay


def _plain(model: Transformer, device: torch.device) -> bool:
    """Whether a replayed graph is all that a step does: whole weights on one device, nobody who watches modules or operators."""
    if _get_current_dispatch_mode() is not None or _has_any_global_hook():
        return False
    weights = (*model.parameters(), *model.buffers())
    known = (type(each) in (nn.Parameter, Tensor) or (each.is_cpu and isinstance(each, HeldWeight)) for each in weights)
    if not all(known) or any(each.device != device for each in weights):
        return False
    return not any(
        each._forward_hooks or each._forward_pre_hooks or "forward" in vars(each) for each in model.modules()
    )
