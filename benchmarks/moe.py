"""A mixture of experts, forward and backward, beside a dense layer of the same FLOPs and transformers' grouped_mm.

    python -m benchmarks.moe --quick

One layer, top 2, 4,096 tokens; the layers share x, the gradient and the clock. Work that follows tokens must not follow
the number of experts: 128 experts at most 1.4 times the time of 8, 8 experts at most 1.15 times the dense layer's.
Under autocast their products stay float32, ours are bfloat16's, which a processor without AMX computes the slower.
Each pass begins without gradients, as a training step does: none is added to those of the pass before.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.layers import GatedFeedForwardSpec, MoESpec, RouterSpec, SiLU
from anyformer.layers.context import ForwardContext, Store
from anyformer.layers.tokens import plain_tokens
from anyformer.spec import Count, MixerSpec, Place, Width
from anyformer.training.step.device import keep_heap
from benchmarks import measure

BATCH, SEQ_LEN, D_MODEL, D_EXPERT, TOP_K = 16, 256, 384, 512, 2
EMULATED_BATCH = 2  # rows of bfloat16 where that is emulated
DEVIATION = 0.05
Layer = tuple[nn.Module, Callable[[Tensor], Tensor]]  # its weights, and its pass


def gated(d_ff: int) -> GatedFeedForwardSpec:
    """Return an expert, or the dense layer."""
    return GatedFeedForwardSpec(d_ff=Width(d_ff), activation=SiLU())


def filled(module: nn.Module) -> nn.Module:
    """Return the module with random weights."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data.normal_(0.0, DEVIATION, generator=generator)
    return module


def ours(spec: MixerSpec) -> Layer:
    """Return a layer of ours."""
    module = filled(spec.build(Place(d_model=D_MODEL, shape=(D_MODEL,))))
    context = ForwardContext(plain_tokens(SEQ_LEN, torch.device("cpu")), {})
    return module, lambda x: module(x, context, Store())[0]


def mixture(n_experts: int) -> Layer:
    """Return our mixture, routed as Mixtral's."""
    router = RouterSpec(n_experts=Count(n_experts), top_k=TOP_K, renormalise=True)
    return ours(MoESpec(router=router, expert=gated(D_EXPERT)))


def theirs(n_experts: int) -> Layer:
    """Return transformers' Mixtral block in its default way."""
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    sizes: dict[str, Any] = {"hidden_size": D_MODEL, "intermediate_size": D_EXPERT, "num_local_experts": n_experts}
    config = MixtralConfig(**sizes, num_experts_per_tok=TOP_K)
    config._experts_implementation = "grouped_mm"
    module = filled(MixtralSparseMoeBlock(config))
    return module, module


def largest_difference(n_experts: int) -> float:
    """Return how far the two mixtures are apart on the same weights, relative to the largest number."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, SEQ_LEN, D_MODEL, generator=generator)
    module: Any = theirs(n_experts)[0]
    spec = MoESpec(router=RouterSpec(n_experts=Count(n_experts), top_k=TOP_K, renormalise=True), expert=gated(D_EXPERT))
    own: Any = spec.build(Place(d_model=D_MODEL, shape=(D_MODEL,)))
    gate, up = module.experts.gate_up_proj.data.chunk(2, 1)
    tensors = {"router.weight": module.gate.weight, "experts.gate.weight": gate, "experts.up.weight": up}
    own.load_state_dict({**tensors, "experts.down.weight": module.experts.down_proj.data})
    with torch.no_grad():
        y, expected = own(x, ForwardContext(plain_tokens(SEQ_LEN, x.device), {}), Store())[0], module(x)
    return float((y - expected).abs().max() / expected.abs().max())


def times(autocast: bool, batch: int, n_turns: int) -> Mapping[str, list[float]]:
    """Return the CPU seconds of each layer's forward and backward pass, turn by turn."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, SEQ_LEN, D_MODEL, generator=generator, requires_grad=True)
    grad = torch.randn(batch, SEQ_LEN, D_MODEL, generator=generator)
    layers: dict[str, Layer] = {
        "dense": ours(gated(TOP_K * D_EXPERT)),
        "8": mixture(8),
        "transformers 8": theirs(8),
        "128": mixture(128),
        "transformers 128": theirs(128),
    }

    def once(layer: Layer) -> float:
        module, passed = layer

        def both() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                y = passed(x)
            y.backward(grad.to(y.dtype))

        taken, x.grad = measure.cpu_seconds(both), None
        module.zero_grad()
        return taken

    return measure.turns({name: lambda layer=layer: once(layer) for name, layer in layers.items()}, n_turns)


def main() -> None:
    given = measure.arguments("Mixtures of experts beside a dense layer and transformers' grouped_mm.")
    torch.set_num_threads(1)
    keep_heap()
    rows, taken_by = [], {}
    for name, autocast, dense in (("float32", False, 1.15), ("bfloat16 autocast", True, 1.8)):
        batch = EMULATED_BATCH if autocast and not measure.native_bfloat16() else BATCH
        taken = times(autocast, batch, 5 if given.quick else 15)
        taken_by[name] = measure.rounded(taken)

        def ratio(a: str, b: str, taken: Mapping[str, list[float]] = taken) -> float:
            return statistics.median(x / y for x, y in zip(taken[a], taken[b], strict=True))

        rows += [
            measure.row(f"128 experts over 8, {name}", ratio("128", "8"), most=1.4, batch=batch),
            measure.row(f"8 experts over dense, {name}", ratio("8", "dense"), most=dense),
        ]
        if autocast and not measure.native_bfloat16():
            continue  # their grouped_mm stays float32 under autocast, which is fast where bfloat16 is emulated
        rows += [
            measure.row(f"{n} experts, {name}, x transformers", ratio(f"transformers {n}", n), least=1.0)
            for n in ("8", "128")
        ]
    notes = {
        "shape": {"d_model": D_MODEL, "d_expert": D_EXPERT, "top_k": TOP_K, "seq_len": SEQ_LEN},
        "largest_relative_difference": {str(n): largest_difference(n) for n in (8, 128)},
        "cpu_seconds": taken_by,
    }
    measure.record("moe", given.out, rows, notes)


if __name__ == "__main__":
    main()
