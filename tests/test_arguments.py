"""What the public functions are given: of another type than is declared, it is refused in one line that names it."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer
from anyformer.errors import CheckpointError, InputError, TextError, UsageError

af: Any = anyformer  # of which a type checker knows what each call takes
SPEC = af.shrink("llama2-7b")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: af.build(SPEC, seed="0"), "build: seed = '0' must be a whole number, or None"),
        (lambda: af.build(SPEC, seed=2**64), f"build: seed = {2**64} is beyond 64 bits; take a number nearer 0"),
        (lambda: af.build(SPEC, seed=-(2**63) - 1), "is beyond 64 bits"),
        (lambda: af.build(SPEC, seed=1.5), "build: seed = 1.5 must be a whole number, or None"),
        (lambda: af.build(SPEC, dtype="float16"), "build: dtype = 'float16' must be a dtype, or None"),
        (lambda: af.resize(SPEC, n_params="3M"), "resize: n_params = '3M' must be a whole number, or None"),
        (lambda: af.resize(SPEC, n_layers=True), "resize: n_layers = True must be a whole number, or None"),
        (
            lambda: af.resize(SPEC, n_params=10**5, count="nonembedding"),
            r"count = 'nonembedding' must be one of total, non_embedding \(did you mean 'non_embedding'\?\)",
        ),
        (lambda: af.cost(SPEC, batch=None), "cost: batch = None must be a whole number$"),
        (lambda: af.load(3), "load: path = 3 must be a text, or a path$"),
        (lambda: af.save(SPEC, "x"), "save: model = a value of the class ModelSpec must be a Transformer"),
        (lambda: af.train(SPEC, "stdlib", n_params="50k"), "train: n_params = '50k' must be a number, or None"),
        (
            lambda: af.train(SPEC, "none", n_params=float("nan")),
            "train: n_params = nan must be a finite number, or None",
        ),
        (lambda: af.train(SPEC, "none", minutes=np.inf), "train: minutes = inf must be a finite number, or None"),
        (lambda: af.train(SPEC, "stdlib", options={}), "options = a value of the class dict must be a RunOptions"),
        (
            lambda: af.compare("gpt2", "stdlib"),
            "compare: architectures = 'gpt2' must be a list; put one text into brackets",
        ),
        (
            lambda: af.compare({"gpt2", "llama2"}, "none"),  # the first is what the others are compared to
            "compare: architectures = a value of the class set must be a list",
        ),
        (
            lambda: af.train(SPEC, {"a.txt": 0.5, "b.txt": 0.5}),
            "train: data = a value of the class dict must be a text, or a path, or a list, or a Mixture, or None",
        ),
        (lambda: af.generate("x", None, "a", temperature="1"), "generate: temperature = '1' must be a number"),
        (lambda: af.generate("x", None, 3), "generate: prompt = 3 must be a text, or a list"),
        (lambda: af.generate("x", None, "a", on_text=3), "on_text = 3 must be a function, or None"),
        (lambda: af.generate("x", None, "a", length_penalty=0.5), "length_penalty and stopping are of a search"),
        (lambda: af.plan(SPEC, "H100", law="mine.json"), "plan: law = 'mine.json' must be a ScalingLaw, or None"),
        (lambda: af.embed("x", None, ["a", 3]), r"embed: texts\[1\] = 3 must be a text$"),
        (
            lambda: af.embed("x", None, torch.zeros(2)),
            r"embed: texts\[0\] = a value of the class Tensor must be a text",
        ),
        (lambda: af.classify("x", None, ["a", None]), r"classify: texts\[1\] = None must be a text, or a list$"),
        (lambda: af.generate("x", None, [None]), r"generate: prompt\[0\] = None must be a text$"),
        (lambda: af.generate("x", None, "a", stop=[3]), r"generate: stop\[0\] = 3 must be a text$"),
        (
            lambda: af.compare_tokenizers([None], "x"),
            r"tokenizers\[0\] = None must be a Tokenizer, or a text, or a path",
        ),
        (lambda: af.train(SPEC, "none", log=[1]), r"train: log\[0\] = 1 must be a text"),
        (lambda: af.train(SPEC, "none", mixture=3), "the mixture of a run is what it reads; give it as data"),
    ],
)
def test_another_type_is_refused(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        call()


def test_numbers_are_as_python_has_them() -> None:
    found = af.cost(SPEC, seq_len=np.int64(32), batch=2.0)
    assert [type(each) for each in (found.seq_len, found.batch)] == [int, int]
    assert af.resize(SPEC, vocab_size=np.int32(50)) == af.resize(SPEC, vocab_size=50)
    assert af.vary(SPEC, d_ff=np.int64(48)) == af.vary(SPEC, d_ff=48)
    assert torch.equal(*(next(af.build(SPEC, seed=seed).parameters()) for seed in (np.uint8(3), 3)))


def small() -> tuple[Any, Any]:
    return af.build(af.resize(SPEC, vocab_size=257), seed=0), af.Tokenizer.train(["to be or not to be"], 257)


def test_what_gives_texts_is_a_list_of_them() -> None:
    """An array of NumPy's, whose truth is not asked for, and a generator, which has no length."""
    model, tokenizer = small()
    listed = af.embed(model, tokenizer, ["to be", "not"])
    assert torch.equal(af.embed(model, tokenizer, np.array(["to be", "not"])), listed)
    assert torch.equal(af.embed(model, tokenizer, (each for each in ("to be", "not"))), listed)


def test_a_number_of_any_size_is_taken_where_a_fraction_is() -> None:
    model, tokenizer = small()
    texts = [af.generate(model, tokenizer, "to", max_new_tokens=3, presence_penalty=n) for n in (10**30, 1e30)]
    assert texts[0] == texts[1]


def test_zero_is_what_was_asked_for(tmp_path: Path) -> None:
    """And not left out: no vocabulary is no default one, and a search of no beams is not greedy."""
    (tmp_path / "text.txt").write_text("to be or not to be\n" * 400)
    for call in (af.train, lambda spec, *given, **named: af.compare([spec], *given, out=tmp_path / "runs", **named)):
        with pytest.raises(TextError, match="a byte-level vocabulary of 0 tokens is too small"):
            call(SPEC, tmp_path / "text.txt", vocab_size=0, tokens=1024)
    with pytest.raises(InputError, match="beams = 0 must be from 1, which is greedy, to 10,000"):
        af.generate("x", None, "a", beams=0)


def test_numbers_that_no_float_holds_are_refused() -> None:
    for n in (10**400, -(10**5000)):
        with pytest.raises(
            UsageError, match=r"generate: temperature = a whole number of [\d,]+ bits must be a finite number"
        ):
            af.generate("x", None, "a", temperature=n)


def test_a_tokenizer_is_not_written_over_a_file(tmp_path: Path) -> None:
    """Which is said before the text is read."""
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UsageError, match="out is a file; name a directory for the tokenizer"):
        af.tokenizer(tmp_path / "no text", out=tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


def test_going_on_needs_a_run() -> None:
    with pytest.raises(CheckpointError, match="--resume: no run is named by --out; leave --resume out"):
        af.train(SPEC, "none", resume=True)


def test_the_functions_are_what_they_were() -> None:
    """Pickled, told, and called wrongly, as Python does."""
    assert pickle.loads(pickle.dumps(af.build)) is af.build
    assert af.build.__doc__
    assert af.build.__name__ == "build"
    with pytest.raises(TypeError, match="unexpected keyword argument 'seeds'"):
        af.build(SPEC, seeds=3)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"input_ids": [[1, 2]]}, "token ids: a value of the class list is no tensor"),
        ({"input_ids": np.array([[1, 2]])}, "token ids: a value of the class ndarray is no tensor"),
        ({"input_ids": torch.ones(1, 2)}, "token ids are torch.float32; give whole numbers"),
        ({"input_ids": torch.ones(1, 2) > 0}, "token ids are torch.bool; give whole numbers"),
        ({"attention_mask": [[1, 1]]}, "attention_mask: a value of the class list is no tensor"),
        ({"attention_mask": torch.ones(2)}, r"attention_mask has shape \(2,\); token ids have \(1, 2\)"),
        (
            {"attention_mask": torch.tensor([[0.0, -math.inf]])},
            "attention_mask has -inf; give 0 for padding and 1 for tok",
        ),
        ({"attention_mask": torch.tensor([[0.5, 1.0]])}, "attention_mask has 0.5; give 0 for padding"),
        ({"position_ids": np.arange(2)}, "position_ids: a value of the class ndarray is no tensor"),
        ({"labels": [[1, 2]]}, "labels are no tensor where the head 'lm' answers"),
    ],
)
def test_a_pass_takes_tensors(given: dict[str, Any], says: str) -> None:
    model = af.build(SPEC, seed=0)
    with pytest.raises(InputError, match=says):
        model(**{"input_ids": torch.ones(1, 2, dtype=torch.int64), **given})
