"""Sentence embeddings: losses and gradients against plain loops, what may be no negative, runs that learn, stop and go on."""

import math
import random
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anyformer import layers
from anyformer.errors import AnyformerError, SpecError, TextError, UsageError
from anyformer.families.heads import sentence_embedding
from anyformer.model import build
from anyformer.recipe import AdamW, Constant, Contrastive, DropoutSpec, Recipe, Seq2Seq, dumps, loads
from anyformer.resizing import resize
from anyformer.spec import ModelSpec
from anyformer.text import ParallelCorpus, Tokenizer
from anyformer.training.objectives.architecture import usual
from anyformer.training.objectives.contrastive.data import ContrastData, ContrastRows, batch_pairs
from anyformer.training.objectives.contrastive.loss import usual_pool
from anyformer.training.objectives.objective import LossContext, objective_of, with_head_for
from anyformer.training.run import RunOptions, TrainingResult, train
from anyformer.training.step import Trainer
from tests.training.crashing import resumed
from tests.training.models import decoder, encoder_decoder
from tests.training.test_objectives import CPU, sharpened

ENCODER = with_head_for(decoder(layers.Everything()), Contrastive())
DECODER = with_head_for(decoder(), Contrastive())
HOW = RunOptions(device=CPU, validations=2, plan=False)
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
WORDS = ("eins", "zwei", "drei", "vier", "funf", "sechs", "sieben", "acht", "neun", "zehn")


def pairs(n: int, seed: int) -> ParallelCorpus:
    """Numbers in English and in German."""
    rng = random.Random(seed)
    drawn = [rng.choices(range(10), k=rng.randint(1, 4)) for _ in range(n)]
    return ParallelCorpus(tuple((" ".join(NUMBERS[i] for i in row), " ".join(WORDS[i] for i in row)) for row in drawn))


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.train(pairs(60, 0).texts(), 300).with_specials((), Contrastive.roles)


def data(n: int = 60) -> ContrastData:
    return ContrastData(pairs(n, 1), pairs(12, 2), tokenizer())


def recipe(objective: Contrastive | None = None, **changes: Any) -> Recipe:
    given = Recipe(
        objective=objective or Contrastive(),
        tokens=6 * 160,
        batch_tokens=160,
        seq_len=32,
        schedule=(Constant(),),
        optimizer=AdamW(lr=3e-3),
    )
    return given.but(**changes)


def fitting(spec: ModelSpec = ENCODER) -> ModelSpec:
    return resize(spec, vocab_size=tokenizer().vocab_size)


def by_hand(source: np.ndarray, target: np.ndarray, temperature: float, negatives: np.ndarray) -> Any:
    """Return (loss of each source, gradient of their sum by source, by target), by the formulas and in float64.

    With p_ij the softmax of the cosines c_ij / t over the targets allowed, dL/dc_ij = (p_ij - [i = j]) / t, and the cosine of
    a and b has the gradient (b/|b| - c a/|a|) / |a| by a.
    """
    n = len(source)
    losses, by_source, by_target = np.zeros(n), np.zeros_like(source), np.zeros_like(target)
    for i in range(n):
        lengths = [float(np.linalg.norm(b)) for b in target]
        mine = float(np.linalg.norm(source[i]))
        cosines = [float(source[i] @ target[j]) / mine / lengths[j] for j in range(n)]
        allowed = [j for j in range(n) if j == i or negatives[i, j]]
        total = sum(math.exp(cosines[j] / temperature) for j in allowed)
        losses[i] = math.log(total) - cosines[i] / temperature
        for j in allowed:
            slope = (math.exp(cosines[j] / temperature) / total - (i == j)) / temperature
            by_source[i] += slope * (target[j] / lengths[j] - cosines[j] * source[i] / mine) / mine
            by_target[j] += slope * (source[i] / mine - cosines[j] * target[j] / lengths[j]) / lengths[j]
    return losses, by_source, by_target


def rows_of(n: int, group: list[list[int]] | None = None) -> ContrastRows:
    ids = np.ones((n, 3), dtype=np.int64)
    own = np.arange(n)[:, None]
    return ContrastRows(ids, ids, ids > 0, ids > 0, np.repeat(own, 2, 1) if group is None else np.array(group), own)


def losses_of(vectors: Tensor, rows: ContrastRows, said: Contrastive) -> Any:
    def forward(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(outputs={"embedding": vectors}, notes=())

    return objective_of(said, ENCODER)(LossContext(forward, None, CPU), rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_losses_and_gradients_are_those_of_the_formula(temperature: float) -> None:
    rng = np.random.default_rng(0)
    source, target = rng.normal(size=(2, 5, 7))
    target[:3] += 2 * source[:3]
    vectors = torch.tensor(np.concatenate((source, target)), requires_grad=True)
    found = losses_of(vectors, rows_of(5), Contrastive(temperature=temperature))
    losses, by_source, by_target = by_hand(source, target, temperature, np.ones((5, 5), dtype=bool))
    found.total.backward()
    assert vectors.grad is not None
    np.testing.assert_allclose(found.each[:, 0].numpy(), losses, atol=1e-9)
    np.testing.assert_allclose(float(found.total.detach()), losses.sum(), atol=1e-9)
    np.testing.assert_allclose(vectors.grad.numpy(), np.concatenate((by_source, by_target)), atol=1e-9)


def test_a_symmetric_loss_is_the_mean_of_both_directions() -> None:
    rng = np.random.default_rng(1)
    source, target = rng.normal(size=(2, 4, 6))
    vectors = torch.tensor(np.concatenate((source, target)), requires_grad=True)
    found = losses_of(vectors, rows_of(4), Contrastive(symmetric=True))
    found.total.backward()
    everyone = np.ones((4, 4), dtype=bool)
    there, back = by_hand(source, target, 0.05, everyone), by_hand(target, source, 0.05, everyone)
    assert vectors.grad is not None
    np.testing.assert_allclose(float(found.total.detach()), (there[0].sum() + back[0].sum()) / 2, atol=1e-9)
    np.testing.assert_allclose(found.each[:, 0].numpy(), there[0], atol=1e-9)
    by_vectors = np.concatenate((there[1] + back[2], there[2] + back[1])) / 2
    np.testing.assert_allclose(vectors.grad.numpy(), by_vectors, atol=1e-9)


def test_twins_are_no_negatives() -> None:
    """Rows 0 and 2 have one target, rows 1 and 3 one source: each other's targets are right too."""
    group = [[0, 0], [1, 1], [2, 0], [1, 3]]
    negatives = np.ones((4, 4), dtype=bool)
    negatives[0, 2] = negatives[2, 0] = negatives[1, 3] = negatives[3, 1] = False
    rng = np.random.default_rng(2)
    source, target = rng.normal(size=(2, 4, 6))
    target[2], source[3] = target[0], source[1]
    rows = rows_of(4, group)
    found = losses_of(torch.tensor(np.concatenate((source, target))), rows, Contrastive())
    np.testing.assert_allclose(found.each[:, 0].numpy(), by_hand(source, target, 0.05, negatives)[0], atol=1e-9)
    np.testing.assert_allclose(rows.chance(), np.full((4, 1), math.log(3)))


@pytest.mark.parametrize("spec", [ENCODER, DECODER], ids=["encoder", "decoder"])
def test_a_batch_is_what_texts_are_alone(spec: ModelSpec) -> None:
    """Each text run by itself, without padding: its mean, or its last token's vector; and the gradients of all weights."""
    rows = next(data().feed(recipe()))
    model: Any = sharpened(fitting(spec))
    assert rows.source_mask.sum(1).min() < rows.source_ids.shape[1]
    found = objective_of(Contrastive(), model.spec)(LossContext(model, model.head(), CPU), rows)
    found.total.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()

    def alone(ids: np.ndarray, mask: np.ndarray) -> Tensor:
        hidden = model(torch.tensor(ids[mask])[None]).last_hidden_state[0]
        vector = hidden.mean(0) if spec is ENCODER else hidden[-1]
        return vector / vector.norm()

    source = [alone(*row) for row in zip(rows.source_ids, rows.source_mask, strict=True)]
    target = [alone(*row) for row in zip(rows.target_ids, rows.target_mask, strict=True)]
    each = []
    for i, a in enumerate(source):
        rivals = [j for j in range(len(target)) if j == i or (rows.group[j] != rows.group[i]).all()]
        logits = torch.stack([a @ target[j] / 0.05 for j in rivals])
        each.append(logits.logsumexp(0) - logits[rivals.index(i)])
    torch.stack(each).sum().backward()
    torch.testing.assert_close(found.each[:, 0], torch.stack(each).detach(), atol=2e-5, rtol=1e-5)
    reached = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert reached == set(gradients)
    for name, p in model.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(gradients[name], p.grad, atol=3e-5, rtol=1e-3)


def test_a_text_is_its_own_target_under_other_dropout() -> None:
    """SimCSE: without dropout both vectors are one; with it they part, and by step and seed alone."""
    same = ParallelCorpus(tuple((source, source) for source, _ in pairs(40, 3).pairs))
    given = recipe(dropout=DropoutSpec(residual=0.3), seed=4)
    rows = next(ContrastData(same, None, tokenizer()).feed(given))

    def losses(chosen: Recipe, step: int) -> float:
        model = build(fitting(), 0)
        return Trainer(model, chosen, objective_of(chosen.objective, model.spec)).gradients(step, rows)[0]

    assert losses(given, 1) == losses(given, 1)
    assert losses(given, 1) != losses(given, 2)
    assert losses(given, 1) > losses(recipe(), 1) + 1e-3


@pytest.fixture(scope="module")
def learned() -> TrainingResult:
    return train(fitting(), recipe(tokens=160 * 150), data(300), options=HOW)


def test_a_trained_model_finds_translations(learned: TrainingResult) -> None:
    assert learned.evaluation is not None
    chance = learned.unigram_loss
    assert chance is not None
    assert chance <= math.log(12)
    assert learned.evaluation.loss < 0.5 * chance
    assert learned.evaluation.tokens == 12


def test_validation_batches_are_of_one_size() -> None:
    """So that no last batch of a few pairs makes the loss look better; each pair once."""
    given = ContrastData(pairs(60, 1), pairs(25, 2), tokenizer())
    n = batch_pairs(recipe(), given.longest(DECODER, recipe(), recipe().seq_len))
    validation = given.validation(recipe())
    assert validation is not None
    found = list(validation.batches(1))
    assert 1 < len(found) == -(-25 // n)
    assert max(len(rows.labels) for rows, _ in found) - min(len(rows.labels) for rows, _ in found) <= 1
    assert sorted(int(i) for _, numbers in found for i in numbers[:, 0]) == list(range(25))


def test_a_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    given = recipe(dropout=DropoutSpec(residual=0.1), tokens=8 * 160)
    whole = train(fitting(DECODER), given, data(), options=HOW)
    options = RunOptions(device=CPU, validations=2, plan=False, save_every=3)
    again = resumed(5, fitting(DECODER), given, data(), out=tmp_path / "run", options=options)
    assert [m.loss.hex() for m in again.steps] == [m.loss.hex() for m in whole.steps]
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), whole.model.parameters(), strict=True))


def test_every_pair_is_seen_once_an_epoch_in_batches_of_one_size() -> None:
    given = data()
    feed, n = given.feed(recipe()), batch_pairs(recipe(), given.longest(DECODER, recipe(), recipe().seq_len))
    assert 60 % n == 0
    seen = [
        tuple(row[mask])
        for _ in range(60 // n)
        for batch in [next(feed)]
        for row, mask in zip(batch[0], batch[2], strict=True)
    ]
    by = given.tokenizer
    assert sorted(seen) == sorted(tuple(by.frame((source,)).ids) for source, _ in pairs(60, 1).pairs)


def test_an_architecture_gets_the_head_that_suits_it() -> None:
    assert usual_pool(decoder(layers.Everything())) == layers.MeanTokensSpec()
    assert usual_pool(decoder()) == layers.LastTokenSpec()
    assert [head.name for head in ENCODER.heads] == ["embedding"]
    assert with_head_for(ENCODER, Contrastive()) == ENCODER
    assert usual(ENCODER, "pairs") == Contrastive()
    assert usual(decoder(), "pairs") == Seq2Seq()


UNPOOLED = sentence_embedding().but(pool=None)
LONG = ParallelCorpus((("one", "eins"), ("two " * 40, "zwei")) * 20)


@pytest.mark.parametrize(
    ("spec", "given", "changes", "error", "says"),
    [
        (encoder_decoder(), data(), {}, UsageError, "it is an encoder and a decoder"),
        (decoder(), data(), {}, UsageError, "it has no head 'embedding'"),
        (decoder(head=UNPOOLED), data(), {}, UsageError, "gives a vector for each token"),
        (ENCODER, ContrastData(LONG, None, tokenizer()), {}, TextError, "the source of pair 2 is .* tokens long"),
        (ENCODER, data(), {"batch_tokens": 20}, TextError, "a batch of 20 tokens holds 1 pairs"),
        (ENCODER, data(4), {}, TextError, "the 4 pairs are less than one batch"),
        (ENCODER, ContrastData(pairs(60, 1), pairs(1, 2), tokenizer()), {}, TextError, "a single pair to validate on"),
        (ENCODER, data(), {"label_smoothing": 0.1}, UsageError, "label_smoothing"),
        (ENCODER, data(), {"z_loss": 0.1}, UsageError, "z_loss"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_is_refused(
    spec: ModelSpec,
    given: ContrastData,
    changes: dict[str, Any],
    error: type[AnyformerError],
    says: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(error, match=says):
        train(
            resize(spec, vocab_size=tokenizer().vocab_size), recipe(**changes), given, out=tmp_path / "run", options=HOW
        )
    assert not (tmp_path / "run").exists()


def test_a_batch_is_not_computed_in_parts(tmp_path: Path) -> None:
    options = RunOptions(device=CPU, micro_tokens=64)
    with pytest.raises(UsageError, match="negatives"):
        train(fitting(), recipe(), data(), out=tmp_path / "run", options=options)
    assert not (tmp_path / "run").exists()


def test_long_texts_are_cut_where_that_is_asked_for() -> None:
    given = ContrastData(LONG, None, tokenizer())
    rows = next(given.feed(recipe(Contrastive(truncate=True))))
    assert rows.source_ids.shape[1] == 32
    assert given.cut(recipe(Contrastive(truncate=True))) == 20
    last = rows.source_ids[rows.source_mask.sum(1) == 32][:, -1]
    assert set(last.tolist()) == {tokenizer().end_of_text}


def test_a_temperature_is_above_zero_and_recipes_carry_it() -> None:
    with pytest.raises(SpecError, match="must be above 0"):
        Contrastive(temperature=0.0)
    given = recipe(Contrastive(temperature=0.1, symmetric=True, truncate=True))
    assert loads(dumps(given)) == given
