"""Tokens that a grammar leaves no choice of take no pass of their own: the text is that of a pass a token, written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyformer.generation import Decoding, Sampling
from anyformer.generation.penalties import Penalties
from anyformer.generation.sampling import generators
from anyformer.generation.static_cache import LEAST
from anyformer.layers import CapacityFactor, MoESpec
from anyformer.model import Transformer
from anyformer.spec import ModelSpec
from tests.generation.test_grammar import MORE, VOCABULARIES, held
from tests.generation.test_text import sized
from tests.laws.models import SHRUNK, ids_for, randomised
from tests.laws.weights import edited

TOKENIZER = VOCABULARIES["bytes"]
PATTERN = "(the fox jumps over|x = [0-9]{1,3})( if x > 0)?( return the lazy dog)"
NAMES = ["llama2-7b", "mistral", "mamba-130m", "deepseek-v3", "t5-small", "gpt2"]
N = 40
OPTIONS: dict[str, Any] = {"max_new_tokens": N, "closing_ids": TOKENIZER.closing_ids}


def spec_of(name: str) -> ModelSpec:
    found = next(spec for names, spec in SHRUNK.items() if name in names)
    return sized(found, TOKENIZER.vocab_size + MORE)


def one_by_one(
    model: Transformer, given: dict[str, Any], sampling: Sampling, seed: int, most: int = N
) -> tuple[list[int], int]:
    """A row's tokens by passes over all there are, and how many of them a grammar left a choice of."""
    decoded = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
    start, closing, (generator,) = given[decoded], TOKENIZER.closing_ids, generators(seed, 1)
    penalties = Penalties(sampling, start, None, model.spec.n_scored, closing, most)
    found, chosen = list[int](), 0
    while len(found) < most and not (found and found[-1] in closing):
        ids = torch.cat((start, start.new_tensor([found])), 1)
        logits = penalties.applied(model(**{**given, decoded: ids}).logits[:, -1])
        chosen += int(logits.isfinite().sum()) > 1
        found += sampling(logits, [generator]).tolist()
        penalties.add([[found[-1]]])
    return found, chosen


def given_to(spec: ModelSpec, rows: int = 1) -> dict[str, Any]:
    more = {"decoder_input_ids": ids_for(spec, rows, 2, seed=4)} if spec.encoder else {}
    return {"input_ids": ids_for(spec, rows, 5), **more}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("watched", [False, True], ids=["recorded", "as written"])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_the_text_is_that_of_a_pass_a_token(name: str, watched: bool, temperature: float) -> None:
    """Greedily and drawn, by steps that are recorded, and as they are written where modules are watched."""
    model, passes = randomised(spec_of(name)).double(), list[int]()
    given, sampling = given_to(model.spec), held(TOKENIZER, "regex", PATTERN, temperature=temperature)
    expected, chosen = one_by_one(model, given, sampling, seed=7)
    if watched:
        model.register_forward_hook(lambda *_: passes.append(1))
    steps = Decoding(model, **given, **OPTIONS, sampling=sampling, seed=7)
    assert [step[0] for step in steps] == expected
    assert chosen < len(expected) / 2
    if watched:
        assert len(passes) == chosen


@torch.no_grad()
def test_recorded_steps_go_on_where_forced_tokens_have_filled_the_cache() -> None:
    model, sampling = randomised(spec_of("llama2-7b")).double(), held(TOKENIZER, "regex", "([0-9][0-9] if x > 0){20}")
    given = given_to(model.spec)
    options: dict[str, Any] = {**OPTIONS, "max_new_tokens": 4 * N}
    found = [step[0] for step in Decoding(model, **given, **options, sampling=sampling)]
    assert found == one_by_one(model, given, sampling, seed=0, most=4 * N)[0]
    assert len(found) > 2 * LEAST  # slots that a cache begins with


@torch.no_grad()
def test_rows_that_have_a_choice_at_different_times() -> None:
    model, sampling = randomised(spec_of("llama2-7b")).double(), held(TOKENIZER, "regex", PATTERN, temperature=1.0)
    ids = ids_for(model.spec, 3, 5)
    steps = list(Decoding(model, ids, **OPTIONS, sampling=sampling, seed=3))
    for row in range(3):
        found = [step[row] for step in steps if row in step]
        assert found == one_by_one(model, {"input_ids": ids[row : row + 1]}, sampling, seed=3 + row)[0]


@pytest.mark.parametrize("name", ["mixtral-8x7b", "phi4-mini", "reformer-enwik8"])
@torch.no_grad()
def test_tokens_that_would_be_read_otherwise_together_are_read_alone(name: str) -> None:
    """By experts of a capacity, rotations that go by the length of the text, and hashed attention."""
    spec = edited(spec_of(name), MoESpec, lambda moe: moe.but(capacity=CapacityFactor(factor=1.0)))
    model, passes = randomised(spec).double(), list[int]()
    model.register_forward_hook(lambda *_: passes.append(1))
    steps = Decoding(model, ids_for(spec, 1, 5), **OPTIONS, sampling=held(TOKENIZER, "regex", PATTERN))
    assert len(list(steps)) == len(passes)
