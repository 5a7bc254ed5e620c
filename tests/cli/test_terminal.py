"""Text that a model wrote cannot steer the terminal."""

import json
import unicodedata
from pathlib import Path

import pytest

from anyformer.screen import visible
from tests.cli.running import run, succeeded


def test_every_control_character_but_tab_and_line_feed_is_spelled_out() -> None:
    controls = [chr(n) for n in range(0x110000) if unicodedata.category(chr(n)) == "Cc"]
    assert len(controls) == 65
    for character in controls:
        expected = character if character in "\n\t" else f"\\x{ord(character):02x}"
        assert visible(f"a{character}b") == f"a{expected}b"


def test_other_text_stays() -> None:
    text = "naïve 東京 \U0001f600 \\x1b [bold] \u00a0"
    assert visible(text) == text


def test_generate_spells_them_out(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they come, and in the prompt; --json has them as they are."""
    from anyformer.text import Tokenizer

    decode = Tokenizer.stream

    class Evil:
        def __init__(self, tokenizer: Tokenizer) -> None:
            self.inner = decode(tokenizer)

        def push(self, token: int) -> str:
            return self.inner.push(token) + "\x1b[31m"

        def finish(self) -> str:
            return self.inner.finish()

    monkeypatch.setattr(Tokenizer, "stream", lambda self: Evil(self))
    words = ("generate", "the\x1b[2J", "--model", trained, "--max-new-tokens", "3", "--device", "cpu")
    shown = succeeded(run(*words)).stdout
    assert shown.startswith("the\\x1b[2J")
    assert "\\x1b[31m" in shown
    assert "\x1b" not in shown
    assert "\x1b[31m" in json.loads(succeeded(run(*words, "--json")).stdout)["text"]
