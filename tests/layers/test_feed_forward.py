"""What may stand between a feed-forward's maps: an activation that learns, a norm; forward and backward, alone and in experts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.activations import ACT2CLS

import anyformer as af
from anyformer.errors import CheckpointError, SpecError
from anyformer.families import FAMILIES, preset
from anyformer.families.compose import changed
from anyformer.layers import (
    XIELU,
    ForwardContext,
    GatedFeedForwardSpec,
    LayerNormSpec,
    MoESpec,
    RMSNormSpec,
    RouterSpec,
    SiLU,
    Store,
)
from anyformer.layers.tokens import plain_tokens
from anyformer.resizing import shrink
from anyformer.spec import Count, Place, Width
from tests.laws.tolerance import close, distance

PLACE = Place(d_model=6, shape=(6,))


def test_xielu_is_that_of_transformers() -> None:
    x = torch.linspace(-4, 4, 401)
    theirs: Any = ACT2CLS["xielu"](dtype=torch.float32)
    ours = XIELU().build(PLACE)
    starts = XIELU().weights(PLACE)
    for name, of in (("positive", theirs.alpha_p), ("negative", theirs.alpha_n)):
        fill = starts[name]
        assert fill is not None
        assert fill.fill == pytest.approx(of.item(), rel=1e-5)
        value = 0.4 if name == "positive" else -0.6
        of.data.fill_(value)
        getattr(ours, name).data.fill_(value)
    grads = []
    for module in (ours, theirs):
        leaf = x.clone().requires_grad_()
        y = module(leaf)
        (y * torch.arange(401.0)).sum().backward()
        grads.append((y.detach(), leaf.grad, *(p.grad for p in module.parameters())))
    for mine, other in zip(*grads, strict=True):
        close(mine, other)
    assert grads[0][2].abs() > 1
    assert grads[0][3].abs() > 1


@pytest.mark.parametrize(
    "norm", [None, RMSNormSpec(eps=1e-2), LayerNormSpec(eps=1e-2), RMSNormSpec(eps=1e-2, weight=False)]
)
@pytest.mark.parametrize("activation", [SiLU(), XIELU()])
def test_every_number_between_the_maps_gets_its_gradient(norm: Any, activation: Any) -> None:
    """Against the same written out, with autograd alone; a gated one makes its product again in the backward pass else."""
    spec = GatedFeedForwardSpec(d_ff=Width(10), activation=activation, norm=norm)
    module, generator = spec.build(PLACE), torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(2, 5, 6, generator=generator)
    own = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}

    def by_hand() -> Tensor:
        gate, up = x @ own["gate.weight"].T, x @ own["up.weight"].T
        if isinstance(activation, SiLU):
            active = gate / (1 + (-gate).exp())
        else:
            p, n = ((1 + own[f"activation.{name}"].exp()).log() for name in ("positive", "negative"))
            low = (0.5 + n) * (gate.clamp(max=-1e-6).exp() - 1 - gate)
            active = torch.where(gate > 0, p * gate**2, low) + gate / 2
        hidden = active * up
        if isinstance(norm, LayerNormSpec):
            hidden = hidden - hidden.mean(-1, keepdim=True)
        if norm is not None:
            hidden = hidden / (hidden.square().mean(-1, keepdim=True) + 1e-2).sqrt()
        hidden = hidden * own["norm.weight"] if "norm.weight" in own else hidden
        hidden = hidden + own["norm.bias"] if "norm.bias" in own else hidden
        return hidden @ own["down.weight"].T

    found, _ = module(x, ForwardContext(plain_tokens(5, torch.device("cpu")), {}), Store())
    expected = by_hand()
    close(found.detach(), expected.detach())
    for y in (found, expected):
        y.square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert own[name].grad is not None
        assert distance(parameter.grad, own[name].grad) < 2e-5, name


def test_experts_share_no_activation_that_learns() -> None:
    expert = GatedFeedForwardSpec(d_ff=Width(10), activation=XIELU())
    spec = MoESpec(router=RouterSpec(n_experts=Count(2), top_k=1), expert=expert)
    with pytest.raises(SpecError, match="XIELU cannot be a part of an expert: only linear maps are stacked"):
        spec.build(PLACE)
    for one in (expert.but(activation=SiLU(), common="both"), expert.but(activation=SiLU(), shared="both_gate")):
        with pytest.raises(
            SpecError, match=r"GatedFeedForward\.gate is shared as 'both_gate', and experts are stacked"
        ):
            spec.but(expert=one).build(PLACE)
    normed = expert.but(activation=SiLU(), norm=RMSNormSpec(weight=False))
    assert sum(p.numel() for p in spec.but(expert=normed).build(PLACE).parameters()) == 2 * 6 + 2 * 3 * 60


def test_below_beta_no_slope_can_start() -> None:
    with pytest.raises(SpecError, match=r"XIELU\.start = 0\.4 must be above beta = 0\.5"):
        XIELU(start=0.4)
    assert math.log(math.expm1(0.8)) == pytest.approx(XIELU().weights(PLACE)["positive"].fill)  # type: ignore[union-attr]


def test_files_of_apertus_with_other_constants_are_refused() -> None:
    spec = shrink(preset("apertus-8b").spec)
    rows = [row for row in FAMILIES["apertus"].rows(spec) if any(name.endswith("act_fn.beta") for name in row.theirs)]
    assert len(rows) == spec.n_layers
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        assert rows[0].load(tuple(each.to(kind) for each in rows[0].save(()))) == ()
    with pytest.raises(CheckpointError, match=r"layer 0 has beta = 0.7; only 0.5 is computed here"):
        rows[0].load((torch.tensor(0.7), torch.tensor(-1e-6)))


def test_a_norm_of_values_is_counted_and_said() -> None:
    spec = preset("llama3-8b").spec
    normed = changed(spec, GatedFeedForwardSpec, norm=RMSNormSpec())
    assert af.parameters(normed).total - af.parameters(spec).total == 32 * 14_336
    assert "SwiGLU, then RMSNorm (eps 1e-6)" in str(af.card(normed))


def test_what_is_clamped_of_a_gate_needs_a_limit() -> None:
    gated = GatedFeedForwardSpec(d_ff=Width(10), activation=SiLU(), limit=0.5, clamps="activated")
    assert gated.clamps == "activated"
    with pytest.raises(SpecError, match=r"clamps = 'activated' is of a limit; give one"):
        gated.but(limit=None)
