"""What is held in memory is refused by its size, before it is read, where memory has no room for it."""

import gzip
from pathlib import Path

import pytest

import anyformer as af
from anyformer.errors import TextError, UsageError
from anyformer.training.prepare import Sources

LINES = '{"text": "a text to tell apart", "label": "good"}\n' * 200


@pytest.mark.parametrize("name", ["examples.jsonl", "examples.jsonl.gz"])
def test_labelled_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(gzip.compress(LINES.encode()) if name.endswith(".gz") else LINES.encode())
    assert len(Sources(file).labelled("classes").rows) == 200
    monkeypatch.setattr("anyformer.capacity.free_nbytes", lambda device: 10 * file.stat().st_size)
    monkeypatch.setattr("anyformer.training.prepare.read_labelled", pytest.fail)
    with pytest.raises(UsageError, match=f"holding .*{name} in memory needs .* free on cpu; give fewer"):
        Sources(file).labelled("classes")


def test_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (one := tmp_path / "one.txt").write_text("a sentence\n" * 100)
    (two := tmp_path / "two.txt").write_text("another sentence, and longer\n" * 100)
    assert len(Sources(source=one, target=two).pairs().pairs) == 100
    monkeypatch.setattr("anyformer.capacity.free_nbytes", lambda device: 10 * two.stat().st_size // 2)
    with pytest.raises(UsageError, match=r"holding .*one.txt and .*two.txt in memory needs .* free on cpu; give"):
        Sources(source=one, target=two).pairs()
    with pytest.raises(UsageError, match="either --data"):
        Sources()


def test_a_vocabulary_without_room_for_sentinels(tmp_path: Path) -> None:
    """T5's hundred are among the tokens that were asked for, so the refusal names these, and what they have to hold."""
    (text := tmp_path / "one.txt").write_text("a sentence\n" * 100)
    says = "a byte-level vocabulary of 300 tokens is too small: 256 bytes, .* and 100 more special ones make 357"
    with pytest.raises(TextError, match=says):
        af.prepare_training("t5-small", text, vocab_size=300)
