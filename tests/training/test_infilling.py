"""Texts whose middle stands last: rows against a plain writing of them, losses by hand, what a trained model fills in."""

import random
from functools import cache

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from anyformer.errors import TextError, UsageError
from anyformer.inference import generate
from anyformer.recipe import AdamW, CausalLM, FillInTheMiddle, Recipe
from anyformer.spec import ModelSpec
from anyformer.text import Batch, Tokenizer
from anyformer.text.filling import KNOWN
from anyformer.training.data.text import TextData
from anyformer.training.objectives.objective import LossContext, objective_of
from anyformer.training.run import RunOptions, train
from tests.training.models import decoder, encoder_decoder
from tests.training.noisy import encoded, plain_tokenizer, text_data, tokenizer
from tests.training.test_objectives import CPU, sharpened
from tests.training.test_objectives_noise import SEQ_LEN, originals, recipe

ALL = FillInTheMiddle(rate=1.0)


@cache
def spec() -> ModelSpec:
    return decoder(vocab=tokenizer().vocab_size)


def marks() -> list[int]:
    return tokenizer().encode("<|fim_prefix|><|fim_suffix|><|fim_middle|>", specials=True)


def restored(ids: list[int]) -> tuple[list[list[int]], bool]:
    """Return the prefix, middle and suffix that stand in a text, and whether it is SPM; by the places of its marks."""
    one, two, three = (ids.index(mark) for mark in marks())
    assert one == 0
    assert one < two < three
    before, suffix, last = ids[1:two], ids[two + 1 : three], ids[three + 1 :]
    return [before, last, suffix], two == 1


def texts_of(rows: Batch) -> list[tuple[int, int, list[int]]]:
    """Return (row, number, the inputs and the last label) of each document of each row."""
    found = []
    for row, document in enumerate(rows.document.tolist()):
        for number in range(1, max(document) + 1):
            here = [i for i, each in enumerate(document) if each == number]
            assert here == list(range(here[0], here[-1] + 1))
            ids, labels = (field[row].tolist()[here[0] : here[-1] + 1] for field in rows[:2])
            assert labels[:-1] == ids[1:]
            assert rows.positions[row][here].tolist() == list(range(len(here)))
            assert len(set(rows.source[row][here].tolist())) == 1
            found.append((row, number, [*ids, labels[-1]]))
    return found


def test_every_part_is_there_and_nothing_else() -> None:
    plain, rows, end = originals(), next(text_data().feed(recipe(ALL))), tokenizer().end_of_text
    before = tokenizer().encode("☺")  # so that a space which a part begins with stays
    kinds, inside = set(), 0
    for row, number, ids in texts_of(rows):
        here = plain.document[row] == number
        original, opens = plain.input_ids[row][here].tolist(), int(ids[0] == end)
        assert opens == (original[0] == end)
        assert rows.source[row][rows.document[row] == number][0] == plain.source[row][here][0]
        assert ids[-1] == end  # what ends a text ends a middle
        if len(original) == opens:
            assert len(ids) == 2
            continue
        parts, spm = restored(ids[opens:-1])
        kinds.add((spm, *map(bool, parts)))
        tokens = [token for part in parts for token in part]
        inside += tokens != original[opens:]
        assert "".join(tokenizer().decode([*before, *part])[1:] for part in parts) == tokenizer().decode(original)
        for part in parts[2 if spm else 0 :]:
            assert part == tokenizer().encode(tokenizer().decode(part))
    assert {(False, True, True, True), (True, False, True, True)} <= kinds
    assert 0 < inside < len(texts_of(rows))
    assert rows.labels.shape[1] > SEQ_LEN


def test_losses_are_of_every_next_token_of_each_document_alone() -> None:
    """Marks, prefixes and suffixes too: a plain cross-entropy of the rows as they are written, forward and backward."""
    said, model = FillInTheMiddle(), sharpened(spec())
    rows = next(text_data().feed(recipe(said)))
    assert (rows.document == 2).any()
    assert (rows.labels == marks()[2]).any()
    assert not all(marks()[2] in ids for *_, ids in texts_of(rows))
    losses = objective_of(said, spec())(LossContext(model, model.head(), CPU), rows)  # type: ignore[attr-defined]
    losses.total.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    total = torch.zeros(())
    for _, _, ids in texts_of(rows):
        logits = model(torch.tensor([ids[:-1]])).logits[0]
        total = total + F.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum")
    total.backward()
    torch.testing.assert_close(losses.total, total, rtol=1e-5, atol=0)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-3)


def test_a_share_of_the_texts_and_of_their_orders() -> None:
    feed, n, moved, spms = text_data().feed(recipe(FillInTheMiddle(rate=0.4, spm=0.3))), 0, 0, 0
    for _ in range(60):
        for *_, ids in texts_of(next(feed)):
            opens = ids[0] == tokenizer().end_of_text
            if len(ids) < 6:
                continue
            n += 1
            if ids[opens] == marks()[0]:
                moved += 1
                spms += ids[opens + 1] == marks()[1]
    # Standard deviations of some 500 and 200 draws: 0.022, 0.032. An empty prefix in PSM looks like SPM.
    assert moved / n == pytest.approx(0.4, abs=0.08)
    assert 0.2 < spms / moved < 0.48


def test_what_is_not_moved_is_as_it_was() -> None:
    plain, rows = originals(), next(text_data().feed(recipe(FillInTheMiddle(rate=1e-9))))
    for expected, found in zip(plain, rows, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_validation_is_of_the_text_as_it_is() -> None:
    """So that bits a byte compare with those of any other decoder."""
    looks = {}
    for said in (CausalLM(), ALL):
        found = text_data().validation(recipe(said))
        assert found is not None
        looks[said.kind] = [rows for rows, _ in found.batches(200)]
    for one, other in zip(*looks.values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_rows_beyond_learned_positions_are_refused() -> None:
    learned = decoder(vocab=tokenizer().vocab_size, learned_positions=SEQ_LEN + 7)
    with pytest.raises(UsageError, match=f"sequences of {SEQ_LEN + 8} tokens .* --seq-len {SEQ_LEN - 1} or less"):
        train(learned, recipe(ALL), text_data(), options=RunOptions(device=CPU))


def test_a_tokenizer_that_is_trained_for_it_has_the_marks() -> None:
    assert KNOWN[0] == FillInTheMiddle.specials


@pytest.mark.parametrize("spellings", KNOWN, ids=lambda each: each[0])
def test_marks_of_released_vocabularies_serve(spellings: tuple[str, str, str]) -> None:
    by = plain_tokenizer().with_specials(spellings)
    rows = next(text_data(by).feed(recipe(FillInTheMiddle(rate=1.0, spm=0.0))))
    (_, _, ids), *_ = texts_of(rows)
    prefix, suffix, middle = (ids.index(by.token(each) or 0) for each in spellings)
    assert prefix < suffix < middle


def test_a_vocabulary_without_marks_is_refused_naming_all_three() -> None:
    with pytest.raises(
        TextError, match=r"FillInTheMiddle needs; train one with .*prefix.*suffix.*--special '<\|fim_middle\|>'"
    ):
        text_data(plain_tokenizer()).feed(recipe(FillInTheMiddle()))


def test_models_that_write_no_text_from_the_left_are_refused() -> None:
    with pytest.raises(UsageError, match="FillInTheMiddle does not go with this architecture: it has an encoder"):
        objective_of(FillInTheMiddle(), encoder_decoder())
    with pytest.raises(UsageError, match="by CausalLM; FillInTheMiddle reads them otherwise"):
        train(spec(), recipe(FillInTheMiddle(), memory=8), text_data(), options=RunOptions(device=CPU))


@pytest.mark.slow
def test_a_middle_is_filled_by_what_stands_behind_it() -> None:
    """Texts such as (bB), whose second letter says what the first is; from the left alone one in four is right."""
    texts = [f"({a}{a.upper()})" for a in random.Random(0).choices("abcd", k=300)]
    by = Tokenizer.train(texts, 257).with_specials(FillInTheMiddle.specials)
    one = decoder(vocab=by.vocab_size)
    two = one.but(stack=one.stack.but(blocks=one.stack.blocks * 2))
    how = Recipe(
        objective=FillInTheMiddle(rate=0.9), tokens=400 * 256, batch_tokens=256, seq_len=32, optimizer=AdamW(lr=2e-2)
    )
    data, options = TextData(encoded(texts, by), None, by), RunOptions(device=CPU, plan=False, validations=0)
    model = train(two, how, data, options=options).model
    found = [generate(model, by, "(", suffix=f"{letter})", max_new_tokens=6) for letter in "ABCD"]
    assert sum(text == letter for text, letter in zip(found, "abcd", strict=True)) >= 3, found
    assert generate(model, by, "(", max_new_tokens=6) in ("aA)", "bB)", "cC)", "dD)")
