"""Experts of one kind with stacked weights: tokens are sorted by expert, so that work follows tokens, not experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from anyformer.errors import SpecError
from anyformer.layers.context import ForwardContext
from anyformer.layers.execution import as_given, exporting, numberless, recorded, transformed
from anyformer.layers.feed_forward import ExpertSpec, between
from anyformer.layers.grouped import add_products, outer, products, sums
from anyformer.layers.held import HeldWeight
from anyformer.layers.linear import LinearSpec, products_each
from anyformer.layers.memory_efficient import operands
from anyformer.layers.part import Part
from anyformer.layers.travel import Travel, travelling
from anyformer.spec import Count, Few, MixerSpec, PartSpec, Place, Placed, Weight, tensors


class StackedLinearSpec(PartSpec):
    """A linear map of each expert, in one tensor [experts, d_out, d_in]."""

    linear: LinearSpec
    n_experts: Count
    n_used: Few | None  # None: all, whatever a router says

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        def stacked(weight: Weight) -> Weight:
            shape, axes = (self.n_experts, *weight.shape), ("experts", *weight.axes)
            return dataclasses.replace(weight, shape=shape, axes=axes, used=self.n_used)

        return {name: weight and stacked(weight) for name, weight in self.linear.weights(place).items()}

    def parts(self, place: Place) -> Mapping[str, Placed]:
        return {}


Matrices = tuple[Tensor, Tensor | None]  # [experts, d_out, d_in], and biases [experts, d_out]


class StackedLinear(Part[StackedLinearSpec]):
    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Matrices:
        """What tokens x [token, d_in] are multiplied by. Asked for by a call, so that adapters of parameters are heard."""
        return self.weight, self.bias


class ExpertsSpec(PartSpec):
    """`n_experts` of one kind, of which a token goes through `n_used`."""

    n_experts: Count
    n_used: Few | None  # None: all, whatever a router says
    expert: MixerSpec

    def parts(self, place: Place) -> Mapping[str, Placed]:
        found: dict[str, Placed] = {}
        for name, placed in self.expert.parts(place).items():
            if placed is None:
                found[name] = None
                continue
            if not isinstance(placed, tuple):
                raise SpecError(f"{self.expert.kind}.{name} cannot be a part of an expert: it is no single part")
            part, inner_place = placed
            if (shared := part.shared or self.expert.shared) is not None:
                said = f"is shared as {shared!r}, and experts are stacked, each with its own; leave the name out"
                raise SpecError(f"{self.expert.kind}.{name} {said}")
            if isinstance(part, LinearSpec):
                part = StackedLinearSpec(linear=part, n_experts=self.n_experts, n_used=self.n_used)
            elif any(True for _ in tensors(part, inner_place)):
                raise SpecError(f"{part.kind} cannot be a part of an expert: only linear maps are stacked")
            found[name] = part, inner_place
        return found


class Experts(Part[ExpertsSpec]):
    """y = Σ over a token's chosen experts of weight · expert(x)."""

    elsewhere: Travel | None = None  # where other processes have the other experts

    def __init__(self, spec: ExpertsSpec, place: Place) -> None:
        super().__init__(spec, place)
        assert isinstance(spec.expert, ExpertSpec)
        *self.into, self.out = (name for name, part in self.named_children() if isinstance(part, StackedLinear))

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor, context: ForwardContext) -> Tensor:
        """What the experts make of x [token, d_model]; chosen and weights are [token, top_k], -1 chooses none."""
        if self.elsewhere is not None:
            return travelling(x, chosen, weights, self.elsewhere, partial(self.served, context=context))
        return self.served(x, chosen, weights, context)

    def served(self, x: Tensor, chosen: Tensor, weights: Tensor, context: ForwardContext) -> Tensor:
        """What those that are here make of it, which `chosen` counts from 0."""
        expert = self.spec.expert
        assert isinstance(expert, ExpertSpec)
        inner = between(expert, self, context)
        maps = [getattr(self, name)(x) for name in (*self.into, self.out)]
        if transformed():  # torch.func has no rule for choices of which nobody knows the number
            return by_all(x, chosen, weights, maps, inner)
        if context.experts == "loop":
            return one_by_one(x, chosen, weights, maps, inner)
        if few_are_chosen(chosen, maps[-1][0]):
            return by_choice(x, chosen, weights, maps, inner)
        if recorded() and not torch.compiler.is_compiling():
            return by_all(x, chosen, weights, maps, inner)
        # What is made again must come out the same, and dropout would be drawn anew.
        traced = torch.compiler.is_compiling() or context.rates.activation > 0
        if not traced and len(x) == 1 and not torch.is_grad_enabled() and not numberless(chosen):
            return of_one_token(x, chosen, weights, maps, inner)
        return sorted_by_expert(x, chosen, weights, maps, inner, traced=traced)


Inner = Callable[..., Tensor]  # ExpertSpec.inner


def of_choices(x: Tensor, chosen: Tensor, matrices: Tensor, context: ForwardContext) -> Tensor:
    """What the matrix [d_out, d_in] of each choice makes [token, top_k, d_out] of x [token, top_k, d_in], or of one for all."""
    n, k = chosen.shape
    if context.experts == "loop":
        rows, y = x.expand(n, k, -1), x.new_zeros(n, k, matrices.shape[1])
        for i, matrix in enumerate(matrices):
            at = (chosen == i).nonzero(as_tuple=True)
            y = y.index_put(at, F.linear(rows[at], matrix).to(y.dtype))
        return y
    x, matrices = operands(x, x, matrices)
    if few_are_chosen(chosen, matrices):
        own = matrices.index_select(0, chosen.flatten())
        return products_each(x.expand(n, k, -1).flatten(0, 1), own).unflatten(0, (n, k))
    if transformed() or (recorded() and not torch.compiler.is_compiling()):  # all of all rows, of which those are taken
        y = torch.einsum("nki,eoi->nkeo", x, matrices).expand(n, k, -1, -1)
        return y.gather(2, chosen[..., None, None].expand(n, k, 1, y.shape[-1]))[:, :, 0]
    with as_given(x):
        groups = groups_of(chosen, len(matrices))
        if x.shape[1] == 1:
            rows = x[groups.token, 0]
        else:
            rows = torch.zeros_like(x).flatten(0, 1).index_copy(0, groups.row.flatten(), x.flatten(0, 1))
        return products(rows, matrices, groups.behind)[groups.row]


def one_by_one(x: Tensor, chosen: Tensor, weights: Tensor, maps: Sequence[Matrices], inner: Inner) -> Tensor:
    """The sum, one expert after the other: the oracle."""
    y = torch.zeros_like(x)
    for i in range(len(maps[-1][0])):
        token, k = (chosen == i).nonzero(as_tuple=True)
        y = y.index_add(0, token, (of_expert(i, x[token], maps, inner) * weights[token, k, None]).to(y.dtype))
    return y


def of_one_token(x: Tensor, chosen: Tensor, weights: Tensor, maps: Sequence[Matrices], inner: Inner) -> Tensor:
    """The sum of a single token, whose experts differ: there is nothing to sort."""
    here = [(k, i) for k, i in enumerate(chosen[0].tolist()) if i >= 0]
    if not here:
        return torch.zeros_like(x)
    y = torch.cat([of_expert(i, x, maps, inner) for _, i in here])
    return weights[:, [k for k, _ in here]].to(y.dtype) @ y


def of_expert(i: int, x: Tensor, maps: Sequence[Matrices], inner: Inner) -> Tensor:
    """What the expert makes of x [token, d_model]."""
    *into, out = ((m[i], None if b is None else b[i]) for m, b in maps)
    return F.linear(inner(*(F.linear(x, *each) for each in into)), *out)


def as_operands(x: Tensor, maps: Sequence[Matrices]) -> tuple[Tensor, Sequence[Matrices]]:
    """The rows, and matrices and biases, as products take them."""
    x, *each = operands(x, x, *(tensor for pair in maps for tensor in pair))
    return x, list(zip(each[::2], each[1::2], strict=True))


def few_are_chosen(chosen: Tensor, matrices: Tensor) -> bool:
    """Whether a graph that is compiled for inference asks for no more matrices than there are, or for some of few bits.

    Then a compiler's loops read those that are chosen, and nobody asks how many tokens an expert has.
    """
    if not recorded() or exporting() or torch.is_grad_enabled():
        return False
    return chosen.numel() <= len(matrices) or isinstance(matrices, HeldWeight)


def by_choice(x: Tensor, chosen: Tensor, weights: Tensor, maps: Sequence[Matrices], inner: Inner) -> Tensor:
    """The sum, each choice with its own matrices."""
    flat = chosen.flatten()
    own = flat.clamp(min=0)
    picked = [(m.index_select(0, own), None if b is None else b.index_select(0, own)) for m, b in maps]
    x, (*into, out) = as_operands(x, picked)
    rows = x.repeat_interleave(chosen.shape[1], 0)
    y = products_each(inner(*(products_each(rows, *each) for each in into)), *out)
    y = (y * weights.to(y.dtype).view(-1, 1)).masked_fill((flat < 0)[:, None], 0)
    return y.view(*chosen.shape, -1).sum(1)


def by_all(x: Tensor, chosen: Tensor, weights: Tensor, maps: Sequence[Matrices], inner: Inner) -> Tensor:
    """The sum, each expert with every token: of few tokens all matrices are read once, and nobody asks who chose which."""

    def products(rows: Tensor, matrices: Tensor, biases: Tensor | None) -> Tensor:
        return rows @ matrices.mT if biases is None else torch.baddbmm(biases[:, None], rows, matrices.mT)

    x, (*into, out) = as_operands(x, maps)
    n = len(out[0])
    rows = x.expand(n, -1, -1)
    y = products(inner(*(products(rows, *each) for each in into)), *out)  # [expert, token, d_model]
    share = weights.new_zeros(len(x), n + 1).scatter_add_(1, chosen.masked_fill(chosen < 0, n), weights)[:, :n]
    share = share.to(y.dtype).T[..., None]
    return (y * share).masked_fill(share == 0, 0).sum(0)


class Groups(NamedTuple):
    """Choices sorted by expert."""

    token: Tensor  # [row], the token of each row; choices that nobody serves come last
    row: Tensor  # [token, top_k], the row of each choice
    behind: Tensor  # [expert], the row behind each expert's last, on the CPU


def groups_of(chosen: Tensor, n_experts: int) -> Groups:
    """The groups of choices [token, top_k]; -1 is a choice that nobody serves."""
    flat = chosen.flatten()
    expert, order = flat.masked_fill(flat < 0, n_experts).sort(stable=True)
    row = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    behind = torch.searchsorted(expert, torch.arange(n_experts, device=order.device), right=True)
    return Groups(order // chosen.shape[1], row.view_as(chosen), behind if behind.is_meta else behind.cpu())


def sorted_by_expert(
    x: Tensor, chosen: Tensor, weights: Tensor, maps: Sequence[Matrices], inner: Inner, *, traced: bool
) -> Tensor:
    """The sum, by products of each expert's rows with its matrices."""
    x, maps = as_operands(x, maps)
    matrices, biases = zip(*maps, strict=True)
    share = weights.to(x.dtype)
    with as_given(x):
        groups = groups_of(chosen, len(matrices[0]))
        if traced:  # in operators that a compiler follows: it decides by itself what is kept
            _, y = _applied(x[groups.token], groups.behind, matrices, biases, inner)
            return (y[groups.row] * share[..., None]).sum(1)
        return _Sorted.apply(x, share, groups, inner, *matrices, *biases)


def _applied(
    rows: Tensor, behind: Tensor, matrices: Sequence[Tensor], biases: Sequence[Tensor | None], inner: Inner
) -> tuple[list[Tensor], Tensor]:
    """What goes into `inner`, and what the last map makes of what comes out of it, each [row, width]."""
    hidden = [products(rows, m, behind, b) for m, b in zip(matrices[:-1], biases[:-1], strict=True)]
    return hidden, products(inner(*hidden), matrices[-1], behind, biases[-1])


class _Sorted(torch.autograd.Function):
    """Keeps what goes into `inner` until the backward pass, and makes what comes out of it again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: Tensor, groups: Groups, inner: Inner, *tensors: Any) -> Tensor:
        """[token, d_model] of x of that shape, share [token, top_k] and tensors [experts, d_out, d_in] and [experts, d_out]."""
        n = len(tensors) // 2  # matrices, and as many biases, which may be None
        hidden, y = _applied(x.index_select(0, groups.token), groups.behind, tensors[:n], tensors[n:], inner)
        ctx.groups, ctx.inner, ctx.n = groups, inner, n
        ctx.save_for_backward(x, share, *hidden, *tensors)
        return _gathered(y, groups, share)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        groups, behind, n = ctx.groups, ctx.groups.behind, ctx.n
        x, share, *rest = ctx.saved_tensors
        hidden, matrices, out_bias = rest[: n - 1], rest[n - 1 : 2 * n - 1], rest[-1]
        with torch.enable_grad():
            leaves = [h.detach().requires_grad_() for h in hidden]
            # Views: hooks on modules ask the engine about their inputs, which it cannot say of leaves.
            middle = ctx.inner(*(leaf.view_as(leaf) for leaf in leaves))
        rows, grads = x.index_select(0, groups.token), grad.index_select(0, groups.token)
        row = groups.row.flatten()
        shares = torch.empty_like(share).flatten().scatter_(0, row, share.flatten())[:, None]
        for_middle = products(grads, matrices[-1], behind, turned=True)
        for_share = (for_middle * middle.detach()).sum(-1)
        if out_bias is not None:
            for_share += products(grads, out_bias[:, None], behind)[:, 0]
        grads *= shares
        asked = ctx.needs_input_grad[-2 * n :]  # of matrices, then of biases: frozen ones get nothing
        for_tensors: list[Tensor | None] = [None] * (2 * n)

        def note(i: int, out: Tensor, into: Tensor) -> None:
            if asked[i]:
                for_tensors[i] = outer(out, into, behind)
            if asked[n + i]:
                for_tensors[n + i] = sums(out, behind)

        note(n - 1, grads, middle.detach())
        for_rows = None
        for_hidden = torch.autograd.grad(middle, leaves, for_middle.mul_(shares))
        for i in reversed(range(n - 1)):
            of_hidden, matrix = for_hidden[i], matrices[i]
            note(i, of_hidden, rows)
            if for_rows is None:
                for_rows = products(of_hidden, matrix, behind, turned=True)
            else:
                add_products(for_rows, of_hidden, matrix, behind, turned=True)
        assert for_rows is not None
        of_share = for_share[row].view_as(share)
        return _gathered(for_rows, groups, None), of_share, None, None, *for_tensors


def _gathered(rows: Tensor, groups: Groups, share: Tensor | None) -> Tensor:
    """The sum of a token's rows, each times its share, in one pass over them."""
    return F.embedding_bag(groups.row, rows, mode="sum", per_sample_weights=share)
