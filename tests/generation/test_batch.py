"""Continuous batching: whoever comes and goes, each row is written as it is alone; and what is held is given back."""

from __future__ import annotations

import random

import pytest
import torch

from anyformer.cache import KVCache
from anyformer.errors import CacheError, InputError
from anyformer.generation import GREEDY, BatchRow, ContinuousBatch, Sampling, Wanted, generate_ids
from anyformer.layers.embedding import learned_positions
from anyformer.model import Transformer
from anyformer.spec import ModelSpec
from tests.laws.models import DECODERS, SHRUNK, ids_for, one_chunk, randomised
from tests.laws.parity import InDouble

LONGEST = 60
# A full cache, a window's ring beside it, a latent, a state, and learned positions; all others are among the slow tests.
FAST = {"mistral-7b-v0.1", "deepseek-v3", "mamba2-2.7b", "gpt2-xl"}


def wanted_rows(spec: ModelSpec, n: int, seed: int = 0) -> list[Wanted]:
    """Prompts of many lengths that are greedy or drawn, each for another number of tokens."""
    chance, limit = random.Random(seed), learned_positions(spec.stack) or LONGEST
    found = []
    for i in range(n):
        length = chance.randint(1, min(20, limit - 2))
        ids = tuple(ids_for(spec, 1, length, seed=100 + i)[0].tolist())
        way = (GREEDY, Sampling(1.0, top_p=0.9), Sampling(0.8, top_k=20), Sampling(0.0, repetition_penalty=1.5))[i % 4]
        most = min(chance.randint(1, 25), limit - length, LONGEST - length)
        found.append(Wanted(ids, most, way, seed=i))
    return found


def alone(model: Transformer, wanted: Wanted) -> list[int]:
    ids = torch.tensor([wanted.token_ids])
    return generate_ids(model, ids, max_new_tokens=wanted.max_new_tokens, sampling=wanted.sampling, seed=wanted.seed)[
        0
    ].tolist()


def run(
    batch: ContinuousBatch, wanted: list[Wanted], most: int, hang_up: dict[int, int] | None = None
) -> list[list[int]]:
    """What each is given, at most so many at once; hang_up[i]: the tokens after which i is no longer there."""
    texts: list[list[int]] = [[] for _ in wanted]
    waiting, numbers, left = list(range(len(wanted))), dict[BatchRow, int](), hang_up or {}
    while waiting or batch.rows:
        if waiting and sum(not row.ended for row in batch.rows) < most:
            number = waiting.pop(0)
            row, first = batch.add(wanted[number])
            numbers[row] = number
            texts[number] += [] if first is None else [first.token_id]
        for row, chosen in batch.step().items():
            texts[numbers[row]].append(chosen.token_id)
        for row, number in numbers.items():
            row.ended = row.ended or len(texts[number]) >= left.get(number, LONGEST)
    return texts


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(spec, id=name, marks=[] if FAST & set(name.split(" = ")) else pytest.mark.slow)
        for name, spec in DECODERS.items()
    ],
)
def test_each_row_is_written_as_it_is_alone(spec: ModelSpec) -> None:
    """Beyond windows, past states; in float64, where no two tokens are likely to lie within rounding of each other."""
    with InDouble():
        model = randomised(one_chunk(spec)).double()
        wanted = wanted_rows(spec, 7)
        assert run(ContinuousBatch(model, LONGEST), wanted, 3) == [alone(model, each) for each in wanted]


def test_who_hangs_up_changes_nothing_for_others() -> None:
    spec = next(spec for name, spec in SHRUNK.items() if "mistral-7b-v0.1" in name)
    model, wanted = randomised(spec), wanted_rows(spec, 12, seed=3)
    left = {1: 1, 4: 2, 5: 1, 9: 3}
    texts = run(ContinuousBatch(model, LONGEST), wanted, 5, left)
    for i, (text, each) in enumerate(zip(texts, wanted, strict=True)):
        whole = alone(model, each)
        assert text[: left.get(i, LONGEST)] == whole[: left.get(i, LONGEST)]


@pytest.mark.parametrize("name", ["llama2-7b", "mistral-7b-v0.1", "mamba2-2.7b"])
def test_what_is_held_does_not_grow(name: str) -> None:
    """Among rows of which one is always there: the cache is as long as the longest that still grows."""
    spec = next(spec for known, spec in SHRUNK.items() if name in known)
    batch, sizes = ContinuousBatch(randomised(spec), LONGEST), []
    for i in range(24):
        batch.add(Wanted((1, 2, 3), 12, GREEDY, i))
        for _ in range(4):
            batch.step()
        assert batch.cache is not None
        sizes.append(batch.cache.nbytes)
        assert batch.cache.n <= LONGEST or not any(not each.ring for each in batch.cache.slot_indexes.values())
    assert max(sizes[10:]) <= 2 * max(sizes[:10])


def test_probabilities_are_those_of_the_whole_pass() -> None:
    spec = next(spec for name, spec in SHRUNK.items() if "llama2" in name)
    model, ids = randomised(spec), (5, 9, 2, 7)
    row, first = ContinuousBatch(model, LONGEST).add(Wanted(ids, 1, likeliest=3, echo=True))
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    assert [each.token_id for each in row.echoed] == list(ids)
    assert row.echoed[0].logprob is None
    for place, each in enumerate(row.echoed[1:]):
        assert each.logprob == pytest.approx(float(expected[place, ids[place + 1]]), abs=1e-4)
        best = expected[place].topk(3)
        assert [token for token, _ in each.likeliest] == best.indices.tolist()
        assert [value for _, value in each.likeliest] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert first is not None
    assert first.token_id == int(expected[-1].argmax())
    assert first.logprob == pytest.approx(float(expected[-1].max()), abs=1e-4)


def test_an_encoder_decoder_answers_alone() -> None:
    spec = next(spec for name, spec in SHRUNK.items() if "t5" in name and spec.encoder is not None)
    model = randomised(spec)
    batch, ids = ContinuousBatch(model, LONGEST), (4, 5, 6, 7)
    row, first = batch.add(Wanted(ids, 6, answer=(1, 3)))
    assert first is not None
    with pytest.raises(InputError, match="one answer at a time"):
        batch.add(Wanted(ids, 6, answer=(1,)))
    text = [first.token_id]
    while not row.ended:
        text += [chosen.token_id for chosen in batch.step().values()]
    expected = generate_ids(model, torch.tensor([ids]), max_new_tokens=6, decoder_input_ids=torch.tensor([[1, 3]]))
    assert text == expected[0].tolist()


def test_what_has_no_room_is_refused_and_leaves_others_be() -> None:
    spec = next(spec for name, spec in SHRUNK.items() if "llama2" in name)
    model = randomised(spec)
    batch = ContinuousBatch(model, 10)
    row, first = batch.add(Wanted((1, 2), 6))
    assert first is not None
    text = [first.token_id]
    with pytest.raises(InputError, match="more than 10"):
        batch.add(Wanted((1,) * 8, 3))
    with pytest.raises(InputError, match="there is no token"):
        batch.add(Wanted((10**6,), 3))
    while not row.ended:
        text += [chosen.token_id for chosen in batch.step().values()]
    assert text == alone(model, Wanted((1, 2), 6))


def test_caches_without_rows_do_not_join() -> None:
    spec = next(spec for name, spec in SHRUNK.items() if "llama2" in name)
    with pytest.raises(CacheError, match="have read their prompts"):
        KVCache(spec).join(KVCache(spec))
