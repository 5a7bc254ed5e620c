"""LayerNorm in any precision: of its input, of its weights, under autocast, with and without weight and bias."""

import pytest
import torch
from torch.nn import functional as F

from anyformer.cache import KVCache
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import AttentionSpec, Causal, LayerNormSpec, SlidingWindow
from anyformer.layers.norm import LayerNorm
from anyformer.resizing import shrink
from anyformer.spec import Place, Window
from tests.laws.models import ids_for, randomised

HALVES = (torch.bfloat16, torch.float16)
# Of the input and of the weights: what a model in half precision norms in float32, and what autocast gives to weights in float32.
MIXED = [pair for half in HALVES for pair in ((half, half), (half, torch.float32), (torch.float32, half))]


@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("of_input", "of_weights"), [(torch.float32, torch.float32), *MIXED])
def test_any_input_beside_any_weights(of_input: torch.dtype, of_weights: torch.dtype, bias: bool, weight: bool) -> None:
    norm = LayerNorm(LayerNormSpec(weight=weight, bias=bias), Place(8, (8,)))
    for i, parameter in enumerate(norm.parameters()):
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(i))
    norm = norm.to(of_weights)
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(5)).to(of_input).requires_grad_()
    y = norm(x)
    y.double().square().sum().backward()
    assert y.dtype == of_input
    assert all(each.grad is not None for each in (x, *norm.parameters()))
    exact = [None if each is None else each.double() for each in (norm.weight, norm.bias)]
    torch.testing.assert_close(y.double(), F.layer_norm(x.double(), (8,), exact[0], exact[1]), rtol=2e-2, atol=2e-2)


def test_a_window_s_ring_takes_what_autocast_gives() -> None:
    """A chunk, then a token, into a cache in float32."""
    mask = Causal() & SlidingWindow(size=Window(4))
    spec = changed(shrink(preset("gpt2").spec), AttentionSpec, mask=mask)
    model, ids, cache = randomised(spec), ids_for(spec, 2, 12), KVCache(spec, batch=2, length=12)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        got = torch.cat([model(part, cache=cache).logits for part in ids.split([7, 4, 1], 1)], 1)
        whole = model(ids).logits
    assert (
        float((got - whole).norm() / whole.norm()) < 2e-2
    )  # bfloat16 keeps 8 bits, and each pass rounds in its own order
