"""How weights start is data, and the weights start so."""

from __future__ import annotations

import math

import pytest
import torch

from anyformer.families import preset
from anyformer.layers import GELU, ByRole, ConvolutionSpec, Normal, SpanConvolutionSpec, Xavier
from anyformer.model import build
from anyformer.resizing import resize
from anyformer.spec import Count, MixerSpec, ModelSpec, Place, tensors
from tests.laws.models import every_preset


def small(name: str) -> ModelSpec:
    return resize(preset(name).spec, d_model=256, n_layers=6, vocab_size=2000)


# Deviations by hand. GPT-2: 0.02, and 0.02/√(2 · 6) for what writes to the stream (Radford et al. 2019, section 2.3).
# The 2017 Transformer: tables d_model^-0.5; matrices Glorot's √(2 / (fan_in + fan_out)).
@pytest.mark.parametrize(
    ("name", "tensor", "std"),
    [
        ("gpt2", "shared.tokens.weight", 0.02),
        ("gpt2", "stack.blocks.3.sublayers.0.branches.0.mixer.projection.q.weight", 0.02),
        ("gpt2", "stack.blocks.3.sublayers.0.branches.0.mixer.projection.o.weight", 0.02 / math.sqrt(12)),
        ("gpt2", "stack.blocks.5.sublayers.1.branches.0.mixer.down.weight", 0.02 / math.sqrt(12)),
        ("transformer-lm", "shared.tokens.weight", 1 / 16),
        ("transformer-lm", "stack.blocks.0.sublayers.1.branches.0.mixer.up.weight", math.sqrt(2 / (256 + 1024))),
        ("llama2", "heads.0.table.weight", 0.02),
    ],
)
def test_deviation(name: str, tensor: str, std: float) -> None:
    value = build(small(name), seed=3).state_dict()[tensor]
    # The standard error of a standard deviation of n numbers is about std / √(2 n); five of them is as good as never.
    assert value.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * value.numel()))
    assert abs(value.mean().item()) < 5 * std / math.sqrt(value.numel())


@every_preset
def test_constants_and_no_number_left_unset(spec: ModelSpec) -> None:
    state = build(spec, seed=0).state_dict()
    for path, weight in tensors(spec, Place()):
        assert state[path].isfinite().all()
        if weight.below is not None:
            assert state[path].unique().tolist() == list(range(weight.below)), path
        elif weight.fill is not None:
            assert (state[path] == torch.tensor(weight.fill)).all(), path
        else:
            assert 1e-4 < state[path].std() < 2, path


def test_a_seed_is_a_model() -> None:
    spec = small("gpt2")
    a, b, c = (build(spec, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["shared.tokens.weight"], c["shared.tokens.weight"])


def test_roles_choose() -> None:
    init = ByRole(table=Normal(scale=0.5), matrix=Xavier(), output=Normal(scale=0.1, depth_power=-0.5))
    spec = small("llama2").but(init=init)
    state = build(spec, seed=0).state_dict()
    assert state["stack.embedding.terms.0.table.weight"].std().item() == pytest.approx(0.5, rel=0.02)
    down = state["stack.blocks.0.sublayers.1.branches.0.mixer.down.weight"]
    assert down.std().item() == pytest.approx(0.1 / math.sqrt(12), rel=0.03)


@pytest.mark.parametrize(
    "spec", [ConvolutionSpec(size=3, activation=GELU()), SpanConvolutionSpec(n_heads=Count(2), size=5)]
)
def test_a_kernel_has_inputs_at_each_of_its_tokens(spec: MixerSpec) -> None:
    """As torch.nn.init counts them."""
    place = Place(d_model=12).at(12)
    (kernel,) = (weight for weight in spec.weights(place).values() if weight and weight.fill is None)
    fan_in, fan_out = torch.nn.init._calculate_fan_in_and_fan_out(torch.empty(kernel.shape))
    assert Normal(scale=1.0, fan_in_power=-0.5).std(kernel, 1) == pytest.approx(fan_in**-0.5)
    assert Xavier().std(kernel, 1) == pytest.approx(math.sqrt(2 / (fan_in + fan_out)))
