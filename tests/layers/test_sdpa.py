"""Which of PyTorch's kernels a GPU is let choose from: cuDNN's plans of a shape are worth their time where it comes again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.backends import cuda
from torch.nn import functional as F

from anyformer.kernels import sdpa
from anyformer.layers import Causal
from anyformer.layers.context import SoftmaxOptions
from anyformer.layers.tokens import plain_tokens


@pytest.mark.parametrize(
    ("query", "key", "on_gpu", "once"),
    [
        (1, 200, True, True),
        (1, 256, True, True),
        (300, 300, True, True),
        (256, 384, True, False),
        (1, 200, False, False),
    ],
)
def test_lengths_that_may_come_once(query: int, key: int, on_gpu: bool, once: bool) -> None:
    k: Any = SimpleNamespace(shape=(1, 2, key, 8), is_cuda=on_gpu)
    assert sdpa._would_plan(query, k) is once


@pytest.mark.parametrize("allowed", [True, False])
def test_cudnn_is_left_as_it_was(allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, fused = list[bool](), F.scaled_dot_product_attention

    def recorded(*given: Any, **options: Any) -> Tensor:
        asked.append(cuda.cudnn_sdp_enabled())
        return fused(*given, **options)

    before, kernel = cuda.cudnn_sdp_enabled(), sdpa.SDPA()
    of, (q, k, v) = plain_tokens(5, torch.device("cpu")), torch.randn(3, 1, 2, 5, 8)
    seen, how = kernel.prepare(Causal(), None, of, of, 2), SoftmaxOptions(1.0)
    expected, _ = kernel(q, k, v, seen, how)
    monkeypatch.setattr(F, "scaled_dot_product_attention", recorded)
    cuda.enable_cudnn_sdp(allowed)
    try:
        for once in (False, True):
            monkeypatch.setattr(sdpa, "_would_plan", lambda *_, once=once: once)
            assert kernel(q, k, v, seen, how)[0].equal(expected)
            assert cuda.cudnn_sdp_enabled() is allowed
        with pytest.raises(RuntimeError):
            kernel(q[..., :4], k, v, seen, how)
        assert cuda.cudnn_sdp_enabled() is allowed
    finally:
        cuda.enable_cudnn_sdp(before)
    assert asked == [allowed, False, False]
