"""Objectives that restore what noise hid: losses against plain computation, rows against the text, runs that stop and go on."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from anyformer import layers
from anyformer.families.xlnet import permuted_words, xlnet
from anyformer.model import build
from anyformer.recipe import (
    UL2,
    CausalLM,
    Constant,
    Denoising,
    FillInTheMiddle,
    MaskedLM,
    ObjectiveSpec,
    PermutedLM,
    PrefixLM,
    Recipe,
    SpanCorruption,
)
from anyformer.resizing import resize
from anyformer.spec import ModelSpec
from anyformer.text import NOT_PREDICTED, Batch
from anyformer.training.checkpoint.metrics import read_metrics
from anyformer.training.objectives.denoising.noise import NoisyPairs
from anyformer.training.objectives.objective import LossContext, objective_of
from anyformer.training.objectives.permuted.loss import PermutedRows
from anyformer.training.run import Job, Run, RunOptions, train
from anyformer.training.run.baseline import trivial_loss
from anyformer.training.step import Trainer
from tests.training.crashing import Watching, hexadecimal, resumed
from tests.training.models import VOCAB, decoder, encoder_decoder
from tests.training.noisy import text_data, tokenizer
from tests.training.test_objectives import CPU, sharpened

ENCODER = decoder(layers.Everything())
XLNET = resize(xlnet(n_layers=1, d_model=16, n_heads=2), vocab_size=VOCAB)
XLNET = XLNET.but(heads=(permuted_words(XLNET),))
SEQ_LEN = 48
RESTORED = (SpanCorruption(), PrefixLM(), Denoising(rotate=True, delete_rate=0.1), UL2())
ALL = (MaskedLM(), MaskedLM(whole_words=True), PermutedLM(), FillInTheMiddle(), *RESTORED)


def by_kind(value: object) -> str | None:
    return getattr(value, "kind", None)


def recipe(objective: ObjectiveSpec, **changes: Any) -> Recipe:
    given = Recipe(
        objective=objective, tokens=SEQ_LEN * 4 * 6, batch_tokens=SEQ_LEN * 4, seq_len=SEQ_LEN, schedule=(Constant(),)
    )
    return given.but(**changes)


def fitting(objective: ObjectiveSpec) -> ModelSpec:
    models = {MaskedLM: ENCODER, PermutedLM: XLNET, FillInTheMiddle: decoder()}
    return resize(models.get(type(objective)) or encoder_decoder(), vocab_size=tokenizer().vocab_size)


def originals() -> Batch:
    """The rows that the first batch of a recipe is made of, without noise."""
    return next(text_data().feed(recipe(CausalLM())))


def test_hidden_tokens_are_predicted_from_both_sides() -> None:
    model, rng = sharpened(ENCODER), np.random.default_rng(0)
    lengths = [(5, 7), (12,), (3, 4, 2)]
    ids = np.zeros((3, 13), dtype=np.int64)
    document, positions, labels = ids.copy(), ids.copy(), np.full_like(ids, NOT_PREDICTED)
    for row, parts in enumerate(lengths):
        at = 0
        for number, n in enumerate(parts, 1):
            here = slice(at, at + n)
            ids[row, here], document[row, here], positions[row, here] = rng.integers(1, VOCAB, n), number, range(n)
            labels[row, at + n // 2] = rng.integers(1, VOCAB)
            at += n
    rows = Batch(ids, labels, document, positions, document - 1)
    total, each, *_ = objective_of(MaskedLM(), ENCODER)(LossContext(model, model.head(), CPU), rows)  # type: ignore[attr-defined]
    expected = np.zeros(labels.shape)
    for row, column in np.argwhere(labels != NOT_PREDICTED):
        here = np.flatnonzero(document[row] == document[row, column])
        with torch.no_grad():
            logits = model(torch.from_numpy(ids[row, here])[None]).logits[0, column - here[0]]
        expected[row, column] = F.cross_entropy(logits, torch.tensor(labels[row, column]))
    np.testing.assert_allclose(each.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert float(total.detach()) == pytest.approx(expected.sum(), rel=1e-5)


def test_a_target_is_written_from_the_source_of_its_own_document() -> None:
    spec, rng = encoder_decoder(), np.random.default_rng(0)
    model = sharpened(spec)
    lengths = [((4, 3), (6, 2)), ((7, 5),)]  # (source, target) of each document of each row
    sides = [np.zeros((2, 11), dtype=np.int64) for _ in range(5)]
    source_ids, source_document, target_ids, target_document, labels = sides
    labels[:] = NOT_PREDICTED
    for row, parts in enumerate(lengths):
        read = written = 0
        for number, (n, m) in enumerate(parts, 1):
            source_ids[row, read : read + n], source_document[row, read : read + n] = rng.integers(1, VOCAB, n), number
            here = slice(written, written + m)
            target_ids[row, here], target_document[row, here] = rng.integers(1, VOCAB, m), number
            labels[row, here] = rng.integers(1, VOCAB, m)
            read, written = read + n, written + m
    rows = NoisyPairs(source_ids, source_document, target_ids, target_document, labels, target_document - 1)
    _, each, *_ = objective_of(SpanCorruption(), spec)(LossContext(model, model.head(), CPU), rows)  # type: ignore[attr-defined]
    for row, parts in enumerate(lengths):
        for number in range(1, len(parts) + 1):
            read, written = source_document[row] == number, target_document[row] == number
            with torch.no_grad():
                ids, decoded = (torch.from_numpy(x)[None] for x in (source_ids[row, read], target_ids[row, written]))
                logits = model(ids, decoder_input_ids=decoded).logits[0]
            expected = F.cross_entropy(logits, torch.from_numpy(labels[row, written]), reduction="none")
            torch.testing.assert_close(each[row][torch.from_numpy(written)], expected, rtol=1e-4, atol=1e-4)
    assert (each.numpy()[labels == NOT_PREDICTED] == 0).all()


def test_a_blank_asks_for_its_token_by_what_comes_earlier_in_the_order() -> None:
    spec = fitting(PermutedLM())
    model, rows, plain = sharpened(spec), next(text_data().feed(recipe(PermutedLM(share=0.3)))), originals()
    n = plain.input_ids.shape[1]
    for kept, expected in zip((rows.input_ids, rows.document, rows.positions), plain[0:1] + plain[2:4], strict=True):
        np.testing.assert_array_equal(kept[:, :n], expected)
    assert (rows.mark[:, :n] == 0).all()
    asked = rows.labels != NOT_PREDICTED
    np.testing.assert_array_equal(asked, (rows.mark == 1))
    total, each, *_ = objective_of(PermutedLM(), spec)(LossContext(model, model.head(), CPU), rows)  # type: ignore[attr-defined]
    losses = []
    for row, column in np.argwhere(asked):
        document = plain.document[row] == rows.document[row, column]
        place = int(rows.positions[row, column])
        ids, order = plain.input_ids[row, document], rows.order[row, :n][document]
        assert sorted(order) == list(range(len(ids)))
        assert order[place] == rows.order[row, column]
        assert place > 0
        assert ids[place] == rows.labels[row, column]
        # One blank alone, in the same order, with every token that comes later taken for another.
        changed = np.where(order >= order[place], (ids + 7) % VOCAB, ids)
        given = {
            "position_ids": np.append(np.arange(len(ids)), place),
            "attention_mask": np.ones(len(ids) + 1, dtype=np.int64),
        }
        facts = {"order": np.append(order, order[place]), "mark": np.append(np.zeros_like(order), 1)}
        with torch.no_grad():
            logits = model(
                torch.from_numpy(np.append(changed, 0))[None],
                **{name: torch.from_numpy(value)[None] for name, value in given.items()},
                facts={name: torch.from_numpy(value)[None] for name, value in facts.items()},
            ).logits[0, -1]
        losses.append(float(F.cross_entropy(logits, torch.tensor(ids[place]))))
        assert float(each[row, column]) == pytest.approx(losses[-1], rel=1e-4, abs=1e-4)
    assert len(losses) > 40
    assert float(total.detach()) == pytest.approx(sum(losses), rel=1e-5)


def test_masks_hide_the_share_that_is_asked_for_and_no_special_token() -> None:
    plain, noisy = originals(), next(text_data().feed(recipe(MaskedLM(rate=0.2))))
    assert (plain.document == noisy.document).all()
    hidden = noisy.labels != NOT_PREDICTED
    assert (noisy.labels[hidden] == plain.input_ids[hidden]).all()
    assert (noisy.input_ids[~hidden] == plain.input_ids[~hidden]).all()
    special = np.isin(plain.input_ids, list(tokenizer().special_ids))
    assert special.any()
    assert not (hidden & special).any()
    for row in range(len(hidden)):
        assert hidden[row].sum() == round(0.2 * int((~special[row]).sum()))
    mask = tokenizer().encode("<mask>", specials=True)
    assert 0.6 < (noisy.input_ids[hidden] == mask).mean() < 0.95


def test_whole_words_go_together() -> None:
    noisy = next(text_data(tokenizer()).feed(recipe(MaskedLM(rate=0.3, whole_words=True))))
    plain = originals()
    spelled = [[tokenizer().spelling(int(token)) or "" for token in row] for row in plain.input_ids]
    goes_on = np.array([[word[:1].isalpha() and word[0] != "Ġ" for word in row] for row in spelled])
    goes_on[:, 1:] &= ~np.isin(plain.input_ids[:, :-1], list(tokenizer().special_ids))
    hidden = noisy.labels != NOT_PREDICTED
    assert goes_on[:, 1:].sum() > 20, "the vocabulary must cut some words"
    assert (hidden[:, 1:] == hidden[:, :-1])[goes_on[:, 1:]].all()


def test_sources_and_targets_make_the_text_again() -> None:
    rows, plain, end = next(text_data().feed(recipe(SpanCorruption()))), originals(), tokenizer().end_of_text
    sentinels = tokenizer().encode("".join(f"<extra_id_{i}>" for i in range(100)), specials=True)
    restored = 0
    for row in range(len(rows.labels)):
        for number in range(1, int(plain.document[row].max()) + 1):
            text = [int(t) for t in plain.input_ids[row][plain.document[row] == number] if t != end]
            source = rows.source_ids[row][rows.source_document[row] == number].tolist()
            here = rows.target_document[row] == number
            target, read = rows.labels[row][here].tolist(), rows.target_ids[row][here].tolist()
            assert source.pop() == end
            assert read == [end, *target[:-1]]
            assert target.pop() == end
            assert target.pop() in sentinels or len(text) == 1
            assert (rows.source[row][here] == plain.source[row][plain.document[row] == number][0]).all()
            if len(text) == 1:
                continue
            spans: dict[int, list[int]] = {}
            for token in target:
                if token in sentinels:
                    spans[token] = []
                else:
                    spans[next(reversed(spans))].append(token)
            assert [x for token in source for x in (spans.get(token, []) if token in sentinels else [token])] == text
            restored += 1
    assert restored > 4


def test_a_denoised_text_is_the_whole_text_and_a_mixture_says_its_mode() -> None:
    rows, plain, end = next(text_data().feed(recipe(Denoising()))), originals(), tokenizer().end_of_text
    mask = tokenizer().encode("<mask>", specials=True)[0]
    for row, document in enumerate(plain.document):
        text = [int(t) for t in plain.input_ids[row][document == 1] if t != end]
        assert rows.labels[row][rows.target_document[row] == 1].tolist() == [*text, end]
        left = Counter(rows.source_ids[row][rows.source_document[row] == 1].tolist())
        assert set(left) - {mask} <= {*text, end}
    assert (rows.source_ids == mask).any()
    mixed = next(text_data().feed(recipe(UL2())))
    first = np.diff(mixed.source_document, axis=1, prepend=0) > 0
    modes = {tokenizer().spelling(int(token)) for token in mixed.source_ids[first]}
    assert modes <= {"[R]", "[S]", "[X]"}
    assert len(modes) > 1


@pytest.mark.parametrize("objective", ALL, ids=by_kind)
def test_noise_is_a_function_of_seed_step_and_row(objective: ObjectiveSpec) -> None:
    given = recipe(objective)
    straight, again = text_data().feed(given), text_data().feed(given)
    batches = [next(straight) for _ in range(14)]  # further than an epoch
    for _ in range(2):
        next(again)
    later = text_data().feed(given)
    later.restore(dict(again.state()))
    for expected in batches[2:]:
        for one, other in zip(next(later), expected, strict=True):
            np.testing.assert_array_equal(one, other)
    other_seed = next(text_data().feed(given.but(seed=1)))
    assert other_seed.labels.shape != batches[0].labels.shape or (other_seed.labels != batches[0].labels).any()
    widest = max(max(documents(batch)) for batch in batches)
    assert widest <= text_data().longest(encoder_decoder(), given, SEQ_LEN)
    validation = text_data().validation(given)
    assert validation is not None
    for (one, _), (other, _) in zip(validation.batches(200), validation.batches(200), strict=True):
        np.testing.assert_array_equal(one.labels, other.labels)


def documents(rows: Any) -> list[int]:
    """Tokens of each document on either side."""
    if isinstance(rows, PermutedRows):
        rows = Batch(*(np.where(rows.mark == 0, rows.document, 0) for _ in Batch._fields))
    sides = [rows.document] if isinstance(rows, Batch) else [rows.source_document, rows.target_document]
    return [int((row == number).sum()) for side in sides for row in side for number in range(1, row.max() + 1)]


@pytest.mark.parametrize("objective", [MaskedLM(), SpanCorruption(), FillInTheMiddle()], ids=by_kind)
def test_a_run_that_crashed_goes_on_bit_for_bit(objective: ObjectiveSpec, tmp_path: Path) -> None:
    options, spec, given = (
        RunOptions(device=CPU, save_every=2, validations=2, plan=False),
        fitting(objective),
        recipe(objective),
    )
    straight = train(spec, given, text_data(), options=options)
    again = resumed(5, spec, given, text_data(), out=tmp_path / "run", options=options)
    assert hexadecimal(again) == hexadecimal(straight)
    looks = read_metrics(tmp_path / "run").validations
    assert looks[-1].unigram_loss == straight.unigram_loss
    assert straight.flops_per_token > 0


def test_a_plan_counts_flops_by_the_places_that_it_counts() -> None:
    how = RunOptions(device=CPU, plan=False, validations=0)
    few, many = (
        Run(Job(fitting(each), recipe(each), text_data()), how) for each in (MaskedLM(rate=0.1), MaskedLM(rate=0.4))
    )
    assert few.plan().flops_per_token == many.plan().flops_per_token  # whatever share of the places is predicted
    assert many.plan().flops_per_token * many.recipe.tokens == pytest.approx(
        many.go(Watching()).steps[-1].flops, rel=0.2
    )


@pytest.mark.parametrize("objective", ALL, ids=by_kind)
def test_micro_batches_add_up(objective: ObjectiveSpec) -> None:
    spec, given = fitting(objective), recipe(objective)
    batch = next(text_data().feed(given))
    gradients = []
    for micro_tokens in (None, 2 * SEQ_LEN, 1):
        trainer = Trainer(build(spec), given, objective_of(objective, spec), micro_tokens=micro_tokens)
        mean, tokens, *_ = trainer.gradients(1, batch)
        gradients.append((mean, tokens, [p.grad for p in trainer.parameters]))
    for mean, tokens, grads in gradients[1:]:
        assert (mean, tokens) == (pytest.approx(gradients[0][0], rel=1e-6), gradients[0][1])
        torch.testing.assert_close(grads, gradients[0][2], rtol=1e-4, atol=1e-6)


def test_the_trivial_baseline_is_the_frequency_of_labels() -> None:
    data, given = text_data(), recipe(MaskedLM())
    validation = data.validation(given)
    assert validation is not None
    feed, counts = data.feed(given), Counter[int]()
    for _ in range(3):
        counts.update(int(t) for t in next(feed).labels.ravel() if t != NOT_PREDICTED)
    labels = [int(t) for rows, _ in validation.batches(64) for t in rows.labels.ravel() if t != NOT_PREDICTED]
    n = sum(counts.values()) + data.vocab_size
    expected = sum(-math.log((counts[label] + 1) / n) for label in labels) / len(labels)
    three = given.but(tokens=3 * given.batch_tokens)
    assert trivial_loss(three, data, validation) == pytest.approx(expected, rel=1e-12)
