"""Law 11: `torch.compile` has no graph break and agrees with eager."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch._dynamo.utils import counters

from anyformer.cache import KVCache
from anyformer.families import preset
from anyformer.hub import load_spec
from anyformer.layers.block import compile_layers
from anyformer.model import Output, Transformer
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, dumps, loads
from tests.laws.models import every_preset, every_preset_few_fast, ids_for, randomised, runner, told, waiving
from tests.laws.parity import single
from tests.laws.tolerance import FLOAT32, OWN_LOSS, close, gradient_distance
from tests.sample import TURNS


@pytest.mark.in_turn(3 * TURNS)
@every_preset_few_fast
def test_no_graph_break(spec: ModelSpec) -> None:
    compiles(spec, "eager")


@pytest.mark.slow
@every_preset
def test_no_graph_break_with_its_backward_pass_ahead_of_time(spec: ModelSpec) -> None:
    compiles(spec, "aot_eager")


@pytest.mark.parametrize("name", ["llama2-7b+mask=Strided(stride=3)", "bert-base", "gpt2"])
def test_no_graph_break_with_labels(name: str) -> None:
    torch.compiler.reset()
    spec = loads(dumps(shrink(load_spec(name))))
    model, ids = randomised(spec), ids_for(spec, 2, 12)
    expected = model(ids, labels=ids).loss
    close(torch.compile(model, backend="eager", fullgraph=True)(ids, labels=ids).loss, expected)


def compiles(spec: ModelSpec, backend: str) -> None:
    torch.compiler.reset()
    # A value just read has nothing worked out: the first pass, too, must compile.
    model, ids = randomised(loads(dumps(spec))), ids_for(spec, 2, 12)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    told_too = {"output_ahead": bool(spec.ahead), **told(spec, ids)}
    expected = [runner(randomised(spec))(ids).logits, runner(randomised(spec))(ids, mask, **told_too).logits]
    model.forward = torch.compile(model.forward, backend=backend, fullgraph=True)  # type: ignore[method-assign]
    close(runner(model)(ids).logits, expected[0])
    out = runner(model)(ids, mask, **told_too)
    close(out.logits[mask.bool()], expected[1][mask.bool()])
    torch.stack([answer.sum() for answer in (*out.outputs.values(), *out.ahead)]).sum().backward()
    waived = waiving(model, "gradients")
    assert all(p.grad is not None for name, p in model.named_parameters() if p.requires_grad and name not in waived)


KINDS = (
    "llama3.2-1b",
    "gemma3-1b",
    "deepseek-v3",
    "t5-base",
    "long-t5-tglobal-base",
    "bert-base",
    "mamba2-130m",
    "xlnet-base",
)


@pytest.mark.parametrize("name", KINDS)
def test_layers_compile_by_themselves(name: str) -> None:
    layers_compile(shrink(preset(name).spec))


@pytest.mark.slow
@every_preset
def test_layers_of_every_preset_compile_by_themselves(spec: ModelSpec) -> None:
    layers_compile(spec, more=2)


def layers_compile(spec: ModelSpec, more: int = 0) -> None:
    """Loss and gradients are those of layers as they are written, padding and what is made again included.

    Each kind of layers is one graph, and so many `more`: the first layer with a number of its own, or whose keys another reads,
    has one, and a layer that predicts further tokens.
    """
    model, ids = randomised(loads(dumps(spec))), ids_for(spec, 2, 12)
    mask, waived, plain = torch.ones_like(ids), waiving(model, "gradients"), deepcopy(model)
    mask[0, :3] = 0

    def gradients(model: Transformer = model) -> dict[str, torch.Tensor]:
        model.zero_grad(set_to_none=True)
        out = runner(model)(ids, mask, output_ahead=bool(spec.ahead), **told(spec, ids))
        torch.stack(
            [
                a[mask.bool()].square().mean() if a.dim() == 3 and a.shape[:2] == mask.shape else a.square().mean()
                for a in (*out.outputs.values(), *out.ahead)
            ]
        ).sum().backward()
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None and n not in waived}

    def alike() -> bool:
        """Whether they are near what they were, or as near as float32 is to float64 (`OWN_LOSS`)."""
        apart = gradient_distance(gradients(), wanted)
        return apart < single(spec) or apart < OWN_LOSS * gradient_distance(wanted, gradients(plain.double()))

    wanted = gradients()
    torch.compiler.reset()
    counters.clear()
    compile_layers(model, "aot_eager")
    assert alike()
    assert not counters["graph_break"]
    kinds = len(set(spec.stack.blocks) | set(spec.encoder.blocks if spec.encoder else ()))
    compiled, undo = counters["frames"]["ok"], all(stack.residual.undoes for stack in spec.stacks.values())
    assert compiled == 0 if undo else 0 < compiled <= kinds + more
    if all(not stack.residual.undoes for stack in spec.stacks.values()):
        model.recompute = "full"
        assert alike()


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["transformer-base", "gpt2", "llama3.2-1b"])
def test_decoding_compiles(name: str) -> None:
    torch.compiler.reset()
    spec = shrink(preset(name).spec)
    model, ids = randomised(spec), ids_for(spec, 1, 8)
    with torch.no_grad():
        whole = runner(model)(ids).logits
        model.forward = torch.compile(model.forward, backend="aot_eager")  # type: ignore[method-assign]
        cache = KVCache(spec, length=8)
        parts = [runner(model)(chunk, cache=cache).logits for chunk in ids.split([5, 1, 1, 1], 1)]
    close(torch.cat(parts, 1), whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer-base", "gpt2", "llama3.2-1b"])
def test_inductor_agrees(name: str) -> None:
    torch.compiler.reset()
    spec = shrink(preset(name).spec)
    model, ids = randomised(spec), ids_for(spec, 2, 12)
    expected = runner(model)(ids)
    wanted = gradients(model, expected)
    model.forward = torch.compile(model.forward, fullgraph=True)  # type: ignore[method-assign]
    out = runner(model)(ids)
    close(out.logits, expected.logits)
    assert gradient_distance(gradients(model, out), wanted) < FLOAT32


def gradients(model: Transformer, out: Output) -> dict[str, torch.Tensor]:
    names, values = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(out.logits.square().mean(), values), strict=True))
