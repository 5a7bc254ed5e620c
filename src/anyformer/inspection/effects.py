"""What layers, branches, heads, neurons and experts do for a loss: measured where they are few, by the gradient where many.

A layer passed over: Men et al. 2024, arXiv:2403.03853 (ShortGPT); a branch that writes nothing, and the gradient of a gate on
each head: Michel et al. 2019, arXiv:1905.10650, section 2 and equation 2; of neurons Molchanov et al. 2017, arXiv:1611.06440.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.errors import UsageError
from anyformer.inference.judging import Judging
from anyformer.inspection.results import BranchFigures, Importance, LayerFigures
from anyformer.inspection.sites import Sites, watched, without_branch, without_layers
from anyformer.layers.block import Block
from anyformer.layers.held import HeldWeight
from anyformer.model import Transformer
from anyformer.spec import HeadMap, Weight
from anyformer.surgery import Anatomy
from anyformer.text import NOT_PREDICTED
from anyformer.training.data.feed import Rows, rows_at
from anyformer.training.objectives.objective import LossContext
from anyformer.training.run.evaluation import BATCH_TOKENS, Evaluation, evaluate
from anyformer.training.step.memories import seeing

AXES = ("d_ff", "experts", "d_model")  # of what writes to the stream, that stand for single parts, beside heads


def loss_of(model: Transformer, judging: Judging, tokens: int) -> Evaluation:
    """The losses of about so many tokens, always the same ones."""
    return evaluate(model, judging.objective, judging.validation, auxiliary=judging.auxiliary, most_tokens=tokens)


def of_layers(
    model: Transformer, judging: Judging, sites: Sites, tokens: int
) -> tuple[Evaluation, tuple[LayerFigures, ...]]:
    """(the losses, what each layer and branch does for them): a pass over the tokens for each, and for each end."""

    @cache  # ended behind the last but one, it is without the last
    def loss(gone: range) -> float:
        with without_layers(model, gone):
            return loss_of(model, judging, tokens).loss

    evaluation, turned = _turned(model, judging, sites, tokens)
    whole = evaluation.loss
    alone: dict[str, list[BranchFigures]] = {site.path: [] for site in sites.layers}
    for i, site in enumerate(sites.branches):
        with without_branch(model, i):
            alone[site.of_layer].append(BranchFigures(site.kind, loss_of(model, judging, tokens).loss - whole))
    main, found = sites.of_stack(model.spec), []
    for i, site in enumerate(sites.layers):
        without, ended = loss(range(i, i + 1)) - whole, None
        if i in main:
            ended = loss(range(i + 1, main.stop)) if i + 1 < main.stop else whole
        found.append(LayerFigures(site.stack, site.layer, ended, without, turned[i], tuple(alone[site.path])))
    return evaluation, tuple(found)


def _turned(model: Transformer, judging: Judging, sites: Sites, tokens: int) -> tuple[Evaluation, list[float]]:
    """(the losses, 1 - the cosine of the stream before and behind each layer, the mean over real tokens)."""
    sums, n = torch.zeros(len(sites.layers), dtype=torch.float64), torch.zeros(len(sites.layers), dtype=torch.float64)

    def see(i: int, given: tuple[Any, ...], made: Any) -> None:
        state, residual, context, _ = given
        before, behind = (residual.close(each)[0] for each in (state, made[0]))
        real = context.tokens.documents.expand(before.shape[:2]) > 0
        sums[i] += (1 - F.cosine_similarity(before, behind, dim=-1))[real].double().sum().cpu()
        n[i] += real.sum().cpu()

    with watched(model, Block, see):
        evaluation = loss_of(model, judging, tokens)
    return evaluation, (sums / n).tolist()


def importance(model: Transformer, judging: Judging, tokens: int) -> Importance:
    """How much a head, a neuron or an expert matters: what a row's loss would change by, to first order, if it wrote nothing.

    That is |Σ w · ∂L/∂w| over the weights w that it writes with, L the loss of one row, the sum over rows by their labels; of a
    feature of the stream, over all that writes it. Raises UsageError for weights without a gradient.
    """
    anatomy, named = Anatomy(model.spec), dict(model.named_parameters())
    widths = {"encoder": model.spec.encoder and model.spec.encoder.d_model, "stack": model.spec.stack.d_model}
    weights: dict[str, tuple[str, Weight]] = {}
    for path, each in anatomy.tensors.items():
        if each.weight.role == "output" or (each.weight.role == "table" and ".embedding." in path):
            weights.setdefault(each.name, (path.partition(".")[0], each.weight))  # of shared ones the first place
    if not weights.keys() <= named.keys() or any(isinstance(named[name], HeldWeight) for name in weights):
        raise UsageError(
            "weights in few bits, or below adapters, have no gradient of their own, by which single heads matter; "
            "load the model in float32, adapters merged"
        )
    heads: dict[str, set[HeadMap]] = {}
    for path, each in anatomy.maps:
        if each.makes == "output":
            heads.setdefault(anatomy.tensors[f"{path}weight"].name, set()).add(each)
    found: dict[str, dict[str, Tensor]] = defaultdict(dict)
    labels = 0
    for by, rows in passes(model, judging, tokens, apart=True):
        with _learning(list(named.values())):
            total = judging.objective(by, rows).total
            grads = torch.autograd.grad(total, [named[name] for name in weights], allow_unused=True)
        labels += int((rows.labels != NOT_PREDICTED).sum())
        streams: dict[str, Tensor] = {}
        for (name, (stack, weight)), grad in zip(weights.items(), grads, strict=True):
            if grad is not None:
                effect = named[name].detach() * grad
                of_heads = sorted(heads.get(name, ()), key=lambda each: each.first)
                for axis, each in _by_axis(effect, weight, of_heads):
                    if axis == "d_model" and len(each) == widths.get(stack):  # which others write to, too
                        streams[stack] = streams.get(stack, 0) + each
                    elif axis != "d_model":
                        found[name][axis] = found[name].get(axis, 0) + each.abs()
        for stack, each in streams.items():
            found[stack]["d_model"] = found[stack].get("d_model", 0) + each.abs()
    return {name: {axis: each / labels for axis, each in axes.items()} for name, axes in found.items()}


@contextmanager
def _learning(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Have all parameters take part in gradients meanwhile, frozen ones too, wherever they are asked for."""
    frozen = [each for each in parameters if not each.requires_grad and each.is_floating_point()]
    try:
        with torch.enable_grad():
            for each in frozen:
                each.requires_grad_(True)
            yield
    finally:
        for each in frozen:
            each.requires_grad_(False)


def _by_axis(effect: Tensor, weight: Weight, heads: list[HeadMap]) -> Iterator[tuple[str, Tensor]]:
    """The effect of a tensor summed by each axis that stands for single parts of the model; of heads, by head."""
    for dim, axis in enumerate(weight.axes):
        if axis in AXES:
            yield axis, _summed(effect, dim)
    if heads:
        of_columns = _summed(effect, 1)
        parts = (of_columns.narrow(0, each.first, each.n * each.width).unflatten(0, (each.n, -1)) for each in heads)
        yield "heads", torch.cat([each.sum(1) for each in parts])


def _summed(effect: Tensor, dim: int) -> Tensor:
    """The sums over all other dimensions."""
    return effect.movedim(dim, 0).flatten(1).sum(1, dtype=torch.float64).cpu()


def passes(model: Transformer, judging: Judging, tokens: int, *, apart: bool) -> Iterator[tuple[LossContext, Rows]]:
    """The batches that `loss_of` judges, and the way through the model; each row `apart`, where its loss is its own."""
    device = next(model.parameters()).device
    beside = judging.auxiliary and LossContext(judging.auxiliary, judging.auxiliary.head(), device)
    by = LossContext(model, model.head(), device, auxiliary=beside)
    for rows, _ in judging.validation.batches(BATCH_TOKENS, tokens):
        by = seeing(by, model, judging.validation, rows)
        alone = apart and judging.objective.one_pass and by.memory is None
        yield from ((by, rows_at(rows, slice(i, i + 1))) for i in range(len(rows.labels))) if alone else ((by, rows),)
