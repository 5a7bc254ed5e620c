"""A user's own scaling of rotary frequencies is the one that transformers computes."""

from __future__ import annotations

import pytest
import torch

from anyformer.layers import RotarySpec
from tests.hard_cases.parts.yarn import StretchedByParts


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("theta", "factor", "width"), [(150_000.0, 32.0, 64), (1e4, 40.0, 64)])
def test_frequencies_and_magnitude(theta: float, factor: float, width: int, whole: bool) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_type": "yarn", "rope_theta": theta, "factor": factor, "original_max_position_embeddings": 4096}
    config = LlamaConfig(
        hidden_size=width,
        num_attention_heads=1,
        max_position_embeddings=int(4096 * factor),
        rope_parameters={**parameters, "truncate": whole},
    )
    frequencies, magnitude = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    ours = RotarySpec(theta=theta, scaling=StretchedByParts(factor=factor, whole=whole))
    torch.testing.assert_close(torch.tensor(ours.frequencies(width)), frequencies, rtol=2e-6, atol=0)
    assert ours.scaling is not None
    assert ours.scaling.magnitude() == pytest.approx(magnitude, rel=1e-12)
