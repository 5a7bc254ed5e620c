"""A step of decoding that is recorded and replayed without Python gives what passes give, whatever the model, and asks the
device for nothing on its way: on a CPU, where operators are recorded as they reach PyTorch, and those that a GPU would be waited
for are seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from anyformer.cache import KVCache
from anyformer.generation.captured import CapturedStep, captured
from anyformer.generation.compiled import not_in_slots
from anyformer.generation.static_cache import StaticCache
from anyformer.layers import MoESpec
from anyformer.layers.tokens import recorded
from anyformer.model import Transformer
from anyformer.spec import ModelSpec
from tests.laws.models import DECODERS, every_writer, ids_for, randomised, runner
from tests.laws.tolerance import FLOAT32, close
from tests.laws.weights import edited

READ = 9
# What gives Python a number of the device's, what has as many results as numbers say, and what comes from Python's own.
WAITS = {
    "_local_scalar_dense",
    "item",
    "nonzero",
    "masked_select",
    "unique_dim",
    "_unique2",
    "lift_fresh",
    "is_nonzero",
}


class Watched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITS or any(isinstance(each, list) and _flags(each) for each in args):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def _flags(index: list[Any]) -> bool:
    """Whether an index is of flags, which are counted first."""
    return any(isinstance(each, Tensor) and each.dtype == torch.bool for each in index)


class Recorder:
    """In place of CUDA: the operators of a step, on the tensors that it was recorded with, again and again without Python."""

    def __init__(self) -> None:
        self.watched = Watched()

    def __call__(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        made: list[Tensor] = []

        def traced() -> Tensor:
            made.append(step())
            return made[0]

        with self.watched, torch.no_grad():
            graph = make_fx(traced)()
        # CUDA records without computing; here the first replay was computed while it was recorded.
        return lambda: made.pop() if made else graph()


def replayed(model: Transformer, ids: Tensor, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, list[str]]:
    """(logits of the tokens from READ on, what the recorded step would have waited for)."""
    recorder, tolist = Recorder(), Tensor.tolist

    def listed(each: Tensor) -> Any:
        if recorded():
            recorder.watched.found.append("tolist")
        return tolist(each)

    monkeypatch.setattr(Tensor, "tolist", listed)
    step, cache = CapturedStep(model, recorder), KVCache(model.spec, batch=len(ids), length=32)
    with torch.inference_mode():
        runner(model)(ids[:, :READ], cache=cache)
        static = StaticCache(cache)
        logits = [step(ids[:, i : i + 1], None, static).clone() for i in range(READ, ids.shape[1])]
    return torch.stack(logits, 1), recorder.watched.found


@pytest.mark.parametrize("rows", [1, 3])
@every_writer
def test_presets(rows: int, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is recorded gives what a pass over all tokens gives."""
    if not_in_slots(spec):
        pytest.skip("keeps tokens without a mask")
    spec = edited(spec, MoESpec, lambda mixture: mixture.but(capacity=None))
    model = randomised(spec)
    ids = ids_for(spec, rows, READ + 9)
    with torch.inference_mode():
        expected = runner(model)(ids).logits[:, READ:]
    logits, found = replayed(model, ids, monkeypatch)
    assert not found, found
    close(logits, expected, 10 * FLOAT32)


def test_a_step_that_reads_is_written_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = next(iter(DECODERS.values()))
    model, ids = randomised(spec), ids_for(spec, 1, READ + 4)
    asked = []

    def refused(step: Callable[[], Tensor]) -> Any:
        asked.append(step)
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    for _ in range(2):
        step, cache = CapturedStep(model, refused), KVCache(spec, length=32)
        with torch.inference_mode():
            model(ids[:, :READ], cache=cache)
            static = StaticCache(cache)
            logits = [step(ids[:, i : i + 1], None, static) for i in range(READ, READ + 4)]
            close(torch.stack(logits, 1), model(ids).logits[:, READ:], FLOAT32)
    assert len(asked) == 1, "it is not tried again"


def test_a_cpu_records_nothing() -> None:
    spec = next(iter(DECODERS.values()))
    assert captured(randomised(spec), ids_for(spec, 1, 4), 100) is None
