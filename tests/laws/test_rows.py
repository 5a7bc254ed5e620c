"""Law 10, of rows: attention in blocks of queries agrees with eager in float64, with all that may be added, and with dropout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.families import preset
from anyformer.kernels import KERNELS, choose, fastest, rows
from anyformer.kernels.eager import Dense, Eager
from anyformer.kernels.rows import Rows
from anyformer.kernels.sdpa import Fused
from anyformer.layers import AttentionSpec, Causal, SlidingWindow
from anyformer.layers.context import Kernel, SoftmaxOptions
from anyformer.layers.tokens import plain_tokens
from anyformer.resizing import shrink
from anyformer.spec import Window
from tests.laws.models import ids_for, randomised
from tests.laws.parity import InDouble
from tests.laws.tolerance import FLOAT64, distance

BATCH, HEADS, N = 2, 4, 300  # two blocks of queries and a part of one
HIDDEN = torch.ones(N, N, dtype=torch.bool).triu(1)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def call(kernel: Kernel, given: list[Tensor], seen: Any, scores: Tensor | None, p: float = 0.0) -> Tensor:
    with InDouble():  # eager's scores are in float32 otherwise
        q, k, v = given
        return kernel(q, k, v, seen, SoftmaxOptions(0.3, scores=scores, dropout=p))[0]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("added", [None, (1, 1), (1, HEADS), (BATCH, HEADS)])
@pytest.mark.parametrize(("kv_heads", "value_width"), [(HEADS, 8), (2, 8), (1, 5), (2, 11)])
def test_like_eager(causal: bool, added: tuple[int, int] | None, kv_heads: int, value_width: int) -> None:
    """Also with fewer heads of keys, and with values narrower or wider than keys."""
    torch.manual_seed(0)
    given = [drawn(BATCH, HEADS, N, 8), drawn(BATCH, kv_heads, N, 8), drawn(BATCH, kv_heads, N, value_width)]
    bias = None if added is None else drawn(*added, N, N)
    inputs = [*given, *([] if bias is None else [bias])]
    weights = torch.randn(BATCH, HEADS, N, value_width, dtype=torch.float64)
    wanted = call(Eager(), given, Dense(~HIDDEN if causal else None, bias), None)
    for seen, scores in ((Fused(causal, bias, None), None), (Fused(causal, None, None), bias)):
        found = call(Rows(), given, seen, scores)
        assert distance(found, wanted) < FLOAT64
        of = [torch.autograd.grad(y, inputs, weights, retain_graph=True) for y in (found, wanted)]
        for mine, exact in zip(*of, strict=True):
            assert distance(mine, exact) < 10 * FLOAT64


@pytest.mark.parametrize("turned", [False, True])
def test_its_values_lie_as_compilers_are_told(turned: bool) -> None:
    """However queries lie: one heads' joining is a view, planned before there are numbers."""
    q, k, v = (torch.randn(BATCH, N, HEADS, 8).transpose(1, 2) for _ in "qkv")
    bias = torch.zeros(BATCH, HEADS, N, N)
    found = call(Rows(), [q if turned else q.contiguous(), k, v], Fused(False, bias, None), None)
    assert found.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("name", KERNELS)
def test_queries_beyond_a_memory(name: str, dropout: float) -> None:
    """A window shows those that are further on than another text is long no key of it: they give 0, and no gradient."""
    if name == "flex":
        pytest.skip("it has no backward pass on a CPU")
    given, kernel = [drawn(1, 2, n, 8) for n in (6, 3, 3)], KERNELS[name]
    query, key = (plain_tokens(n, torch.device("cpu")) for n in (6, 3))
    seen = kernel.prepare(Causal() & SlidingWindow(size=Window(2)), None, query, key, 2)
    found = call(kernel, given, seen, None, dropout)
    assert not found[:, :, 4:].any()
    of_q, *of_keys = torch.autograd.grad(found.sum(), given)
    assert not of_q[:, :, 4:].any()
    assert all(bool(each.isfinite().all()) for each in of_keys)


@pytest.mark.parametrize("causal", [False, True])
def test_dropout(causal: bool) -> None:
    """Values that are one-hot show which weights are left; the gradients are those of exactly these weights."""
    torch.manual_seed(0)
    q, k, bias = drawn(BATCH, HEADS, N, 8), drawn(BATCH, 2, N, 8), drawn(1, HEADS, N, N)
    v = torch.eye(N, dtype=torch.float64).expand(BATCH, 2, N, N).clone().requires_grad_()
    found = call(Rows(), [q, k, v], Fused(causal, bias, None), None, 0.25)
    whole = call(Eager(), [q, k, v], Dense(~HIDDEN if causal else None, bias), None)
    left = found.detach() != 0
    share = left[whole.detach() != 0].double().mean().item()
    assert abs(share - 0.75) < 0.01
    assert not torch.equal(left[0], left[1])
    weights = torch.randn_like(found)
    of = [torch.autograd.grad(y, [q, k, v, bias], weights, retain_graph=True) for y in (found, whole * left / 0.75)]
    assert distance(found, whole * left / 0.75) < FLOAT64
    for mine, exact in zip(of[0][:2] + of[0][3:], of[1][:2] + of[1][3:], strict=True):
        assert distance(mine, exact) < 10 * FLOAT64
    groups = (found.detach().mT @ weights).unflatten(1, (2, -1)).sum(2)  # the gradient of v, by its definition
    assert distance(of[0][2], groups) < 10 * FLOAT64


def taken(monkeypatch: pytest.MonkeyPatch, n: int, name: str = "llama2", dtype: torch.dtype = torch.float32) -> int:
    """How many layers of a model take rows."""
    calls = 0
    attention = rows.attention

    def counted(*args: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return attention(*args)

    monkeypatch.setattr(rows, "attention", counted)
    model = randomised(shrink(preset(name).spec))
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        model(ids_for(model.spec, 1, n))
    return calls


def test_chosen_where_pytorch_keeps_all_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = shrink(preset("llama2").spec).n_layers
    assert taken(monkeypatch, 9) == 0
    assert taken(monkeypatch, 9, dtype=torch.bfloat16) == layers
    assert taken(monkeypatch, 1, dtype=torch.bfloat16) == 0, "one token is no product of matrices"
    assert taken(monkeypatch, 9, "deepseek-v3") == shrink(preset("deepseek-v3").spec).n_layers, "values are narrower"
    assert taken(monkeypatch, 9, "bloom-560m") == shrink(preset("bloom-560m").spec).n_layers, "ALiBi"


def test_keeps_no_weights() -> None:
    """With dropout or a learned bias, whatever is kept for the backward pass is as long as a row, not as its square."""
    spec = next(value for value in preset("llama2").spec.nested() if isinstance(value, AttentionSpec))
    kernel, tokens = choose(None, spec), plain_tokens(N, torch.device("cpu"))
    for bias, p in ((None, 0.1), (drawn(1, HEADS, N, N), 0.0)):
        kept: list[int] = []
        q, k, v = (drawn(1, HEADS, N, 8) for _ in range(3))
        seen = kernel.prepare(spec.mask, None if bias is None else lambda *_, bias=bias: bias, tokens, tokens, HEADS)

        def count(x: Tensor, kept: list[int] = kept) -> Tensor:
            kept.append(x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
            kernel(q, k, v, seen, SoftmaxOptions(0.3, dropout=p))
        assert sum(n for n in kept if n != HEADS * N * N) < 5 * HEADS * N * 8
        assert kept.count(HEADS * N * N) == (bias is not None), "the bias itself, which all layers share"


def test_long_rows_in_bfloat16_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert taken(monkeypatch, fastest.MOST_BF16, dtype=torch.bfloat16) > 0
    assert taken(monkeypatch, fastest.MOST_BF16 + 1, dtype=torch.bfloat16) == 0
