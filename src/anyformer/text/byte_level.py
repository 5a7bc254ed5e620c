"""Byte-level BPE in tiktoken's terms: the same merges and the same ids as a `tokenizer.json`, several times as fast.

Byte-level BPE: Radford et al. 2019 (GPT-2), section 2.2. The two libraries describe it differently: Hugging Face lists
which *pairs* merge and in which order, tiktoken merges whatever two neighbours spell a token, lowest id first.
They agree exactly when every token is reachable (merging its own bytes in isolation ends at that one token) and the ids
follow the order of the merges. Merging is local: two neighbouring pieces look the same alone as inside a longer word,
so a token that is reachable is reached through one pair only, and no other split of it ever stands side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tiktoken

# GPT-2's pre-tokeniser with possessive quantifiers: the same pieces as the original expression that Hugging Face's
# ByteLevel uses, without its backtracking, which overflows tiktoken's stack on long runs of white space.
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

# Still more than a million of white space in one run overflows (tiktoken 0.14); this is a quarter of that.
_BLANK_CHARACTERS = 250_000

# Without a special token tiktoken looks at every character for one that is spelled with nothing. No text is taken for this one,
# as all were before tiktoken 0.11.
_NO_TOKEN = "<|special|>"

# Of a BPE model: with any of them it is not the plain one that tiktoken computes.
_OPTIONS = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")


def _alphabet() -> dict[str, int]:
    """GPT-2's spelling of the 256 bytes: printable Latin-1 stands for itself, the others start at U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _alphabet()


def token_bytes(spelling: str) -> bytes:
    """The bytes a token of a byte-level vocabulary stands for; an added token in its own letters gives its UTF-8."""
    try:
        return bytes([BYTE_OF[character] for character in spelling])
    except KeyError:
        return spelling.encode()


def is_blank_run(text: str) -> bool:
    """Whether `text` may hold a run of white space too long for tiktoken (it certainly does not, if this is False)."""
    size = _BLANK_CHARACTERS  # a run of twice this size covers at least one aligned block whole
    return any(text[start : start + size].isspace() for start in range(0, len(text) - size + 1, size))


def fast_encoding(data: dict[str, Any]) -> tiktoken.Encoding | None:
    """The tiktoken encoding with the same ids as the `tokenizer.json` held in `data`; None if there is none.

    Ordinary text only: special tokens are left out, so that their spelling inside a document is text like any other.
    """
    model, pre_tokenizer = data["model"], data.get("pre_tokenizer") or {}
    plain = (
        model.get("type") == "BPE"
        and not any(map(model.get, _OPTIONS))
        and data.get("normalizer") is None
        and pre_tokenizer.get("type") == "ByteLevel"
        and pre_tokenizer.get("use_regex", True)
        and not pre_tokenizer.get("add_prefix_space", True)
        and all(token["special"] for token in data.get("added_tokens", ()))
    )
    ranks = _ranks(data) if plain else None
    if ranks is None:
        return None

    import tiktoken

    special = {_NO_TOKEN: max(ranks.values()) + 1}
    return tiktoken.Encoding("anyformer", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)


def _ranks(data: dict[str, Any]) -> dict[bytes, int] | None:
    special = {token["content"] for token in data.get("added_tokens", ())}
    vocabulary = {spelling: token for spelling, token in data["model"]["vocab"].items() if spelling not in special}
    merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in data["model"]["merges"]]
    merged = ["".join(merge) for merge in merges]
    ids = [vocabulary.get(spelling, -1) for spelling in merged]
    in_order = ids == sorted(set(ids)) and ids[:1] != [-1]
    complete = vocabulary.keys() == {*BYTE_OF, *merged}
    if not (in_order and complete and _all_reachable(vocabulary, merges, merged)):
        return None
    return {token_bytes(spelling): token for spelling, token in vocabulary.items()}


def _all_reachable(vocabulary: dict[str, int], merges: list[tuple[str, ...]], merged: list[str]) -> bool:
    from tokenizers import models

    bare = models.BPE(vocab=vocabulary, merges=[(left, right) for left, right in merges])
    return all(len(bare.tokenize(spelling)) == 1 for spelling in merged)
