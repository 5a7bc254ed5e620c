"""A corpus in tokens, made once and then mapped from disk: the cache is keyed by what was encoded and with what."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from anyformer.disk.atomic import create_directories, put_in_place, remove_abandoned, remove_directory
from anyformer.disk.cache import cache_directory
from anyformer.errors import DiskFailed, TextError
from anyformer.text.ahead import encoded_ahead, processes_for
from anyformer.text.corpus import Corpus
from anyformer.text.growing import INDEX, Grown, growing, measure
from anyformer.text.pieces import parts_of_documents
from anyformer.text.tokenizer import Tokenizer

_FORMAT = 1  # raised when what is written, how documents are delimited, or which ids a text has, changes
_FORMATS = {"unigram": 2, "wordlevel": 2, "wordpiece": 2}  # of tokenizers by kind, where it is another
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
    """A corpus that is encoded when one of its arrays is first asked for: what is refused before has cost nothing.

    Sent to another process it is read, or encoded, there.
    """

    def __init__(self, made: _Encoding) -> None:
        vars(self).update(made=made, vocab_size=made.tokenizer.vocab_size, fingerprint=made.key)

    def __getattr__(self, name: str) -> np.ndarray:
        if name not in _ARRAYS:
            raise AttributeError(name)
        vars(self).update(zip(_ARRAYS, vars(self)["made"].arrays(), strict=True))
        return vars(self)[name]

    def __reduce__(self) -> tuple[type[_Deferred], tuple[_Encoding]]:
        return _Deferred, (vars(self)["made"],)


def encode_corpus(corpus: Corpus, tokenizer: Tokenizer, cache: str | Path | None = None) -> EncodedCorpus:
    """The corpus in tokens, from `cache` (default `cache_directory()`) if it is there whole, else made and put there.

    A large one is encoded by as many processes as there are cores; killed, it is gone on with. Where another process is
    encoding the same, this one waits for it. Raises TextError for a tokenizer without a token that ends a text, and RunFailed
    where the cache can't be written.
    """
    made = _Encoding.of(corpus, tokenizer, cache)
    return EncodedCorpus(*made.arrays(), vocab_size=tokenizer.vocab_size, fingerprint=made.key)


def encoded_when_read(corpus: Corpus, tokenizer: Tokenizer) -> EncodedCorpus:
    """What `encode_corpus` gives, made when its tokens are first read; RunFailed is raised then."""
    return _Deferred(_Encoding.of(corpus, tokenizer, None))


def delimiters(tokenizer: Tokenizer) -> tuple[int, int]:
    """The ids that open and that close a document. Raises TextError for a tokenizer without a token that ends a text."""
    end = tokenizer.end_of_text
    if end is None:
        raise TextError(
            f"this {tokenizer.kind} tokenizer names no token that ends a text; name one as eos_token in "
            f"tokenizer_config.json beside it"
        )
    return end if tokenizer.begin_of_text is None else tokenizer.begin_of_text, end


@dataclass(frozen=True)
class _Encoding:
    """How a corpus is encoded, and by which key it lies in the cache."""

    corpus: Corpus
    tokenizer: Tokenizer
    begin: int
    end: int
    key: str
    cache: str | Path | None

    @classmethod
    def of(cls, corpus: Corpus, tokenizer: Tokenizer, cache: str | Path | None) -> _Encoding:
        begin, end = delimiters(tokenizer)
        form = _FORMATS.get(tokenizer.kind, _FORMAT)
        key = hashlib.sha256(f"{form} {corpus.fingerprint} {tokenizer.fingerprint}".encode()).hexdigest()
        return cls(corpus, tokenizer, begin, end, key, cache)

    def arrays(self) -> Sequence[np.ndarray]:
        """Tokens, offsets and bytes of documents, mapped from disk."""
        root = (cache_directory() if self.cache is None else Path(self.cache)) / "encoded"
        directory = root / self.key[:32]
        if (found := _read(directory)) is not None:
            return found
        try:
            self._write(directory)
        except OSError as error:
            raise DiskFailed(
                f"cannot write the encoded corpus to {root}: {error.strerror or error}; name another folder in "
                f"ANYFORMER_CACHE"
            ) from None
        if (found := _read(directory)) is None:
            raise DiskFailed(f"the encoded corpus just written to {directory} does not read back; check the disk")
        return found

    def _write(self, directory: Path) -> None:
        """Make the directory, over what is damaged; where another process was faster with the same content, that stays."""
        create_directories(directory.parent)
        remove_abandoned(directory.parent)
        with growing(directory) as aside:
            if _read(directory) is not None:  # another process has made it while this one waited
                return
            if directory.exists():
                with suppress(FileNotFoundError):  # another process has taken it away
                    remove_directory(directory)
            try:
                if _read(aside) is None:
                    self._fill(aside)
                put_in_place(aside, directory)
            except OSError:
                if _read(directory) is None:
                    raise

    def _fill(self, aside: Path) -> None:
        """Write the corpus, from where a process that was killed had come to."""
        dtype = self.tokenizer.dtype
        begin, end = (np.array([token], dtype=dtype).tobytes() for token in (self.begin, self.end))
        with Grown(aside) as grown:
            parts = parts_of_documents(self.tokenizer, self.corpus)
            left = islice(parts, grown.parts, None)
            tokens, offsets = grown.tokens, grown.offsets
            n_documents = offsets.nbytes // 8
            for number, ids in encoded_ahead(self.tokenizer, left, processes_for(self.corpus.nbytes)):
                if number == n_documents:
                    tokens.add(end if number else b"")
                    offsets.add(np.int64(tokens.nbytes // dtype.itemsize).tobytes())
                    tokens.add(begin)
                    n_documents += 1
                tokens.add(ids.tobytes())
                grown.added()
            tokens.add(end)
            offsets.add(np.int64(tokens.nbytes // dtype.itemsize).tobytes())
            self.corpus.document_nbytes.astype(np.int64).tofile(aside / "document_nbytes.bin")
            found = {
                "tokens": {"dtype": dtype.name, **tokens.measure()},
                "offsets": {"dtype": "int64", **offsets.measure()},
                "document_nbytes": {"dtype": "int64", **measure(aside / "document_nbytes.bin")},
            }
            grown.note(found)


def _read(directory: Path) -> list[np.ndarray] | None:
    """The arrays of a cache directory; None if there is none or it is not byte for byte what was written."""
    try:
        meta = json.loads((directory / INDEX).read_text(encoding="utf-8"))
        arrays = []
        for name in _ARRAYS:
            path = directory / f"{name}.bin"
            if measure(path) != {key: meta[name][key] for key in ("nbytes", "sha256")}:
                return None
            arrays.append(np.memmap(path, dtype=np.dtype(meta[name]["dtype"]), mode="r"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return arrays
