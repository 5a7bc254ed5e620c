"""Penalties and min_p are those of transformers, number for number, and their texts its texts; a bias has its token written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from anyformer.errors import InputError
from anyformer.families import preset
from anyformer.generation import Decoding, DraftModel, Sampling, SpeculativeDecoding, generate_ids
from anyformer.generation.penalties import Penalties
from anyformer.resizing import shrink
from tests.generation.test_decode import LOWERED, NEW, alone, decoder, padded
from tests.generation.test_speculative import like
from tests.laws.inputs import inputs_for
from tests.laws.models import ids_for, randomised
from tests.laws.parity import beginning, generated, pair

VOCAB = 9
logits_of = st.lists(st.floats(-20, 20), min_size=VOCAB, max_size=VOCAB)


@given(logits_of, st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12), st.floats(0.1, 4))
@settings(deadline=None)
def test_repetition_is_that_of_transformers(row: list[float], prompt: list[int], penalty: float) -> None:
    ids, logits = torch.tensor([prompt]), torch.tensor([row], dtype=torch.float64)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(ids, logits)  # type: ignore[arg-type]
    penalties = Penalties(Sampling(repetition_penalty=penalty), ids, None, VOCAB, (), NEW)
    torch.testing.assert_close(penalties.applied(logits), expected, rtol=1e-15, atol=0)
    written = Penalties(Sampling(repetition_penalty=penalty), ids[:, :1], None, VOCAB, (), NEW)
    written.add(ids[:, 1:])
    torch.testing.assert_close(written.applied(logits), expected, rtol=1e-15, atol=0)


@given(logits_of, st.floats(0.01, 1), st.floats(0.2, 3))
@settings(deadline=None)
def test_min_p_is_that_of_transformers(row: list[float], share: float, temperature: float) -> None:
    logits = torch.tensor([row], dtype=torch.float64)
    probabilities = (logits / temperature).softmax(-1)
    if bool(((probabilities / probabilities.max() - share).abs() < 1e-9).any()) and share < 1:
        return  # rounding decides
    expected = MinPLogitsWarper(share)(torch.zeros(1, 1, dtype=torch.long), logits / temperature).softmax(-1)  # type: ignore[arg-type]
    found = Sampling(temperature, min_p=share).probabilities(logits)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@given(
    logits_of,
    st.lists(st.integers(0, 3), min_size=1, max_size=16),
    st.integers(0, 5),
    st.integers(1, 5),
    st.sets(st.integers(0, VOCAB - 1), max_size=3),
    st.sampled_from([None, 6]),
)
@settings(deadline=None)
def test_what_is_forbidden_is_that_of_transformers(
    row: list[float], text: list[int], n_new: int, size: int, suppressed: set[int], last: int | None
) -> None:
    """In a text of few tokens, which repeats itself, early and late in it; where all would be forbidden, none is."""
    n_new, least, most = min(n_new, len(text) - 1), 3, 6
    ids, logits = torch.tensor([text]), torch.tensor([row], dtype=torch.float64)
    end = torch.tensor([4, 6])
    theirs: Any = LogitsProcessorList(
        [
            NoRepeatNGramLogitsProcessor(size),
            MinNewTokensLengthLogitsProcessor(len(text) - n_new, least, end),  # type: ignore[arg-type]
            SuppressTokensLogitsProcessor(sorted(suppressed)),
        ]
    )
    expected = theirs(ids, logits)
    expected = expected if bool(expected.isfinite().any()) else logits
    if last is not None:
        expected = ForcedEOSTokenLogitsProcessor(len(text) - n_new + most, last)(ids, expected)  # type: ignore[arg-type]
    how = Sampling(no_repeat_ngram_size=size, min_new_tokens=least, suppressed=tuple(suppressed), last_token=last)
    penalties = Penalties(how, ids[:, : len(text) - n_new], None, VOCAB, (4, 6), most)
    penalties.add(ids[:, len(text) - n_new :])
    torch.testing.assert_close(penalties.applied(logits), expected, rtol=0, atol=0)


def test_padding_is_no_token_of_the_prompt() -> None:
    ids, mask = torch.tensor([[7, 2], [3, 2]]), torch.tensor([[0, 1], [1, 1]])
    found = Penalties(Sampling(repetition_penalty=2.0, bias=((5, -1.0),)), ids, mask, VOCAB, (), NEW).applied(
        torch.ones(2, VOCAB)
    )
    assert found.tolist() == [[1, 1, 0.5, 1, 1, 0, 1, 1, 1], [1, 1, 0.5, 0.5, 1, 0, 1, 1, 1]]


def test_padding_is_in_no_n_gram_and_what_is_only_read_is() -> None:
    ids, mask = torch.tensor([[7, 7, 2], [3, 2, 9]]), torch.tensor([[0, 0, 1], [1, 1, 1]])
    again = Penalties(Sampling(no_repeat_ngram_size=1), ids, mask, VOCAB, (), NEW).applied(torch.zeros(2, VOCAB))
    assert [row.isinf().nonzero()[:, 0].tolist() for row in again] == [[2], [2, 3]]
    ids = torch.tensor([[5, 9, 8, 9, 5, 9]])  # there are 9 that are written, and 9 is the first that is not
    again = Penalties(Sampling(no_repeat_ngram_size=3), ids, None, VOCAB, (), NEW).applied(torch.zeros(1, VOCAB))
    assert again.isinf().nonzero().tolist() == [[0, 8]]


def test_where_all_are_forbidden_none_is() -> None:
    logits = torch.randn(1, VOCAB, dtype=torch.float64)
    found = Penalties(Sampling(suppressed=tuple(range(VOCAB))), torch.tensor([[1]]), None, VOCAB, (), NEW)
    assert found.applied(logits).equal(logits)


def test_guesses_are_penalised_as_if_they_were_written() -> None:
    more: dict[str, Any] = {"no_repeat_ngram_size": 2, "min_new_tokens": 3, "suppressed": (6,), "last_token": 8}
    how = Sampling(bias=((3, 2.5),), **LOWERED, **more)  # type: ignore[arg-type]
    logits, guesses = torch.randn(4, VOCAB, dtype=torch.float64), [2, 5, 2]
    penalties = Penalties(how, torch.tensor([[1, 5]]), None, VOCAB, (4,), 6)
    penalties.add(torch.tensor([[7, 2]]))
    found = penalties.applied(logits.clone(), guesses)
    for i in range(4):
        torch.testing.assert_close(found[i : i + 1], penalties.applied(logits[i : i + 1].clone()), rtol=0, atol=0)
        penalties.add(torch.tensor([guesses[i : i + 1]], dtype=torch.long))


@pytest.mark.parametrize("name", ["gpt2", "llama2-7b", "t5-small"])
def test_texts_are_those_of_transformers(name: str) -> None:
    """Greedy, by caches; without padding, which transformers counts among the tokens of a prompt."""
    spec, changed = shrink(preset(name).spec), 0
    for seed in range(3):
        both = pair(spec, seed=seed, least_row=1.0)
        start = beginning(inputs_for("plain", spec, seed), 12)
        texts = []
        for penalty in (1.0, 1.4):
            theirs = generated(both, start, NEW, repetition_penalty=penalty, eos_token_id=None)[:, -NEW:]
            encoded: dict[str, Any] = {} if start.source is None else {"decoder_input_ids": start.input_ids}
            ids = start.input_ids if start.source is None else start.source
            sampling = Sampling(repetition_penalty=penalty)
            found = generate_ids(both.ours, ids, max_new_tokens=NEW, sampling=sampling, **encoded)
            assert found.tolist() == theirs.tolist()
            texts.append(found.tolist())
        changed += texts[0] != texts[1]
    assert changed, "the penalty should have changed a text"


def test_rows_that_end_take_their_tokens_along() -> None:
    model, sampling = randomised(decoder()), Sampling(bias=((4, 1.0),), **LOWERED)  # type: ignore[arg-type]
    rows = [ids_for(model.spec, 1, n, seed=n)[0].tolist() for n in (4, 6, 5)]
    expected = [alone(model, [], row, sampling, seed=0) for row in rows]
    ids, mask = padded(rows)
    steps, found = Decoding(model, ids, mask, max_new_tokens=NEW, sampling=sampling), [[], [], []]  # type: ignore[var-annotated]
    for n, step in enumerate(steps):
        for row, token in step.items():
            found[row].append(token)
        if n == 3:
            steps.stop(0)
    assert found == [expected[0][:4], *expected[1:]]
    assert expected != [alone(model, [], row, Sampling(), seed=0) for row in rows]


def test_guessed_texts_are_those_without_guesses() -> None:
    model, sampling = randomised(decoder()).double(), Sampling(**LOWERED)  # type: ignore[arg-type]
    ids = torch.tensor([[3, 1, 4, 1, 5, 3, 1, 4]])
    steps = SpeculativeDecoding(
        model, ids, None, DraftModel(like(model, 0.02), 3), max_new_tokens=40, sampling=sampling
    )
    found = [step[0] for step in steps]
    assert [found] == generate_ids(model, ids, max_new_tokens=40, sampling=sampling).tolist()
    assert steps.passes[0] < 40, "some guesses should stand"


def test_what_is_no_way_to_choose_is_refused() -> None:
    for how, words in (
        ({"min_p": 1.1}, "min_p = 1.1 must be from 0 to 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty = 0.0 must be above 0"),
        ({"presence_penalty": float("nan")}, "presence_penalty = nan must be a number"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty = inf must be a number"),
        ({"bias": ((3, float("inf")),)}, "bias of token 3 = inf must be a number"),
    ):
        with pytest.raises(InputError, match=words):
            Sampling(**how)  # type: ignore[arg-type]
    model = randomised(decoder())
    with pytest.raises(InputError, match="bias: there is no token 999999"):
        generate_ids(model, ids_for(model.spec, 1, 3), max_new_tokens=2, sampling=Sampling(bias=((999999, 1.0),)))
