"""What a GPU does otherwise than a CPU, in one table: passes are observed on fake tensors of a CPU, under these rules.

Without CUDA no tensor can pretend to be on a GPU. So the functions whose operators, or whose copies under autocast, differ
there are replaced by what a GPU runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from anyformer.observation.operators import KERNELS, attention_work, ours

IS_CUDA = cast("Any", Tensor.is_cuda).__get__  # the reading of the property, as a mode is told of it

# Under autocast a GPU computes these in float32, whatever they are given (PyTorch's list of operators for CUDA).
IN_FLOAT32 = {
    F.layer_norm, F.softmax, F.log_softmax, torch.softmax, Tensor.softmax, torch.log_softmax, Tensor.log_softmax,
    torch.exp, Tensor.exp, torch.log, Tensor.log, torch.pow, Tensor.pow, Tensor.__pow__, torch.rsqrt, Tensor.rsqrt,
    torch.cumsum, Tensor.cumsum, F.softplus, torch.norm, Tensor.norm, torch.cosh, torch.erfinv, torch.sinh,
}  # fmt: skip


class GPU(TorchFunctionMode):
    """Attention is fused, also where scores are learned; dropout keeps a byte a number; norms are one operator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in REPLACED:
            return REPLACED[func](*args, **kwargs)
        if func in IN_FLOAT32 and torch.is_autocast_enabled("cpu"):
            args = tuple(_float32(argument) for argument in args)
        return func(*args, **kwargs)


def _float32(argument: Any) -> Any:
    return argument.float() if isinstance(argument, Tensor) and argument.dtype == torch.bfloat16 else argument


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(x, p, training)[0]


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> Tensor:
    if torch.is_autocast_enabled("cpu"):
        q, k, v = (x.to(torch.bfloat16) for x in (q, k, v))
        attn_mask = (
            attn_mask.to(torch.bfloat16) if attn_mask is not None and attn_mask.is_floating_point() else attn_mask
        )
    return fused_attention(q, k, v, attn_mask, is_causal)[0]


def _addmm(total: Tensor, a: Tensor, b: Tensor, *, out_dtype: torch.dtype | None = None, **more: Any) -> Tensor:
    """Of matrices of another type than what they are added to, which no CPU takes."""
    return torch.addmm(total, a, b, **more) if out_dtype is None else total.addmm_(a, b)


def _rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    return fused_rms_norm(x, weight)[0]


def _rms_norm_backward(grad: Tensor, x: Tensor, root: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The gradients of x and of the weight, which a norm may lack."""
    for_x, for_weight = fused_rms_norm_backward(grad, x, root, weight)
    return for_x, None if weight is None else for_weight


REPLACED: Mapping[Any, Callable[..., Any]] = {
    F.dropout: _dropout,
    F.rms_norm: _rms_norm,
    F.scaled_dot_product_attention: _attention,
    torch.addmm: _addmm,
    torch.ops.aten._fused_rms_norm: lambda x, shape, weight, eps: fused_rms_norm(x, weight),
    torch.ops.aten._fused_rms_norm_backward: lambda grad, x, shape, *kept: _rms_norm_backward(grad, x, *kept[:2]),
    IS_CUDA: lambda _: True,
}


@torch.library.custom_op("anyformer::fused_attention", mutates_args=())
def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> tuple[Tensor, Tensor]:
    """(values, the logarithm of each query's sum): a GPU's fused attention, which is only ever observed."""
    raise RuntimeError(
        "fused_attention stands for a GPU's kernel where a pass is observed; run scaled_dot_product_attention"
    )


@torch.library.custom_op("anyformer::fused_attention_backward", mutates_args=())
def fused_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, sums: Tensor, mask: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values; likewise."""
    raise RuntimeError("fused_attention_backward stands for a GPU's kernel where a pass is observed")


@fused_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> tuple[Tensor, Tensor]:
    batch, heads, tokens, width = q.shape
    if mask is None and q.dtype == torch.bfloat16 and v.shape[-1] == width:
        y = torch.empty_like(q)  # laid out as queries are
    else:
        y = q.new_empty(batch, tokens, heads, v.shape[-1]).transpose(1, 2)  # a token's heads side by side again
    return y, q.new_empty(q.shape[:-1], dtype=torch.float32)


@fused_attention_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, sums: Tensor, mask: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, ctx.causal = inputs
    ctx.save_for_backward(q, k, v, *output, mask)


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    q, k, v, y, sums, mask = ctx.saved_tensors
    grads = fused_attention_backward(grad, q, k, v, y, sums, mask, ctx.causal)
    for_mask = torch.empty_like(mask) if mask is not None and ctx.needs_input_grad[3] else None
    return *grads, for_mask, None


fused_attention.register_autograd(_backward, setup_context=_keep)
KERNELS[ours.fused_attention] = lambda q, k, v, mask, causal: attention_work(q, k, v, causal=causal, products=2)
KERNELS[ours.fused_attention_backward] = lambda grad, q, k, v, y, sums, mask, causal: attention_work(
    q, k, v, causal=causal, products=4
)


@torch.library.custom_op("anyformer::fused_rms_norm", mutates_args=())
def fused_rms_norm(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """(x [..., width] divided by its root, the roots); likewise."""
    raise RuntimeError(
        "fused_rms_norm stands for a GPU's kernel where a pass is observed; run torch.nn.functional.rms_norm"
    )


@torch.library.custom_op("anyformer::fused_rms_norm_backward", mutates_args=())
def fused_rms_norm_backward(grad: Tensor, x: Tensor, root: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the weight; likewise."""
    raise RuntimeError("fused_rms_norm_backward stands for a GPU's kernel where a pass is observed")


@fused_rms_norm.register_fake
def _(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)


@fused_rms_norm_backward.register_fake
def _(grad: Tensor, x: Tensor, root: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[-1:]) if weight is None else torch.empty_like(weight)


def _keep_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight = inputs
    ctx.save_for_backward(x, output[1], weight)


def _backward_norm(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, Tensor | None]:
    x, root, weight = ctx.saved_tensors
    return _rms_norm_backward(grad, x, root, weight)


fused_rms_norm.register_autograd(_backward_norm, setup_context=_keep_norm)
