"""A span-based convolution is its definition, token by token, and reads queries that fit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.errors import SpecError
from anyformer.families.compose import changed
from anyformer.layers import AttentionSpec, GQASpec, SpanConvolutionSpec
from anyformer.layers.causality import later_tokens_seen
from anyformer.layers.context import ForwardContext, Store
from anyformer.layers.span_convolution import SpanConvolution
from anyformer.layers.tokens import Tokens
from anyformer.spec import Count, Place

D_MODEL, HEADS, WIDTH, SIZE = 8, 2, 2, 5


def by_definition(part: SpanConvolution, x: Tensor, q: Tensor) -> Tensor:
    """Return what the part makes of one text x [token, d_model] and its queries [head, token, width]."""
    r, n = SIZE // 2, len(x)
    outs = []
    for i in range(n):
        span = [j for j in range(i - r, i + r + 1) if 0 <= j < n]
        key = part.key(sum(part.span[:, 0, j - i + r] * x[j] for j in span))
        scores = part.kernel(key * q[:, i].flatten()).view(HEADS, SIZE)
        heads = []
        for h in range(HEADS):
            weights = scores[h].exp() / scores[h].exp().sum()
            heads.append(sum(weights[j - i + r] * part.value(x[j]).view(HEADS, WIDTH)[h] for j in span))
        outs.append(part.out(torch.cat([torch.as_tensor(each) for each in heads])))
    return torch.stack(outs)


@pytest.mark.parametrize("document", [[1] * 9, [1, 1, 2, 2, 2, 2, 2, 2, 0]])
def test_it_is_its_definition(document: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    part = SpanConvolutionSpec(n_heads=Count(HEADS), share=0.5, size=SIZE).build(Place(D_MODEL).at(D_MODEL)).double()
    assert isinstance(part, SpanConvolution)
    for parameter in part.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(1, 9, D_MODEL, generator=generator, dtype=torch.float64)
    q = torch.randn(1, HEADS, 9, WIDTH, generator=generator, dtype=torch.float64)
    facts = torch.tensor([document])
    context = ForwardContext(Tokens(torch.arange(9)[None], facts), {})
    context.memo.found["queries beside"] = q
    found = part(x, context, Store())[0][0]
    for number in facts.unique().tolist():
        here = facts[0] == number
        if number:
            torch.testing.assert_close(found[here], by_definition(part, x[0, here], q[0][:, here]))


def test_queries_that_do_not_fit_are_refused() -> None:
    spec = af.preset("convbert-base").spec
    with pytest.raises(SpecError, match="those are 4 heads of 96, and it has 6 of 64"):
        changed(spec, GQASpec, n_heads=Count(4))
    with pytest.raises(SpecError, match="no layer before it lends such; there are other"):
        changed(spec, AttentionSpec, queries="other")
    with pytest.raises(SpecError, match="must be odd: as many tokens before as after"):
        SpanConvolutionSpec(n_heads=Count(1), size=4)
    with pytest.raises(SpecError, match="and head_dim tell heads' width; leave one out"):
        af.loads(af.dumps(spec).replace("share: 0.5", "share: 0.5, head_dim: 64", 1))


def test_a_later_token_is_seen() -> None:
    assert later_tokens_seen(SpanConvolutionSpec(n_heads=Count(1))) == "SpanConvolution"
