"""Documents in files that are no text themselves: rows of Parquet and Arrow, members of a WebDataset's tar.

Each is read as it lies on disk, a few hundred rows or one member at a time. An Arrow stream is what Hugging Face's
`Dataset.save_to_disk` writes; a tar holds a document in each .txt, and in each .json that is an object with a string "text".
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, BinaryIO

from anyformer.disk.foreign import keys_once
from anyformer.errors import TextError, errors_of, first_line
from anyformer.text.places import BLOCK, decoded, needed, refuse_surrogates

FIELD = "text"
ROWS = 256  # that are held at once
MOST_JSON = 1 << 24  # bytes of a .json in a tar, which is read whole

Rows = Iterator[tuple[int, str]]  # (number of the row, from 1; the next part of its text)


def parquet_rows(file: BinaryIO, where: str) -> Rows:
    """The column "text" of a Parquet file; what is null there is empty. Raises TextError."""
    with _arrow(where, "Parquet") as arrow:
        table = arrow.parquet.ParquetFile(file)
        _refuse_other(arrow.types, table.schema_arrow, where)
        yield from _texts(table.iter_batches(ROWS, columns=[FIELD], use_threads=False))


def arrow_rows(file: BinaryIO, where: str) -> Rows:
    """The column "text" of an Arrow stream. Raises TextError."""
    with _arrow(where, "Arrow") as arrow:
        stream = arrow.ipc.open_stream(file)
        _refuse_other(arrow.types, stream.schema, where)
        yield from _texts(batch.select([FIELD]) for batch in stream)


def tar_members(file: BinaryIO, where: str) -> Rows:
    """The members of a tar that hold a text, in their order. Raises TextError."""
    line = 0
    try:
        with tarfile.open(fileobj=file, mode="r|", bufsize=BLOCK) as archive:
            for member in archive:
                kind = member.name.lower()
                if not member.isfile() or not kind.endswith((".txt", ".json")):
                    continue
                content: Any = archive.extractfile(member)
                named = f"{where}:{member.name}"
                if kind.endswith(".txt"):
                    line += 1
                    yield from ((line, text) for text in decoded(content, named))
                    continue
                with errors_of(named, TextError):
                    text = _text_of(content, member.size)
                if text is not None:
                    line += 1
                    yield line, text
    except tarfile.TarError as error:
        raise TextError(f"{where} is not a whole tar file ({error})") from None


READERS: dict[str, Callable[[BinaryIO, str], Rows]] = {
    ".parquet": parquet_rows,
    ".arrow": arrow_rows,
    ".tar": tar_members,
}


@contextmanager
def _arrow(where: str, kind: str) -> Iterator[Any]:
    """The package that reads files of a kind; what it throws within is a TextError."""
    needed("pyarrow.parquet", "pyarrow", where, f"reading {kind}")
    arrow = import_module("pyarrow")
    try:
        yield arrow
    except (arrow.ArrowException, UnicodeDecodeError) as error:
        raise TextError(f"{where} is not a whole {kind} file ({first_line(error)})") from None


def _texts(batches: Any) -> Rows:
    line = 0
    for batch in batches:
        for text in batch.column(0):
            line += 1
            yield line, text.as_py() or ""


def _refuse_other(types: Any, schema: Any, where: str) -> None:
    """Raise TextError for a table without a column of texts."""
    kinds = {field.name: field.type for field in schema}
    if FIELD not in kinds:
        raise TextError(f"{where} has no column {FIELD!r}; it has {', '.join(kinds) or 'none'}")
    if not (types.is_string(kinds[FIELD]) or types.is_large_string(kinds[FIELD])):
        raise TextError(f"{where}: its column {FIELD!r} holds {kinds[FIELD]}; give one of strings")


def _text_of(content: BinaryIO, nbytes: int) -> str | None:
    if nbytes > MOST_JSON:
        raise TextError(f"more than {MOST_JSON:,} bytes; put a text so long into a .txt")
    try:
        entry = json.loads(content.read(), object_pairs_hook=keys_once)
    except (ValueError, RecursionError) as error:
        raise TextError(f"not JSON ({error})") from None
    text = entry.get(FIELD) if isinstance(entry, dict) else None
    if not isinstance(text, str):
        return None
    refuse_surrogates(text)
    return text
