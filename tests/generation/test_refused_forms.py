"""Forms that are none, that no text has or that would end the process; vocabularies in which a text could stop."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import tokenizers
from tokenizers import models

from anyformer.errors import InputError, RunFailed, UsageError
from anyformer.generation import Form, Grammars
from anyformer.generation.grammar import Parsers
from anyformer.text import Tokenizer
from tests.generation.test_grammar import GRAMMARS, VOCABULARIES
from tests.sample import in_turn


@pytest.mark.parametrize(
    ("form", "content", "said"),
    [
        ("json_schema", True, "a schema is an object"),
        ("json_schema", {"type": "objekt"}, "json_schema: Invalid type: objekt"),
        ("json_schema", {"type": "array", "uniqueItems": True}, 'Unimplemented keys: \\["uniqueItems"\\]'),
        ("json_schema", {"$ref": "http://example.org/x"}, "Default retriever does not fetch resources"),
        ("regex", "(a", "unclosed group"),
        ("regex", "a(?=b)", "look-ahead and look-behind, is not supported"),
        ("grammar", "start: x", "unknown name"),
        ("grammar", "", "grammar: Empty grammar"),
        ("regex", "(" * 100_000, "invalid regex"),
        ("regex", "a" * (1 << 18), "its 262,[0-9]{3} characters are more than 262,144"),
        ("regex", r"[^\x00-\x{10FFFF}]", "regex: no text is of this form"),
        ("json_schema", {"$ref": "#"}, "json_schema: no text is of this form"),
    ],
)
def test_what_is_no_form_is_refused(form: Form, content: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        GRAMMARS["bytes"].read(form, content)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["rules", *map(in_turn, ("terminals", "references"))])
def test_rules_that_lead_to_many_rules_end_no_process(kind: str) -> None:
    """Each by recursion of the parser; a few thousand fill the stack that a thread has by default."""
    n, form, content = 9_000, "grammar", ""
    if kind == "references":
        lists = {f"a{i}": {"items": {"$ref": f"#/$defs/a{i + 1}"}, "maxItems": 1} for i in range(n // 5)}
        form, content = "json_schema", {"$ref": "#/$defs/a0", "$defs": {**lists, f"a{n // 5}": {"const": 1}}}
    else:
        name = "r" if kind == "rules" else "R"
        rules = [f"{name}{i}: {name}{i + 1}" for i in range(n)]
        content = "\n".join([f"start: {name}0", *rules, f'{name}{n}: "a"'])
    source = (
        "import json, sys; from tests.generation.test_grammar import GRAMMARS; from anyformer.generation.grammar import Parsers\n"
        "print(Parsers(GRAMMARS['bytes'].read(*json.load(sys.stdin)), 1).forbidden().all().item())"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], input=json.dumps([form, content]), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "False\n")


@pytest.mark.parametrize("letter", ["x", "}"])
def test_a_word_that_ends_texts_is_in_none(letter: str) -> None:
    """A token of words may be among those that end a text: it does so alone where the text is whole."""
    plain = VOCABULARIES["bytes"]
    inner = json.loads(plain._inner.to_str())
    n = plain.vocab_size
    inner["added_tokens"].append({**inner["added_tokens"][0], "id": n, "content": "ab" + letter, "special": False})
    said = json.dumps({"eos_token_id": [0, n]}).encode()
    files = {"generation_config.json": said}
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(inner)), plain.config, files)
    grammar = Grammars(tokenizer, n + 1).read("regex", '"[^"]{3}"')
    parsers = Parsers(grammar, 1)
    for text in '"', "a", "b", letter, '"':
        forbidden = parsers.forbidden()[0]
        assert forbidden[list(tokenizer.closing_ids)].all()
        (token,) = tokenizer.encode(text)[-1:]
        assert not forbidden[token]
        parsers.add([[token]])
    assert not parsers.forbidden()[0, list(tokenizer.closing_ids)].any()
    alone = json.dumps({"eos_token_id": tokenizer.encode(letter)[-1]}).encode()
    with pytest.raises(InputError, match="no token of the byte 0x"):
        Grammars(Tokenizer(plain._inner, plain.config, {"generation_config.json": alone}), n)


def test_vocabularies_in_which_texts_could_stop_are_refused() -> None:
    """Those that say no end, that spell by other rules, and that lack a byte."""
    tokenizer = VOCABULARIES["bytes"]
    with pytest.raises(InputError, match="no token of the byte 0x"):
        Grammars(tokenizer, 250)
    words = tokenizers.Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    with pytest.raises(InputError, match="no token that ends a text"):
        Grammars(Tokenizer(words, {}), 2)
    words.add_special_tokens(["</s>"])
    with pytest.raises(InputError, match=r"vocabulary of this kind \(wordlevel\)"):
        Grammars(Tokenizer(words, {"eos_token": "</s>"}), 2)


def test_a_token_that_the_model_does_not_score_is_missed() -> None:
    """What can only follow in a token beyond the model's ends the text in words that say so."""
    tokenizer = VOCABULARIES["bytes"]
    parsers = Parsers(Grammars(tokenizer, 260).read("regex", "return x"), 1)
    parsers.add([tokenizer.encode("re")])
    with pytest.raises(RunFailed, match="there is no token for what follows"):
        parsers.forbidden()


def test_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UsageError, match=r"pip install 'anyformer\[grammars\]'"):
        Grammars(VOCABULARIES["bytes"], 320)
