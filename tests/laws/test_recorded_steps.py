"""A step of decoding that is recorded and replayed without Python gives what passes give, whatever the model, and asks the
device for nothing on its way: by the tape that a CPU replays, where operators that a GPU would be waited for are seen."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from anyformer.cache import KVCache
from anyformer.families import preset
from anyformer.generation import captured as recording_of
from anyformer.generation import decode, generate_ids
from anyformer.generation.captured import CapturedStep, captured
from anyformer.generation.compiled import not_in_slots
from anyformer.generation.static_cache import StaticCache
from anyformer.generation.tape import taped
from anyformer.hub import load, save
from anyformer.layers import MoESpec
from anyformer.layers.execution import recorded, recording
from anyformer.layers.held import HeldWeight
from anyformer.model import Transformer
from anyformer.resizing import resize, shrink
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
    """A tape, and what a GPU would have been waited for."""

    def __init__(self) -> None:
        self.watched = Watched()

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], Tensor] | None]:
        with self.watched:
            return taped(step)


def replayed(model: Transformer, ids: Tensor, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, list[str]]:
    """(logits of the tokens from READ on, what the recorded step would have waited for), with more slots given on the way."""
    recorder, tolist = Recorder(), Tensor.tolist

    def listed(each: Tensor) -> Any:
        if recorded():
            recorder.watched.found.append("tolist")
        return tolist(each)

    monkeypatch.setattr(Tensor, "tolist", listed)
    step = CapturedStep(model, recorder, looks=len(ids) > 1)
    cache = KVCache(model.spec, batch=len(ids), length=READ + 4, longest=32)
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
    assert captured_at_all(model)


def captured_at_all(model: Transformer) -> bool:
    return model not in recording_of._READ_ON_THE_WAY


READERS: dict[str, Callable[[Tensor], Any]] = {
    "a number": lambda x: x.sum().item(),
    "a flag": lambda x: bool((x > 0).any()),
    "equals": lambda x: torch.equal(x, x + 1),
    "places": lambda x: x.nonzero(),
    "flagged": lambda x: x[x > 0],
    "replaced": lambda x: x.clone().index_put_((x > 0,), x[0, 0, 0]),
    "Python's numbers": lambda x: torch.tensor([1.0, 2.0], device=x.device),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_step_that_would_be_waited_for_is_not_tried(
    read: Callable[[Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording that fails leaves PyTorch's allocator, its random numbers and its stream as if it went on."""
    spec = shrink(preset("llama2").spec)
    model, ids = randomised(spec), ids_for(spec, 1, READ + 4)
    norm, asked = model.stack.norm, list[Any]()
    assert norm is not None
    plain = norm.forward
    monkeypatch.setattr(norm, "forward", lambda x: (read(x), plain(x))[1])
    step = CapturedStep(model, lambda step: (asked.append(step), (step(), step))[1], looks=True)
    cache = KVCache(spec, length=32)
    with torch.inference_mode():
        model(ids[:, :READ], cache=cache)
        static = StaticCache(cache)
        logits = [step(ids[:, i : i + 1], None, static) for i in range(READ, READ + 4)]
        close(torch.stack(logits, 1), model(ids).logits[:, READ:], FLOAT32)
    assert not asked


def test_what_comes_from_another_device_is_waited_for() -> None:
    with torch.inference_mode(), recording_of.HostReads() as seen:
        torch.ones(3, device="meta").to(torch.float16).copy_(torch.ones(3, device="meta"))
        assert not seen.reads
        torch.ones(3).to("meta")
        assert seen.reads


def test_a_recording_that_fails_leaves_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own way leaves its own stream current where the end of a recording raises."""
    now = ["default"]

    @contextmanager
    def stream(name: str) -> Iterator[None]:
        before, now[0] = now[0], name
        try:
            yield
        finally:
            now[0] = before

    @contextmanager
    def graph(*_: Any, **__: Any) -> Iterator[None]:
        now[0] = "aside"
        yield
        raise AssertionError("not reached")

    cuda = SimpleNamespace(
        CUDAGraph=object, Stream=lambda: "aside", current_stream=lambda: now[0], stream=stream, graph=graph
    )
    monkeypatch.setattr(recording_of, "torch", SimpleNamespace(cuda=cuda))

    def step() -> Tensor:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError):
        recording_of._recorded(step)
    assert now == ["default"]


def test_it_is_recorded_where_the_weights_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream of another GPU would record nothing, and replay it."""
    current: list[torch.device] = []

    @contextmanager
    def device_of(x: Tensor) -> Iterator[None]:
        current.append(x.device)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    spec = shrink(preset("llama2").spec)
    model, ids, found = randomised(spec), ids_for(spec, 1, READ + 2), list[Any]()
    step = CapturedStep(model, lambda step: (found.append(list(current)), (step(), step))[1], looks=True)
    cache = KVCache(spec, length=32)
    with torch.inference_mode():
        model(ids[:, :READ], cache=cache)
        static = StaticCache(cache)
        for i in range(READ, READ + 2):
            step(ids[:, i : i + 1], None, static)
    assert found == [[ids.device]]


@pytest.mark.slow
def test_flex_is_looked_at_too() -> None:
    """Its operator is of another sort than all others."""
    spec = shrink(preset("llama2").spec)
    model, ids = randomised(spec), ids_for(spec, 1, READ + 3)
    model.kernel = "flex"
    step, cache = CapturedStep(model, looks=True), KVCache(spec, length=32)
    with torch.inference_mode():
        expected = model(ids, kernel="eager").logits[:, -1]
        model(ids[:, :READ], cache=cache, kernel="eager")
        static = StaticCache(cache)
        with warnings.catch_warnings(action="ignore"):
            logits = [step(ids[:, i : i + 1], None, static) for i in range(READ, READ + 3)]
    close(logits[-1], expected, FLOAT32)


def test_under_autocast_nothing_is_recorded() -> None:
    """A graph would go on with the weights that autocast has cast, and lets go where it ends."""
    spec = shrink(preset("llama2").spec)
    model, ids = randomised(spec), ids_for(spec, 1, READ + 4)
    step, cache = CapturedStep(model, lambda _: pytest.fail("recorded")), KVCache(spec, length=32)
    with torch.inference_mode():
        model(ids[:, :READ], cache=cache)
        static = StaticCache(cache)
        for i in range(READ, READ + 4):
            with torch.autocast("cpu", torch.bfloat16):
                step(ids[:, i : i + 1], None, static)


def test_who_watches_operators_or_all_modules_sees_each_step() -> None:
    model, device = randomised(shrink(preset("llama2").spec)), torch.device("cpu")
    assert recording_of._plain(model, device)
    with FlopCounterMode(display=False):
        assert not recording_of._plain(model, device)
    watching = register_module_forward_hook(lambda *_: None)
    try:
        assert not recording_of._plain(model, device)
    finally:
        watching.remove()


def test_a_step_that_reads_is_written_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = next(iter(DECODERS.values()))
    model, ids = randomised(spec), ids_for(spec, 1, READ + 4)
    asked = []

    def refused(step: Callable[[], Tensor]) -> Any:
        asked.append(step)
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    for _ in range(2):
        step, cache = CapturedStep(model, refused, looks=True), KVCache(spec, length=32)
        with torch.inference_mode():
            model(ids[:, :READ], cache=cache)
            static = StaticCache(cache)
            logits = [step(ids[:, i : i + 1], None, static) for i in range(READ, READ + 4)]
            close(torch.stack(logits, 1), model(ids).logits[:, READ:], FLOAT32)
    assert len(asked) == 1, "it is not tried again"


@pytest.mark.parametrize("read", [*READERS.values(), Tensor.tolist, Tensor.numpy], ids=[*READERS, "tolist", "numpy"])
def test_no_tape_of_what_reads(read: Callable[[Tensor], Any]) -> None:
    """A number that Python was given would be the same in each step."""
    x = torch.ones(1, 2, 3)
    with torch.inference_mode():
        given, again = taped(lambda: (read(x), x + 1)[1])
    assert torch.equal(given, x + 1)
    assert again is None


def tree_add(given: dict[str, Tensor]) -> Tensor:
    """As whoever shows PyTorch's modes a call of their own."""
    if has_torch_function(tuple(given.values())):
        return handle_torch_function(tree_add, tuple(given.values()), given)
    return given["one"] + given["other"]


def test_no_tape_of_what_is_not_seen() -> None:
    """What a call gave that nobody wrote down would be the same in each step."""
    x = torch.ones(3)

    def unseen() -> Tensor:
        with torch._C.DisableTorchFunction():
            y = x * 2
        return y + x

    with torch.inference_mode():
        given, again = taped(unseen)
        assert torch.equal(given, 3 * x)
        assert again is None
        hidden = taped(lambda: tree_add({"one": x * 2, "other": x}))
        assert torch.equal(hidden[0], given)
        assert hidden[1] is None


def test_a_tape_makes_each_sort_of_call_again() -> None:
    """Methods, functions, operators, properties, several results, what is written in place or into parts, casts that keep."""
    x, at = torch.randn(2, 4), torch.zeros(1, dtype=torch.long)
    table = torch.zeros(5, 4)

    def step() -> Tensor:
        low, high = x.mT.mT.float().chunk(2, -1)
        y = torch.cat([high, F.relu(low, inplace=False)], dim=-1).contiguous()
        y += torch.ops.aten.mul(y, 2)
        y[0] = x[1]
        at.add_(1)
        table.index_copy_(0, at, y.sum(0, keepdim=True))
        best = (x @ table.T).max(-1)
        return 1 - best.values[..., None] * y.to(torch.float64)

    def steps(once: Callable[[], Tensor]) -> list[Tensor]:
        found = list[Tensor]()
        at.zero_()
        table.zero_()
        for i in range(3):
            x.copy_(torch.randn(2, 4, generator=torch.Generator().manual_seed(i)))
            found.append(once())
        return found

    with torch.inference_mode():
        _, again = taped(step)
        assert again is not None
        expected = steps(step)
        assert all(torch.equal(one, other) for one, other in zip(steps(again), expected, strict=True))


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_weights_in_few_bits_are_on_the_tape(dtype: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As what their kind makes of a call, not as calls of it."""
    spec = resize(preset("llama2").spec, d_model=64, vocab_size=64, n_layers=2)
    save(randomised(spec), tmp_path / "model")
    model, ids = load(tmp_path / "model", dtype=dtype)[0].eval(), ids_for(spec, 1, READ)
    assert any(isinstance(each, HeldWeight) for each in model.parameters())
    with torch.inference_mode(), recording():
        model(ids[:, :1])  # what is made once
        logits, again = taped(lambda: model(ids[:, :1]).logits)
        assert again is not None
        monkeypatch.setattr(HeldWeight, "__torch_function__", lambda *_: pytest.fail("a kind of tensors was asked"))
        assert torch.equal(again(), logits)
        monkeypatch.undo()
    taped_one = generate_ids(model, ids, max_new_tokens=48)
    assert captured_at_all(model)
    monkeypatch.setattr(decode, "captured", lambda *_: None)
    assert torch.equal(taped_one, generate_ids(model, ids, max_new_tokens=48))


def test_what_a_cpu_records() -> None:
    """One text whose cache is small, and no mixture, of which it would read what nobody chose."""
    spec = shrink(preset("llama2").spec)
    model, ids = randomised(spec), ids_for(spec, 1, READ)
    assert captured(model, ids, 16) is not None
    assert captured(model, ids, 15) is None
    assert captured(model, ids_for(spec, 2, READ), 32) is None
    assert captured(model, ids, 10**7) is None
    assert captured(randomised(shrink(preset("mixtral-8x7b").spec)), ids, 32) is None


def test_the_compiler_is_not_loaded() -> None:
    """A second or more of whoever writes one text."""
    script = """
import sys
from anyformer.families import preset
from anyformer.generation import decode, generate_ids
from anyformer.model import build
from anyformer.resizing import shrink
import torch
kept = decode.captured
decode.captured = lambda *given: kept(*given) or sys.exit("not recorded")
generate_ids(build(shrink(preset("llama2").spec)), torch.zeros(1, 4, dtype=torch.long), max_new_tokens=40)
print("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"


def test_long_texts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """With slots added again and again."""
    spec = shrink(preset("gemma3-1b").spec)
    model, ids = randomised(spec), ids_for(spec, 1, READ)
    lengthened, lengthen = list[int](), StaticCache.lengthen
    monkeypatch.setattr(StaticCache, "lengthen", lambda each: (lengthened.append(each.n), lengthen(each)))
    recorded_one = generate_ids(model, ids, max_new_tokens=200)
    assert len(lengthened) > 1
    monkeypatch.setattr(decode, "captured", lambda *_: None)
    assert torch.equal(recorded_one, generate_ids(model, ids, max_new_tokens=200))
