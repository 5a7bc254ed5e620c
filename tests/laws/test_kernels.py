"""Law 10: every kernel that accepts a specification agrees with eager, forward and backward; the others refuse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from anyformer.errors import KernelError
from anyformer.families import preset
from anyformer.kernels import KERNELS, choose
from anyformer.kernels.eager import Dense, Eager
from anyformer.kernels.sdpa import SDPA, Fused
from anyformer.layers import AttentionSpec, BottleneckSpec, BySegmentSpec, ReversibleSpec, RouterSpec
from anyformer.layers.context import SoftmaxOptions
from anyformer.model import Output, Transformer
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec
from tests.laws.combinations import decoders
from tests.laws.models import every_preset, ids_for, randomised, runner
from tests.laws.parity import InDouble, single
from tests.laws.tolerance import FLOAT32, FLOAT64, close, distance, gradient_distance
from tests.sample import combinations


def attentions(spec: ModelSpec) -> list[AttentionSpec]:
    return [value for value in spec.nested() if isinstance(value, AttentionSpec)]


def gradients(model: Transformer, out: Output, weights: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    (out.logits * weights).sum().backward()
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


def check_kernels(model: Transformer, left: int, right: int, tolerance: float) -> None:
    spec, ids = model.spec, ids_for(model.spec, 2, 13)
    mask = torch.ones_like(ids)
    mask[0, :left] = 0
    if right:
        mask[1, -right:] = 0
    run = runner(model)
    expected = run(ids, mask, kernel="eager")
    weights = torch.randn(expected.logits.shape, generator=torch.Generator().manual_seed(3))
    wanted = gradients(model, expected, weights)
    assert all(bool(value.isfinite().all()) for value in wanted.values())
    for name, kernel in KERNELS.items():
        if name == "flex":  # forward alone on a CPU: test_flex.py
            continue
        if any(kernel.refuses(attention) for attention in attentions(spec)):
            with pytest.raises(KernelError, match=r"use kernel='(blocked|sdpa|eager)'"):
                run(ids, mask, kernel=name)
            continue
        out = run(ids, mask, kernel=name)
        assert distance(out.logits, expected.logits) < tolerance
        got = gradients(model, out, weights)
        assert gradient_distance(got, wanted) < tolerance


@every_preset
def test_presets(spec: ModelSpec) -> None:
    """In float64 where a state, a router or a stream that nothing norms enlarges what float32 rounds (Phi-3.5's, for eager too,
    to 1.3e-5 of the exact)."""
    if single(spec) > FLOAT32 or any(spec.nested(RouterSpec, BottleneckSpec)):
        with InDouble():
            check_kernels(randomised(spec).double(), 4, 3, 1000 * FLOAT64)
        return
    check_kernels(randomised(spec), 0, 0, FLOAT32)
    check_kernels(randomised(spec), 4, 3, FLOAT32)


@given(spec=decoders(), left=st.integers(0, 5), right=st.integers(0, 5))
@settings(max_examples=combinations(60), deadline=None)
def test_combinations(spec: ModelSpec, left: int, right: int) -> None:
    """In float64: some combinations, such as windows of one key, leave of a gradient nothing but float32's rounding."""
    assume(not spec.stack.residual.undoes)  # a backward pass runs layers again, outside of InDouble
    with InDouble():
        check_kernels(randomised(spec).double(), left, right, 1000 * FLOAT64)


@pytest.mark.parametrize("name", ["llama3-8b", "gemma2-2b", "gpt-oss-20b"])
def test_layers_that_run_again(name: str) -> None:
    spec = shrink(preset(name).spec)
    check_kernels(randomised(spec.but(stack=spec.stack.but(residual=ReversibleSpec()))), 4, 3, FLOAT32)


def slow_attention(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float, cap: float | None, sink: Tensor | None
) -> Tensor:
    """Attention by the definition, one query at a time, in float64: the independent reference of the oracle itself."""
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                keys = [j for j in range(k.shape[2]) if seen[b, h, i, j]]
                if not keys:
                    continue
                scores = [float(q[b, h, i].double() @ k[b, h // group, j].double()) * scale for j in keys]
                scores = [cap * torch.tanh(torch.tensor(s / cap)).item() if cap else s for s in scores]
                exps = torch.tensor(scores, dtype=torch.float64).exp()
                total = exps.sum() + (sink[h].double().exp() if sink is not None else 0)
                for j, e in zip(keys, exps, strict=True):
                    out[b, h, i] += e / total * v[b, h // group, j].double()
    return out


@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("with_sink", [False, True])
def test_eager_is_the_definition(cap: float | None, with_sink: bool) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 5, 6), torch.randn(2, 2, 7, 6), torch.randn(2, 2, 7, 3)
    seen = torch.rand(2, 4, 5, 7) > 0.4
    seen[0, 1, 2] = False  # a row without keys
    sink = torch.randn(4) if with_sink else None
    y, weights = Eager()(q, k, v, Dense(seen, None), SoftmaxOptions(0.7, softcap=cap, sink=sink))
    expected = slow_attention(q, k, v, seen, 0.7, cap, sink)
    close(y.double(), expected)
    q, k, v, sink = (None if x is None else x.double() for x in (q, k, v, sink))
    exact, _ = Eager()(q, k, v, Dense(seen, None), SoftmaxOptions(0.7, softcap=cap, sink=sink))
    close(exact, expected, FLOAT64 if cap is None else FLOAT32)  # the definition caps in float32
    assert y[0, 1, 2].abs().max() == 0
    assert weights is not None
    whole = 1.0 - weights.sum(-1)[seen.any(-1)]
    assert (whole > 1e-4).all() if with_sink else whole.abs().max() < 1e-5, "a sink takes a share of every row"


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("masked", [0, 1, 6])
def test_one_query_in_bfloat16(kv_heads: int, masked: int) -> None:
    """A row alone is given to PyTorch's operator twice, those of a group together."""
    numbers = torch.Generator().manual_seed(kv_heads)
    q, k, v = (torch.randn(2, n, m, 8, generator=numbers).bfloat16() for n, m in ((6, 1), (kv_heads, 9), (kv_heads, 9)))
    mask = torch.rand(2, masked, 1, 9, generator=numbers) < 0.6 if masked else None
    if mask is not None:
        mask[..., 0] = True
    y, _ = SDPA()(q, k, v, Fused(False, mask, None), SoftmaxOptions(0.3))
    q, k, v = (x.double() for x in (q, k, v))
    seen = torch.ones(2, 6, 1, 9, dtype=torch.bool) if mask is None else mask.expand(2, 6, 1, 9)
    assert y.shape == (2, 6, 1, 8)
    assert distance(y.double(), slow_attention(q, k, v, seen, 0.3, None, None)) < 0.01


def test_choice_and_refusal() -> None:
    plain = next(iter(attentions(ids_spec())))
    assert choose(None, plain).name == "blocked or rows or sdpa"
    assert choose(None, plain, "cuda").name == "flex or sdpa"
    assert choose(None, plain.but(scores=(BySegmentSpec(),)), "cuda").name == "sdpa"
    assert choose(None, plain, "mps").name == "sdpa", "where nothing is measured, nothing is promised"
    assert choose(None, plain.but(softcap=5.0)).name == "blocked or eager"
    assert choose(None, plain.but(scores=(BySegmentSpec(),))).name == "rows or sdpa"
    with pytest.raises(KernelError, match=r"sdpa cannot cap scores \(softcap=5.0\); use kernel='blocked' or 'eager'"):
        choose("sdpa", plain.but(softcap=5.0))
    with pytest.raises(KernelError, match="did you mean 'sdpa'"):
        choose("spda", plain)


def ids_spec() -> ModelSpec:
    from anyformer.families import preset
    from anyformer.resizing import shrink

    return shrink(preset("llama2").spec)


def test_attention_weights_are_given_on_request() -> None:
    model = randomised(ids_spec())
    with torch.no_grad():
        out = model(ids_for(model.spec, 2, 9), output_attentions=True, output_hidden_states=True)
    assert out.attentions is not None
    assert out.hidden_states is not None
    assert len(out.attentions) == model.spec.n_layers
    assert len(out.hidden_states) == model.spec.n_layers + 1
    torch.testing.assert_close(out.attentions[0].sum(-1), torch.ones(2, 4, 9))
    assert torch.equal(out.hidden_states[-1], out.last_hidden_state)
