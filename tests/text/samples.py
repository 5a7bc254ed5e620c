"""Texts and tokenizer files that several tests use."""

import textwrap
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HuggingFace

TEXTS = (
    "def add(a, b):\n    return a + b\n" * 20,
    "the quick brown fox jumps over the lazy dog; it's 1234 o'clock, we'll see\r\n\r\n" * 20,
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich 🥊🦊 日本語のテキスト\t\n" * 20,
    Path(textwrap.__file__).read_text(encoding="utf-8"),
)

# Plain random text seldom has runs, contractions or characters of several code points; these have them all the time.
ASCII_BLANKS = (" ", "  ", "\t", "\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c")
OTHER_BLANKS = ("\x85", "\xa0", "\u2028", "\u3000", "\u200b", "\ufeff")
WORDS = ("'s", "'S", "'ll", "'", "’s", "<|endoftext|>", "<|", "the", "def ", "    return", "-->")
NUMBERS = ("12", "٣", "½", "Ⅷ", "²")
SIGNS = (
    "é",
    "e\u0301",
    "\u0301",
    "\u200d",
    "👩\u200d👩\u200d👧",
    "🇩🇪",
    "ß",
    "日本",
    "\U0010ffff",
    "\x00",
    "\x7f",
    "\ufffd",
)
TRICKY = st.lists(st.sampled_from([*ASCII_BLANKS, *OTHER_BLANKS, *WORDS, *NUMBERS, *SIGNS])).map("".join)
TEXT = st.one_of(TRICKY, st.text(), st.tuples(TRICKY, st.text(), TRICKY).map("".join))


def letters(merges: list[str], extra: dict[str, int] | None = None) -> dict[str, Any]:
    """A byte-level tokenizer.json with these merges and, unless `extra` says otherwise, ids in their order."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, *dict.fromkeys(merge.replace(" ", "") for merge in merges)]
    vocabulary = {token: i for i, token in enumerate(tokens)} | (extra or {})
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }


def llama_like() -> HuggingFace:
    """The shape of LLaMA's file: SentencePiece's BPE with byte fallback, a normaliser that writes spaces as ▁."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    spelled = ["<unk>", "<s>", "</s>", *bytes_, "▁", "t", "h", "e", "c", "a", "▁t", "he", "▁the", "▁c", "at"]
    inner = HuggingFace(
        models.BPE(
            vocab={token: i for i, token in enumerate(spelled)},
            merges=[("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "c"), ("a", "t")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    return inner
