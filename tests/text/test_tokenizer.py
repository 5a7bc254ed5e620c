"""Ids against Hugging Face tokenizers, which reads the same file on its own."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFace
from tokenizers import pre_tokenizers

from anyformer.errors import TextError
from anyformer.text import Tokenizer
from anyformer.text.byte_level import _NO_TOKEN
from tests.text.samples import TEXT, TEXTS, letters, llama_like


def hugging_face(tokenizer: Tokenizer, directory: Path) -> HuggingFace:
    tokenizer.save(directory)
    oracle = HuggingFace.from_file(str(directory / "tokenizer.json"))
    oracle.encode_special_tokens = True  # what is spelled like a special token is text
    return oracle


@pytest.fixture(scope="session")
def oracle(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> HuggingFace:
    return hugging_face(tokenizer, tmp_path_factory.mktemp("oracle"))


@given(text=TEXT)
@example(text="")
@example(text=" " * 3000 + "x")
@example(text="\n" * 3000)
@example(text=f"{_NO_TOKEN}a{_NO_TOKEN}")
def test_same_ids_as_hugging_face(tokenizer: Tokenizer, oracle: HuggingFace, text: str) -> None:
    assert tokenizer.fast is not None
    expected = oracle.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text) == expected
    array = tokenizer.array(text)
    assert array.dtype == np.uint16
    assert array.tolist() == expected
    assert tokenizer.decode(expected) == text


def scan(tokenizer: Tokenizer, oracle: HuggingFace, points: range) -> list[str]:
    """Code points that the two pre-tokenisers put into different classes (letter, number, space, other)."""
    wrong = []
    for start in range(points.start, points.stop, 1000):
        block = [chr(point) for point in range(start, min(start + 1000, points.stop)) if not 0xD800 <= point < 0xE000]
        text = "".join(f"a{character}1{character} {character}!" for character in block)
        if tokenizer.encode(text) != oracle.encode(text, add_special_tokens=False).ids:
            wrong.append(f"U+{start:04X}..")
    return wrong


def test_both_know_the_same_letters_and_spaces(tokenizer: Tokenizer, oracle: HuggingFace) -> None:
    assert scan(tokenizer, oracle, range(0x3100)) == []


@pytest.mark.slow
def test_both_know_the_same_letters_and_spaces_in_all_of_unicode(tokenizer: Tokenizer, oracle: HuggingFace) -> None:
    assert scan(tokenizer, oracle, range(0x3100, 0x110000)) == []


@pytest.mark.parametrize("text", [" " * 1_000_100 + "x", "x" + "\n" * 1_200_000])
def test_blank_runs_beyond_tiktokens_stack(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def loaded(data: dict[str, Any], directory: Path) -> tuple[Tokenizer, HuggingFace]:
    (directory / "tokenizer.json").write_text(json.dumps(data))
    oracle = HuggingFace.from_file(str(directory / "tokenizer.json"))
    oracle.encode_special_tokens = True
    return Tokenizer.load(directory), oracle


@pytest.mark.parametrize(
    ("data", "is_fast"),
    [
        (letters(["a b", "ab c"]), True),
        (letters([]), True),
        # tiktoken would join a and bc, a pair that never merges here.
        (letters(["b c", "a b", "ab c"]), False),
        # abc by two roads, of which tiktoken would know neither order.
        (letters(["b c", "a b", "ab c", "a bc"]), False),
        # Ids not in the order of the merges: tiktoken would merge b c first.
        (letters(["a b", "b c"], {"ab": 257, "bc": 256}), False),
        # A token that no merge makes: tiktoken would take it whole.
        (letters(["a b"], {"abc": 257}), False),
        (letters(["a b"]) | {"normalizer": {"type": "NFC"}}, False),
        (
            letters(["a b"]) | {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}},
            False,
        ),
        (letters(["a b"]) | {"pre_tokenizer": {"type": "Whitespace"}}, False),
    ],
)
def test_tiktoken_only_where_it_gives_the_same_ids(data: dict[str, Any], is_fast: bool, tmp_path: Path) -> None:
    tokenizer, oracle = loaded(data, tmp_path)
    assert (tokenizer.fast is not None) == is_fast
    for text in ("abc", "ab", "bc", "abcabc bca cab aabbcc e\u0301", "cabc"):
        assert tokenizer.encode(text) == oracle.encode(text, add_special_tokens=False).ids


def test_a_prompt_does_not_wait_for_tiktoken() -> None:
    """To make it every token of the vocabulary is tried; where special tokens are read as such it encodes nothing."""
    tokenizer = Tokenizer.train(["a b"], vocab_size=300)
    tokenizer.encode("a b", specials=True)
    assert "fast" not in vars(tokenizer)
    tokenizer.encode("a b")
    assert "fast" in vars(tokenizer)


@given(corpus=st.lists(st.text(alphabet="ab ", max_size=40), min_size=1), text=st.text(alphabet="ab ", max_size=60))
def test_everything_trained_is_fast_and_equal(
    corpus: list[str], text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two letters make every overlap that merging can meet."""
    tokenizer = Tokenizer.train(["a", *corpus], vocab_size=320)
    assert tokenizer.fast is not None
    oracle = hugging_face(tokenizer, tmp_path_factory.mktemp("tiny"))
    assert tokenizer.encode(text) == oracle.encode(text, add_special_tokens=False).ids


def test_training_depends_on_the_texts_alone(tokenizer: Tokenizer, tmp_path: Path) -> None:
    code = (
        "import sys; from anyformer.text import Tokenizer; import json;"
        "print(Tokenizer.train(json.load(sys.stdin), 600).fingerprint)"
    )
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "7"}
    other = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(TEXTS[::-1]),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == tokenizer.fingerprint
    assert Tokenizer.train([*TEXTS, "once more: the"], 600).fingerprint != tokenizer.fingerprint


def test_ids_of_a_trained_tokenizer(tokenizer: Tokenizer) -> None:
    assert (tokenizer.begin_of_text, tokenizer.end_of_text, tokenizer.vocab_size) == (0, 0, 600)
    assert tokenizer.kind == "byte-level-bpe"
    assert tokenizer.special_ids == {0}
    assert tokenizer.spelling(0) == "<|endoftext|>"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    assert [tokenizer.spelling(i) for i in range(1, 257)] == alphabet
    assert len(Tokenizer.train(["aab"], 4096).encode("aab")) == 1
    assert Tokenizer.train(["aab"], 4096).vocab_size == 259  # two merges and there is nothing left


def test_special_spellings_are_text_unless_asked_for(tokenizer: Tokenizer) -> None:
    text = "one<|endoftext|>two"
    assert 0 not in tokenizer.encode(text)
    ids = tokenizer.encode(text, specials=True)
    assert ids == [*tokenizer.encode("one"), 0, *tokenizer.encode("two")]
    assert 0 not in tokenizer.encode(text)  # asking once leaves no trace
    assert tokenizer.decode(ids) == "onetwo"
    assert tokenizer.decode(ids, specials=True) == text


@pytest.mark.parametrize("token", [-100, -1, 2**32 - 1, 2**32, 10**30])
def test_an_id_that_no_vocabulary_has_is_nothing(tokenizer: Tokenizer, token: int) -> None:
    """As labels have it where nothing is predicted."""
    assert tokenizer.spelling(token) is None
    assert tokenizer.stream().push(token) == ""
    assert tokenizer.decode([token, *tokenizer.encode("one"), token]) == "one"


def test_save_and_load(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    for path in (tmp_path, tmp_path / "tokenizer.json", str(tmp_path)):
        again = Tokenizer.load(path)
        assert again.fingerprint == tokenizer.fingerprint
        assert (again.begin_of_text, again.end_of_text) == (0, 0)


def test_transformers_reads_what_we_save(tokenizer: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "def add(a, b):\r\n  return 'Zwölf' 🥊"
    assert theirs.encode(text) == tokenizer.encode(text)
    assert (theirs.eos_token_id, theirs.bos_token_id) == (0, 0)


@pytest.mark.parametrize("eos", ["</s>", {"content": "</s>", "__type": "AddedToken"}])
def test_a_file_of_llamas_shape(tmp_path: Path, eos: str | dict[str, str]) -> None:
    inner = llama_like()
    inner.enable_truncation(4)
    inner.enable_padding(length=4)
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": eos, "x": 1}))
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.kind, tokenizer.begin_of_text, tokenizer.end_of_text) == ("bpe", 1, 2)
    assert tokenizer.fast is None
    text = "the cat the cat 🥊"
    assert tokenizer.encode(text) == llama_like().encode(text, add_special_tokens=False).ids  # neither cut nor padded
    assert tokenizer.decode(tokenizer.encode(text)) == text
    for _ in range(2):  # asking for special tokens once leaves no trace
        assert 2 not in tokenizer.encode("the</s>")
        assert tokenizer.encode("the</s>", specials=True)[-1] == 2
    tokenizer.save(tmp_path / "copy")
    assert Tokenizer.load(tmp_path / "copy").config["x"] == 1
    assert Tokenizer.load(tmp_path / "copy").fingerprint == tokenizer.fingerprint
    (tmp_path / "tokenizer_config.json").unlink()
    assert Tokenizer.load(tmp_path).end_of_text == 2  # by its spelling
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "<unk>"}')
    assert (
        Tokenizer.load(tmp_path).fingerprint != tokenizer.fingerprint
    )  # what ends a document changes the encoded text


def test_that_of_a_run(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer")
    assert Tokenizer.load(tmp_path).fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no tokenizer at .*tokenizer.json does not exist"),
        ("{", "tokenizer.json is not JSON"),
        ('{"model": {"type": "BPE"}}', "is not a tokenizer that Hugging Face tokenizers reads"),
        (b"\xff\xfe", "tokenizer.json is not JSON"),
    ],
)
def test_a_missing_or_broken_file(content: str | bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TextError, match=message) as raised:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("content", "message"), [("{", "is not JSON"), ("[]", "holds no JSON object")])
def test_a_broken_configuration(tokenizer: Tokenizer, tmp_path: Path, content: str, message: str) -> None:
    tokenizer.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(TextError, match=f"tokenizer_config.json {message}"):
        Tokenizer.load(tmp_path)


def test_what_cannot_be_encoded_or_trained(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(TextError, match=r"half a character \(surrogate U\+D83E\) at character 2"):
        tokenizer.encode("ab\ud83e")
    with pytest.raises(TextError, match="vocabulary of 256 tokens is too small"):
        Tokenizer.train(["text"], 256)
    with pytest.raises(TextError, match="no text to train"):
        Tokenizer.train(["", ""], 300)
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(TextError, match="SentencePiece"):
        Tokenizer.load(tmp_path)


def test_a_vocabulary_beyond_two_bytes(tmp_path: Path) -> None:
    tokenizer, _ = loaded(letters(["a b"], {"ab": 70_000}), tmp_path)
    assert (tokenizer.vocab_size, tokenizer.dtype) == (70_001, np.uint32)
    assert tokenizer.array("ab").tolist() == [70_000]


def test_threads_that_ask_for_specials_and_for_text_do_not_meet() -> None:
    """Where no tiktoken encodes in their place."""
    own = Tokenizer(llama_like(), {"bos_token": "<s>", "eos_token": "</s>"})
    text = "the cat </s> sat " * 2000
    wanted = {specials: own.encode(text, specials=specials) for specials in (False, True)}
    assert wanted[False] != wanted[True]
    with ThreadPoolExecutor(4) as pool:
        asked = [specials for _ in range(30) for specials in (False, True)]
        found = list(pool.map(lambda specials: own.encode(text, specials=specials), asked))
    assert all(ids == wanted[specials] for ids, specials in zip(found, asked, strict=True))


def test_what_makes_a_directory_a_tokenizers_is_written_last(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill before leaves none that opens and closes texts otherwise."""
    tokenizer.save(tmp_path / "one")
    read, written = Tokenizer.load(tmp_path / "one"), list[str]()
    monkeypatch.setattr("anyformer.text.companions.replace_file", lambda path, content: written.append(path.name))
    for own in (tokenizer, read):
        own.save(tmp_path / "two")
        assert written.pop() == "tokenizer.json"
        assert written
        written.clear()
