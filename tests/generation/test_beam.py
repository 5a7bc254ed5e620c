"""Beam search is transformers', token for token, and, where it is wide enough, a search through all texts."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anyformer.errors import InputError, RunFailed
from anyformer.families import preset
from anyformer.generation.beam import BeamSearch, search_ids
from anyformer.generation.sampling import GREEDY, Sampling
from anyformer.model import Transformer
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, TableSpec
from tests.laws.inputs import inputs_for
from tests.laws.models import randomised
from tests.laws.parity import Pair, beginning, pair
from tests.laws.weights import edited

EARLY = {"first": True, "estimate": False, "bound": "never"}
CLOSING = tuple(range(5, 101, 9))  # several, so that random models meet one


def theirs(both: Pair, given: Any, how: BeamSearch, n: int, closing: tuple[int, ...], **more: Any) -> list[list[int]]:
    """Return what transformers writes after each prompt, without what fills the shorter ones up."""
    options = {
        "num_beams": how.beams,
        "length_penalty": how.length_penalty,
        "early_stopping": EARLY[how.stopping],
        "do_sample": False,
        "max_new_tokens": n,
        "eos_token_id": list(closing),
        "pad_token_id": 0,
        **more,
    }
    rows = []
    for piece in given.fit_for(both.theirs, both.spec).pieces:
        ids, mask = given.input_ids[piece.rows], given.real[piece.rows].long()
        start = {}
        if given.source is not None:
            start = {"decoder_input_ids": ids, "decoder_start_token_id": 0}
            ids, mask = (t[piece.rows, piece.source] for t in (given.source, given.source_real.long()))
        written = both.theirs.generate(ids, attention_mask=mask, **start, **options)[:, given.input_ids.shape[1] :]
        rows += written.tolist()
    return [cut(row, closing) for row in rows]


def cut(row: list[int], closing: tuple[int, ...]) -> list[int]:
    ends = [i for i, token in enumerate(row) if token in closing]
    return row[: ends[0] + 1] if ends else row


def ours(
    both: Pair, given: Any, how: BeamSearch, n: int, closing: tuple[int, ...], sampling: Sampling = GREEDY
) -> list[list[int]]:
    """Return the same of ours."""
    ids, mask = given.input_ids, given.real.long()
    start = None
    if given.source is not None:
        start, ids, mask = ids, given.source, given.source_real.long()
    options: dict[str, Any] = {"decoder_input_ids": start, "closing_ids": closing, "sampling": sampling}
    found = search_ids(both.ours, ids, mask, max_new_tokens=n, how=how, **options)
    return [list(row[0].token_ids) for row in found]


@pytest.mark.in_turn
@pytest.mark.parametrize("stopping", EARLY)
@pytest.mark.parametrize("name", ["gpt2", "llama2-7b", "t5-small", "bart-base"])
def test_it_is_that_of_transformers(name: str, stopping: Any) -> None:
    """Prompts and sources are padded on the left, one row of two; texts end early, late, and not at all."""
    spec, lengths, weighed = shrink(preset(name).spec), set(), 0
    for seed in range(12):
        beams = 4 - seed % 3
        both = pair(spec, seed=seed, least_row=1.0)
        start = beginning(inputs_for("left", spec, seed), 12)
        texts = []
        for length_penalty in (0.0, 0.6, 1.0, 2.0, -0.5):
            how = BeamSearch(beams, length_penalty, stopping)
            texts.append(theirs(both, start, how, 9, CLOSING))
            assert ours(both, start, how, 9, CLOSING) == texts[-1]
            lengths |= {len(row) for row in texts[-1]}
        weighed += any(text != texts[0] for text in texts)
        if seed > 1 and len(lengths) > 2 and weighed:
            return
    pytest.fail("the length penalty changed nothing, or the texts were all of one length")


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["llama2-7b", "bart-base"])
def test_penalties_and_what_is_forbidden_are_those_of_transformers(name: str) -> None:
    """As released models of summaries are asked; without padding, whose tokens transformers counts."""
    spec, n = shrink(preset(name).spec), 14
    ways: tuple[dict[str, Any], ...] = (
        {},
        {"repetition_penalty": 2.5},
        {"no_repeat_ngram_size": 1},
        {"no_repeat_ngram_size": 2, "min_new_tokens": 7},
        {"min_new_tokens": 9, "forced_eos_token_id": 5},
        {"suppress_tokens": list(range(40))},
        {"suppress_tokens": list(range(40)), "renormalize_logits": True},
    )
    spelled = {"forced_eos_token_id": "last_token", "suppress_tokens": "suppressed"}
    texts: list[list[Any]] = [[] for _ in ways]
    for seed in range(3):
        both = pair(spec, seed=seed, least_row=1.0)
        start = beginning(inputs_for("plain", spec, seed), 12)
        for way, found in zip(ways, texts, strict=True):
            how = BeamSearch(3, 0.0, renormalised="renormalize_logits" in way)
            told: dict[str, Any] = {
                spelled.get(name, name): tuple(value) if isinstance(value, list) else value
                for name, value in way.items()
                if name != "renormalize_logits"
            }
            sampling = Sampling(**told)
            expected = theirs(both, start, how, n, CLOSING, **way)
            assert ours(both, start, how, n, CLOSING, sampling) == expected, way
            found.append(expected)
    assert [way for way, each in zip(ways, texts, strict=True) if each == texts[0]] == [{}], "each should change a text"


def test_sources_may_be_padded_on_the_right() -> None:
    spec = shrink(preset("bart-base").spec)
    both, start = pair(spec, least_row=1.0), beginning(inputs_for("right", spec), 3)
    how = BeamSearch(4)
    assert ours(both, start, how, 9, CLOSING) == theirs(both, start, how, 9, CLOSING)


def tiny(name: str) -> Transformer:
    spec: ModelSpec = edited(shrink(preset(name).spec), TableSpec, lambda table: table.but(rows=4))
    return randomised(spec)


def exhausted(
    model: Transformer, ids: torch.Tensor, source: torch.Tensor | None, n: int, closing: int, length_penalty: float
) -> dict[tuple[int, ...], float]:
    """Return the score of every text of at most n tokens that ends with the closing one or at n, each by one pass."""
    vocab, found = model.spec.vocab_size, {}
    for length in range(1, n + 1):
        for text in itertools.product(range(vocab), repeat=length):
            if closing in text[:-1] or (length < n and text[-1] != closing):
                continue
            whole = torch.cat((ids, torch.tensor([text])), 1)
            with torch.no_grad():
                out = model(whole) if source is None else model(source, decoder_input_ids=whole)
            chances = out.logits[0].log_softmax(-1)[ids.shape[1] - 1 : -1]
            found[text] = chances.gather(-1, torch.tensor(text)[:, None]).sum().item() / length**length_penalty
    return found


@given(name=st.sampled_from(["gpt2", "t5-small"]), penalty=st.floats(-1, 2), seed=st.integers(0, 100))
@settings(max_examples=6, deadline=None)
def test_wide_enough_it_finds_the_best_of_all(name: str, penalty: float, seed: int) -> None:
    model, n, closing = tiny(name), 3, 3
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 3, (1, 2), generator=generator)
    source = None if model.encoder is None else torch.randint(0, 4, (1, 5), generator=generator)
    every = exhausted(model, ids, source, n, closing, penalty)
    how = BeamSearch(len(every), penalty, "bound")
    read, start = (ids, None) if source is None else (source, ids)
    (found,) = search_ids(model, read, max_new_tokens=n, how=how, decoder_input_ids=start, closing_ids=(closing,))
    best = max(every, key=every.__getitem__)
    assert every[found[0].token_ids] == pytest.approx(every[best], abs=1e-4)
    assert {h.token_ids for h in found} == set(every)
    for hypothesis in found:
        assert hypothesis.score == pytest.approx(every[hypothesis.token_ids], abs=1e-4)
        assert hypothesis.ended == (hypothesis.token_ids[-1] == closing)


@pytest.mark.parametrize("name", ["llama2-7b", "t5-small"])
def test_a_row_is_the_same_alone_and_in_a_batch(name: str) -> None:
    spec = shrink(preset(name).spec)
    model, start = randomised(spec), beginning(inputs_for("left", spec), 8)
    how = BeamSearch(3, 0.6)
    both = Pair(model, None, None, spec)  # type: ignore[arg-type]
    together = ours(both, start, how, 8, CLOSING)
    for i in range(2):
        real = (start.source_real if start.source_real is not None else start.real)[i]
        ids = (start.source if start.source is not None else start.input_ids)[i, real][None]
        answer = None if start.source is None else start.input_ids[i][None]
        (alone,) = search_ids(model, ids, max_new_tokens=8, how=how, decoder_input_ids=answer, closing_ids=CLOSING)
        assert list(alone[0].token_ids) == together[i]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"beams": 0}, "beams = 0 must be from 1"),
        ({"beams": 2, "length_penalty": float("nan")}, "length_penalty = nan must be a number"),
        ({"beams": 2, "stopping": "never"}, "stopping = 'never' must be one of estimate, first, bound"),
    ],
)
def test_bad_settings_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        BeamSearch(**wrong)


@pytest.mark.parametrize(("penalty", "n"), [(100.0, 1250), (-400.0, 10)])
def test_a_length_penalty_beyond_what_a_number_holds(penalty: float, n: int) -> None:
    with pytest.raises(InputError, match=f"length_penalty = {penalty} of {n} new tokens .* nearer 0"):
        search_ids(tiny("llama2-7b"), torch.ones(1, 2, dtype=torch.long), max_new_tokens=n, how=BeamSearch(2, penalty))


def test_logits_that_are_no_numbers_are_refused() -> None:
    model = tiny("gpt2")
    next(model.parameters()).data.fill_(math.nan)
    with pytest.raises(RunFailed, match="logits are no numbers"):
        search_ids(model, torch.zeros(1, 3, dtype=torch.long), max_new_tokens=2, how=BeamSearch(2))
