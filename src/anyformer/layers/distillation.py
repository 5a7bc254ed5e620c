"""The loss of a student beside its teacher, in chunks of rows: all logits of neither ever exist at once.

Hinton et al. 2015, arXiv:1503.02531, section 2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from anyformer.layers.cross_entropy import NOT_PREDICTED, PLAIN, LossOptions, exact, losses_of
from anyformer.layers.head import Head, chunks_of, rows_at_once
from anyformer.layers.tokens import sent_to


class Taught(NamedTuple):
    """What a teacher makes of the tokens that the student reads, and how the student follows it."""

    head: Head
    hidden: Tensor  # [batch, token, width of the teacher]: what its head reads
    weight: float
    temperature: float


def distillation(
    head: Head, hidden: Tensor, labels: Tensor, taught: Taught, options: LossOptions = PLAIN
) -> tuple[Tensor, Tensor, Tensor]:
    """(the sum of the losses, the plain cross-entropy of each label in nats, the sum of the divergences in nats).

    `hidden` [batch, token, width] and `labels` [batch, token], on the CPU, as `cross_entropy` takes them; the second result is
    [batch, token]. A loss is weight · T² · KL(teacher ‖ student), of softmax(logits / T), and 1 - weight of the
    cross-entropy with its options; where no label is, there is none. The sum of the losses alone has a gradient.
    """

    def losses(rows: Tensor, theirs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            wanted = exact(taught.head(theirs))
        return beside(exact(head(rows)), wanted, labels, taught.weight, taught.temperature, options)

    places = (labels.flatten() != NOT_PREDICTED).nonzero()[:, 0]
    if not len(places):
        nothing = exact(hidden).sum() * 0
        return nothing, nothing.detach().expand(labels.shape), nothing.detach()
    index = sent_to(places, hidden.device)
    rows, theirs = (each.flatten(0, 1).index_select(0, index) for each in (hidden, taught.hidden))
    picked = sent_to(labels.flatten()[places], hidden.device)
    size = rows_at_once(rows, len(head.table.weight))
    found = [
        checkpoint(losses, rows[here], theirs[here], picked[here], use_reentrant=False)
        for here in chunks_of(len(rows), size)
    ]
    totals, nats, divergences = zip(*found, strict=True)
    each = torch.cat(nats)
    each = each.new_zeros(labels.numel()).index_copy(0, index, each).view(labels.shape)
    return torch.stack(totals).sum(), each, torch.stack(divergences).sum()


def beside(
    logits: Tensor, wanted: Tensor, labels: Tensor, weight: float, temperature: float, options: LossOptions = PLAIN
) -> tuple[Tensor, Tensor, Tensor]:
    """Likewise of logits [row, vocab], a teacher's [row, vocab], and labels [row] beside them; the second result is [row]."""
    theirs, ours = ((each / temperature).log_softmax(-1) for each in (wanted, logits))
    divergence = (theirs.exp() * (theirs - ours)).sum(-1).masked_fill(labels == NOT_PREDICTED, 0.0)
    loss, nats = losses_of(logits, labels, options)
    total = weight * temperature**2 * divergence + (1 - weight) * loss
    return total.sum(), nats, divergence.detach().sum()
