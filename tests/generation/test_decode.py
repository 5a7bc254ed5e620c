"""Decoding: a loop over full forward passes, one row at a time and without padding or cache, is the oracle."""

from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.errors import InputError, UsageError
from anyformer.families import preset
from anyformer.generation import Decoding, PromptLookup, SpeculativeDecoding, decode, generate_ids
from anyformer.generation.decode import cache_for
from anyformer.generation.sampling import Sampling, generators
from anyformer.layers import Causal, Mask, MoESpec, Prefix, SlidingWindow
from anyformer.model import Transformer
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, Window
from tests.laws.models import SHRUNK, every_writer, ids_for, one_chunk, randomised
from tests.laws.weights import edited

SAMPLED = {"temperature": 0.9, "top_k": 40, "top_p": 0.95}
LOWERED = {"repetition_penalty": 1.7, "presence_penalty": 0.5, "frequency_penalty": -0.3}
NEW = 12


def alone(model: Transformer, source: list[int], start: list[int], sampling: Sampling, seed: int) -> list[int]:
    """Return the new tokens of one row, every step computed anew."""
    drawn, ids = generators(seed, 1), list(start)
    for _ in range(NEW):
        with torch.no_grad():
            if model.encoder is None:
                out = model(torch.tensor([ids]))
            else:
                out = model(torch.tensor([source]), decoder_input_ids=torch.tensor([ids]))
        logits = [lowered(x, i, ids, len(start), sampling) for i, x in enumerate(out.logits[0, -1].tolist())]
        ids.append(int(sampling(torch.tensor([logits], dtype=torch.float64), drawn)))
    return ids[len(start) :]


def lowered(logit: float, token: int, ids: list[int], n_prompt: int, how: Sampling) -> float:
    """Return a token's logit after what the ids before it take off, of which the first n are the prompt's."""
    if token in ids:
        logit = logit / how.repetition_penalty if logit > 0 else logit * how.repetition_penalty
    n = ids[n_prompt:].count(token)
    return logit - how.presence_penalty * (n > 0) - how.frequency_penalty * n + dict(how.bias).get(token, 0)


def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return ids and mask [row, token] with padding on the left; what stands there must not matter."""
    width = max(map(len, rows))
    ids = [[(7 * i + 3) % 11 for i in range(width - len(row))] + row for row in rows]
    return torch.tensor(ids), torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])


@every_writer
@pytest.mark.parametrize("choice", [{}, SAMPLED | LOWERED], ids=["greedy", "sampled"])
def test_every_way_gives_what_a_row_gives_alone(spec: ModelSpec, choice: dict[str, float]) -> None:
    # Without a capacity, for which the tokens of a pass compete.
    spec = edited(one_chunk(spec), MoESpec, lambda mixture: mixture.but(capacity=None))
    sources = [ids_for(spec, 1, n, seed=n)[0].tolist() for n in (5, 9, 2)]
    starts = [[1, 2], [3, 4], [5, 6]] if spec.encoder else sources
    sampling = Sampling(**choice)  # type: ignore[arg-type]
    for seed in range(8):
        model, rows = randomised(spec, seed), zip(sources, starts, strict=True)
        expected = [alone(model, *row, sampling, seed=10 + i) for i, row in enumerate(rows)]
        if len({token for row in expected for token in row}) > 2:
            break
    else:
        pytest.fail("the weights should write more than one word")
    ids, mask = padded(sources)
    decoder = torch.tensor(starts) if spec.encoder else None
    for cache in (True, False):
        options: dict[str, Any] = {"max_new_tokens": NEW, "decoder_input_ids": decoder, "seed": 10, "cache": cache}
        found = generate_ids(model, ids, mask, sampling=sampling, **options)
        assert found.tolist() == expected, f"cache={cache}"


@pytest.mark.parametrize("name", ["window", "alternating"])
def test_beyond_a_window(name: str) -> None:
    model = randomised(windowed(4, alternating=name == "alternating"))
    rows = [ids_for(model.spec, 1, n, seed=n)[0].tolist() for n in (11, 3)]
    expected = [alone(model, [], row, Sampling(), seed=0) for row in rows]
    ids, mask = padded(rows)
    assert generate_ids(model, ids, mask, max_new_tokens=NEW).tolist() == expected
    far = randomised(windowed(64, alternating=False))
    assert generate_ids(far, ids, mask, max_new_tokens=NEW).tolist() != expected, "the window should matter"


def test_a_row_ends_with_end_of_text_and_leaves_the_others_alone() -> None:
    model = randomised(decoder())
    rows = [ids_for(model.spec, 1, n, seed=n)[0].tolist() for n in (4, 6, 5)]
    expected = [alone(model, [], row, Sampling(), seed=0) for row in rows]
    end = expected[1][3]  # row 1 ends at its first occurrence, rows 0 and 2 where it comes up in them, if it does
    lengths = [row.index(end) + 1 if end in row else NEW for row in expected]
    assert len(set(lengths)) > 1
    ids, mask = padded(rows)
    for cache in (True, False):
        steps = list(Decoding(model, ids, mask, max_new_tokens=NEW, closing_ids=(end,), cache=cache))
        grown = [[step[row] for step in steps if row in step] for row in range(3)]
        assert grown == [row[:n] for row, n in zip(expected, lengths, strict=True)]
        whole = generate_ids(model, ids, mask, max_new_tokens=NEW, end_of_text=end, cache=cache).tolist()
        assert whole == [row[:n] + [end] * (max(lengths) - n) for row, n in zip(expected, lengths, strict=True)]


def test_a_stopped_row_leaves_the_others_alone() -> None:
    model = randomised(decoder())
    ids = ids_for(model.spec, 3, 5)
    expected = generate_ids(model, ids, max_new_tokens=NEW).tolist()
    steps, grown = Decoding(model, ids, max_new_tokens=NEW), [[], [], []]  # type: ignore[var-annotated]
    for n, step in enumerate(steps):
        for row, token in step.items():
            grown[row].append(token)
        if n == 3:
            steps.stop(0)
    assert grown == [expected[0][:4], expected[1], expected[2]]


def test_no_new_tokens() -> None:
    model = randomised(decoder())
    assert generate_ids(model, ids_for(model.spec, 2, 3), max_new_tokens=0).shape == (2, 0)


def test_the_last_learned_position_is_used_and_no_further_one() -> None:
    model = randomised(next(spec for name, spec in SHRUNK.items() if "gpt2" in name))
    (limit,) = {t.n_positions for t in model.spec.stack.embedding.terms if hasattr(t, "n_positions")}  # type: ignore[attr-defined]
    ids = ids_for(model.spec, 1, 3)
    assert generate_ids(model, ids, max_new_tokens=limit - 3).shape == (1, limit - 3)
    with pytest.raises(
        InputError, match=rf"3 tokens and {limit - 2} new ones .* {limit} learned .* at most {limit - 3}"
    ):
        generate_ids(model, ids, max_new_tokens=limit - 2)
    whole = ids_for(model.spec, 1, limit)
    assert generate_ids(model, whole, max_new_tokens=0).shape == (1, 0)
    for prompt in (whole, ids_for(model.spec, 1, limit + 1)):
        says = (
            f"prompt of {prompt.shape[1]} tokens leaves no room .* {limit} learned positions .* cut it to {limit - 1}"
        )
        with pytest.raises(InputError, match=says):
            generate_ids(model, prompt, max_new_tokens=1)


def test_prompts_that_cannot_be_continued_are_refused() -> None:
    model = randomised(decoder())
    ids = ids_for(model.spec, 2, 3)
    for arguments, message in (
        ((ids[0],), r"shape \(3,\)"),
        ((ids[:, :0],), "at least one token"),
        ((ids, torch.tensor([[1, 1, 1], [1, 1, 0]])), "padded on the left"),
        ((ids, torch.tensor([[1, 1, 1], [0, 0, 0]])), "without a token"),
        ((ids, torch.ones(2, 4)), r"attention_mask has shape \(2, 4\)"),
    ):
        with pytest.raises(InputError, match=message):
            generate_ids(model, *arguments, max_new_tokens=1)
    with pytest.raises(InputError, match="max_new_tokens = -1"):
        generate_ids(model, ids, max_new_tokens=-1)
    with pytest.raises(InputError, match="without an encoder"):
        generate_ids(model, ids, max_new_tokens=1, decoder_input_ids=ids)
    both = randomised(next(spec for spec in SHRUNK.values() if spec.encoder))
    with pytest.raises(InputError, match="needs decoder_input_ids"):
        generate_ids(both, ids, max_new_tokens=1)


@pytest.mark.parametrize("name", ["bert-base", "minilm-l6-h384", "xlnet-base", "longformer-base-4096", "bigbird-base"])
def test_what_sees_later_tokens_writes_nothing(name: str) -> None:
    """One line for all, whatever the mask is called and whether there is a head."""
    model = randomised(shrink(preset(name)))
    with pytest.raises(
        InputError, match=r"cannot generate text: it lets a token see later ones \(\w+\), as encoders do"
    ):
        generate_ids(model, ids_for(model.spec, 1, 3), max_new_tokens=1)


def test_behind_a_prefix_text_is_written() -> None:
    """A prefix is seen from both sides and what follows is causal (Raffel et al. 2020, figure 3)."""
    model = randomised(masked(decoder(), [Causal() | Prefix(size=Window(2))]))
    ids = ids_for(model.spec, 1, 3)
    assert generate_ids(model, ids, max_new_tokens=2, cache=False).equal(generate_ids(model, ids, max_new_tokens=2))


def decoder() -> ModelSpec:
    return next(spec for name, spec in SHRUNK.items() if "llama2" in name)


def masked(spec: ModelSpec, masks: list[Mask]) -> ModelSpec:
    """Return a decoder whose layers have these masks in turn."""
    blocks = []
    for i in range(4):
        block = spec.stack.blocks[0]
        attention, feed_forward = block.sublayers
        mixer = attention.branches[0].mixer
        branch = attention.branches[0].but(mixer=mixer.but(mask=masks[i % len(masks)]))
        blocks.append(block.but(sublayers=(attention.but(branches=(branch,)), feed_forward)))
    return spec.but(stack=spec.stack.but(blocks=tuple(blocks)))


def windowed(size: int, alternating: bool) -> ModelSpec:
    local = Causal() & SlidingWindow(size=Window(size))
    return masked(decoder(), [local, Causal()] if alternating else [local])


def test_room_is_made_as_a_text_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it may become."""
    monkeypatch.setattr(decode, "ROOM", 4)
    for name in ("llama2-7b", "gemma3-1b", "deepseek-v3"):
        model = randomised(shrink(preset(name).spec))
        ids = ids_for(model.spec, 1, 5)
        wanted = generate_ids(model, ids, max_new_tokens=40, cache=False)
        assert torch.equal(generate_ids(model, ids, max_new_tokens=40), wanted)
        steps = SpeculativeDecoding(model, ids, None, PromptLookup(3), max_new_tokens=40)
        assert [step[0] for step in steps] == wanted[0].tolist()
        first = next(Decoding(model, ids, max_new_tokens=10**12))
        assert first[0] == wanted[0, 0]
    with pytest.raises(UsageError, match=r"a cache of 1,\d+,\d+,\d+,\d+ tokens needs .* ask for fewer new tokens"):
        cache_for(model, ids, 10**12, static=True)


def test_a_compiled_cache_is_weighed_as_it_is_held() -> None:
    """In the dtype of the weights, unless it has one of its own."""
    model, said = randomised(shrink(preset("llama2-7b").spec)), []
    for dtype, own in ((torch.float32, None), (torch.bfloat16, None), (torch.float32, torch.bfloat16)):
        model.to(dtype).cache_dtype = own
        with pytest.raises(UsageError) as refused:
            cache_for(model, ids_for(model.spec, 1, 5), 10**12, static=True)
        said.append(float(str(refused.value).split(" needs ")[1].split(" GB")[0].replace(",", "")))
    assert said[0] == pytest.approx(2 * said[1]) == pytest.approx(2 * said[2])


def test_tokens_of_a_device_that_is_not_the_current_one_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event of another device's stream says nothing of when they are here."""
    waited: list[Any] = []

    class Event:
        def record(self, stream: Any = None) -> None:
            waited.append(stream)

        def synchronize(self) -> None:
            pass

    class Far:
        is_cuda, device = True, torch.device("cuda:1")

        def to(self, *_: Any, **__: Any) -> Tensor:
            return torch.tensor([3])

    far: Any = Far()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: device)
    assert decode.arriving(far)() == [3]
    assert waited == [far.device]
