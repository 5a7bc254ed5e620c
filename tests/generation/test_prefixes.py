"""What was read stays: a text that begins as an earlier one reads only what follows, and is written as it is alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from anyformer.cache import KVCache
from anyformer.errors import CacheError, InputError, RunFailed
from anyformer.families import preset
from anyformer.generation import (
    GREEDY,
    BatchRow,
    BeamSearch,
    CompiledStep,
    ContinuousBatch,
    Decoding,
    DraftModel,
    Guessing,
    OwnModules,
    Prefixes,
    PromptLookup,
    Sampling,
    SpeculativeDecoding,
    Wanted,
    encode_prompt,
    generate_ids,
    generate_text,
)
from anyformer.generation.penalties import Penalties
from anyformer.generation.prompt import parting
from anyformer.layers.embedding import learned_positions
from anyformer.model import Transformer
from anyformer.resizing import resize, shrink
from anyformer.spec import ModelSpec, cached_calls
from anyformer.text import Tokenizer
from tests.generation.test_batch import alone
from tests.generation.test_decode import decoder, windowed
from tests.generation.test_text import TEXTS
from tests.laws.models import DECODERS, ids_for, one_chunk, randomised
from tests.laws.parity import InDouble
from tests.sample import in_turn, sampled

LONGEST, DRAWN = 60, Sampling(1.0)


def of(name: str) -> ModelSpec:
    return one_chunk(shrink(preset(name).spec))


def waits(spec: ModelSpec) -> bool:
    """Whether some of what is kept takes no token back."""
    return any(kept.how == "state" for kept in cached_calls(spec))


def written(batch: ContinuousBatch, *wanted: Wanted) -> tuple[list[list[int]], list[int]]:
    """What each is given, side by side where the batch takes several; how much of each prompt was known."""
    rows, texts = list[BatchRow](), list[list[int]]()
    for each in wanted:
        row, first = batch.add(each)
        assert first is not None
        rows.append(row)
        texts.append([first.token_id])
    while batch.rows:
        for row, chosen in batch.step().items():
            texts[rows.index(row)].append(chosen.token_id)
    return texts, [row.known for row in rows]


@pytest.mark.parametrize("spec", sampled(DECODERS))
def test_turns_are_written_as_they_are_alone(spec: ModelSpec) -> None:
    """Each turn goes on from the one before, the last from the middle of it; beside it grows one that begins as the first."""
    with InDouble():
        model = randomised(one_chunk(spec)).double()
        most = learned_positions(spec.stack) or LONGEST
        batch = ContinuousBatch(model, most, Prefixes(model, 1e9))
        text = ids_for(spec, 1, 10, seed=7)[0].tolist()
        for turn, way in enumerate((DRAWN, GREEDY, DRAWN, GREEDY)):
            one = Wanted(tuple(text), 6, way, seed=turn)
            other = Wanted((*text[:4], 1, 2), 3)
            (long, short), known = written(batch, one, other)
            assert long == alone(model, one)
            assert short == alone(model, other)
            if parting(spec, most):
                assert known == [0, 0]
            elif turn in (1, 2):
                assert known[0] == len(text) - 3
            if (
                turn
                and not parting(spec, most)
                and not waits(spec)
                and all(k.reach is None for k in cached_calls(spec))
            ):
                assert known[1] >= 4
            text = [*text, *long, 3, 4] if turn != 2 else [*text, *long[:2], 5]
            if len(text) + 6 > most:
                break


def grown(
    model: Transformer, ids: Tensor, n: int, prefixes: Prefixes, way: Guessing | CompiledStep | None
) -> list[int]:
    """The new ids behind a prompt [1, token], whose cache is taken from what was read before and left there."""
    text = ids[0].tolist()
    guesses = None if isinstance(way, CompiledStep) else way
    begun = prefixes.taken(text, 0 if guesses is None else guesses.most)
    steps: Decoding | SpeculativeDecoding
    if guesses is not None:
        steps = SpeculativeDecoding(model, ids, None, guesses, max_new_tokens=n, begun=begun)
    else:
        compiled = way if isinstance(way, CompiledStep) else None
        steps = Decoding(model, ids, max_new_tokens=n, cache=True if begun is None else begun, compiled=compiled)
    said = [step[0] for step in steps]
    read = steps.read()
    prefixes.keep([*text, *said][: read.n], read)
    return said


class Reads:
    """How many tokens each pass of a model reads, while this is open."""

    def __init__(self, model: Transformer) -> None:
        self.tokens = list[int]()
        self.handle = model.stack.register_forward_pre_hook(self._note, with_kwargs=True)

    def __enter__(self) -> Reads:
        return self

    def __exit__(self, *error: object) -> None:
        self.handle.remove()

    def _note(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        ids = next(each for each in (*args, *kwargs.values()) if isinstance(each, Tensor))
        self.tokens.append(ids.shape[1])


@pytest.mark.parametrize("spec", sampled(DECODERS))
def test_a_recorded_step_leaves_what_it_read(spec: ModelSpec) -> None:
    """Of so many tokens that a step is recorded, whose slots are static."""
    with InDouble():
        model, most = randomised(one_chunk(spec)).double(), learned_positions(spec.stack) or LONGEST
        prefixes, ids, n = Prefixes(model, 1e9), ids_for(spec, 1, 5, seed=3), 17
        for _ in range(2):
            if ids.shape[1] + n > most:
                break
            said = grown(model, ids, n, prefixes, None)
            assert said == generate_ids(model, ids, max_new_tokens=n)[0].tolist()
            ids = torch.cat((ids, torch.tensor([[*said, 1, 2]])), 1)
            found = prefixes.copied(ids[0].tolist())
            assert (found is None) == bool(parting(spec, ids.shape[1]))
            assert found is None or found.n == ids.shape[1] - 3


def by_lookup(model: Transformer) -> PromptLookup:
    return PromptLookup(most=3)


def by_draft(model: Transformer) -> DraftModel:
    return DraftModel(randomised(model.spec, seed=9).double(), most=2)


def by_compiling(model: Transformer) -> CompiledStep:
    return CompiledStep(model, "aot_eager")


@pytest.mark.parametrize("make", [by_lookup, by_draft, in_turn(by_compiling)])
@pytest.mark.parametrize("spec", [decoder(), windowed(3, alternating=True)], ids=["full", "window"])
def test_guesses_and_compiled_steps_go_on(
    spec: ModelSpec, make: Callable[[Transformer], Guessing | CompiledStep]
) -> None:
    with InDouble():
        model = randomised(spec).double()
        way = make(model)
        prefixes, ids = Prefixes(model, 1e9), ids_for(spec, 1, 6)
        for turn in range(3):
            alike = prefixes.copied(ids[0].tolist())
            with Reads(model) as reads:
                said = grown(model, ids, 6, prefixes, way)
            assert said == generate_ids(model, ids, max_new_tokens=6)[0].tolist()
            assert (reads.tokens[0] < 6) == bool(turn), "the second turn reads what is new, and guesses"
            assert (alike is None) == (not turn)
            ids = torch.cat((ids, torch.tensor([[*said, 1]])), 1)


def test_padded_rows_go_on() -> None:
    """Behind a compiled step, whose slots are static; the cache knows what of it is padding."""
    with InDouble():
        model, ids = randomised(decoder()).double(), ids_for(decoder(), 2, 6)
        mask = torch.ones_like(ids)
        mask[1, :3] = 0
        steps = Decoding(model, ids, mask, max_new_tokens=5, compiled=CompiledStep(model, "aot_eager"))
        said = torch.tensor([[step[0], step[1]] for step in steps]).T
        ids, mask = torch.cat((ids, said), 1), torch.cat((mask, torch.ones_like(said)), 1)
        wanted = generate_ids(model, ids, mask, max_new_tokens=5)
        cache = steps.read()
        assert cache.n == ids.shape[1] - 1
        assert torch.equal(generate_ids(model, ids, mask, max_new_tokens=5, cache=cache), wanted)


@pytest.fixture
def model() -> Transformer:
    return randomised(decoder())


def read(model: Transformer, *token_ids: int) -> KVCache:
    cache = model.new_cache(1, len(token_ids))
    with torch.inference_mode():
        model(torch.tensor([token_ids]), cache=cache)
    return cache


def test_longest_beginning_and_what_is_kept(model: Transformer) -> None:
    prefixes = Prefixes(model, 1e9)
    for text in ((1, 2, 3), (1, 2, 3, 4, 5), (1, 9), (1, 2)):
        prefixes.keep(text, read(model, *text))
    # The first and the last can be gone back to by the second.
    assert [each.token_ids for each in prefixes.texts] == [(1, 2, 3, 4, 5), (1, 9)]
    assert [getattr(prefixes.copied(ids), "n", 0) for ids in ((1, 2, 3, 7), (1, 9, 2), (1, 9), (2,), (1,))] == [
        3,
        2,
        1,
        0,
        0,
    ]
    taken = prefixes.taken((1, 2, 8))
    assert taken is not None
    assert taken.n == 2
    assert [each.token_ids for each in prefixes.texts] == [(1, 9)]
    prefixes.keep((5, 6), read(model, 5, 6, 7))  # the cache goes on behind the text
    assert getattr(prefixes.taken((5, 6, 7, 8)), "n", 0) == 2


def test_guesses_take_a_ring_that_lets_go_of_none_too_early() -> None:
    with InDouble():
        model = randomised(windowed(3, alternating=True)).double()
        prefixes, ids = Prefixes(model, 1e9), ids_for(model.spec, 1, 6)
        for way in (None, PromptLookup(most=4), DraftModel(randomised(model.spec, seed=9).double(), most=4)):
            said = grown(model, ids, 8, prefixes, way)
            assert said == generate_ids(model, ids, max_new_tokens=8)[0].tolist()
            ids = torch.cat((ids, torch.tensor([[*said, 1]])), 1)


def test_memory_is_bounded_and_those_used_last_stay(model: Transformer) -> None:
    size = read(model, 1, 2, 3).nbytes
    prefixes = Prefixes(model, 2 * size)
    for first in (4, 5):
        prefixes.keep((first, 2, 3), read(model, first, 2, 3))
    prefixes.copied((4, 2, 3, 1))
    prefixes.keep((6, 2, 3), read(model, 6, 2, 3))
    assert [each.token_ids[0] for each in prefixes.texts] == [4, 6]
    prefixes.keep(range(1, 9), read(model, *range(1, 9)))  # takes more than all may
    assert [each.token_ids[0] for each in prefixes.texts] == [4, 6]


def test_where_memory_has_no_room_nothing_stays(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: object) -> KVCache:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    batch = ContinuousBatch(model, LONGEST, Prefixes(model, 1e9))
    written(batch, Wanted((7, 8), 3))
    assert batch.prefixes is not None
    assert batch.prefixes.texts
    monkeypatch.setattr(KVCache, "alone", refusing)
    wanted = Wanted((1, 2, 3), 4)
    assert written(batch, wanted) == ([alone(model, wanted)], [0])
    assert not batch.prefixes.texts


@pytest.mark.parametrize("name", ["llama2-7b", "mistral-7b-v0.1", "mamba2-2.7b", "deepseek-v4-flash"])
def test_a_copy_is_its_own(name: str) -> None:
    """Of one row of several, padded by the longer ones: it goes on as the row does, and what it reads nobody else sees."""
    with InDouble(), torch.inference_mode():
        spec = of(name)
        model, ids = randomised(spec).double(), ids_for(spec, 2, 40)
        mask = torch.ones_like(ids[:, :30])
        mask[1, :23] = 0
        cache = model.new_cache(2, 64)
        model(ids[:, :30], mask, cache=cache)
        one = cache.alone(1, 7)
        assert one.n == 7
        assert all(index.slots <= 7 for index in one.slot_indexes.values() if not index.ring)
        theirs = {value.untyped_storage().data_ptr() for store in cache.stores for value in store.held.values()}
        ours = {value.untyped_storage().data_ptr() for store in one.stores for value in store.held.values()}
        assert not theirs & (ours - {0})
        later = model(ids[1:, 30:], cache=one).logits
        torch.testing.assert_close(later, model(ids[:, 30:], cache=cache).logits[1:])
        torch.testing.assert_close(later, model(ids[1:, 23:]).logits[:, 7:])


def test_a_row_that_failed_leaves_what_it_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had read one token more than a row that ended."""
    with InDouble():
        model, applied = randomised(decoder()).double(), Penalties.applied
        batch, wanted, steps = (
            ContinuousBatch(model, LONGEST, Prefixes(model, 1e9)),
            Wanted((5, 6, 7), 8),
            iter(range(4)),
        )

        def failing(*given: object) -> Tensor:
            if next(steps, None) is None:
                raise RunFailed("no more")
            return applied(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(Penalties, "applied", failing)
        ((said,), _) = written(batch, wanted)
        monkeypatch.undo()
        assert len(said) == 4
        again = Wanted((5, 6, 7, *said, 9), 5)
        assert written(batch, again)[0] == [alone(model, again)]


def test_a_prompt_stays_that_nothing_can_go_back_to() -> None:
    """Of a model with a state, for what else follows it; of one that takes tokens back the whole text serves both."""
    tokenizer = Tokenizer.train(TEXTS, 320)
    ring = windowed(12, alternating=False)  # of more slots than the prompt has tokens
    for spec, kept in ((of("mamba2-2.7b"), 2), (ring, 2), (decoder(), 1)):
        model = randomised(resize(spec, vocab_size=tokenizer.vocab_size))
        prefixes = Prefixes(model, 1e9)
        (one,) = generate_text(model, tokenizer, ["the quick"], max_new_tokens=9, prefixes=prefixes)
        assert len(prefixes.texts) == kept
        prompt = [*encode_prompt(tokenizer, "the quick"), 9, 8]
        with Reads(model) as reads:
            (two,) = generate_text(model, tokenizer, [prompt], max_new_tokens=5, prefixes=prefixes)
        assert reads.tokens[0] == 2
        assert [two] == generate_text(model, tokenizer, [prompt], max_new_tokens=5)
        assert [one] == generate_text(model, tokenizer, ["the quick"], max_new_tokens=9)


def test_what_cannot_be_read_in_parts_is_not_kept() -> None:
    for name, n, why in (("t5-base", 4, "an encoder"), ("phi4-mini", 10_000, "rotates a text by its length")):
        spec = shrink(preset(name).spec)
        model = randomised(spec)
        assert why in str(parting(spec, n))
        prefixes = Prefixes(model, 1e9)
        prefixes.keep([1] * n, KVCache(spec))
        assert not prefixes.texts
    prefixes.keep([1, 1, 1], read(model, 1, 1, 1))
    assert prefixes.copied([1, 1, 1, 1]) is not None
    assert prefixes.copied([1] * n) is None, "what was read would be turned otherwise"


def test_refused(model: Transformer) -> None:
    cache, ids = read(model, 1, 2, 3), torch.tensor([[1, 2, 3]])
    with pytest.raises(
        InputError, match="holds 3 tokens of 1 rows, and input_ids have 3 of 1; they begin with what it holds"
    ):
        Decoding(model, ids, max_new_tokens=2, cache=cache)
    with pytest.raises(InputError, match="and input_ids have 4 of 2"):
        Decoding(model, torch.ones(2, 4, dtype=torch.long), max_new_tokens=2, cache=cache)
    with pytest.raises(CacheError, match="nothing is kept without a cache"):
        Decoding(model, ids, max_new_tokens=2, cache=False).read()
    for given in ({"cache": False}, {"search": BeamSearch(2)}):
        with pytest.raises(
            InputError, match="what was read before serves one prompt of a decoder alone, through the cache"
        ):
            generate_text(model, Tokenizer.train(TEXTS, 280), ["a"], prefixes=Prefixes(model), **given)  # type: ignore[arg-type]
    t5 = randomised(shrink(preset("t5-base").spec))
    with pytest.raises(InputError, match="serves one prompt of a decoder alone"):
        generate_text(t5, Tokenizer.train(TEXTS, 280), ["a"], prefixes=Prefixes(t5))
    with pytest.raises(InputError, match="own modules read what it makes of every token"):
        SpeculativeDecoding(model, torch.tensor([[1, 2, 3, 4]]), None, OwnModules(), max_new_tokens=2, begun=cache)
