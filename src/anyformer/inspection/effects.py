"""What layers and branches do for a loss, and to the stream: passes without each.

A layer passed over: Men et al. 2024, arXiv:2403.03853 (ShortGPT); a branch that writes nothing: Michel et al. 2019,
arXiv:1905.10650, section 2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch.nn import functional as F

from anyformer.inference.judging import Judging
from anyformer.inspection.replay import Replay
from anyformer.inspection.results import BranchFigures, LayerFigures
from anyformer.inspection.sites import Sites, watched, without_branch, without_layers
from anyformer.layers.block import Block
from anyformer.model import Transformer
from anyformer.text import NOT_PREDICTED
from anyformer.training.data.feed import Rows, rows_at
from anyformer.training.objectives.objective import LossContext
from anyformer.training.run.evaluation import BATCH_TOKENS
from anyformer.training.step.memories import seeing

Key = TypeVar("Key", bound=Hashable)


class Change(NamedTuple):
    """What passes are made without, or otherwise."""

    first: int  # layer that it changes
    made: Callable[[], AbstractContextManager[None]]  # in which passes are changed


def judged(
    model: Transformer, judging: Judging, tokens: int, changes: Mapping[Key, Change]
) -> tuple[int, dict[Key | None, float]]:
    """(labels, the mean losses over them) of about so many tokens, always the same ones: with each change, and None.

    A pass with a change takes what layers before it give from the pass without, which is kept for one batch of rows.
    """
    ways: dict[Key | None, LossContext] = dict.fromkeys((None, *changes), _way(model, judging))
    nats, labels = dict.fromkeys(ways, 0.0), 0

    def add(key: Key | None, rows: Rows, real: np.ndarray) -> None:
        ways[key] = seeing(ways[key], model, judging.validation, rows)  # a memory is of one way
        with torch.no_grad():
            each = judging.objective(ways[key], rows).each
        nats[key] += float(each.cpu().double().numpy()[real].sum())

    for rows, _ in judging.validation.batches(BATCH_TOKENS, tokens):
        replay, real = Replay(model), rows.labels != NOT_PREDICTED
        with replay.keep():
            add(None, rows, real)
        for key, change in changes.items():
            with replay.until(change.first), change.made():
                add(key, rows, real)
        labels += int(real.sum())
    return labels, {key: each / labels for key, each in nats.items()}


def of_layers(
    model: Transformer, judging: Judging, sites: Sites, tokens: int
) -> tuple[int, float, tuple[LayerFigures, ...]]:
    """(labels, the loss, what each layer and branch does for it): a pass over the tokens for each, and for each end."""
    main, n, turns = sites.main, len(sites.layers), Turns(len(sites.layers))
    alone_or_on = (
        *(range(i, i + 1) for i in range(n)),
        *(range(i + 1, main.stop) for i in main),
    )  # the last is in both
    changes: dict[range | int | str, Change] = {
        gone: Change(gone.start, partial(without_layers, model, gone)) for gone in alone_or_on
    }
    at = {site.path: i for i, site in enumerate(sites.layers)}
    for i, site in enumerate(sites.branches):
        changes[i] = Change(at[site.of_layer], partial(without_branch, model, i))
    changes["turns"] = Change(n, partial(watched, model, Block, turns))
    labels, losses = judged(model, judging, tokens, changes)
    whole, alone, found = losses[None], defaultdict[str, list[BranchFigures]](list), []
    for i, site in enumerate(sites.branches):
        alone[site.of_layer].append(BranchFigures(site.kind, losses[i] - whole))
    for i, (site, turned) in enumerate(zip(sites.layers, turns.means(), strict=True)):
        ended = losses[range(i + 1, main.stop)] if i in main else None
        without = losses[range(i, i + 1)] - whole
        found.append(LayerFigures(site.stack, site.layer, ended, without, turned, tuple(alone[site.path])))
    return labels, whole, tuple(found)


class Turns:
    """1 - the cosine of the stream before and behind each layer, of real tokens."""

    def __init__(self, n_layers: int) -> None:
        self.sums, self.n = torch.zeros(2, n_layers, dtype=torch.float64)

    def __call__(self, i: int, given: tuple[Any, ...], made: Any) -> None:
        state, residual, context, _ = given
        before, behind = (residual.close(each)[0] for each in (state, made[0]))
        real = context.tokens.documents.expand(before.shape[:2]) > 0
        self.sums[i] += (1 - F.cosine_similarity(before, behind, dim=-1))[real].double().sum().cpu()
        self.n[i] += real.sum().cpu()

    def means(self) -> list[float]:
        return (self.sums / self.n).tolist()


def _way(model: Transformer, judging: Judging) -> LossContext:
    """The way through the model, and through what was trained beside it."""
    device = next(model.parameters()).device
    beside = judging.auxiliary and LossContext(judging.auxiliary, judging.auxiliary.head(), device)
    return LossContext(model, model.head(), device, auxiliary=beside)


def passes(model: Transformer, judging: Judging, tokens: int, *, apart: bool) -> Iterator[tuple[LossContext, Rows]]:
    """The batches that are judged, and the way through the model; each row `apart`, where its loss is its own."""
    by = _way(model, judging)
    for rows, _ in judging.validation.batches(BATCH_TOKENS, tokens):
        by = seeing(by, model, judging.validation, rows)
        alone = apart and judging.objective.one_pass and by.memory is None
        yield from ((by, rows_at(rows, slice(i, i + 1))) for i in range(len(rows.labels))) if alone else ((by, rows),)
