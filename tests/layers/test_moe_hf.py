"""Mixtures that have no decoder of ours to be proven in yet, against the blocks of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from anyformer.layers import FeedForwardSpec, FixedCapacity, GatedFeedForwardSpec, MoESpec, ReLU, RouterSpec, SiLU
from anyformer.layers.context import ForwardContext, Store
from anyformer.layers.moe import MoE
from anyformer.layers.tokens import plain_tokens
from anyformer.spec import Count, Place, Width
from tests.laws.tolerance import FLOAT32, close, gradient_distance

D, F, N = 32, 24, 160


def gated(width: int) -> GatedFeedForwardSpec:
    return GatedFeedForwardSpec(d_ff=Width(width), activation=SiLU())


def deepseek_v3() -> tuple[MoESpec, nn.Module]:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    sizes: dict[str, Any] = {
        "n_routed_experts": 16,
        "num_local_experts": 16,
        "num_experts_per_tok": 4,
        "n_group": 4,
        "topk_group": 2,
    }
    config = transformers.DeepseekV3Config(hidden_size=D, moe_intermediate_size=F, n_shared_experts=2, **sizes)
    router = RouterSpec(
        n_experts=Count(16),
        top_k=4,
        score="sigmoid",
        correction=True,
        n_groups=4,
        top_groups=2,
        group_score="top2-sum",
        renormalise=True,
        factor=2.5,
    )
    return MoESpec(router=router, expert=gated(F), shared_expert=gated(2 * F)), DeepseekV3MoE(config)


def deepseek_v2(method: str) -> tuple[MoESpec, nn.Module]:
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe

    config = transformers.DeepseekV2Config(
        hidden_size=D,
        moe_intermediate_size=F,
        n_shared_experts=2,
        n_routed_experts=16,
        num_experts_per_tok=6,
        n_group=8,
        topk_group=3,
        topk_method=method,
        routed_scaling_factor=16.0,
    )
    groups: dict[str, Any] = {"n_groups": 8, "top_groups": 3} if method != "greedy" else {}
    router = RouterSpec(n_experts=Count(16), top_k=6, factor=16.0, **groups)
    return MoESpec(router=router, expert=gated(F), shared_expert=gated(2 * F)), DeepseekV2Moe(config)


def switch() -> tuple[MoESpec, nn.Module]:
    from transformers.models.switch_transformers.modeling_switch_transformers import SwitchTransformersSparseMLP

    config = transformers.SwitchTransformersConfig(d_model=D, d_ff=F, num_experts=8, expert_capacity=15)
    expert = FeedForwardSpec(d_ff=Width(F), activation=ReLU(), bias_in=False, bias_out=False)
    router = RouterSpec(n_experts=Count(8), top_k=1)
    block = SwitchTransformersSparseMLP(config).eval()
    return MoESpec(router=router, expert=expert, capacity=FixedCapacity(tokens=15)), block


BLOCKS: dict[str, Any] = {
    "DeepSeek-V3": deepseek_v3,
    "DeepSeek-V2": lambda: deepseek_v2("group_limited_greedy"),
    "DeepSeek-V2-Lite": lambda: deepseek_v2("greedy"),
    "Switch": switch,
}


def ours_by_theirs(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return their tensors, or gradients, under our names and in our layout."""
    found: dict[str, Tensor] = {}
    for name, tensor in theirs.items():
        if name.endswith("gate_up_proj"):
            found["experts.gate.weight"], found["experts.up.weight"] = tensor.chunk(2, 1)
        elif name.endswith("experts.down_proj"):
            found["experts.down.weight"] = tensor
        elif name.startswith("shared_experts."):
            found[f"shared_expert.{name.split('.')[1].removesuffix('_proj')}.weight"] = tensor
        elif name.endswith("e_score_correction_bias"):
            found["router.correction"] = tensor
        elif name in ("gate.weight", "router.classifier.weight"):
            found["router.weight"] = tensor
    for ours, name in (("up", "wi"), ("down", "wo")):
        each = [theirs[key] for key in (f"experts.expert_{i}.{name}.weight" for i in range(8)) if key in theirs]
        if each:
            found[f"experts.{ours}.weight"] = torch.stack(each)
    return found


@pytest.mark.parametrize("name", BLOCKS)
def test_it_is_the_block_of_transformers(name: str) -> None:
    spec, theirs = BLOCKS[name]()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, tensor in theirs.state_dict().items():
            spread = 3.0 if "gate.weight" in key or "classifier" in key else 1.5
            tensor.copy_(
                torch.randn(tensor.shape, generator=generator) * (0.2 if tensor.dim() == 1 else spread * D**-0.5)
            )
    ours: MoE = spec.build(Place(d_model=D, shape=(D,)))
    ours.load_state_dict(ours_by_theirs(theirs.state_dict()))
    x = torch.randn(2, N, D, generator=generator)
    y, _ = ours(x, ForwardContext(plain_tokens(N, x.device), {}), Store())
    expected = theirs(x)
    close(y, expected)
    weight = torch.randn(y.shape, generator=generator)
    for result in (y, expected):
        (result * weight).sum().backward()
    wanted = ours_by_theirs({key: p.grad for key, p in theirs.named_parameters() if p.grad is not None})
    got = {key: p.grad for key, p in ours.named_parameters() if p.requires_grad}
    assert gradient_distance(got, wanted) < FLOAT32
