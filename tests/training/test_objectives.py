"""Objectives against plain computation, and the architectures that they refuse."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from anyformer import layers
from anyformer.errors import UsageError
from anyformer.model import build
from anyformer.recipe import CausalLM, ObjectiveSpec, Seq2Seq
from anyformer.spec import ModelSpec
from anyformer.text import NOT_PREDICTED, Batch, PairBatch, pack
from anyformer.training.objectives import OBJECTIVES
from anyformer.training.objectives.causal.loss import CausalObjective
from anyformer.training.objectives.objective import LossContext, Objective, loss_of, objective_of
from tests.training.models import VOCAB, decoder, encoder_decoder
from tests.training.texts import encoded

CPU = torch.device("cpu")


def sharpened(spec: ModelSpec) -> torch.nn.Module:
    """A model whose logits spread: near-uniform ones would hide a wrong mask."""
    model = build(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    return model


def packed() -> Batch:
    text = pack(encoded(12), 24, seed=0)
    return text.batch(np.arange(text.n_rows))


@pytest.mark.parametrize("spec", [decoder(), decoder(learned_positions=24)], ids=["rotary", "learned"])
def test_causal_is_each_document_by_itself(spec: ModelSpec) -> None:
    model, batch = sharpened(spec), packed()
    assert (batch.document == 2).any(), "the batch must hold rows of several documents"
    total, each, *_ = objective_of(CausalLM(), spec)(LossContext(model, model.head(), CPU), batch)  # type: ignore[attr-defined]
    expected = np.zeros(batch.labels.shape)
    for r in range(len(batch.labels)):
        for number in range(1, batch.document[r].max() + 1):
            here = batch.document[r] == number
            with torch.no_grad():
                logits = model(torch.from_numpy(batch.input_ids[r][here])[None]).logits[0]
            expected[r, here] = F.cross_entropy(logits, torch.from_numpy(batch.labels[r][here]), reduction="none")
    np.testing.assert_allclose(each.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert float(total.detach()) == pytest.approx(expected.sum(), rel=1e-5)
    assert (each.numpy()[batch.labels == NOT_PREDICTED] == 0).all()


def test_teacher_forcing_is_each_pair_by_itself() -> None:
    spec = encoder_decoder()
    model = sharpened(spec)
    rng = np.random.default_rng(0)
    sources = [rng.integers(1, VOCAB, n) for n in (3, 7, 5)]
    targets = [rng.integers(1, VOCAB, n) for n in (6, 2, 4)]

    def padded(rows: list[np.ndarray], padding: int) -> np.ndarray:
        out = np.full((len(rows), max(map(len, rows))), padding, dtype=np.int64)
        for i, row in enumerate(rows):
            out[i, : len(row)] = row
        return out

    begun = [np.concatenate(([0], target[:-1])) for target in targets]
    labels = padded(targets, NOT_PREDICTED)
    source_mask = padded([np.ones(len(s)) for s in sources], 0).astype(bool)
    batch = PairBatch(padded(sources, 0), source_mask, padded(begun, 0), labels != NOT_PREDICTED, labels)
    _, each, *_ = objective_of(Seq2Seq(), spec)(LossContext(model, model.head(), CPU), batch)  # type: ignore[attr-defined]
    for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
        with torch.no_grad():
            ids, decoded = torch.from_numpy(source)[None], torch.from_numpy(begun[i])[None]
            logits = model(ids, decoder_input_ids=decoded).logits[0]
        expected = F.cross_entropy(logits, torch.from_numpy(target), reduction="none")
        torch.testing.assert_close(each[i, : len(target)], expected, rtol=1e-4, atol=1e-4)
        assert (each[i, len(target) :] == 0).all()


@pytest.mark.parametrize(
    ("objective", "spec", "says"),
    [
        (CausalLM(), encoder_decoder(), "it has an encoder"),
        (CausalLM(), decoder(layers.Everything()), "its Everything mask lets a token see"),
        (CausalLM(), decoder(layers.SlidingWindow(size=4)), "its SlidingWindow mask"),  # type: ignore[arg-type]
        (CausalLM(), decoder(layers.SymmetricWindow(radius=2)), "its SymmetricWindow mask"),  # type: ignore[arg-type]
        (CausalLM(), decoder(layers.Causal() | layers.Prefix()), "its Or mask"),
        (CausalLM(), decoder(layers.Heads(masks=(layers.Causal(), layers.Everything()))), "its Heads mask"),
        (CausalLM(), decoder().but(heads=()), "it has no head"),
        (Seq2Seq(), decoder(), "it has no encoder"),
        (Seq2Seq(), encoder_decoder(layers.Everything()), "the Everything mask of its decoder"),
        (Seq2Seq(), encoder_decoder(cross=False), "never reads the encoder"),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "kind", None),
)
def test_what_an_architecture_cannot_do_is_refused(objective: ObjectiveSpec, spec: ModelSpec, says: str) -> None:
    with pytest.raises(UsageError, match=f"{objective.kind} does not go with this architecture: .*{says}"):
        objective_of(objective, spec)


@pytest.mark.parametrize(
    "mask",
    [layers.Causal(), layers.Causal() & layers.SlidingWindow(size=4), layers.Heads(masks=(layers.Causal(),))],  # type: ignore[arg-type]
    ids=str,
)
def test_causal_masks_are_taken(mask: layers.Mask) -> None:
    objective_of(CausalLM(), decoder(mask))


class Unlearnt(ObjectiveSpec):
    """Data alone."""


@pytest.mark.parametrize("said", OBJECTIVES.values(), ids=OBJECTIVES)
def test_each_has_the_loss_of_its_own_folder(said: ObjectiveSpec) -> None:
    """Also where its specification descends from another's: NextSentence is a MaskedLM, MultiToken a CausalLM."""
    assert loss_of(type(said)).__module__ == f"{type(said).__module__}.loss"


def test_a_loss_is_of_the_specification_that_it_names_alone() -> None:
    class Later(CausalLM):
        """A descendant has its ancestor's loss until it has one of its own."""

    class Quieter(CausalObjective):
        """Names none, and takes none over."""

    assert loss_of(CausalLM) is loss_of(Later) is CausalObjective

    class LaterObjective(Quieter, Objective[Later]):  # pyright: ignore[reportGeneralTypeIssues]
        """Names its own."""

    assert loss_of(CausalLM) is CausalObjective
    assert loss_of(Later) is LaterObjective


def test_one_without_a_loss_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Unlearnt has no loss; write a class \w+\(Objective\[Unlearnt\]\)"):
        objective_of(Unlearnt(), decoder())
