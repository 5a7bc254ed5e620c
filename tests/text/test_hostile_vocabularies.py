"""A tokenizer.json that somebody spoilt on purpose: one line, no abort, and no other ids than the file's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from anyformer.errors import TextError
from anyformer.text import Tokenizer
from anyformer.text.prompts import encode_prompt, encode_source
from anyformer.training.data.vocabulary import known_mask
from tests.text.samples import llama_like


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return json.loads(Tokenizer.train(["the cat sat on the mat " * 9], 280)._inner.to_str())


def last(data: dict[str, Any]) -> str:
    return list(data["model"]["vocab"])[-1]


def spoil(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def spoilt(data: dict[str, Any]) -> dict[str, Any]:
        data = json.loads(json.dumps(data))
        change(data)
        return data

    return spoilt


UNIGRAM = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": None,
    "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]]},
}
SPOILT: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a huge id": (lambda d: d["model"]["vocab"].update({last(d): 2**31 - 1}), "far beyond its"),
    "a larger one": (lambda d: d["model"]["vocab"].update({last(d): 2**70}), "far beyond its"),
    "an id below 0": (lambda d: d["model"]["vocab"].update({last(d): -1}), "no number from 0 on"),
    "a word for an id": (lambda d: d["model"]["vocab"].update({last(d): "7"}), "no number from 0 on"),
    "a truth for an id": (lambda d: d["model"]["vocab"].update({last(d): True}), "no number from 0 on"),
    "one id twice": (lambda d: d["model"]["vocab"].update({last(d): 5}), "both have the id 5"),
    "an added token far away": (
        lambda d: d["added_tokens"].append({**d["added_tokens"][0], "content": "<x>", "id": 9999}),
        "'<x>' has the id 9999, and the library gives it",
    ),
    "an added token with another's id": (lambda d: d["added_tokens"][0].update(id=77), "has the id 77"),
    "an added token without one": (lambda d: d["added_tokens"][0].update(id=None), "tokenizer"),
    "a merge of nothing": (lambda d: d["model"]["merges"].append(["zz", "qq"]), "is not a tokenizer"),
    "a merge of one": (lambda d: d["model"]["merges"].append(["z"]), "is not a tokenizer"),
    "added tokens that are no list": (lambda d: d.update(added_tokens=3), "is not a tokenizer"),
    "no model": (lambda d: d.pop("model"), "has no model"),
    "a list for a model": (lambda d: d.update(model=[]), "has no model"),
    "another model": (lambda d: d["model"].update(type="Oracle"), "is not a tokenizer"),
    "a pattern that is none": (
        lambda d: d.update(
            pre_tokenizer={"type": "Split", "pattern": {"Regex": "(("}, "behavior": "Isolated", "invert": False}
        ),
        "is not a tokenizer",
    ),
    "an id of nothing for what is unknown": (
        lambda d: d.update(UNIGRAM, model={**UNIGRAM["model"], "unk_id": 10**6}),  # type: ignore[dict-item]
        "is not a tokenizer",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_vocabulary_is_one_line(
    whole: dict[str, Any], tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    change, says = SPOILT[name]
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(spoil(change)(whole)))
    with pytest.raises(TextError) as caught:
        Tokenizer.load(tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(file) in message
    assert says in message
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "3",
        '{"a": 1',
        '{"model": {"vocab": {"a": 1, "a": 2}}}',
        '{"model": ' + "[" * 9999,
        "\ud800".encode("utf-8", "surrogatepass"),
    ],
)
def test_what_is_no_json_is_one_line(tmp_path: Path, text: str | bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TextError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_a_few_ids_may_be_left_out(whole: dict[str, Any], tmp_path: Path) -> None:
    data = spoil(lambda d: d["model"]["vocab"].update({last(d): 400}))(whole)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    assert Tokenizer.load(tmp_path).vocab_size == 401


def test_a_panic_of_the_library_is_one_line(whole: dict[str, Any], tmp_path: Path) -> None:
    """The library panics, which is no Exception, where a vocabulary of words lacks what stands for the unknown ones."""
    from anyformer.text.tokenizer_file import guarded

    class PanicException(BaseException):
        pass

    with pytest.raises(TextError, match="here \\(index out of bounds\\)"), guarded("here"):
        raise PanicException("index out of bounds\nnote: run with `RUST_BACKTRACE=1`")
    with pytest.raises(KeyboardInterrupt), guarded("here"):
        raise KeyboardInterrupt


def test_text_that_a_vocabulary_cannot_spell_is_one_line(tmp_path: Path) -> None:
    data = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("a") == [0]
    with pytest.raises(TextError, match="the tokenizer cannot encode this text"):
        tokenizer.encode("b")


@pytest.mark.parametrize("named", [["<mask>"], {"content": ["<mask>"]}, 7, {}])
def test_a_mask_named_as_nothing_spells_is_none(named: Any) -> None:
    tokenizer = Tokenizer(llama_like(), {"eos_token": "</s>", "mask_token": named})
    assert known_mask(tokenizer) is None


@pytest.mark.parametrize(
    ("single", "says"),
    [
        (["SpecialToken"], "have a text 0 times, not once; mend them"),
        (["Sequence", "Sequence"], "have a text 2 times, not once"),
        (["B"], r"index out of bounds"),
    ],
    ids=str,
)
def test_rules_that_have_no_text_or_two_say_so(single: list[str], says: str, whole: dict[str, Any]) -> None:
    """Prompts and sources follow them."""
    ids = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}, "Sequence": {"id": "A", "type_id": 0}}
    pieces = [{"Sequence": {"id": "B", "type_id": 0}} if name == "B" else {name: ids[name]} for name in single]
    special = {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}}
    rules = {"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": special}
    spoilt = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps({**whole, "post_processor": rules})), {})
    for read in (encode_prompt, encode_source):
        with pytest.raises(TextError, match=says):
            read(spoilt, "the cat")
