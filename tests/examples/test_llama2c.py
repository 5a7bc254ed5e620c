"""examples/llama2c.py on real weights that somebody else trained: the text it must write is known to the byte."""

import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import anyformer as af
from examples import llama2c

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def stories(material: Path) -> Path:
    return material / "stories260K"


def write(stories: Path, *options: str) -> bytes:
    files = [str(stories / "stories260K.bin"), str(stories / "tok512.bin")]
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / "llama2c.py"), *files, *options],
        capture_output=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
    ).stdout


def test_greedy_decoding_writes_the_464_bytes(stories: Path) -> None:
    expected = (stories / "expected_greedy_200.txt").read_bytes()
    assert len(expected) == 464
    assert write(stories, "--max-new-tokens", "200") == expected + b"\n"
    assert write(stories, "--max-new-tokens", "200", "--no-cache") == expected + b"\n"


def test_the_saved_directory_writes_them_too(stories: Path, tmp_path: Path) -> None:
    write(stories, "--max-new-tokens", "1", "--out", str(tmp_path / "saved"))
    model, tokenizer = af.load(tmp_path / "saved")
    assert tokenizer is not None
    expected = (stories / "expected_greedy_200.txt").read_text()
    assert af.generate(model, tokenizer, "", max_new_tokens=200) == expected
    # The same text goes on from its own middle: spaces at the seam are neither lost nor doubled.
    start = expected[: expected.index(" there was")]
    assert af.generate(model, tokenizer, start, max_new_tokens=20).startswith(" there was a little girl named Lily.")


def test_so_does_the_file_for_llama_cpp(stories: Path, tmp_path: Path) -> None:
    write(stories, "--max-new-tokens", "1", "--out", str(tmp_path / "saved"))
    af.convert(tmp_path / "saved", tmp_path / "saved.gguf")
    expected = (stories / "expected_greedy_200.txt").read_text()
    assert af.generate(tmp_path / "saved.gguf", None, "", max_new_tokens=200) == expected


def sentencepiece(text: str, scores: dict[str, float]) -> list[str]:
    """Join, over and over, the two neighbours that spell the token of the highest score, the leftmost of equals."""
    pieces: list[str] = []
    for character in "▁" + text.replace(" ", "▁"):
        in_bytes = [f"<0x{byte:02X}>" for byte in character.encode()]
        pieces += [character] if character in scores else in_bytes
    while True:
        joined = [(scores[a + b], -i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in scores]
        if not joined:
            return pieces
        at = -max(joined)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


@pytest.mark.parametrize(
    "text",
    ["Once upon a time, there was a big dog.", 'Lily\'s  mom said "No!"\nThe end', "zebra café 東京 🙂", ""],
)
def test_the_tokenizer_encodes_as_sentencepiece(stories: Path, text: str) -> None:
    data, at, scores = (stories / "tok512.bin").read_bytes(), 4, {}
    for _ in range(512):
        score, length = struct.unpack_from("<fi", data, at)
        scores[data[at + 8 : at + 8 + length].decode().replace(" ", "▁")] = score
        at += 8 + length
    tokenizer = llama2c.read_tokenizer(stories / "tok512.bin", 512)
    found = tokenizer.encode(text)
    assert [tokenizer.spelling(token) for token in found] == (sentencepiece(text, scores) if text else [])
    assert tokenizer.decode(found) == text


def test_a_file_of_another_size_is_refused(stories: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.bin"
    cut.write_bytes((stories / "stories260K.bin").read_bytes()[:-400])
    with pytest.raises((SystemExit, RuntimeError)):
        llama2c.read_model(cut)
