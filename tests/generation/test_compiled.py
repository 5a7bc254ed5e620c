"""A compiled step: one graph for all texts of like length, and the text that is written without it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional as F

import anyformer as af
from anyformer.errors import CacheError, InputError, RunFailed, UsageError
from anyformer.families import preset
from anyformer.generation import (
    BeamSearch,
    CompiledStep,
    Decoding,
    Sampling,
    StaticCache,
    generate_ids,
    generate_text,
    lay_out_for_decoding,
)
from anyformer.generation.compiled import _of_the_text
from anyformer.inference.opened import Opened
from anyformer.layers import AttentionSpec, LSHAttentionSpec, int4, int8
from anyformer.layers.linear import product
from anyformer.layers.packing import Packing
from anyformer.model import Transformer
from anyformer.resizing import shrink
from anyformer.spec import Count
from anyformer.text import Tokenizer
from tests.generation.test_text import TEXTS, sized
from tests.laws.models import ids_for, randomised
from tests.laws.test_packed import packed
from tests.laws.weights import edited
from tests.sample import in_turn

NEW = 10
# A full cache beside a ring, with soft-caps; latents; states of two kinds beside attention; an encoder's memory.
KINDS = ["gemma2-2b", "deepseek-v3", "jamba-v0.1", "t5-small"]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def prompt(model: Transformer, rows: int, n: int) -> dict[str, Any]:
    ids = ids_for(model.spec, rows, n, seed=n)
    if model.encoder is None:
        return {"input_ids": ids}
    return {"input_ids": ids, "decoder_input_ids": ids_for(model.spec, rows, 1)}


def check(name: str, backend: str, dtype: torch.dtype | None = None) -> None:
    """Three prompts of several lengths, one of them of two rows that are padded, against all computed anew by eager attention."""
    model = randomised(shrink(preset(name).spec))
    model.cache_dtype = dtype
    step = CompiledStep(model, backend)
    for n in (5, 8):
        given = prompt(model, 1, n)
        written = generate_ids(model, **given, max_new_tokens=NEW, compiled=step)
        assert counters["stats"]["unique_graphs"] == 1, "a text of like length and each of its steps share a graph"
        assert written.tolist() == generate_ids(model, **given, max_new_tokens=NEW, cache=dtype is not None).tolist()
    given = prompt(model, 1, 6)
    assert generate_ids(model, **given, max_new_tokens=NEW, compiled=CompiledStep(model, backend)).shape == (1, NEW)
    assert counters["stats"]["unique_graphs"] == 1, "a second step of the model finds the graph of the first"
    given, mask = prompt(model, 2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[0, :4] = 0
    expected = generate_ids(model, attention_mask=mask, **given, max_new_tokens=NEW, cache=dtype is not None)
    assert generate_ids(model, attention_mask=mask, **given, max_new_tokens=NEW, compiled=step).equal(expected)
    assert counters["stats"]["unique_graphs"] == 2, "two rows are one graph more"


@pytest.mark.in_turn
@pytest.mark.parametrize("name", KINDS)
def test_one_graph_and_the_same_text(name: str) -> None:
    check(name, "eager")


def test_a_cache_in_8_bits() -> None:
    check("llama3.2-1b", "aot_eager", torch.int8)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*KINDS, "gpt2", "qwen3-next-80b-a3b"])
def test_inductor(name: str) -> None:
    check(name, "inductor")


@pytest.mark.parametrize("packing", ["int8", "int4"])
@pytest.mark.parametrize(
    ("name", "rows", "rounded"),
    [
        ("llama3.2-1b", 1, False),
        *(in_turn("llama3.2-1b", *case) for case in ((2, False), (20, False), (2, True), (20, True))),
        in_turn("mixtral-8x7b", 1, False),  # experts: fewer chosen than there are, and more, also with biases
        in_turn("gpt-oss-20b", 20, False),
    ],
)
def test_weights_in_few_bits(
    packing: Packing, name: str, rows: int, rounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers that they stand for, in float32; where operators round vectors to bfloat16, what they make uncompiled.

    Of one vector 8 bits are not rounded where they are compiled.
    """
    if not rounded:
        for module in (int4, int8):
            monkeypatch.setattr(module, "FEW", 0)
    found, plain = packed(randomised(shrink(preset(name).spec)), packing)
    oracle, ids = found if rounded else plain, ids_for(found.spec, rows, 5)
    with torch.inference_mode():
        found(ids[:, :4], cache=(read := found.new_cache(rows, 8)))
        oracle(ids[:, :4], cache=(other := oracle.new_cache(rows, 8)))
        logits = CompiledStep(found, "aot_eager")(ids[:, 4:], None, StaticCache(read))
        torch.testing.assert_close(logits, oracle(ids[:, 4:], cache=other).logits[:, -1], rtol=1e-4, atol=1e-4)


def test_one_vector_asks_no_library() -> None:
    """Each product is a sum along rows, also under --dtype bfloat16; of two vectors, and by columns, a library's."""
    asked: list[Any] = []

    def noting(graph: torch.fx.GraphModule, _: Any) -> Any:
        asked.extend(node.target for node in graph.graph.nodes)
        return graph.forward

    for rows, dtype, by_columns in ((1, None, False), (1, torch.bfloat16, False), (2, None, False), (1, None, True)):
        model = randomised(shrink(preset("llama2-7b").spec)).to(dtype)
        model = lay_out_for_decoding(model) if by_columns else lay_out_for_decoding(model, compiled=True)
        asked.clear()
        given = prompt(model, rows, 5)
        written = generate_ids(model, **given, max_new_tokens=3, compiled=CompiledStep(model, noting))
        assert (F.linear in asked) == (rows == 2 or by_columns)
        assert dtype or written.equal(generate_ids(model, **given, max_new_tokens=3))


@pytest.mark.parametrize(("rows", "sorts"), [(1, False), (2, False), (3, True)])
def test_nobody_asks_how_many_tokens_an_expert_has(rows: int, sorts: bool) -> None:
    """Where no more are chosen than there are, here 4 of which each token takes 2."""
    asked: list[str] = []

    def noting(graph: torch.fx.GraphModule, _: Any) -> Any:
        asked.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    model = randomised(shrink(preset("mixtral-8x7b").spec))
    given = prompt(model, rows, 5)
    written = generate_ids(model, **given, max_new_tokens=3, compiled=CompiledStep(model, noting))
    assert written.equal(generate_ids(model, **given, max_new_tokens=3))
    assert any("grouped_products" in each for each in asked) == sorts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_sum_along_rows_is_the_product(dtype: torch.dtype, autocast: bool) -> None:
    """Of numbers above 0: where a sum all but vanishes, its last rounding in bfloat16 is more than what is left."""
    generator = torch.Generator().manual_seed(0)
    sizes = (1, 1, 40), (24, 40), (24,)
    x, weight, bias = (torch.rand(size, dtype=torch.float64, generator=generator) for size in sizes)
    given = [each.to(dtype) for each in (x, weight, bias)]
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        plain = F.linear(*given)
        found = torch.compile(product, backend="eager")(*given)
    assert (found.dtype, found.shape) == (plain.dtype, plain.shape)
    torch.testing.assert_close(found, plain)


def test_a_model_that_is_changed_between_texts_is_compiled_anew() -> None:
    """Within a text nobody asks; where the next begins, all that a graph took for granted is looked at."""
    model = randomised(shrink(preset("llama3.2-1b").spec))
    step = CompiledStep(model, "eager")

    def other_map() -> None:
        part = next(module for module in model.modules() if isinstance(module, nn.Linear))
        parent, _, name = next(name for name, each in model.named_modules() if each is part).rpartition(".")
        setattr(model.get_submodule(parent), name, nn.Linear(part.in_features, part.out_features))

    changes: list[Callable[[], Any]] = [
        lambda: None,
        lambda: setattr(model, "kernel", "eager"),
        lambda: model.double(),
        lambda: model.float(),
        other_map,
        lambda: model.stack.norm.register_forward_hook(lambda *passed: passed[2].flip(-1)),  # type: ignore[union-attr]
    ]
    given = prompt(model, 1, 5)
    for n_graphs, change in enumerate(changes, 1):
        change()
        expected = generate_ids(model, **given, max_new_tokens=NEW, cache=False)
        for _ in range(2):
            assert generate_ids(model, **given, max_new_tokens=NEW, compiled=step).equal(expected)
        assert counters["stats"]["unique_graphs"] == n_graphs


def test_a_graph_goes_with_its_model() -> None:
    model = randomised(shrink(preset("gpt2").spec))
    generate_ids(model, ids_for(model.spec, 1, 4), max_new_tokens=3, compiled=CompiledStep(model, "eager"))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_few_questions_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many of twelve layers as of two but for what each keeps of the text."""
    asked, kept = list[int](), list[int]()

    def counting(guards: Any) -> list[bool]:
        found = _of_the_text(guards)
        asked.append(len(found))
        kept.append(sum(found))
        return found

    monkeypatch.setattr("anyformer.generation.compiled._of_the_text", counting)
    for n in (2, 12):
        spec = shrink(preset("llama3.2-1b").spec)
        spec = spec.but(stack=spec.stack.but(blocks=spec.stack.blocks[:1] * n))
        model = randomised(spec)
        generate_ids(model, ids_for(spec, 1, 4), max_new_tokens=3, compiled=CompiledStep(model, "eager"))
    assert asked[1] - asked[0] > 10 * 100
    assert kept[1] - kept[0] < 10 * 20


def test_rows_that_end_leave_the_others_alone() -> None:
    model = randomised(shrink(preset("gpt2").spec))
    ids, step = ids_for(model.spec, 3, 6), CompiledStep(model, "eager")
    expected = generate_ids(model, ids, max_new_tokens=NEW)
    end = int(expected[1, 3])
    assert 1 <= len({int((row == end).any()) for row in expected}) <= 2
    wanted = generate_ids(model, ids, max_new_tokens=NEW, end_of_text=end)
    assert generate_ids(model, ids, max_new_tokens=NEW, end_of_text=end, compiled=step).equal(wanted)
    assert counters["stats"]["unique_graphs"] == 1
    drawn = {"sampling": Sampling(1.0), "seed": 3, "end_of_text": end, "max_new_tokens": NEW}
    assert generate_ids(model, ids, **drawn, compiled=step).equal(generate_ids(model, ids, **drawn))
    steps = Decoding(model, ids, max_new_tokens=NEW, compiled=step)
    next(steps)  # a row that ends at its first token leaves the batch before its shape is compiled for
    for row in range(3):
        next(steps)
        steps.stop(row)
    assert list(steps) == []


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, top_k=9)])
def test_a_step_that_is_asked_for_ahead(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU is: behind the first compiled step each is asked for before the tokens of the one before are read."""
    model = randomised(shrink(preset("llama3.2-1b").spec))
    ids, how = ids_for(model.spec, 2, 7), {"max_new_tokens": NEW, "sampling": sampling, "seed": 3}
    expected = generate_ids(model, ids, **how)
    end = int(expected[0, 4])  # one row ends early, if not both
    plain = list(Decoding(model, ids, **how, closing_ids=(end,)))
    step = CompiledStep(model, "eager")
    step.ahead, asked = True, list[int]()
    monkeypatch.setattr(Decoding, "_logits", lambda self: (asked.append(self.steps_left), _logits(self))[1])
    assert generate_ids(model, ids, **how, compiled=step).tolist() == expected.tolist()
    assert asked == [9, 8, 8, 7, 6, 5, 4, 3, 2, 1]  # tokens left
    assert list(Decoding(model, ids, **how, closing_ids=(end,), compiled=step)) == plain


_logits = Decoding._logits


@pytest.mark.parametrize("ahead", [False, True])
def test_logits_that_are_no_numbers_end_a_text(ahead: bool) -> None:
    model = randomised(shrink(preset("llama3.2-1b").spec))
    step = CompiledStep(model, "eager")
    step.ahead = ahead
    writing = Decoding(model, ids_for(model.spec, 1, 7), max_new_tokens=NEW, compiled=step)
    assert len([next(writing) for _ in range(3)]) == 3
    with torch.no_grad():
        for weight in model.stack.blocks[-1].parameters():
            weight.fill_(torch.nan)
    assert not ahead or next(writing)  # was asked for before
    with pytest.raises(RunFailed, match=r"logits are no numbers"):
        next(writing)


def test_a_cache_that_is_full() -> None:
    model = randomised(shrink(preset("gpt2").spec))
    ids, step = ids_for(model.spec, 1, 4), CompiledStep(model, "eager")
    with torch.inference_mode():
        model(ids, cache=(read := model.new_cache(1, 5)))
        cache = StaticCache(read)
        step(ids[:, :1], None, cache)
        with pytest.raises(CacheError, match="full"):
            step(ids[:, :1], None, cache)


@pytest.mark.slow
def test_without_a_compiler() -> None:
    from torch._inductor import config  # slow to import

    none = config.patch({"cpp.cxx": ("no-such-compiler",)})
    with none, pytest.raises(UsageError, match=r"takes a C\+\+ compiler, and none is found"):
        CompiledStep(randomised(shrink(preset("gpt2").spec)))


def opened() -> Opened:
    tokenizer = Tokenizer.train(TEXTS, 320)
    return Opened(randomised(sized(shrink(preset("llama2-7b").spec), tokenizer.vocab_size)), tokenizer, None)


def test_what_it_refuses(tmp_path: Path) -> None:
    found = opened()
    af.save(found.model, tmp_path, tokenizer=found.tokenizer)
    step = CompiledStep(found.model, "eager")
    with pytest.raises(InputError, match="leave the search or the guesses out"):
        generate_text(found.model, found.tokenizer, ["a"], search=BeamSearch(2), compiled=step)
    with pytest.raises(UsageError, match="goes on from a cache"):
        generate_text(found.model, found.tokenizer, ["a"], cache=False, compiled=step)
    with pytest.raises(UsageError, match="of another model"):
        generate_ids(af.build(found.model.spec), ids_for(found.model.spec, 1, 3), max_new_tokens=2, compiled=step)
    hashed = edited(found.model.spec, AttentionSpec, lambda _: LSHAttentionSpec(n_heads=Count(2)))
    with pytest.raises(UsageError, match="LSHAttention takes slots that are empty for tokens"):
        CompiledStep(af.build(hashed))


def test_a_step_that_is_no_one_graph() -> None:
    """A part of a user's own that asks Python what stands in a tensor."""
    model = randomised(shrink(preset("gpt2").spec))
    plain = model.stack.forward

    def asking(*given: Any) -> Any:
        out = plain(*given)
        torch._dynamo.graph_break()
        return out

    model.stack.forward = asking  # type: ignore[method-assign]
    with pytest.raises(UsageError, match=r"no one graph .* decode without compiling") as told:
        generate_ids(model, ids_for(model.spec, 1, 4), max_new_tokens=3, compiled=CompiledStep(model, "eager"))
    assert "\n" not in str(told.value)
