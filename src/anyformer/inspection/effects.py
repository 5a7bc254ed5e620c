"""What layers and branches do for a loss, and to the stream: passes without each.

A layer passed over: Men et al. 2024, arXiv:2403.03853 (ShortGPT); a branch that writes nothing: Michel et al. 2019,
arXiv:1905.10650, section 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch.nn import functional as F

from anyformer.inference.judging import Judging
from anyformer.inspection.results import BranchFigures, LayerFigures
from anyformer.inspection.sites import Sites, watched, without_branch, without_layers
from anyformer.layers.block import Block
from anyformer.model import Transformer
from anyformer.training.data.feed import Rows, rows_at
from anyformer.training.objectives.objective import LossContext
from anyformer.training.run.evaluation import BATCH_TOKENS, Evaluation, evaluate
from anyformer.training.step.memories import seeing


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
    main, found = sites.main, []
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


def passes(model: Transformer, judging: Judging, tokens: int, *, apart: bool) -> Iterator[tuple[LossContext, Rows]]:
    """The batches that `loss_of` judges, and the way through the model; each row `apart`, where its loss is its own."""
    device = next(model.parameters()).device
    beside = judging.auxiliary and LossContext(judging.auxiliary, judging.auxiliary.head(), device)
    by = LossContext(model, model.head(), device, auxiliary=beside)
    for rows, _ in judging.validation.batches(BATCH_TOKENS, tokens):
        by = seeing(by, model, judging.validation, rows)
        alone = apart and judging.objective.one_pass and by.memory is None
        yield from ((by, rows_at(rows, slice(i, i + 1))) for i in range(len(rows.labels))) if alone else ((by, rows),)
