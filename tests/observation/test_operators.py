"""What was observed of a pass: FLOPs are those of the formulas, bytes those of a pencil, for a part of one's own too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.costs import activations
from anyformer.families.compose import changed, repeat
from anyformer.layers import Part, RMSNormSpec
from anyformer.layers.context import ForwardContext, Notes, Store
from anyformer.observation.operators import Operator
from anyformer.observation.passes import forward_pass, thinned, training_pass
from anyformer.spec import Cost, MixerSpec, ModelSpec, Place, Weight, Width, Workload
from tests.laws.memory import counted
from tests.laws.models import every_preset
from tests.laws.weights import all_served

BATCH, LENGTH, SOURCE = 2, 40, 48


def of_all_pairs(o: Operator) -> int:
    """The FLOPs of one run if attention that is told to be causal computed every pair of query and key."""
    return o.flops // o.pairs * o.shape[0] * o.shape[1] if o.pairs and o.shape else o.flops


@every_preset
def test_flops_observed_are_those_of_the_formulas(spec: ModelSpec) -> None:
    source, spec = SOURCE if spec.encoder else 0, all_served(spec)
    seen = forward_pass(spec, batch=BATCH, query=LENGTH, source_len=source, logits_to_keep=0, dtype=torch.float32)
    declared = spec.cost(Place(), Workload(BATCH, LENGTH, memory=source, causal_exact=False)).flops
    assert sum(o.times * of_all_pairs(o) for o in seen) == declared


@pytest.mark.parametrize("name", ["llama2-7b", "gpt2", "deepseek-v3", "mixtral-8x7b", "falcon-7b"])
def test_a_pass_reads_every_matrix_once(name: str) -> None:
    spec = af.preset(name).spec
    seen = forward_pass(spec, batch=4, query=1024)
    read = sum(o.times * o.weights for o in seen if o.name != "embedding") / 2  # bfloat16; rows are looked up
    tables = spec.vocab_size * spec.stack.d_model
    tied = any(head.table is not None and head.table.shared for head in spec.heads)
    assert read == pytest.approx(af.parameters(spec).total - (0 if tied else tables), rel=0.012)


def test_layers_that_are_alike_are_run_twice() -> None:
    spec = af.preset("deepseek-v3").spec
    few, times = thinned(spec)
    assert len(few.stack.blocks) == 4  # the last two of three dense layers, of 58 with experts
    assert sorted(times) == [1, 1, 2, 57]
    one, many = (spec.but(stack=spec.stack.but(blocks=spec.stack.blocks[-n:])) for n in (2, 5))
    short, long = (training_pass(each, batch=1, seq_len=64, device="cpu") for each in (one, many))
    by_layer = sum(long.kept.values()) - sum(short.kept.values())
    assert by_layer % 3 == 0
    assert by_layer > 0


def test_a_pass_has_nothing_of_the_one_before() -> None:
    """Of what layers keep between tokens (Transformer-XL's table of distances)."""
    spec = af.preset("gopher-44m").spec
    seen = [forward_pass(spec, batch=batch, query=1, past=15) for batch in (2, 3)]
    assert [o.name for o in seen[0]] == [o.name for o in seen[1]]
    assert [sum(o.times * o.weights for o in each if o.name == "bmm") for each in seen] == [8 * 512 * 512 * 2] * 2


@pytest.mark.parametrize("n_tokens", [3 * 1024, 5 * 1024 + 7])
def test_chunks_of_the_loss_that_are_alike_are_run_once(n_tokens: int) -> None:
    spec = af.shrink(af.preset("llama2-7b").spec)
    few, many = (training_pass(spec, batch=1, seq_len=n, device="cpu").operators for n in (n_tokens, 64 * 1024 + 7))
    assert len(few) == len(many)
    head = 2 * spec.vocab_size * spec.stack.d_model  # FLOPs of a token's logits; once more for each of the gradients
    loss = [o for o in few if o.part == "loss"]
    assert sum(o.times * o.flops for o in loss) == 3 * head * n_tokens
    assert max(o.times for o in loss) == -(-n_tokens // 1024) - 1


class SquareGateSpec(MixerSpec):
    """x + W₂ (W₁ x)², a mixer of a user's own that says nothing of what it keeps or moves."""

    width: Width = Width(24)

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {
            "up": Weight((self.width, place.d_model), ("d_ff", "d_model")),
            "down": Weight((place.d_model, self.width), ("d_model", "d_ff"), "output"),
        }

    def cost(self, place: Place, workload: Workload) -> Cost:
        return Cost({"square gate": 4 * self.width * place.d_model * workload.tokens})


class SquareGate(Part[SquareGateSpec]):
    up: Tensor
    down: Tensor

    def forward(self, x: Tensor, context: ForwardContext, store: Store) -> tuple[Tensor, Notes]:
        return x + (x @ self.up.mT).square() @ self.down.mT, {}


def with_gates() -> ModelSpec:
    spec = af.shrink(af.preset("llama2-7b").spec)
    block = spec.stack.blocks[0]
    attend, feed = block.sublayers
    (branch,) = feed.branches
    block = block.but(sublayers=(attend, feed.but(branches=(branch.but(mixer=SquareGateSpec()),))))
    return spec.but(stack=spec.stack.but(blocks=repeat(block, 5)))


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_part_without_any_accounting_has_right_figures(recompute: str) -> None:
    spec = with_gates()
    options: dict[str, Any] = {"precision": "float32", "recompute": recompute}
    found = activations(spec, batch=3, seq_len=40, device="cpu", **options)
    assert found.saved_nbytes == counted(spec, 3, 40, **options)
    d, n = spec.stack.d_model, 3 * 40
    seen = [o for o in training_pass(spec, batch=3, seq_len=40, device="cpu").operators if o.part == "other mixers"]
    products = [o for o in seen if o.kind == "contraction"]
    assert sum(o.times * o.flops for o in products if o.phase == "forward") == 5 * 4 * 24 * d * n
    assert sum(o.times * o.flops for o in products if o.phase == "backward") == 2 * 5 * 4 * 24 * d * n
    square = next(o for o in seen if o.name in ("pow", "square") and o.phase == "forward")
    assert (square.nbytes, square.weights) == (2 * 4 * n * 24, 0)  # read once, written once


def test_what_a_gpu_does_otherwise() -> None:
    """Dropout keeps a byte a number instead of a factor, and attention with a learned bias is one operator."""
    from anyformer.layers.context import Dropout

    spec = af.shrink(af.preset("t5-small").spec)
    cpu, gpu = (
        training_pass(spec, batch=2, seq_len=24, source_len=24, device=device, dropout=Dropout(residual=0.1))  # type: ignore[arg-type]
        for device in ("cpu", "cuda")
    )
    names = {device: {o.name for o in seen.operators} for device, seen in (("cpu", cpu), ("gpu", gpu))}
    assert "fused_attention" in names["gpu"] - names["cpu"]
    assert "native_dropout" in names["gpu"] - names["cpu"]
    assert sum(gpu.kept.values()) < sum(cpu.kept.values())


def test_a_norm_without_a_weight_has_no_gradient_of_one() -> None:
    """On a GPU too, whose kernel stands for both gradients."""
    spec = changed(af.shrink("llama2"), RMSNormSpec, weight=False)
    for device in ("cpu", "cuda"):
        seen = training_pass(spec, batch=2, seq_len=24, device=device)  # type: ignore[arg-type]
        assert any(o.phase == "backward" for o in seen.operators)


def test_what_cannot_run_is_counted_alone() -> None:
    """A part that is data alone: formulas stand, and what would be observed is said to be unknown."""

    class UnwrittenMixerSpec(MixerSpec):
        width: Width = Width(8)

    spec = with_gates()
    block = spec.stack.blocks[0]
    feed = block.sublayers[1]
    changed = block.but(
        sublayers=(block.sublayers[0], feed.but(branches=(feed.branches[0].but(mixer=UnwrittenMixerSpec()),)))
    )
    report = af.cost(spec.but(stack=spec.stack.but(blocks=(changed,))), seq_len=16)
    assert report.forward_flops_total > 0
    assert report.activations is None
    assert report.as_json()["activations"] is None
