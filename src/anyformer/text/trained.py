"""Tokenizers trained on a text that is named, and what each makes of one: its length, what is unknown, what is lost."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.errors import TextError, UsageError
from anyformer.notebook import ShowsItself
from anyformer.text.corpus import Corpus, by_document, read_corpus
from anyformer.text.learning import Lesson
from anyformer.text.pieces import ids_of, parts_of
from anyformer.text.schemes import scheme
from anyformer.text.sources import Document
from anyformer.text.tokenizer import Tokenizer
from anyformer.text.tokenizer_file import FILE

VERSION = 1
EXAMPLE = "I'm in the U.K. till the end. It's a fast-paced, 3.5-hour Überraschung!"


@dataclass(frozen=True)
class ComparedTokenizers:
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


def compared(tokenizer: Tokenizer, documents: Corpus | Iterable[str]) -> ComparedTokenizers:
    """What the tokenizer makes of the documents, empty ones aside. Raises TextError where there is no text."""
    corpus = documents if isinstance(documents, Corpus) else Corpus.of(Document("", text) for text in documents if text)
    if not len(corpus):
        raise TextError("no text to compare tokenizers on; give one that is not empty")
    tokenizer.encode("a")  # what is prepared at the first call is not the speed of the others
    counts, lengths = np.zeros(tokenizer.vocab_size, np.int64), np.zeros(len(corpus), np.int64)
    start, decoding, restored = time.perf_counter(), 0.0, 0
    for number, texts in by_document(corpus.pieces()):
        digest, decoded, before = hashlib.sha256(), hashlib.sha256(), []
        for part in parts_of(tokenizer, _into(digest, texts), corpus.name(number)):
            ids = ids_of(tokenizer, part)
            paused = time.perf_counter()
            seen, times = np.unique(ids, return_counts=True)
            counts[seen] += times
            lengths[number] += len(ids)
            decoded.update(tokenizer.decode_behind(before, ids.tolist()).encode())
            before = ids[-8:].tolist()
            decoding += time.perf_counter() - paused
        restored += decoded.digest() == digest.digest()
    seconds, n_tokens = time.perf_counter() - start - decoding, int(lengths.sum())
    known = (i for i in range(tokenizer.vocab_size) if tokenizer.spelling(i) is not None)
    plain = [i for i in known if i not in tokenizer.special_ids]
    unknown = 0 if tokenizer.unknown is None else int(counts[tokenizer.unknown])
    return ComparedTokenizers(
        kind=tokenizer.kind,
        vocab_size=tokenizer.vocab_size,
        n_tokens=n_tokens,
        bytes_per_token=corpus.nbytes / max(1, n_tokens),
        unknown_rate=unknown / max(1, n_tokens),
        unused_rate=float((counts[plain] == 0).mean()) if plain else 0.0,
        length_median=float(np.median(lengths)),
        length_p95=float(np.percentile(lengths, 95)),
        length_max=int(lengths.max()),
        restored_rate=restored / len(corpus),
        nbytes_per_second=corpus.nbytes / max(seconds, 1e-9),
    )


def _into(digest: hashlib._Hash, texts: Iterable[str]) -> Iterator[str]:
    """The texts, which go into the digest as they pass."""
    for text in texts:
        digest.update(text.encode())
        yield text


def spelled(tokenizer: Tokenizer, text: str) -> list[str]:
    """The tokens of a text as the vocabulary spells them; what it cannot spell is the text itself in brackets.

    Tokens of a byte-level vocabulary are the text they are, where they are whole characters.
    """
    found = tokenizer.pieces(text)
    if tokenizer.kind == "byte-level-bpe":
        decoded = [tokenizer.decode([token]) for token, _, _ in found]
        return [spelling if "\ufffd" in one else one for one, (_, spelling, _) in zip(decoded, found, strict=True)]
    return [f"[{part}]" if token == tokenizer.unknown else spelling for token, spelling, part in found]


@dataclass(frozen=True)
class TrainedTokenizer(ShowsItself):
    """A tokenizer, and what it makes of the text that it was trained on."""

    tokenizer: Tokenizer
    measured: ComparedTokenizers
    out: Path | None
    stride: int  # of every so many pieces of the text it learnt from one; 1 is all

    def as_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "out": self.out and str(self.out),
            "vocab_size": self.tokenizer.vocab_size,
            "kind": self.tokenizer.kind,
            "fingerprint": self.tokenizer.fingerprint,
            "stride": self.stride,
            "bytes_per_token": self.measured.bytes_per_token,
            "unknown_rate": self.measured.unknown_rate,
        }

    def __str__(self) -> str:
        unknown = self.measured.unknown_rate
        share = "" if self.tokenizer.unknown is None else f", {unknown:.2%} of the tokens unknown"
        length = f"{self.measured.bytes_per_token:.2f} bytes a token on this text"
        saved = f"; saved in {self.out}" if self.out else ""
        every = f"; learnt from one in {self.stride} pieces of the text, evenly spread" if self.stride > 1 else ""
        return f"{self.tokenizer.vocab_size:,} tokens, {length}{share}{every}{saved}"


def tokenizer(
    text: str | Path,
    *,
    kind: str = "byte-level-bpe",
    vocab_size: int = 4096,
    min_count: int = 1,
    specials: Sequence[str] = (),
    out: str | Path | None = None,
) -> TrainedTokenizer:
    """A tokenizer trained on a file, a folder, or "stdlib"; with `out`, saved in that new directory.

    `kind` is a name among `SCHEMES`. `vocab_size` tokens are learnt, `specials` come on top; words or pairs rarer than
    `min_count` are left out. Raises TextError, and UsageError where `out` is a file or holds a tokenizer already.
    """
    place = None if out is None else Path(out)
    if place is not None and place.exists() and not place.is_dir():
        raise UsageError(f"{place} is a file; name a directory for the tokenizer")
    if place is not None and (place / FILE).exists():
        raise UsageError(f"{place} holds a tokenizer already; name another directory, or remove it first")
    corpus = read_corpus(text)
    chosen = scheme(kind, vocab_size, min_count)
    lesson = Lesson(corpus, chosen.table)
    found = chosen.train(lesson.pieces())
    if specials:
        found = found.with_specials(specials)
    if place is not None:
        found.save(place)
    return TrainedTokenizer(found, compared(found, corpus), place, lesson.stride)


@dataclass(frozen=True)
class TokenizerComparison(ShowsItself):
    """Tokenizers on one text, by name, and how each splits examples: their pieces, by example and name."""

    tokenizers: Mapping[str, ComparedTokenizers]
    examples: Mapping[str, Mapping[str, Sequence[str]]]
    nbytes: int  # of the text that all are judged on

    def as_json(self) -> dict[str, Any]:
        entries = [{"name": name, **asdict(result)} for name, result in self.tokenizers.items()]
        return {"version": VERSION, "tokenizers": entries, "examples": self.examples}


def compare_tokenizers(
    tokenizers: Iterable[Tokenizer | str | Path],
    data: str | Path,
    *,
    vocab_size: int = 4096,
    examples: Sequence[str] = (EXAMPLE,),
) -> TokenizerComparison:
    """Tokenizers, or directories of them, or kinds, which are trained on nine tenths of a text.

    All are judged on the last tenth, so that no one is judged on what it learnt from. Raises TextError.
    """
    if not (named := list(tokenizers)):
        raise TextError("there is nothing to compare; name at least one tokenizer")
    learned, judged = read_corpus(data).split(0.1)
    found: dict[str, Tokenizer] = {}
    for each in named:
        if isinstance(each, Tokenizer):
            found[f"{each.kind} {each.fingerprint[:8]}"] = each
        elif isinstance(each, Path) or Path(each).exists():
            found[str(each)] = Tokenizer.load(each)
        else:
            chosen = scheme(each, vocab_size)
            found[each] = chosen.train(Lesson(learned, chosen.table).pieces())
    splits = {example: {name: spelled(own, example) for name, own in found.items()} for example in examples}
    return TokenizerComparison({name: compared(own, judged) for name, own in found.items()}, splits, judged.nbytes)
