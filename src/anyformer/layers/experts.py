"""Experts of one kind with stacked weights: tokens are sorted by expert, so that work follows tokens, not experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from anyformer.errors import SpecError
from anyformer.layers.feed_forward import ExpertSpec, linear_maps
from anyformer.layers.grouped import Spans, outer, products, products_op, spans_of, sums
from anyformer.layers.linear import LinearSpec
from anyformer.layers.part import Part
from anyformer.layers.precision import as_given, autocast_dtype
from anyformer.layers.tokens import ForwardContext
from anyformer.spec import Count, MixerSpec, PartSpec, Place, Placed, Tape, Value, Weight


class StackedLinearSpec(PartSpec):
    """A linear map of each expert, in one tensor [experts, d_out, d_in]."""

    linear: LinearSpec
    n_experts: Count
    top_k: int

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        def stacked(weight: Weight) -> Weight:
            return dataclasses.replace(weight.stacked("experts", self.n_experts), used=self.top_k)

        return {name: weight and stacked(weight) for name, weight in self.linear.weights(place).items()}

    def parts(self, place: Place) -> Mapping[str, Placed]:
        return {}


class StackedLinear(Part[StackedLinearSpec]):
    weight: Tensor  # [experts, d_out, d_in]
    bias: Tensor | None  # [experts, d_out]


class ExpertsSpec(PartSpec):
    """`n_experts` of one kind, of which a token goes through `top_k`."""

    n_experts: Count
    top_k: int
    expert: MixerSpec

    def parts(self, place: Place) -> Mapping[str, Placed]:
        found: dict[str, Placed] = {}
        for name, placed in self.expert.parts(place).items():
            if not isinstance(placed, tuple):
                raise SpecError(f"{self.expert.kind}.{name} cannot be a part of an expert: it is no single part")
            part, inner_place = placed
            if isinstance(part, LinearSpec):
                part = StackedLinearSpec(linear=part, n_experts=self.n_experts, top_k=self.top_k)
            elif any(True for _ in part.weights(inner_place)):
                raise SpecError(f"{part.kind} cannot be a part of an expert: only linear maps are stacked")
            found[name] = part, inner_place
        return found

    def chosen(self, place: Place, x: Value, share: Value, tape: Tape) -> Value:
        """Write down what the experts keep of the tokens x [token, d_model] and the share of each choice; return the sum."""
        assert isinstance(self.expert, ExpertSpec)
        *into, out = linear_maps(self.expert, place)
        for name, linear, inner_place in (*into, out):
            tape.weights(self.n_experts * (inner_place.shape[-1] + linear.bias) * linear.width_out(inner_place), name)
        x = Value(x.numel, "bfloat16") if tape.half and x.number == "float32" else x
        share = share if share.number == x.number else tape.value(share.numel, x)
        widths = [linear.width_out(inner_place) for _, linear, inner_place in into]
        hidden = [tape.value(share.numel * width, x) for width in widths]
        if "activation" not in tape.rates:
            tape.keep(x, share, *hidden)
            return tape.value(x.numel, x)
        rows = tape.value(share.numel * place.shape[-1], x)
        tape.keep(tape.value(share.numel, "int64"), rows, self.expert.between(place, hidden, tape))
        tape.keep(tape.value(share.numel, "int64"), tape.value(rows.numel, x), share)
        return tape.value(x.numel, x)


class Experts(Part[ExpertsSpec]):
    """y = Σ over a token's chosen experts of weight · expert(x)."""

    def __init__(self, spec: ExpertsSpec, place: Place) -> None:
        super().__init__(spec, place)
        assert isinstance(spec.expert, ExpertSpec)
        *self.into, self.out = (name for name, part in self.named_children() if isinstance(part, StackedLinear))

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor, context: ForwardContext) -> Tensor:
        """What the experts make of x [token, d_model]; chosen and weights are [token, top_k], -1 chooses none."""
        expert = self.spec.expert
        assert isinstance(expert, ExpertSpec)
        inner = lambda *hidden: expert.inner(*hidden, context=context)  # noqa: E731
        maps = [getattr(self, name) for name in (*self.into, self.out)]
        if context.experts == "loop":
            return one_by_one(x, chosen, weights, maps, inner)
        # What is made again must come out the same, and dropout would be drawn anew.
        traced = torch.compiler.is_compiling() or bool(context.dropout and context.dropout.activation)
        return sorted_by_expert(x, chosen, weights, maps, inner, traced=traced)


Inner = Callable[..., Tensor]  # ExpertSpec.inner


def one_by_one(x: Tensor, chosen: Tensor, weights: Tensor, maps: Sequence[StackedLinear], inner: Inner) -> Tensor:
    """The sum, one expert after the other: the oracle."""
    *into, out = maps
    y = torch.zeros_like(x)
    for i in range(out.weight.shape[0]):
        token, k = (chosen == i).nonzero(as_tuple=True)
        hidden = [F.linear(x[token], m.weight[i], None if m.bias is None else m.bias[i]) for m in into]
        result = F.linear(inner(*hidden), out.weight[i], None if out.bias is None else out.bias[i])
        y = y.index_add(0, token, (result * weights[token, k, None]).to(y.dtype))
    return y


class Groups(NamedTuple):
    """Choices sorted by expert."""

    token: Tensor  # [row], the token of each row; choices that nobody serves come last
    inner_place: Tensor  # [token, top_k], the row of each choice
    spans: Spans


def groups_of(chosen: Tensor, n_experts: int) -> Groups:
    """The groups of choices [token, top_k]."""
    order, inner_place, behind = _sorted_choices(chosen, n_experts)
    # Nobody knows who is chosen on the meta device; the work is the same if one expert does it all.
    spans = [(0, 0, len(order))] if chosen.is_meta else spans_of(behind.tolist())
    return Groups(order // chosen.shape[1], inner_place, spans)


def _sorted_choices(chosen: Tensor, n_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """(choices in the order of experts, the place of each [token, top_k], the row behind each expert's last)."""
    flat = chosen.flatten()
    expert, order = flat.masked_fill(flat < 0, n_experts).sort(stable=True)
    inner_place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    behind = torch.searchsorted(expert, torch.arange(n_experts, device=order.device), right=True)
    return order, inner_place.view_as(chosen), behind


def sorted_by_expert(
    x: Tensor, chosen: Tensor, weights: Tensor, maps: Sequence[StackedLinear], inner: Inner, *, traced: bool
) -> Tensor:
    """The sum, by products of each expert's rows with its matrices."""
    matrices, biases = [m.weight for m in maps], [m.bias for m in maps]
    dtype = autocast_dtype(x)
    if dtype is not None:
        x, matrices = x.to(dtype), [m.to(dtype) for m in matrices]
        biases = [None if b is None else b.to(dtype) for b in biases]
    share = weights.to(x.dtype)
    with as_given(x):
        if traced:
            return _traced(x, chosen, share, matrices, biases, inner)
        return _Sorted.apply(x, share, groups_of(chosen, len(matrices[0])), inner, *matrices, *biases)


def _traced(
    x: Tensor, chosen: Tensor, share: Tensor, matrices: list[Tensor], biases: list[Tensor | None], inner: Inner
) -> Tensor:
    """The same in operators that a compiler follows: it decides by itself what is kept."""
    n_experts, top_k = len(matrices[0]), chosen.shape[1]
    order, inner_place, behind = _sorted_choices(chosen, n_experts)
    expert = chosen.flatten()[order].clamp(min=0)

    def product(rows: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        y = products_op(rows, matrix, behind, False)
        return y if bias is None else y + bias[expert]

    rows = x[order // top_k]
    hidden = [product(rows, m, b) for m, b in zip(matrices[:-1], biases[:-1], strict=True)]
    y = product(inner(*hidden), matrices[-1], biases[-1])
    return (y[inner_place] * share[..., None]).sum(1)


class _Sorted(torch.autograd.Function):
    """Keeps what goes into `inner` until the backward pass, and makes what comes out of it again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: Tensor, groups: Groups, inner: Inner, *tensors: Any) -> Tensor:
        n = len(tensors) // 2  # matrices, and as many biases, which may be None
        matrices, biases = tensors[:n], tensors[n:]
        rows = x.index_select(0, groups.token)
        hidden = [products(rows, m, groups.spans, biases=b) for m, b in zip(matrices[:-1], biases, strict=False)]
        y = products(inner(*hidden), matrices[-1], groups.spans, biases=biases[-1])
        ctx.groups, ctx.inner, ctx.n = groups, inner, n
        ctx.save_for_backward(x, share, *hidden, *tensors)
        return _gathered(y, groups, share)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        groups, spans, n = ctx.groups, ctx.groups.spans, ctx.n
        x, share, *rest = ctx.saved_tensors
        hidden, matrices, biases = rest[: n - 1], rest[n - 1 : 2 * n - 1], rest[2 * n - 1 :]
        n_experts, out_bias = len(matrices[-1]), biases[-1]
        with torch.enable_grad():
            leaves = [h.detach().requires_grad_() for h in hidden]
            middle = ctx.inner(*leaves)
        rows, grads = x.index_select(0, groups.token), grad.index_select(0, groups.token)
        inner_place = groups.inner_place.flatten()
        shares = torch.empty_like(share).flatten().scatter_(0, inner_place, share.flatten())[:, None]
        for_middle = products(grads, matrices[-1], spans, turned=True)
        for_share = (for_middle * middle.detach()).sum(-1)
        if out_bias is not None:
            for expert, first, behind in spans:
                for_share[first:behind] += grads[first:behind] @ out_bias[expert]
        grads *= shares
        for_matrices = [outer(grads, middle.detach(), n_experts, spans)]
        for_biases = [None if out_bias is None else sums(grads, n_experts, spans)]
        for_rows = None
        for_hidden = torch.autograd.grad(middle, leaves, for_middle.mul_(shares))
        for of_hidden, matrix, bias in reversed(list(zip(for_hidden, matrices, biases, strict=False))):
            for_matrices.insert(0, outer(of_hidden, rows, n_experts, spans))
            for_biases.insert(0, None if bias is None else sums(of_hidden, n_experts, spans))
            for_rows = products(of_hidden, matrix, spans, turned=True, onto=for_rows)
        assert for_rows is not None
        of_share = for_share[inner_place].view_as(share)
        return _gathered(for_rows, groups, None), of_share, None, None, *for_matrices, *for_biases


def _gathered(rows: Tensor, groups: Groups, share: Tensor | None) -> Tensor:
    """The sum of a token's rows, each times its share, in one pass over them."""
    return F.embedding_bag(groups.inner_place, rows, mode="sum", per_sample_weights=share)
