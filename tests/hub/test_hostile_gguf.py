"""GGUF files that somebody spoilt on purpose: one line, and nothing is reserved for what a file cannot hold."""

from __future__ import annotations

import resource
import struct
from pathlib import Path
from typing import Any

import pytest

from anyformer.errors import TextError
from anyformer.hub import load, load_spec
from anyformer.text.gguf_vocabulary import tokenizer_in
from tests.hub.gguf_files import write
from tests.hub.refusing import refusal
from tests.hub.test_gguf import SIZES, byte_level, llama_tensors, turned

U32, F32, STRING, LIST = 4, 6, 8, 9


def text(value: str | bytes) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(content)) + content


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, start: int = 0, n: int | None = None) -> bytes:
    sizes = b"".join(struct.pack("<Q", size) for size in shape)
    return text(name) + struct.pack("<I", len(shape) if n is None else n) + sizes + struct.pack("<IQ", kind, start)


def header(keys: list[bytes], tensors: list[bytes], *, n: tuple[int, int] | None = None, version: int = 3) -> bytes:
    counts = n or (len(tensors), len(keys))
    return b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors) + bytes(256)


LLAMA = key("general.architecture", STRING, text("llama"))
ONE = tensor("token_embd.weight", (4, 4))
SPOILT: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "only 0 bytes"),
    "another": (b"GGML" + bytes(64), "does not begin with GGUF"),
    "version": (header([], [], version=77), "version is 77"),
    "big-endian": (header([], [], version=3 << 24), "big-endian"),
    "tensors": (header([LLAMA], [ONE], n=(2**62, 1)), "counts"),
    "settings": (header([LLAMA], [ONE], n=(1, 2**62)), "counts"),
    "a setting more": (header([LLAMA], [], n=(0, 200)), "twice"),
    "a long key": (header([struct.pack("<Q", 2**63) + b"a"], []), "bytes are to follow"),
    "a long word": (header([key("a", STRING, struct.pack("<Q", 10**9) + b"a")], []), "bytes are to follow"),
    "no UTF-8": (header([key("a", STRING, text(b"\xff\xfe"))], []), "utf-8"),
    "a long list": (header([key("a", LIST, struct.pack("<IQ", 0, 2**60))], []), "counts"),
    "a list too long": (header([key("a", LIST, struct.pack("<IQ", 0, 10**7))], []), "bytes are to follow"),
    "lists in lists": (header([key("a", LIST, struct.pack("<IQ", LIST, 1) * 5000)], []), "of type 9"),
    "a type": (header([key("a", 77, b"aaaa")], []), "of type 77"),
    "twice": (header([LLAMA, LLAMA], []), "'general.architecture' twice"),
    "alignment 0": (header([LLAMA, key("general.alignment", U32, struct.pack("<I", 0))], [ONE]), "no power of two"),
    "alignment 3": (header([LLAMA, key("general.alignment", U32, struct.pack("<I", 3))], [ONE]), "no power of two"),
    "alignment a word": (header([LLAMA, key("general.alignment", STRING, text("a"))], [ONE]), "no power of two"),
    "dimensions": (header([LLAMA], [tensor("token_embd.weight", (4,), n=2**31)]), "dimensions"),
    "no dimensions": (header([LLAMA], [tensor("token_embd.weight", ())]), "0 dimensions"),
    "shape": (header([LLAMA], [tensor("token_embd.weight", (2**63, 2**63))]), "ends beyond"),
    "shape 0": (header([LLAMA], [tensor("token_embd.weight", (0, 4))]), "which its type cannot be"),
    "block": (header([LLAMA], [tensor("token_embd.weight", (5, 4), kind=8)]), "which its type cannot be"),
    "kind": (header([LLAMA], [tensor("token_embd.weight", (4, 4), kind=999)]), "of type 999"),
    "beyond": (header([LLAMA], [tensor("token_embd.weight", (4, 4), start=10**12)]), "ends beyond"),
    "tensor twice": (header([LLAMA], [ONE, ONE]), "'token_embd.weight' twice"),
    "a gap": (header([LLAMA], [ONE, tensor("output.weight", (4, 4), start=96)]), "begins at byte 288 and not at 256"),
    "a gap before all": (header([LLAMA], [tensor("token_embd.weight", (4, 4), start=32)]), "behind the header"),
    "over each other": (header([LLAMA], [ONE, tensor("output.weight", (4, 4), start=4)]), "over each other"),
}


@pytest.fixture
def little_memory() -> Any:
    """No more than two gigabytes beyond what the process has, so that a file that counts on more is seen."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (2 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_header_is_one_line(tmp_path: Path, name: str, little_memory: None) -> None:
    content, says = SPOILT[name]
    (tmp_path / "x.gguf").write_bytes(content)
    message = refusal(lambda: load_spec(tmp_path / "x.gguf"))
    assert "x.gguf is truncated or no GGUF file" in message
    assert says in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block_count", 0),
        ("block_count", 2**31),
        ("embedding_length", 0),
        ("attention.head_count", 0),
        ("attention.head_count_kv", 0),
        ("feed_forward_length", "many"),
        ("attention.layer_norm_rms_epsilon", -1.0),
        ("rope.freq_base", 0.0),
        ("rope.freq_base", float("inf")),
        ("rope.freq_base", float("nan")),
        ("context_length", 0),
    ],
)
def test_a_number_that_no_model_has_is_named(tmp_path: Path, name: str, value: Any) -> None:
    file = write(tmp_path / "x.gguf", "llama", turned(llama_tensors()), {**SIZES, name: value})
    assert "x.gguf" in refusal(lambda: load(file))


@pytest.mark.parametrize(
    ("name", "value"), [("attention.head_count", 0), ("embedding_length", 0), ("block_count", "a")]
)
def test_gemmas_scale_is_of_sizes_that_can_be(tmp_path: Path, name: str, value: Any) -> None:
    file = write(tmp_path / "x.gguf", "gemma2", turned(llama_tensors()), {**SIZES, name: value})
    assert "x.gguf" in refusal(lambda: load_spec(file))


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": None},
        {"tokens": []},
        {"tokens": "abc"},
        {"tokens": lambda tokens: [*tokens[:-1], tokens[0]]},
        {"tokens": lambda tokens: [*tokens[:-1], 7]},
        {"tokens": lambda tokens: tokens[:100]},
        {"merges": lambda merges: [*merges, "unknown pieces"]},
        {"merges": lambda merges: [*merges, "alone"]},
        {"merges": lambda merges: [*merges, ""]},
        {"merges": [1, 2]},
        {"merges": None},
        {"merges": []},
        {"token_type": [1, 2]},
        {"token_type": "a"},
        {"eos_token_id": "a"},
        {"eos_token_id": 1.5},
        {"model": ["gpt2"]},
        {"pre": ["gpt-2"]},
    ],
)
def test_a_spoilt_vocabulary_is_one_line(changes: dict[str, Any]) -> None:
    metadata = {f"tokenizer.{name}": value for name, value in byte_level()[1].items()}
    for name, change in changes.items():
        full = f"tokenizer.ggml.{name}"
        value = change(metadata[full]) if callable(change) else change
        metadata.pop(full, None)
        if value is not None:
            metadata[full] = value
    with pytest.raises(TextError) as caught:
        tokenizer_in(metadata)
    assert "\n" not in str(caught.value)


def test_scores_are_as_many_as_pieces() -> None:
    metadata = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["<unk>", "a", "b", "ab"]}
    for scores in (None, [], [0.0], ["a"] * 4):
        with pytest.raises(TextError, match="scores"):
            tokenizer_in({**metadata, "tokenizer.ggml.scores": scores})
