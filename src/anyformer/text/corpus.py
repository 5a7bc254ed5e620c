"""A corpus: named documents, what identifies them, and their split into training and validation.

No text is held: a corpus knows where its documents are and how long, and reads them again, piece by piece, whenever they
are wanted.
"""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from anyformer.disk.run_layout import SPEC, is_checkpoint, is_run
from anyformer.errors import TextError
from anyformer.text.places import Elsewhere, Folder, is_elsewhere, kind_elsewhere
from anyformer.text.sources import Document, DocumentSource, HeldDocuments, TextFiles, files_in, stdlib_files

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents in a fixed order; none is empty."""

    source: DocumentSource
    file: np.ndarray  # [document] int32, the number of its file, ascending
    line: np.ndarray  # [document] int32, its line there, ascending; 0 for a whole file
    document_nbytes: np.ndarray  # [document] int64, UTF-8 bytes
    part: tuple[int, int] | None = None  # of a single document: from which byte to which it goes; None for the whole

    @classmethod
    def of(cls, documents: Iterable[Document]) -> Corpus:
        """The corpus of documents in memory."""
        return _found(HeldDocuments(tuple(documents)))

    @classmethod
    def joined(cls, corpora: Mapping[str, Corpus]) -> Corpus:
        """Corpora one after the other; a document is called by the name given to its corpus and its number there."""
        parts = [np.arange(1, len(corpus) + 1) for corpus in corpora.values()]
        return cls(
            Corpora(tuple(corpora), tuple(corpora.values())),
            np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
            np.concatenate(parts),
            np.concatenate([corpus.document_nbytes for corpus in corpora.values()]),
        )

    def __len__(self) -> int:
        return len(self.document_nbytes)

    @cached_property
    def fingerprint(self) -> str:
        """sha256, in hexadecimal, of all names and texts in order; the same on every machine with the same text."""
        digest = hashlib.sha256()
        for _ in self._into(digest):
            pass
        return digest.hexdigest()

    @property
    def nbytes(self) -> int:
        """UTF-8 bytes of all documents."""
        return int(self.document_nbytes.sum())

    def name(self, number: int) -> str:
        """Of a document."""
        line = int(self.line[number])
        return self.source.name(int(self.file[number])) + (f":{line}" if line else "")

    def pieces(self) -> Iterator[tuple[int, str]]:
        """(number of the document, the next part of its text), all in order; a part is a few megabytes at most.

        Raises TextError where a file is no longer what it was when the corpus was read.
        """
        found = self._pieces() if self.part is None else _within(self._pieces(), *self.part)
        expected = 0
        for number, texts in by_document(found):
            nbytes = 0
            for text in texts:
                nbytes += len(text.encode())
                yield number, text
            if number != expected or nbytes != self.document_nbytes[number]:
                raise self._changed(expected)
            expected += 1
        if expected != len(self):
            raise self._changed(expected)

    def same_pieces(self) -> Iterator[tuple[int, str]]:
        """What `pieces` gives, being what the fingerprint is of: raises TextError at the end where it is another text."""
        expected, digest = self.fingerprint, hashlib.sha256()
        yield from self._into(digest)
        if digest.hexdigest() != expected:
            raise self._changed(0)

    def _into(self, digest: hashlib._Hash) -> Iterator[tuple[int, str]]:
        before = -1
        for number, text in self.pieces():
            if number != before:  # lengths first, so that no two lists of texts look alike
                name, before = self.name(number).encode("utf-8", "surrogateescape"), number
                digest.update(len(name).to_bytes(8, "little") + name)
                digest.update(int(self.document_nbytes[number]).to_bytes(8, "little"))
            digest.update(text.encode())
            yield number, text

    def _pieces(self) -> Iterator[tuple[int, str]]:
        starts = np.flatnonzero(np.diff(self.file, prepend=-1)).tolist()
        for at, end in itertools.pairwise((*starts, len(self))):
            for line, text in self.source.pieces(int(self.file[at])):
                while at < end and self.line[at] < line:
                    at += 1
                if at == end:
                    break
                if self.line[at] == line and text:
                    yield at, text

    def _changed(self, number: int) -> TextError:
        return TextError(f"{self.name(number)} changed while it was being read; leave the text alone and start again")

    def documents(self) -> Iterator[Document]:
        """The documents, one after the other, each of them whole."""
        for number, texts in by_document(self.pieces()):
            yield Document(self.name(number), "".join(texts))

    def texts(self) -> Iterator[str]:
        """The texts alone, each of them whole."""
        return (document.text for document in self.documents())

    def sample(self, nbytes: int) -> Corpus:
        """Whole documents, spread over the corpus, about `nbytes` of them: enough to train a tokenizer on."""
        order = self._shuffled(seed=0)
        before = np.cumsum(self.document_nbytes[order]) - self.document_nbytes[order]
        return self._some(order[before < nbytes])

    def split(self, validation_fraction: float, seed: int = 0) -> tuple[Corpus, Corpus]:
        """Training and validation documents: none in both, together all of them, about that fraction of the bytes.

        Several documents are divided whole, those for validation drawn by a hash of seed and name, never more than the
        fraction allows. A single document is cut: its last part, from the start of a line on, is for validation.
        Raises TextError where one of the two would be empty.
        """
        if not 0.0 < validation_fraction < 1.0:
            raise TextError(f"a validation fraction of {validation_fraction} leaves nothing; give one between 0 and 1")
        if len(self) == 1:
            return self._cut(validation_fraction)
        room = validation_fraction * self.nbytes
        chosen = np.zeros(len(self), dtype=bool)
        for index in self._shuffled(seed):
            if self.document_nbytes[index] <= room:
                room -= int(self.document_nbytes[index])
                chosen[index] = True
        if not chosen.any():
            share = self.document_nbytes.min() / self.nbytes
            raise TextError(
                f"the validation split is empty: the smallest of {len(self)} documents is {share:.1%} of the "
                f"corpus, more than the validation fraction {validation_fraction:g}; raise it or add smaller documents"
            )
        return self._some(np.flatnonzero(~chosen)), self._some(np.flatnonzero(chosen))

    def _some(self, numbers: np.ndarray) -> Corpus:
        kept = np.sort(numbers)
        return Corpus(self.source, self.file[kept], self.line[kept], self.document_nbytes[kept], self.part)

    def _shuffled(self, seed: int) -> np.ndarray:
        """The numbers of all documents in an order drawn by a hash of seed, number and name: int64 [document]."""
        digests = (
            hashlib.sha256(f"{seed}:{i}:{self.name(i)}".encode("utf-8", "surrogateescape")).digest()[:16]
            for i in range(len(self))
        )
        return np.argsort(np.fromiter(digests, dtype="S16", count=len(self)), kind="stable")

    def _cut(self, validation_fraction: float) -> tuple[Corpus, Corpus]:
        size = self.nbytes
        target = size - round(validation_fraction * size)
        first = last = at = 0  # where a line begins: the first one from the target on, the last one of all
        for _, text in self.pieces():
            content = text.encode()
            if not first:
                found = content.find(b"\n", max(target - 1 - at, 0))
                first = at + found + 1 if found >= 0 else 0
            found = content.rfind(b"\n", 0, size - 1 - at)
            last = at + found + 1 if found >= 0 else last
            at += len(content)
        cut = first if 0 < first < size else last
        if not 0 < cut < size:
            raise TextError(
                f"the validation split is empty: the only document, {self.name(0)}, has no line that could begin it; "
                f"give a text of several lines or more documents"
            )
        begin = self.part[0] if self.part else 0
        train, held_out = (
            Corpus(self.source, self.file, self.line, np.array([b - a], dtype=np.int64), (begin + a, begin + b))
            for a, b in ((0, cut), (cut, size))
        )
        return train, held_out


@dataclass(frozen=True)
class Corpora:
    """Corpora as if each were a file, and each of its documents a line."""

    names: tuple[str, ...]
    corpora: tuple[Corpus, ...]

    def __len__(self) -> int:
        return len(self.corpora)

    def name(self, number: int) -> str:
        return self.names[number]

    def pieces(self, number: int) -> Iterator[tuple[int, str]]:
        return ((document + 1, text) for document, text in self.corpora[number].pieces())


def read_corpus(source: str | Path) -> Corpus:
    """The corpus of a file, of a folder (recursively, in the order of the names), of an address, or of the word `stdlib`.

    A document is one file; one line of .jsonl, row of .parquet and .arrow, text of a .tar; empty ones are dropped. A file
    named outright is read whatever its suffix; in a folder those and .txt, .md and .py count, and each with .gz or .zst. An
    address (`s3://bucket/texts`) is a file or a folder that fsspec reaches. All is read once to see that it is text, and again
    whenever it is used. Raises TextError for what is not there, is empty, or is not UTF-8 text.
    """
    corpus = _found(_named(source), passing_over=source == "stdlib")
    if not len(corpus):
        raise TextError(f"the corpus {source} is empty: give one that holds text")
    return corpus


def _named(source: str | Path) -> DocumentSource:
    """The files that a name stands for."""
    if not str(source):
        raise TextError("a corpus has an empty name; give a file, a folder, an address or the word stdlib")
    if str(source).endswith((".yaml", ".yml")) and not Path(source).is_dir():
        raise TextError(f"{source} is a mixture by its name, and no text; give one of the texts that it names")
    if source == "stdlib":
        return stdlib_files()
    if is_elsewhere(source):
        url = str(source)
        kind = kind_elsewhere(url)
        if kind == "directory":
            return files_in(Elsewhere(url), url)
        folder, _, name = url.rpartition("/")
        if kind is None or not name:
            raise TextError(f"no corpus at {url}: there is no file and no folder of that name")
        return TextFiles(Elsewhere(folder), (name,))
    path = Path(source)
    if (is_run(path) and (path / SPEC).is_file()) or is_checkpoint(path):
        raise TextError(f"{path} is of a run, and no text; give the text that is to be read")
    if path.is_dir():
        return files_in(Folder(path), str(path))
    if path.is_file():
        return TextFiles(Folder(path.parent), (path.name,))
    if path.exists():
        raise TextError(f"{path} is no file: a text is read more than once; write what comes from there to a file")
    raise TextError(
        f"no corpus at {source}: give a file, a folder, an address such as s3://bucket/texts, or the word stdlib"
    )


def _found(source: DocumentSource, *, passing_over: bool = False) -> Corpus:
    """The documents of a source that are not empty; `passing_over` files that are no text."""
    file, line, nbytes = array("i"), array("i"), array("q")
    for number in range(len(source)):
        before = len(nbytes)
        try:
            for at, text in source.pieces(number):
                if len(nbytes) > before and line[-1] == at:
                    nbytes[-1] += len(text.encode())
                elif text:
                    file.append(number)
                    line.append(at)
                    nbytes.append(len(text.encode()))
        except TextError:
            if not passing_over:
                raise
            del file[before:], line[before:], nbytes[before:]
    return Corpus(source, np.array(file), np.array(line), np.array(nbytes))


def _within(pieces: Iterable[tuple[int, str]], begin: int, end: int) -> Iterator[tuple[int, str]]:
    """What of one document lies between two of its bytes, where characters begin."""
    at = 0
    for number, text in pieces:
        content = text.encode()
        kept = content[max(begin - at, 0) : max(end - at, 0)]
        at += len(content)
        if kept:
            yield number, kept.decode()


def by_document(parts: Iterable[tuple[int, T]]) -> Iterator[tuple[int, Iterator[T]]]:
    """(number of a document, its parts), of parts of documents in order."""
    for number, own in itertools.groupby(parts, key=lambda part: part[0]):
        yield number, (part for _, part in own)


def set_aside(
    rows: Sequence[T], share: float, of: str, by: Callable[[T], Any] | None = None
) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """(the rows that stay, a share of them that is set aside), each in their order; the share is evenly spread, or over what `by`
    sorts them by.

    Raises TextError, calling the rows what `of` says, where none would be set aside, or more than half.
    """
    parts, of_all = (Fraction(share) if 0 < share <= 0.5 else Fraction(0)).limit_denominator(10**6).as_integer_ratio()
    if not (n_out := len(rows) * parts // of_all):
        empty = f"the validation split is empty: {share:g} of {len(rows)} {of}"
        raise TextError(f"{empty}; give a share up to 0.5 and more {of}")
    order = range(len(rows)) if by is None else sorted(range(len(rows)), key=lambda place: by(rows[place]))
    aside = {order[-(-i * of_all // parts) - 1] for i in range(1, n_out + 1)}
    stay = tuple(row for place, row in enumerate(rows) if place not in aside)
    return stay, tuple(row for place, row in enumerate(rows) if place in aside)
