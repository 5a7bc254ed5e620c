"""Streaming against decoding everything at once."""

import json
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Inner

from anyformer.text import Tokenizer
from tests.text.samples import TEXT, llama_like


@pytest.fixture(scope="session")
def llama() -> Tokenizer:
    return Tokenizer(llama_like(), {"bos_token": "<s>", "eos_token": "</s>"})


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = tokenizer.stream()
    return [*(stream.push(token) for token in ids), stream.finish()]


@given(ids=st.lists(st.integers(0, 620)))
def test_any_ids_of_bytes(tokenizer: Tokenizer, ids: list[int]) -> None:
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


@given(ids=st.lists(st.integers(0, 280)))
@example(ids=[1, 267, 268])
@example(ids=[268, 1, 268])
@example(ids=[3, 0, 131])  # bytes that a token left out does not part
@example(ids=[268, 3, 275, 131, 268])
def test_any_ids_with_byte_fallback(llama: Tokenizer, ids: list[int]) -> None:
    assert "".join(pieces(llama, ids)) == llama.decode(ids)


@given(text=TEXT)
def test_text_comes_as_soon_as_it_is_whole(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    *pushed, rest = pieces(tokenizer, ids)
    assert "".join(pushed) == text
    assert rest == ""
    for n in range(len(ids)):  # what is shown after n tokens is all that n tokens make certain
        assert "".join(pushed[:n]) == b"".join(map(_bytes(tokenizer), ids[:n])).decode(errors="ignore")


def test_half_a_character_waits(tokenizer: Tokenizer) -> None:
    # One id a byte, as the alphabet stands at 1 to 256 in the order of its spellings.
    ids = [token for byte in "é🥊".encode() for token in _byte_ids(tokenizer, byte)]
    assert pieces(tokenizer, ids) == ["", "é", "", "", "", "🥊", ""]
    assert pieces(tokenizer, ids[:4]) == ["", "é", "", "", "\ufffd"]


def test_half_a_character_waits_whatever_decodes_it(tokenizer: Tokenizer) -> None:
    data = {**tokenizer.data, "decoder": {"type": "Sequence", "decoders": [tokenizer.data["decoder"]]}}
    wrapped = Tokenizer(Inner.from_str(json.dumps(data)), tokenizer.config)
    ids = [token for byte in "aé🥊".encode() for token in _byte_ids(tokenizer, byte)]
    assert pieces(wrapped, ids) == ["a", "", "é", "", "", "", "🥊", ""]
    assert pieces(wrapped, ids[:5]) == ["a", "", "é", "", "", "\ufffd"]


def test_words_come_one_by_one(llama: Tokenizer) -> None:
    assert pieces(llama, [1, 267, 268, 269, 2])[1:4] == ["the", " c", "at"]


def _bytes(tokenizer: Tokenizer) -> Callable[[int], bytes]:
    return lambda token: b"".join(bytes([_BYTE[character]]) for character in tokenizer.spelling(token) or "")


# The table of GPT-2's release, rewritten from its description: 188 bytes spell themselves, the rest follow U+0100.
_SELF = [byte for byte in range(256) if chr(byte).isprintable() and byte not in (0x20, 0xA0, 0xAD)]
_BYTE = {chr(byte): byte for byte in _SELF}
_BYTE |= {chr(256 + i): byte for i, byte in enumerate(byte for byte in range(256) if byte not in _SELF)}


def _byte_ids(tokenizer: Tokenizer, byte: int) -> list[int]:
    return [token for token in range(1, 257) if _BYTE[tokenizer.spelling(token) or ""] == byte]
