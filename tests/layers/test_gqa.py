"""Norms of queries and keys that read what the rotation has turned: with numbers of one's own, in complex numbers."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from anyformer.errors import SpecError
from anyformer.layers import AttentionSpec, ForwardContext, GQASpec, LayerNormSpec, RMSNormSpec, RotarySpec
from anyformer.layers.tokens import plain_tokens
from anyformer.spec import Count, Place, Width
from tests.laws.tolerance import close, distance

HEADS, WIDTH, N, D = 2, 8, 5, 12


def turned(x: Tensor) -> Tensor:
    """Return x [token, head, feature] with features (i, i + 4) as complex numbers times e^(i · position · frequency)."""
    half = WIDTH // 2
    pairs = torch.complex(x[..., :half], x[..., half:])
    angles = torch.arange(N)[:, None, None] * 100.0 ** (-torch.arange(half) / half)
    z = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((z.real, z.imag), -1)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    """Return x [token, head, feature] over the root of the mean of its squares, times weights."""
    return x / (x.square().mean(-1, keepdim=True) + 1e-2).sqrt() * weight


@pytest.mark.parametrize("over", ["head", "heads"])
@pytest.mark.parametrize("last", [True, False])
def test_norms_before_or_after_the_rotation(over: Literal["head", "heads"], last: bool) -> None:
    norm = RMSNormSpec(eps=1e-2)
    spec = GQASpec(
        n_heads=Count(HEADS),
        head_dim=Width(WIDTH),
        norm_query=norm,
        norm_key=norm,
        norm_over=over,
        norm_last=last,
        rotary=RotarySpec(theta=100.0),
    )
    module = spec.build(Place(d_model=D, shape=(D,), d_source=D))
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(1, N, D, generator=generator)
    context = ForwardContext(plain_tokens(N, torch.device("cpu")), {})
    with torch.no_grad():
        found = module.query(x, context)[0], module.store(x, context)["key"][0]
        for heads, map_, weight in zip(
            found, (module.q, module.k), (module.norm_query.weight, module.norm_key.weight), strict=True
        ):
            plain = (x[0] @ map_.weight.T).view(N, HEADS, WIDTH)
            after, before = normed(turned(plain), weight), turned(normed(plain, weight))
            close(heads.transpose(0, 1), after if last else before)
            assert distance(after, before) > 0.1


def test_there_is_no_after_for_a_norm_of_all_heads() -> None:
    with pytest.raises(SpecError, match="norm_last = True is of heads that have turned; take norm_over: head or heads"):
        GQASpec(n_heads=Count(2), norm_query=LayerNormSpec(), norm_over="projection", norm_last=True)


def test_values_that_are_keys_have_no_map_of_their_own() -> None:
    spec = GQASpec(n_heads=Count(HEADS), head_dim=Width(WIDTH), values_are_keys=True)
    assert "v" not in {name for name, part in spec.parts(Place(D, (D,), D)).items() if part is not None}
    with pytest.raises(SpecError, match="bias_value = True is of no map"):
        spec.but(bias_value=True)
    with pytest.raises(SpecError, match="value_dim = 4 differs from head_dim"):
        spec.but(value_dim=Width(4))


@pytest.mark.parametrize("reads", ["memory", "layer", "input"])
def test_adapters_are_of_what_is_read_at_once(reads: Literal["memory", "layer", "input"]) -> None:
    """Elsewhere queries, keys and values are made apart, and nothing would be added to them."""
    heads, keys = GQASpec(n_heads=Count(2), adapter=Width(3)), "k" if reads == "layer" else None
    with pytest.raises(SpecError, match=f"Attention.reads = '{reads}' is of keys that are not made with its queries"):
        AttentionSpec(projection=heads, reads=reads, keys=keys)
    AttentionSpec(projection=heads)
