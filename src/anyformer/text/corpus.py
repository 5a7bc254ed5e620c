"""A corpus: named documents, what identifies them, and their split into training and validation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from anyformer.errors import TextError
from anyformer.text.sources import Document, file_documents, folder_documents, stdlib_documents


@dataclass(frozen=True)
class Corpus:
    """Documents in memory, in a fixed order; none is empty."""

    documents: tuple[Document, ...]

    @cached_property
    def fingerprint(self) -> str:
        """sha256, in hexadecimal, of all names and texts in order; the same on every machine with the same text."""
        digest = hashlib.sha256()
        for document in self.documents:
            for content in (document.name.encode("utf-8", "surrogateescape"), document.text.encode()):
                digest.update(len(content).to_bytes(8, "little"))  # so that no two lists of texts look alike
                digest.update(content)
        return digest.hexdigest()

    @cached_property
    def document_nbytes(self) -> tuple[int, ...]:
        """UTF-8 bytes of each document."""
        return tuple(len(document.text.encode()) for document in self.documents)

    @property
    def nbytes(self) -> int:
        """UTF-8 bytes of all documents."""
        return sum(self.document_nbytes)

    def texts(self) -> Iterator[str]:
        """The texts alone."""
        return (document.text for document in self.documents)

    def sample(self, nbytes: int) -> Iterator[str]:
        """Whole documents, spread over the corpus, about `nbytes` of them: enough to train a tokenizer on."""
        taken = 0
        for index in self._shuffled(seed=0):
            if taken >= nbytes:
                return
            taken += self.document_nbytes[index]
            yield self.documents[index].text

    def split(self, validation_fraction: float, seed: int = 0) -> tuple[Corpus, Corpus]:
        """Training and validation documents: none in both, together all of them, about that fraction of the bytes.

        Several documents are divided whole, those for validation drawn by a hash of seed and name, never more than the
        fraction allows. A single document is cut: its last part, from the start of a line on, is for validation.
        Raises TextError where one of the two would be empty.
        """
        if not 0.0 < validation_fraction < 1.0:
            raise TextError(f"a validation fraction of {validation_fraction} leaves nothing; give one between 0 and 1")
        if len(self.documents) == 1:
            return self._cut(validation_fraction)
        room = validation_fraction * self.nbytes
        chosen: set[int] = set()
        for index in self._shuffled(seed):
            if self.document_nbytes[index] <= room:
                room -= self.document_nbytes[index]
                chosen.add(index)
        if not chosen:
            share = min(self.document_nbytes) / self.nbytes
            raise TextError(
                f"the validation split is empty: the smallest of {len(self.documents)} documents is {share:.1%} of the "
                f"corpus, more than the validation fraction {validation_fraction:g}; raise it or add smaller documents"
            )
        kept = (tuple(d for i, d in enumerate(self.documents) if (i in chosen) == side) for side in (False, True))
        return Corpus(next(kept)), Corpus(next(kept))

    def _shuffled(self, seed: int) -> list[int]:
        keys = [
            hashlib.sha256(f"{seed}:{i}:{d.name}".encode("utf-8", "surrogateescape")).digest()
            for i, d in enumerate(self.documents)
        ]
        return sorted(range(len(keys)), key=keys.__getitem__)

    def _cut(self, validation_fraction: float) -> tuple[Corpus, Corpus]:
        name, text = self.documents[0]
        content = text.encode()
        target = len(content) - round(validation_fraction * len(content))
        after = content.find(b"\n", max(target - 1, 0)) + 1  # 0 if no line ends there
        cut = after if 0 < after < len(content) else content.rfind(b"\n", 0, -1) + 1
        if not 0 < cut < len(content):
            raise TextError(
                f"the validation split is empty: the only document, {name}, has no line that could begin it; "
                f"give a text of several lines or more documents"
            )
        parts = content[:cut].decode(), content[cut:].decode()
        return Corpus((Document(name, parts[0]),)), Corpus((Document(name, parts[1]),))


def read_corpus(source: str | Path) -> Corpus:
    """The corpus of a file, of a folder (recursively, in the order of the names), or of the word `stdlib`.

    A document is one file, or one line of .jsonl; empty ones are dropped. A file named outright is read whatever its
    suffix; in a folder .txt, .md, .py and .jsonl count, and each of them with .gz.
    Raises TextError for what is not there, is empty, or is not UTF-8 text.
    """
    path = Path(source)
    if source == "stdlib":
        found = stdlib_documents()
    elif path.is_dir():
        found = folder_documents(path)
    elif path.exists():
        found = file_documents(path, path.name)
    else:
        raise TextError(f"no corpus at {source}: give a file, a folder, or the word stdlib")
    documents = tuple(document for document in found if document.text)
    if not documents:
        raise TextError(f"the corpus {source} is empty: give one that holds text")
    return Corpus(documents)


def held_out_places(n: int, share: float, of: str) -> range:
    """The places, among `n` examples in their order, of those set aside: a share of them, evenly spread.

    Raises TextError, calling the examples what `of` says, where none would be set aside, or more than half.
    """
    every = round(1 / share) if 0 < share < 1 else 0
    if every < 2 or n < every:
        raise TextError(f"the validation split is empty: {share:g} of {n} {of}; give a share up to 0.5 and more {of}")
    return range(every - 1, n, every)
