"""A corpus in tokens, made once and then mapped from disk: the cache is keyed by what was encoded and with what."""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from anyformer.disk.atomic import new_directory, remove_abandoned, remove_directory
from anyformer.disk.cache import cache_directory
from anyformer.errors import RunFailed, TextError
from anyformer.text.corpus import Corpus, by_document
from anyformer.text.pieces import encoded_documents
from anyformer.text.tokenizer import Tokenizer

_FORMAT = 1  # raised when what is written, or how documents are delimited, changes
_ARRAYS = ("tokens", "offsets", "document_nbytes")


@dataclass(frozen=True, eq=False)
class EncodedCorpus:
    """Documents as ids, each with its delimiters: `begin t1 … tn end`, where begin and end are one token for GPT-2.

    Every token but the first of a document is predicted from those before it, so that the losses of a document,
    summed, are nats for all of its bytes and for the fact that it ends.
    """

    tokens: np.ndarray  # [token] uint16 or uint32, mapped from disk
    offsets: np.ndarray  # [document + 1] int64: document i is tokens[offsets[i]:offsets[i + 1]]
    document_nbytes: np.ndarray  # [document] int64, UTF-8 bytes without the delimiters
    vocab_size: int
    fingerprint: str  # of corpus, tokenizer and format

    @property
    def n_documents(self) -> int:
        return len(self.document_nbytes)

    @property
    def nbytes(self) -> int:
        """UTF-8 bytes of the text."""
        return int(self.document_nbytes.sum())

    @property
    def predictions(self) -> int:
        """Tokens that are predicted once in an epoch: all but the first of each document."""
        return len(self.tokens) - self.n_documents

    def document(self, index: int) -> np.ndarray:
        """Ids of one document, delimiters included."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


class _Deferred(EncodedCorpus):
    """A corpus that is encoded when one of its arrays is first asked for: what is refused before has cost nothing."""

    def __init__(self, arrays: Callable[[], Sequence[np.ndarray]], vocab_size: int, fingerprint: str) -> None:
        vars(self).update(arrays=arrays, vocab_size=vocab_size, fingerprint=fingerprint)

    def __getattr__(self, name: str) -> np.ndarray:
        if name not in _ARRAYS:
            raise AttributeError(name)
        vars(self).update(zip(_ARRAYS, vars(self)["arrays"](), strict=True))
        return vars(self)[name]


def encode_corpus(corpus: Corpus, tokenizer: Tokenizer, cache: str | Path | None = None) -> EncodedCorpus:
    """The corpus in tokens, from `cache` (default `cache_directory()`) if it is there whole, else made and put there.

    Raises TextError for a tokenizer without a token that ends a text, and RunFailed where the cache can't be written.
    """
    arrays, vocab_size, key = _encoding(corpus, tokenizer, cache)
    return EncodedCorpus(*arrays(), vocab_size=vocab_size, fingerprint=key)


def encoded_when_read(corpus: Corpus, tokenizer: Tokenizer, cache: str | Path | None = None) -> EncodedCorpus:
    """What `encode_corpus` gives, made when its tokens are first read; RunFailed is raised then."""
    return _Deferred(*_encoding(corpus, tokenizer, cache))


def _encoding(
    corpus: Corpus, tokenizer: Tokenizer, cache: str | Path | None
) -> tuple[Callable[[], Sequence[np.ndarray]], int, str]:
    """(what makes or finds the arrays, the vocabulary's size, the fingerprint)."""
    end = tokenizer.end_of_text
    if end is None:
        raise TextError(
            f"this {tokenizer.kind} tokenizer names no token that ends a text; name one as eos_token in "
            f"tokenizer_config.json beside it"
        )
    begin = end if tokenizer.begin_of_text is None else tokenizer.begin_of_text
    key = hashlib.sha256(f"{_FORMAT} {corpus.fingerprint} {tokenizer.fingerprint}".encode()).hexdigest()
    root = (cache_directory() if cache is None else Path(cache)) / "encoded"
    directory = root / key[:32]

    def arrays() -> Sequence[np.ndarray]:
        if (found := _read(directory)) is not None:
            return found
        try:
            _write(directory, corpus, tokenizer, begin, end)
        except OSError as error:
            raise RunFailed(
                f"cannot write the encoded corpus to {root}: {error.strerror or error}; name another folder in "
                f"ANYFORMER_CACHE"
            ) from None
        if (found := _read(directory)) is None:
            raise RunFailed(f"the encoded corpus just written to {directory} does not read back; check the disk")
        return found

    return arrays, tokenizer.vocab_size, key


def _write(directory: Path, corpus: Corpus, tokenizer: Tokenizer, begin: int, end: int) -> None:
    """Make the directory, over what is damaged; where another process was faster with the same content, that stays."""
    remove_abandoned(directory.parent)
    if directory.exists() and _read(directory) is None:
        with suppress(FileNotFoundError):  # another process has taken it away
            remove_directory(directory)
    try:
        with new_directory(directory) as aside:
            lengths = array("q", [0])
            with open(aside / "tokens.bin", "wb") as file:
                for _, parts in by_document(encoded_documents(tokenizer, corpus)):
                    lengths.append(0)
                    for ids in chain([[begin]], parts, [[end]]):
                        file.write(np.asarray(ids, dtype=tokenizer.dtype).tobytes())
                        lengths[-1] += len(ids)
            np.cumsum(np.array(lengths), dtype=np.int64).tofile(aside / "offsets.bin")
            corpus.document_nbytes.astype(np.int64).tofile(aside / "document_nbytes.bin")
            dtypes = {"tokens": tokenizer.dtype.name, "offsets": "int64", "document_nbytes": "int64"}
            meta = {name: {"dtype": dtypes[name], **_measure(aside / f"{name}.bin")} for name in _ARRAYS}
            (aside / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    except OSError:
        if _read(directory) is None:
            raise


def _read(directory: Path) -> list[np.ndarray] | None:
    """The arrays of a cache directory; None if there is none or it is not byte for byte what was written."""
    try:
        meta = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
        arrays = []
        for name in _ARRAYS:
            path = directory / f"{name}.bin"
            if _measure(path) != {key: meta[name][key] for key in ("nbytes", "sha256")}:
                return None
            arrays.append(np.memmap(path, dtype=np.dtype(meta[name]["dtype"]), mode="r"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return arrays


def _measure(path: Path) -> dict[str, int | str]:
    with open(path, "rb") as file:
        return {"nbytes": os.fstat(file.fileno()).st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
