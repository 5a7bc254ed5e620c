"""What tokenizers make of the same text: how short, how much of it unknown, how fast, whether it comes back."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from anyformer.errors import TextError
from anyformer.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Compared:
    """One tokenizer on one text."""

    kind: str
    vocab_size: int
    n_tokens: int
    bytes_per_token: float
    unknown_rate: float  # share of the tokens that stand for what the vocabulary cannot spell
    unused_rate: float  # share of the vocabulary, special tokens aside, that the text never needs
    length_median: float  # tokens of a document
    length_p95: float
    length_max: int
    restored_rate: float  # share of the documents that decode to themselves, character by character
    nbytes_per_second: float  # of encoding, on one run: of the order of, and no more


def compared(tokenizer: Tokenizer, texts: Iterable[str]) -> Compared:
    """What the tokenizer makes of the documents. Raises TextError where there is no text."""
    documents = [text for text in texts if text]
    if not documents:
        raise TextError("no text to compare tokenizers on; give one that is not empty")
    tokenizer.encode(documents[0][:1000])  # what is prepared at the first call is not the speed of the others
    start = time.perf_counter()
    ids = [tokenizer.encode(text) for text in documents]
    seconds = time.perf_counter() - start
    nbytes = sum(len(text.encode()) for text in documents)
    lengths = np.array([len(each) for each in ids])
    counts = np.bincount(
        np.concatenate([np.array(each, dtype=np.int64) for each in ids]), minlength=tokenizer.vocab_size
    )
    n_tokens = int(counts.sum())
    plain = [
        i for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids and tokenizer.spelling(i) is not None
    ]
    unknown = 0 if tokenizer.unknown is None else int(counts[tokenizer.unknown])
    restored = sum(tokenizer.decode(each) == text for each, text in zip(ids, documents, strict=True))
    return Compared(
        kind=tokenizer.kind,
        vocab_size=tokenizer.vocab_size,
        n_tokens=n_tokens,
        bytes_per_token=nbytes / max(1, n_tokens),
        unknown_rate=unknown / max(1, n_tokens),
        unused_rate=float((counts[plain] == 0).mean()) if plain else 0.0,
        length_median=float(np.median(lengths)),
        length_p95=float(np.percentile(lengths, 95)),
        length_max=int(lengths.max()),
        restored_rate=restored / len(documents),
        nbytes_per_second=nbytes / max(seconds, 1e-9),
    )


def spelled(tokenizer: Tokenizer, text: str) -> list[str]:
    """The tokens of a text as the vocabulary spells them; what it cannot spell is the text itself in brackets.

    Tokens of a byte-level vocabulary are the text they are, where they are whole characters.
    """
    found = tokenizer.pieces(text)
    if tokenizer.kind == "byte-level-bpe":
        decoded = [tokenizer.decode([token]) for token, _, _ in found]
        return [spelling if "\ufffd" in one else one for one, (_, spelling, _) in zip(decoded, found, strict=True)]
    return [f"[{part}]" if token == tokenizer.unknown else spelling for token, spelling, part in found]
