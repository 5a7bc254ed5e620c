"""What a model, its tokenizer, texts and numbers are given as, by whoever calls from Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import anyformer as af
from anyformer.errors import AnyformerError, InputError, UsageError
from anyformer.inference.opened import opened
from anyformer.text import Tokenizer
from tests.laws.models import randomised


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["the cat sits on the mat"] * 5, 270)


@pytest.fixture(scope="module")
def spec(tokenizer: Tokenizer) -> af.ModelSpec:
    return af.resize("llama2", n_params=30_000, vocab_size=tokenizer.vocab_size, context=32)


def test_what_has_no_weights_is_no_trained_model(spec: af.ModelSpec, tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat sits on the mat\n" * 5)
    calls: tuple[Callable[[Any], Any], ...] = (
        lambda given: af.generate(given, tokenizer, "the"),
        lambda given: af.generate(randomised(spec), tokenizer, "the", draft=given),
        lambda given: af.evaluate(given, tmp_path / "text.txt", tokenizer=tokenizer),
        lambda given: af.embed(given, tokenizer, ["the cat"]),
        lambda given: af.classify(given, tokenizer, ["the cat"]),
    )
    for call in calls:
        for given in (spec, af.preset("gpt2"), 3):
            with pytest.raises(UsageError, match=r"(model|draft) = .* must be a Transformer, or a text, or a path"):
                call(given)


def test_what_a_tokenizer_is_in_is_no_tokenizer(spec: af.ModelSpec, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat sits on the mat\n" * 5)
    trained: Any = af.tokenizer(tmp_path / "text.txt", vocab_size=260)
    model = randomised(spec)
    with pytest.raises(UsageError, match="tokenizer = a value of the class TrainedTokenizer must be a Tokenizer, or"):
        af.generate(model, trained, "the")
    assert isinstance(af.generate(model, trained.tokenizer, "the", max_new_tokens=1), str)


@pytest.mark.parametrize("call", [af.embed, af.classify, af.translate])
def test_characters_of_one_text_are_no_texts(call: Any, spec: af.ModelSpec, tokenizer: Tokenizer) -> None:
    spec = af.with_classifier(spec, 2) if call is af.classify else spec
    spec = af.shrink("t5-small") if call is af.translate else spec
    with pytest.raises(UsageError, match="= 'the cat' must be a list; put one text into brackets"):
        call(randomised(spec), tokenizer, "the cat")


def test_a_model_is_used_where_it_is(spec: af.ModelSpec, tokenizer: Tokenizer) -> None:
    model = af.build(spec)
    assert opened(model, tokenizer, device="cpu").model is model
    with pytest.raises(UsageError, match="there is no device 'nowhere'"):
        af.generate(model, tokenizer, "a", device="nowhere")
    with pytest.raises(
        UsageError, match=r"the model is on meta, and is used where it is; move it by model.to\('cpu'\)"
    ):
        opened(model.to("meta"), tokenizer, device="cpu")


def test_a_language_is_a_translations(spec: af.ModelSpec, tokenizer: Tokenizer) -> None:
    with pytest.raises(UsageError, match=r"a language \(<de>\) is a translation's, and this model has no encoder"):
        af.generate(randomised(spec), tokenizer, "the", target_language="<de>")


def test_a_form_is_of_what_writes(tokenizer: Tokenizer) -> None:
    """An encoder's vocabulary was complained of: it has no token that ends a text, or is not spelled in bytes."""
    encoder = opened(randomised(af.shrink("bert-base")), tokenizer)
    with pytest.raises(InputError, match="this model cannot generate text"):
        encoder.grammar({"regex": "a"})


def test_no_token_is_not_the_usual_number(spec: af.ModelSpec, tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat sits on the mat\n" * 5)
    (tmp_path / "questions.jsonl").write_text('{"question": "the", "answer": "cat"}\n')
    model, classifier = randomised(spec), randomised(af.with_classifier(spec, 2))
    for call in (
        lambda n: af.evaluate(model, tmp_path / "text.txt", tokenizer=tokenizer, seq_len=n),
        lambda n: af.evaluate_task(model, tmp_path / "questions.jsonl", tokenizer=tokenizer, seq_len=n),
        lambda n: af.embed(model, tokenizer, ["the cat"], longest=n),
        lambda n: af.classify(classifier, tokenizer, ["the cat"], longest=n),
        lambda n: af.diff(spec, spec, seq_len=n),
    ):
        for n in (0, -1):
            with pytest.raises(AnyformerError, match=rf"{n} (is nothing; give 1 or more|.*must be at least 1)"):
                call(n)


def test_rows_are_no_longer_than_the_text(spec: af.ModelSpec, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Else all that is over is padding, which a long row's memory went to."""
    (tmp_path / "text.txt").write_text("the cat sits on the mat\n" * 5)
    model, seen, evaluate = randomised(spec), [], cast("Any", af.evaluate)
    model.stack.register_forward_hook(lambda _, given, made: seen.append(given[0].shape[1]))
    short, long = (evaluate(model, tmp_path / "text.txt", tokenizer=tokenizer, seq_len=n) for n in (64, 5000))
    assert long.loss == pytest.approx(short.loss, rel=1e-6)
    assert max(seen) <= long.seq_len == short.seq_len < 64
