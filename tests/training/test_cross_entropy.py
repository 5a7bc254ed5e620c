"""Chunked cross-entropy against PyTorch's on all logits, forward and backward."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer import layers
from anyformer.layers import cross_entropy as loss
from anyformer.layers import head as home
from anyformer.layers.cross_entropy import LossOptions, cross_entropy
from anyformer.layers.head import Head
from anyformer.model import build
from anyformer.spec import HeadSpec, Place, ScaleSpec, TableSpec, Vocab
from tests.training.models import VOCAB, decoder

WIDTH, ROWS = 12, 23


def head_of(**fields: object) -> Head:
    head = HeadSpec(table=TableSpec(rows=Vocab(VOCAB)), **fields).build(Place(WIDTH, (WIDTH,)))  # type: ignore[arg-type]
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0, 1.0)
    return head


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, ROWS, WIDTH, generator=generator)
    labels = torch.randint(0, VOCAB, (2, ROWS), generator=generator)
    labels[0, 3] = labels[1, 15:] = -100
    return hidden, labels


def full(head: Head, hidden: Tensor, labels: Tensor, options: LossOptions) -> tuple[Tensor, Tensor]:
    """What PyTorch gives on all logits at once."""
    logits, flat = head(hidden).flatten(0, 1), labels.flatten()
    total = F.cross_entropy(logits, flat, reduction="sum", label_smoothing=options.label_smoothing)
    real = flat != -100
    total = total + options.z_loss * (logits.logsumexp(-1).square() * real).sum()
    return total, F.cross_entropy(logits, flat, reduction="none").view(labels.shape)


def gradients(head: Head, loss: Tensor, hidden: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [hidden, *head.parameters()]))


HEADS = {
    "plain": {},
    "bias": {"bias": True},
    "scale": {"scale": ScaleSpec(power=-0.5)},
    "softcap": {"softcap": 2.0},
    "all": {"bias": True, "scale": ScaleSpec(factor=0.3), "softcap": 3.0},
    "transform": {"transform": (layers.LinearSpec(bias=True), layers.GELU(), layers.LayerNormSpec())},
}


@pytest.mark.parametrize("backend", [None, "eager"])
@pytest.mark.parametrize("options", [LossOptions(), LossOptions(0.2, 1e-3)], ids=str)
@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("few", [False, True])
def test_labels_are_weighed(
    options: LossOptions, backend: str | None, called: bool, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum alone: what each label costs is told as it is. Also where a table is called, and where few places have labels."""
    monkeypatch.setattr(loss, "backend_of", lambda *_: backend)
    monkeypatch.setattr(home, "MOST_ROWS", 5)
    head, (hidden, labels) = head_of(bias=not called, softcap=3.0), inputs()
    if called:
        monkeypatch.setattr(type(head), "matrix", lambda *_: None)
    if few:
        labels[:, 5:20] = -100
    hidden.requires_grad_()
    weights = torch.randn(labels.shape, generator=torch.Generator().manual_seed(2))
    ours, each = cross_entropy(head, hidden, labels, options, weights)
    _, theirs_each = full(head, hidden, labels, LossOptions())
    alone = [
        full(head, hidden[b : b + 1, t : t + 1], labels[b : b + 1, t : t + 1], options)[0]
        for b in (0, 1)
        for t in range(ROWS)
    ]
    theirs = (
        torch.stack([torch.nan_to_num(one) for one in alone]) * weights.flatten() * (labels != -100).flatten()
    ).sum()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(each, theirs_each, rtol=1e-5, atol=1e-5)
    for mine, one in zip(gradients(head, ours, hidden), gradients(head, theirs, hidden), strict=True):
        torch.testing.assert_close(mine, one, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(("chunk", "backend"), [(5, None), (1024, None), (5, "eager"), (1024, "eager")])
@pytest.mark.parametrize(
    "options", [LossOptions(), LossOptions(0.1), LossOptions(0.0, 1e-2), LossOptions(0.2, 1e-3)], ids=str
)
@pytest.mark.parametrize("fields", HEADS.values(), ids=HEADS)
def test_equals_the_full_one(
    fields: dict[str, object],
    options: LossOptions,
    chunk: int,
    backend: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also as a GPU computes it where layers are compiled."""
    monkeypatch.setattr(loss, "backend_of", lambda *_: backend)
    monkeypatch.setattr(home, "MOST_ROWS", chunk)
    head, (hidden, labels) = head_of(**fields), inputs()
    hidden.requires_grad_()
    ours, each = cross_entropy(head, hidden, labels, options)
    theirs, their_each = full(head, hidden, labels, options)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(each, their_each, rtol=1e-6, atol=2e-6)
    n = int((labels != -100).sum())
    for mine, other in zip(gradients(head, ours / n, hidden), gradients(head, theirs / n, hidden), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("share", "shown"), [(0.0, 46), (0.02, 1), (0.15, 7), (0.7, 32), (0.9, 46)])
@pytest.mark.parametrize("fields", HEADS.values(), ids=HEADS)
def test_of_few_labels_the_head_answers_at_their_places(
    fields: dict[str, object], share: float, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses and gradients are those of a head that answers everywhere, also where no place or one has a label."""
    head, (hidden, labels), options = head_of(**fields), inputs(), LossOptions(0.1, 1e-2)
    drawn = torch.rand(labels.shape, generator=torch.Generator().manual_seed(1)).flatten().argsort().argsort()
    chosen = (drawn < round(share * labels.numel())).view(labels.shape)
    labels = torch.where(chosen, labels.clamp(min=0), -100)
    hidden.requires_grad_()
    answered, seen = loss._answered, list[int]()

    def recorded(head: Head, rows: Tensor, *given: object) -> tuple[Tensor, Tensor]:
        seen.append(len(rows))
        return answered(head, rows, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(loss, "_answered", recorded)
    ours, each = cross_entropy(head, hidden, labels, options)
    theirs, their_each = full(head, hidden, labels, options)
    assert seen == [shown]
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(each, their_each, rtol=1e-6, atol=2e-6)
    for mine, other in zip(gradients(head, ours, hidden), gradients(head, theirs, hidden), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


def test_gradients_are_derivatives() -> None:
    """By finite differences in float64, which knows nothing of how either is computed."""
    head = head_of(bias=True, softcap=2.0)
    hidden, labels = inputs()
    hidden, labels = hidden[:1, :4], labels[:1, :4]
    hidden.requires_grad_()
    options = LossOptions(0.1, 1e-2)
    total, _ = cross_entropy(head, hidden, labels, options)
    (gradient,) = torch.autograd.grad(total, hidden)
    exact = head_of(bias=True, softcap=2.0).double()
    direction = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ahead, back = (full(exact, hidden.double() + e * direction, labels, options)[0] for e in (1e-4, -1e-4))
    assert float((gradient * direction).sum()) == pytest.approx(float(ahead - back) / 2e-4, rel=1e-4)


@pytest.mark.parametrize("backend", [None, "eager"])
def test_a_row_that_predicts_nothing_has_no_gradient_whatever_it_holds(
    backend: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "backend_of", lambda *_: backend)
    head, (hidden, labels) = head_of(), inputs()
    with torch.no_grad():
        hidden[0, 3] = float("nan")
    hidden.requires_grad_()
    total, each = cross_entropy(head, hidden, labels)
    assert torch.isfinite(total)
    assert each[0, 3] == 0
    (gradient,) = torch.autograd.grad(total, hidden)
    assert (gradient[0, 3] == 0).all()


def test_tied_tables_get_both_gradients() -> None:
    spec = decoder()
    model = build(spec)
    ids = torch.randint(0, VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))
    labels = ids.roll(-1, 1)

    def gradient(chunked: bool) -> dict[str, Tensor]:
        model.zero_grad()
        if chunked:
            hidden = model(ids, output_logits=False).last_hidden_state
            cross_entropy(model.head(), hidden, labels)[0].backward()
        else:
            F.cross_entropy(model(ids).logits.flatten(0, 1), labels.flatten(), reduction="sum").backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    ours, theirs = gradient(True), gradient(False)
    assert ours.keys() == theirs.keys() == dict(model.named_parameters()).keys()
    for name, mine in ours.items():
        torch.testing.assert_close(mine, theirs[name], rtol=1e-5, atol=1e-5)


def test_bf16_stays_near_float32() -> None:
    head, (hidden, labels) = head_of(bias=True), inputs()
    hidden.requires_grad_()
    exact = full(head, hidden, labels, LossOptions())[0]
    with torch.autocast("cpu", torch.bfloat16):
        ours = cross_entropy(head, hidden, labels)[0]
    assert ours.dtype == torch.float32
    assert float(ours.detach()) == pytest.approx(float(exact.detach()), rel=1e-2)
    mine, theirs = gradients(head, ours, hidden), gradients(head, exact, hidden)
    for a, b in zip(mine, theirs, strict=True):
        assert a.dtype == torch.float32
        assert float((a - b).norm() / b.norm()) < 0.02


def test_all_logits_never_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest tensor that any operation makes is a chunk, not [rows, vocab]."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            for value in out if isinstance(out, tuple) else (out,):
                if isinstance(value, Tensor):
                    Largest.numel = max(Largest.numel, value.numel())
            return out

    monkeypatch.setattr(home, "MOST_ROWS", 4)
    head, (hidden, labels) = head_of(bias=True, softcap=2.0), inputs()
    hidden.requires_grad_()
    with Largest():
        cross_entropy(head, hidden, labels)[0].backward()
    assert 0 < Largest.numel < 2 * ROWS * VOCAB / 3
