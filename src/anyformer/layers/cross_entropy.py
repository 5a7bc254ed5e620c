"""Head and cross-entropy in chunks of rows, gradients already in the forward pass: all logits never exist at once.

Label smoothing: Szegedy et al. 2015 (arXiv:1512.00567, section 7). z-loss: Chowdhery et al. 2022 (arXiv:2204.02311,
section 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from anyformer.errors import InputError
from anyformer.layers.compiled_loss import compiled
from anyformer.layers.distillation import Taught, TeacherAnswers
from anyformer.layers.execution import exact, exact_dtype, numberless, sent_to
from anyformer.layers.head import Head, chunks_of, rows_at_once
from anyformer.layers.held import row_by_row
from anyformer.layers.ranks import SplitRows, entering
from anyformer.layers.stretch import cut, joined

MOST_PICKED = 0.75  # of places that have a label: what the others cost the head is worth a copy of those
NOT_PREDICTED = -100  # PyTorch's ignore_index, which `text` writes where there is no label


@dataclass(frozen=True)
class LossOptions:
    """Terms beside the plain cross-entropy."""

    label_smoothing: float = 0.0
    z_loss: float = 0.0


PLAIN = LossOptions()


def cross_entropy(
    head: Head, hidden: Tensor, labels: Tensor, options: LossOptions = PLAIN, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(the sum of the losses, the plain cross-entropy of each label in nats, which has no gradient).

    `hidden` [batch, token, width] is the last hidden state, `labels` [batch, token] are ids, or -100 where nothing is
    predicted; the second result is [batch, token], 0 at -100. `weights` [batch, token] multiply the losses in the sum, and get
    no gradient. Where processes share rows, hidden and the sum are of this one's
    tokens. Equal to `F.cross_entropy` on the head's logits, summed. Of few labels on the CPU, wherever hidden is, the head
    answers at their places alone: elsewhere only the device knows how many there are.
    """
    own = labels if head.stretches is None else cut(labels, head.stretches)
    if weights is not None:
        weights = (weights if head.stretches is None else cut(weights, head.stretches)).reshape(-1)
    total, each, _ = _sums(head, hidden.reshape(-1, hidden.shape[-1]), own.reshape(-1), options, weights, None)
    each = each.view(own.shape)
    return total, each if head.stretches is None else joined(each, labels.shape[1], head.stretches, 1)


def distillation(
    head: Head, hidden: Tensor, labels: Tensor, taught: Taught, options: LossOptions = PLAIN
) -> tuple[Tensor, Tensor, Tensor]:
    """(the sum of the losses beside a teacher, the plain cross-entropy of each label, the sum of the divergences), in nats.

    Arguments are as for `cross_entropy`, of rows that no processes share; `taught.hidden` is [batch, token, width].
    """
    rows, theirs = (each.reshape(-1, each.shape[-1]) for each in (hidden, taught.hidden))
    total, each, divergences = _sums(head, rows, labels.reshape(-1), options, None, taught._replace(hidden=theirs))
    return total, each.view(labels.shape), divergences


# The sum of the losses, the plain one of each row, the sum of the divergences from a teacher: 0 without one.
Sums = tuple[Tensor, Tensor, Tensor]


def _sums(
    head: Head, rows: Tensor, labels: Tensor, options: LossOptions, weights: Tensor | None, taught: Taught | None
) -> Sums:
    """Likewise of rows [token, width], labels [token], weights [token] and a teacher's [token, width]."""
    in_graph = torch.compiler.is_compiling() or backend_of(head, rows) is not None  # which is of one number of rows
    if labels.is_cpu and not numberless(labels) and not in_graph:
        places = (labels != NOT_PREDICTED).nonzero()[:, 0]
        if 0 < len(places) <= MOST_PICKED * len(labels):
            index = sent_to(places, rows.device)
            picked = None if weights is None else weights.index_select(0, index)
            told = taught and taught.at(index)
            total, each, away = _answered(head, rows.index_select(0, index), labels[places], options, picked, told)
            return total, each.new_zeros(len(labels)).index_copy(0, index, each), away
    return _answered(head, rows, labels, options, weights, taught)


def _answered(
    head: Head, rows: Tensor, labels: Tensor, options: LossOptions, weights: Tensor | None, taught: Taught | None
) -> Sums:
    for step in head.transform:
        rows = step(rows)
    labels = sent_to(labels, rows.device)
    spec, matrix = head.spec, head.matrix()
    if matrix is None:
        return _called(head, rows, labels, options, weights, taught)
    matrix = row_by_row(matrix)  # once, where each chunk of rows would unpack it twice
    scale, split = 1.0 if spec.scale is None else spec.scale.value(head.place.d_model), head.split
    rows = rows if split is None else entering(rows, split.ranks)
    how = _How(scale, spec.softcap, options, split, backend_of(head, rows) if taught is None else None, taught)
    learnt = (rows, matrix, head.bias)
    if not torch.is_grad_enabled():  # PyTorch says of a function's inputs that they need gradients even then
        learnt = tuple(each if each is None else each.detach() for each in learnt)
    return _HeadCrossEntropy.apply(*learnt, labels, weights, how)


def backend_of(head: Head, rows: Tensor) -> str | None:
    """By what the loss of rows is compiled, if at all: a CPU has little to win, and of a split table processes tell another.

    In training alone, as layers are: what is compiled makes the gradient, too.
    """
    return head.backend if torch.is_grad_enabled() and rows.is_cuda and head.split is None else None


def mean_loss(head: Head, hidden: Tensor, logits: Tensor | None, labels: Tensor, *, shifted: bool) -> Tensor:
    """The mean cross-entropy of labels [batch, token], -100 left out, or of classes [batch] where the head pools.

    `hidden` [batch, token, width] is what the head reads, `logits` what it made of it, or None. `shifted`: a token
    is told its successor's label. Raises InputError for a head that says no token, for labels of another shape, and (on a
    CPU) for one that the head has no row for.
    """
    if (table := head.spec.table) is None:
        raise InputError(f"the head {head.spec.name!r} gives vectors, and labels are of logits; leave labels out")
    if head.pool is not None and logits is None:
        raise InputError(f"the head {head.spec.name!r} pools; its loss takes output_logits=True")
    answers = (hidden if logits is None else logits).shape[:-1]
    if not isinstance(labels, Tensor) or labels.shape != answers:
        said = f"have shape {tuple(labels.shape)}" if isinstance(labels, Tensor) else "are no tensor"
        raise InputError(
            f"labels {said} where the head {head.spec.name!r} answers {tuple(answers)}; "
            "give one for each answer, and leave logits_to_keep out"
        )
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise InputError(f"labels are {labels.dtype}; give whole numbers, as torch.int64 or torch.int32")
    labels = labels.long()
    if head.pool is None and shifted:
        hidden, labels = hidden[:, :-1], labels[:, 1:]
        logits = None if logits is None else logits[:, :-1]
    try:
        if logits is not None:
            return F.cross_entropy(exact(logits.flatten(0, -2)), labels.flatten(), ignore_index=NOT_PREDICTED)
        return cross_entropy(head, hidden, labels)[0] / (labels != NOT_PREDICTED).sum()
    except (IndexError, RuntimeError):
        rows = table.rows
        wrong = labels[(labels != NOT_PREDICTED) & ((labels < 0) | (labels >= rows))] if labels.is_cpu else labels[:0]
        if not len(wrong):
            raise
        raise InputError(
            f"there is no label {int(wrong[0])} of the head {head.spec.name!r}, which has those from 0 to {rows - 1}; "
            f"give {NOT_PREDICTED} where nothing is to be predicted"
        ) from None


def losses_of(
    logits: Tensor,
    labels: Tensor,
    options: LossOptions,
    weights: Tensor | None = None,
    answers: TeacherAnswers | None = None,
) -> Sums:
    """Likewise of logits [row, vocab]; what is plain, and how far a teacher is away, has no gradient."""
    nats = F.cross_entropy(logits, labels, ignore_index=NOT_PREDICTED, reduction="none")
    s = options.label_smoothing
    loss = F.cross_entropy(logits, labels, ignore_index=NOT_PREDICTED, reduction="none", label_smoothing=s)
    if options.z_loss:
        loss = loss + options.z_loss * logits.logsumexp(-1).square().masked_fill(labels == NOT_PREDICTED, 0.0)
    away = loss.new_zeros(())
    if answers is not None:
        away = answers.divergence(logits)[0].masked_fill(labels == NOT_PREDICTED, 0.0)
        loss = answers.mixed(loss, away)
    return (loss if weights is None else loss * weights).sum(), nats.detach(), away.detach().sum()


def _called(
    head: Head, rows: Tensor, labels: Tensor, options: LossOptions, weights: Tensor | None, taught: Taught | None
) -> Sums:
    """Likewise where the table is more than its weights: autograd asks it, and asks again in the backward pass."""

    def losses(rows: Tensor, labels: Tensor, weights: Tensor | None, taught: Taught | None) -> Sums:
        return losses_of(exact(head.logits(rows)), labels, options, weights, taught and taught.answers())

    found = []
    for here in chunks_of(len(rows), rows_at_once(rows, len(head.table.weight))):
        given = (None if weights is None else weights[here]), taught and taught.at(here)
        found.append(checkpoint(losses, rows[here], labels[here], *given, use_reentrant=False))
    totals, nats, away = zip(*found, strict=True)
    return torch.stack(totals).sum(), torch.cat(nats), torch.stack(away).sum()


class _How(NamedTuple):
    """How rows are answered by a table, and what is made of the answers."""

    scale: float  # of the logits
    softcap: float | None
    options: LossOptions
    split: SplitRows | None  # of a table of which this process has some rows: then the result is that of all
    backend: str | None  # by which what is between the products is compiled; beside a teacher nothing is
    taught: Taught | None


class _HeadCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        weights: Tensor | None,
        how: _How,
    ) -> Sums:
        """Likewise of hidden [row, width], weight [vocab, width], bias [vocab], labels [row], weights [row]."""
        device = hidden.device.type
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else torch.promote_types(hidden.dtype, weight.dtype)
        wanted = ctx.needs_input_grad[:3]
        with torch.autocast(device, enabled=False):
            # A row that predicts nothing is 0, and so is what it gives to the table; that costs less than on all logits.
            nothing = (labels == NOT_PREDICTED)[:, None]
            x, w = hidden.to(dtype).masked_fill(nothing, 0.0), weight.to(dtype)
            wide = exact_dtype(x)
            grads = (
                torch.empty_like(x) if wanted[0] else None,
                torch.zeros_like(weight, dtype=wide) if wanted[1] else None,
                torch.zeros_like(bias, dtype=wide) if wanted[2] and bias is not None else None,
            )
            n, vocab = len(x), len(w)
            size = rows_at_once(x, vocab)
            each = torch.empty(n, device=x.device, dtype=wide)
            total, away = (torch.zeros((), device=x.device, dtype=wide) for _ in range(2))
            # Reused by all chunks: a fresh page costs more than the arithmetic on it.
            products = torch.empty(size, vocab, device=x.device, dtype=dtype)
            workspace = torch.empty(0 if how.backend else size, vocab, device=x.device, dtype=wide)
            for here in chunks_of(n, size):
                logits = torch.mm(x[here], w.t(), out=products[: here.stop - here.start])
                weighed = None if weights is None else weights[here]
                answers = None
                if how.taught is not None:
                    with torch.autocast(device, dtype, enabled=autocast):
                        answers = how.taught.at(here).answers()
                if how.backend is None:
                    given = logits, workspace[: len(logits)], bias, labels[here], weighed, answers
                    loss, grad, far = _chunk(*given, how, each[here], any(wanted))
                    away += far
                else:
                    given = logits, bias, labels[here], nothing[here], weighed, wide
                    terms = how.options.label_smoothing, how.options.z_loss
                    loss, each[here], grad = compiled(how.backend)(*given, how.scale, how.softcap, *terms)
                total += loss
                if grad is not None:
                    _accumulate(grad, x[here], w, here, nothing[here], grads)
            if grads[0] is not None:
                grads[0].masked_fill_(nothing, 0.0)
        ctx.grads = [
            None if g is None or t is None else g.to(t.dtype)
            for g, t in zip(grads, (hidden, weight, bias), strict=True)
        ]
        ctx.mark_non_differentiable(each, away)
        return total, each, away

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if ctx.grads is None:
            raise RuntimeError("the gradients of the cross-entropy were used up by the first backward pass")
        grads, ctx.grads = ctx.grads, None
        return (*(None if g is None else g.mul_(grad_outputs[0]) for g in grads), None, None, None)


def _chunk(
    products: Tensor,
    work: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    weights: Tensor | None,
    answers: TeacherAnswers | None,
    how: _How,
    each: Tensor,
    with_grad: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """(the sum of a chunk's losses, its gradient by `products`, in a buffer, the sum of the divergences from a teacher).

    `each` takes the plain losses. Of a row that predicts nothing the gradient is whatever it is.
    """
    scale, softcap, options, split, *_ = how
    logits = products if products.dtype == work.dtype else work.copy_(products)
    if bias is not None:
        logits += bias
    if scale != 1.0:
        logits *= scale
    slope = None
    if softcap is not None:
        logits.div_(softcap).tanh_()
        slope = 1 - logits.square() if with_grad else None
        logits *= softcap
    real = labels != NOT_PREDICTED
    index, here, vocab = labels.masked_fill(~real, 0), real, logits.shape[1]
    if split is not None:
        here, index, vocab = *split.places(index, vocab), split.total
    index = index[:, None]
    picked = logits.gather(1, index)[:, 0]
    mean = logits.sum(1) / vocab if options.label_smoothing else None
    logs = torch.log_softmax(logits, 1, out=work) if logits is products else logits.log_softmax(1)
    nats = -logs.gather(1, index)[:, 0]
    norm = picked + nats  # log Z
    if split is not None:
        own, sums = norm, torch.zeros_like(norm) if mean is None else mean
        norm, picked, sums = split.joined(own, picked.masked_fill(~here, 0.0), sums)
        logs += (own - norm)[:, None]
        nats, mean = norm - picked, None if mean is None else sums
    each.copy_(nats).masked_fill_(~real, 0.0)
    loss, s = nats, options.label_smoothing
    if mean is not None:
        loss = (1 - s) * nats + s * (norm - mean)
    if options.z_loss:
        loss = loss + options.z_loss * norm.square()
    away, ours, theirs = (loss.new_zeros(()),) * 3 if answers is None else answers.divergence(logs)
    if answers is not None:
        loss = answers.mixed(loss, away)
        away = away.masked_fill(~real, 0.0).sum()
    if weights is not None:
        loss = loss * weights
    total = loss.masked_fill(~real, 0.0).sum()
    if not with_grad:
        return total, None, away
    grad = logs.exp_()
    if options.z_loss:
        grad *= (1 + 2 * options.z_loss * norm)[:, None]
    if s:
        grad -= s / vocab
    grad.scatter_add_(1, index, torch.full_like(index, s - 1.0, dtype=grad.dtype).masked_fill_(~here[:, None], 0.0))
    if answers is not None:
        grad.mul_(1 - answers.weight).add_(answers.slope(ours, theirs))
    if slope is not None:
        grad *= slope
    if scale != 1.0:
        grad *= scale
    if weights is not None:
        grad *= weights[:, None]
    return total, grad if grad.dtype == products.dtype else products.copy_(grad), away


def _accumulate(
    grad: Tensor,
    x: Tensor,
    w: Tensor,
    here: slice,
    nothing: Tensor,
    grads: tuple[Tensor | None, Tensor | None, Tensor | None],
) -> None:
    """Add what the gradient of a chunk's products gives to those of hidden states, table and bias."""
    for_hidden, for_weight, for_bias = grads
    if for_hidden is not None:
        torch.mm(grad, w, out=for_hidden[here])
    if for_weight is not None:
        if grad.dtype == for_weight.dtype:
            for_weight.addmm_(grad.t(), x)
        elif grad.is_cuda:
            torch.addmm(for_weight, grad.t(), x, out_dtype=for_weight.dtype, out=for_weight)
        else:
            for_weight += grad.t() @ x
    if for_bias is not None:
        for_bias += grad.masked_fill_(nothing, 0.0).sum(0, dtype=for_bias.dtype)
