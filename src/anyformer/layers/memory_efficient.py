"""Passes that keep less until the backward pass, and make again what is cheap to make, or all that a layer makes.

Recomputation of layers: Chen et al. 2016, arXiv:1604.06174; of attention alone, "selective": Korthikanti et al. 2022,
arXiv:2205.05198, section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from anyformer.layers.context import ForwardContext
from anyformer.layers.execution import autocast_dtype, transformed
from anyformer.layers.held import HeldWeight, row_by_row


class MemoryEfficientDown(torch.autograd.Function):
    """F.linear(inner(*hidden), weight, bias), of which `hidden`, what comes out of other maps, stays until the backward pass.

    What is between is made again there, for little of a layer's work; nothing in it learns, and nothing is drawn.
    """

    @staticmethod
    def forward(ctx: Any, inner: Callable[..., Tensor], weight: Tensor, bias: Tensor | None, *hidden: Tensor) -> Tensor:
        """[…, d_model] of hidden […, d_ff], weight [d_model, d_ff] and bias [d_model]."""
        ctx.inner = inner
        ctx.save_for_backward(weight, bias, *hidden)
        return F.linear(inner(*hidden), weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        weight, bias, *hidden = ctx.saved_tensors
        with torch.enable_grad():
            leaves = [each.detach().requires_grad_() for each in hidden]
            # Views: hooks on modules ask the engine about their inputs, which it cannot say of leaves.
            made = ctx.inner(*(leaf.view_as(leaf) for leaf in leaves))
        rows, middle = grad.flatten(0, -2), made.detach().flatten(0, -2)
        _, wanted, moved, *_ = ctx.needs_input_grad
        for_weight = (rows.t() @ middle).to(weight.dtype) if wanted else None
        for_bias = rows.sum(0).to(bias.dtype) if moved else None
        for_hidden = torch.autograd.grad(made, leaves, torch.matmul(grad, row_by_row(weight).to(grad.dtype)))
        return None, for_weight, for_bias, *for_hidden


class MemoryEfficientRMSNorm(torch.autograd.Function):
    """F.rms_norm, of which x, weight and root stay; the backward pass makes the rest again, for linear maps of it too.

    On a GPU one kernel of PyTorch's goes either way; on a CPU it has none for the way back.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        """The normed x […, width]; weight [width]."""
        ctx.eps, ctx.kept, ctx.made, ctx.again = eps, None, None, MemoryEfficientRMSNorm.again
        y, scale = _rms_norm(x, weight, eps)
        ctx.save_for_backward(x, _own(weight), scale)
        return y

    @staticmethod
    def again(ctx: Any, dtype: torch.dtype) -> Tensor:
        """What the norm made, in this dtype: made by the first who asks, and there until the norm's own backward pass."""
        if ctx.made is None:
            x, weight, _, plain = MemoryEfficientRMSNorm._kept(ctx)
            if plain is None:
                made = _rms_norm(x, weight, ctx.eps)[0]
            else:
                made = plain if weight is None else plain * weight
            ctx.made = made.to(dtype)
        return ctx.made

    @staticmethod
    def _kept(ctx: Any) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
        """(x, weight, 1 / root, x / root but on a GPU), which the norm's own backward pass takes too; saved is read once."""
        if ctx.kept is None:
            x, weight, scale = ctx.saved_tensors
            ctx.kept = x, weight, scale, None if x.is_cuda else x * scale
        return ctx.kept

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, scale, plain = MemoryEfficientRMSNorm._kept(ctx)
        ctx.kept = ctx.made = None
        if plain is None:
            wanted = list(ctx.needs_input_grad[:2])
            given = grad.contiguous(), x, x.shape[-1:], scale, weight
            return *torch.ops.aten._fused_rms_norm_backward(*given, wanted), None
        product = grad * plain
        rows = product.flatten(0, -2)
        for_weight = None if weight is None else rows.sum(0)
        # d/dx of x · scale: the part of the gradient along x is taken out.
        along = (rows.sum(-1) if weight is None else rows @ weight).view(*grad.shape[:-1], 1) / grad.shape[-1]
        for_plain = grad.clone() if weight is None else torch.mul(grad, weight, out=product)
        return for_plain.sub_(plain.mul_(along)).mul_(scale), for_weight, None


def _rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """(F.rms_norm of x […, width], 1 / root […, 1])."""
    return torch.ops.aten._fused_rms_norm(x, x.shape[-1:], weight, eps)


class MemoryEfficientLayerNorm(torch.autograd.Function):
    """F.layer_norm, of which x and its mean and root stay; linear maps of it have it made again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        """The normed x […, width]; weight and bias [width]."""
        ctx.eps, ctx.kept, ctx.made, ctx.again = eps, None, None, MemoryEfficientLayerNorm.again
        y, mean, scale = torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)
        ctx.save_for_backward(x, _own(weight), _own(bias), mean, scale)
        return y

    @staticmethod
    def again(ctx: Any, dtype: torch.dtype) -> Tensor:
        """Likewise."""
        if ctx.made is None:
            ctx.kept = ctx.kept or ctx.saved_tensors
            x, weight, bias, *_ = ctx.kept
            ctx.made = torch.native_layer_norm(x, x.shape[-1:], weight, bias, ctx.eps)[0].to(dtype)
        return ctx.made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, bias, mean, scale = ctx.kept or ctx.saved_tensors
        ctx.kept = ctx.made = None
        given, wanted = grad.contiguous(), list(ctx.needs_input_grad[:3])
        found = torch.ops.aten.native_layer_norm_backward(given, x, x.shape[-1:], mean, scale, weight, bias, wanted)
        return *found, None


def _own(weight: Tensor | None) -> Tensor | None:
    """A copy, of a row's width: where weights are sharded, a norm's may be away when other shards' maps ask for what it made."""
    return None if weight is None else weight.clone()


class MemoryEfficientLinear(torch.autograd.Function):
    """F.linear of what a norm made, which does not stay until the backward pass: the norm's node of the graph makes it again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, norm: Any) -> Tensor:
        """[…, d_out] of x […, d_in], weight [d_out, d_in] and bias [d_out]; `norm` is `norm_of(x)`."""
        ctx.norm, ctx.bias_dtype = norm, None if bias is None else bias.dtype
        ctx.save_for_backward(weight)
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (weight,) = ctx.saved_tensors
        rows, for_weight, for_bias = grad.flatten(0, -2), None, None
        if ctx.needs_input_grad[1]:
            x = ctx.norm.again(ctx.norm, grad.dtype).to(grad.dtype)
            for_weight = (rows.t() @ x.flatten(0, -2)).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            for_bias = rows.sum(0).to(ctx.bias_dtype)
        return grad @ weight.to(grad.dtype), for_weight, for_bias, None


def operands(x: Tensor, *tensors: Tensor | None) -> tuple[Any, ...]:
    """Tensors as a product with x takes them, for functions of our own: in these autocast would keep copies without a graph.

    Weights that are held otherwise are taken by products of any dtype.
    """
    dtype = autocast_dtype(x)
    if dtype is None:
        return tensors
    return tuple(each if each is None or isinstance(each, HeldWeight) else each.to(dtype) for each in tensors)


def norm_of(x: Tensor) -> Any:
    """The graph's node of the norm that made x, where it is one that makes x again; None: it is not, or nothing is kept."""
    return x.grad_fn if saves_activations() and hasattr(x.grad_fn, "again") else None


class MemoryEfficientConvolution(torch.autograd.Function):
    """Σ_m tap_m ⊙ x_{t - m}, zeros before x, which stays with the weight; a block of tokens at a time, in a processor's cache."""

    BLOCK: ClassVar[int] = 256  # tokens; it changes time, no number but the rounding of a weight's gradient

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """[batch, token, channels] of x of that shape and weight [channels, size], whose last is the tap of a token itself."""
        ctx.save_for_backward(x, weight)
        y = torch.zeros_like(x, dtype=torch.result_type(x, weight))
        for part, seen, _, tap in MemoryEfficientConvolution._taps(y, x, weight):
            part.addcmul_(x[:, seen], tap)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        for_x, for_weight = torch.zeros_like(grad), weight.new_zeros(weight.shape[::-1])
        for part, seen, i, tap in MemoryEfficientConvolution._taps(grad, x, weight):
            for_x[:, seen].addcmul_(part, tap)
            for_weight[i] += (part * x[:, seen]).sum((0, 1))
        return for_x.to(x.dtype), for_weight.t()

    @classmethod
    def _taps(cls, y: Tensor, x: Tensor, weight: Tensor) -> Iterator[tuple[Tensor, slice, int, Tensor]]:
        """(tokens of a block of y, the tokens of x that they see by a tap, its number, the tap [channels]), in turn."""
        taps = weight.t().contiguous()
        for start in range(0, x.shape[1], cls.BLOCK):
            end = min(start + cls.BLOCK, x.shape[1])
            for i, tap in enumerate(taps):
                back = len(taps) - 1 - i
                first = max(start, back)  # those before it see zeros by this tap
                if first < end:
                    yield y[:, first:end], slice(first - back, end - back), i, tap


def saves_activations() -> bool:
    """Whether a backward pass may follow in plain PyTorch; a compiler, or torch.func, decides by itself what is made again."""
    return torch.is_grad_enabled() and not (torch.compiler.is_compiling() or transformed())


def checkpointed(step: Callable[..., Any], *tensors: Tensor | None, context: ForwardContext) -> Any:
    """step(*tensors), of which only the tensors stay until the backward pass; dropout is drawn as it was."""
    return checkpoint(step, *tensors, use_reentrant=False, preserve_rng_state=context.dropout is not None)


def made_again(step: Callable[..., Any], *tensors: Tensor, context: ForwardContext) -> Any:
    """step(*tensors, context) likewise, of a layer: what layers share the first time makes and the second finds."""
    known, compiling = context.memo.copied(), torch.compiler.is_compiling()
    passes = iter((context,)) if not compiling else iter(())

    def run(memory: Tensor | None, *tensors: Tensor) -> Any:
        # The second time starts from what the first found in the memo: autograd asks for the same steps again.
        here = next(passes, None) or replace(context, memo=known.copied(), again=not compiling)
        return step(*tensors, replace(here, memory=memory, recompute="none", within=True))

    return checkpointed(run, context.memory, *tensors, context=context)
