"""Texts elsewhere, packed, in tables and in tars: the same documents as the same lines in a plain file."""

import gzip
import io
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from anyformer.errors import TextError
from anyformer.text import Corpus, read_corpus, read_labelled
from anyformer.text.conversations import read_preferences

TEXTS = ["one\r\nline", "", "é 東京 🙂", "x" * 70_000, "last"]
NUMBERED = [(i, text) for i, text in enumerate(TEXTS, start=1) if text]


def jsonl() -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()


def tar() -> bytes:
    """Samples as WebDataset writes them: files of one key, one after the other."""
    kept = io.BytesIO()
    with tarfile.open(fileobj=kept, mode="w") as archive:
        for i, text in enumerate(TEXTS):
            files = {"cls": b"3", "json": b'{"url": "x"}', "txt": text.encode()}
            files = {"json": json.dumps({"text": text}).encode()} if i % 2 else files
            for suffix, content in files.items():
                member = tarfile.TarInfo(f"shard/{i:05d}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return kept.getvalue()


def parquet() -> bytes:
    pyarrow, tables = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    kept = io.BytesIO()
    texts = [text or None for text in TEXTS]  # null is no text
    tables.write_table(pyarrow.table({"id": list(range(5)), "text": texts}), kept, row_group_size=2)
    return kept.getvalue()


def arrow() -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"text": TEXTS, "id": list(range(5))})
    kept = io.BytesIO()
    with pyarrow.ipc.new_stream(kept, table.schema) as stream:
        stream.write_table(table, max_chunksize=2)
    return kept.getvalue()


def zst(content: bytes) -> bytes:
    """Two frames, one after the other."""
    compress, half = pytest.importorskip("zstandard").ZstdCompressor().compress, len(content) // 2
    return compress(content[:half]) + compress(content[half:])


FILES = {
    "a.jsonl": jsonl,
    "a.jsonl.zst": lambda: zst(jsonl()),
    "a.parquet": parquet,
    "a.arrow": arrow,
    "a.tar": tar,
    "a.tar.gz": lambda: gzip.compress(tar()),
    "a.tar.zst": lambda: zst(tar()),
}


@pytest.fixture
def memory() -> Iterator[Any]:
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def documents(corpus: Corpus, name: str) -> list[tuple[int, str]]:
    found = [(document.name.removeprefix(f"{name}:"), document.text) for document in corpus.documents()]
    return [(int(line), text) for line, text in found]


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_documents(name: str, tmp_path: Path, memory: Any) -> None:
    content = FILES[name]()
    (tmp_path / name).write_bytes(content)
    memory.pipe(f"/bucket/texts/{name}", content)
    for source in (
        tmp_path / name,
        tmp_path,
        f"memory://bucket/texts/{name}",
        "memory://bucket/texts",
        "memory://bucket",
    ):
        corpus = read_corpus(source)
        prefix = f"texts/{name}" if source == "memory://bucket" else name
        assert documents(corpus, prefix) == NUMBERED
        assert corpus.nbytes == sum(len(text.encode()) for text in TEXTS)
    here, there = read_corpus(tmp_path), read_corpus("memory://bucket/texts/")
    assert here.fingerprint == there.fingerprint  # where a text lies changes nothing of a run


def test_hidden_files_elsewhere_are_passed_over(memory: Any) -> None:
    for name in ("b.txt", "a.md", ".hidden/c.txt", "below/.d.txt", "below/e.txt", "f.png"):
        memory.pipe(f"/texts/{name}", name.encode())
    assert [name for name, _ in read_corpus("memory://texts").documents()] == ["a.md", "b.txt", "below/e.txt"]


def test_a_dataset_on_disk(tmp_path: Path) -> None:
    """What `Dataset.save_to_disk` leaves, with what `map` keeps beside it; a dict of datasets asks for one of them."""
    for name in ("data-00000-of-00002.arrow", "data-00001-of-00002.arrow", "cache-0123.arrow"):
        (tmp_path / "train").mkdir(exist_ok=True)
        (tmp_path / "train" / name).write_bytes(arrow())
    (tmp_path / "train" / "state.json").write_text("{}")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert len(read_corpus(tmp_path / "train")) == 2 * len(NUMBERED)
    with pytest.raises(TextError, match=r"holds several datasets; name one of its folders, such as .*/train$"):
        read_corpus(tmp_path)


def test_what_the_datasets_library_writes(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path / "set")
    assert [text for _, text in read_corpus(tmp_path / "set").documents()] == [text for text in TEXTS if text]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl.zst", lambda: zst(jsonl())[:-9], "a.jsonl.zst is not a whole zstd file"),
        ("a.txt.zst", lambda: b"(needs zstandard)" + zst(b"a")[:0], "a.txt.zst is not a whole zstd file"),
        ("a.parquet", lambda: parquet()[:-9], "a.parquet is not a whole Parquet file"),
        ("a.arrow", lambda: arrow()[:-90], "a.arrow is not a whole Arrow file"),
        ("a.tar", lambda: tar()[:-90_000], "a.tar is not a whole tar file"),
        ("a.tar", lambda: b"x" * 2000, "a.tar is not a whole tar file"),
    ],
)
def test_what_is_not_whole_is_refused(name: str, content: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content())
    with pytest.raises(TextError, match=message) as raised:
        read_corpus(tmp_path / name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"txt": ["a"]}, "a.parquet has no column 'text'; it has txt"),
        ({"text": [1]}, "a.parquet: its column 'text' holds int64; give one of strings"),
    ],
)
def test_tables_without_texts_are_refused(columns: dict[str, list[Any]], message: str, tmp_path: Path) -> None:
    pyarrow, tables = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    tables.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    with pytest.raises(TextError, match=message):
        read_corpus(tmp_path)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://nowhere/a.txt", "no corpus at memory://nowhere/a.txt"),
        ("memory://nowhere/", "no corpus at memory://nowhere/"),
        ("nonesuch://bucket/a.txt", "no file system is known as nonesuch://"),
    ],
)
def test_addresses_that_lead_nowhere(url: str, message: str) -> None:
    with pytest.raises(TextError, match=message):
        read_corpus(url)


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("a.jsonl.zst", "zstandard", "zstandard"),
        ("a.parquet", "pyarrow.parquet", "pyarrow"),
        ("a.arrow", "pyarrow", "pyarrow"),
        ("s3://bucket/a.txt", "s3fs", "s3fs"),
    ],
)
def test_a_missing_package_is_named(
    name: str, module: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # importing it raises ImportError
    source = name if "://" in name else str(tmp_path / name)
    (tmp_path / "a.jsonl.zst").write_bytes(b"x")
    (tmp_path / "a.parquet").write_bytes(b"x")
    (tmp_path / "a.arrow").write_bytes(b"x")
    with pytest.raises(TextError, match=package) as raised:
        read_corpus(source)
    assert "\n" not in str(raised.value)


def test_whatever_a_client_raises_is_one_line(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe("/texts/a.txt", b"text")

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the token has expired\nand a page of HTML")

    monkeypatch.setattr(type(memory), "_open", fail)
    with pytest.raises(TextError, match=r"^cannot read memory://texts/a.txt: the token has expired$"):
        read_corpus("memory://texts")


@pytest.mark.parametrize("read", [read_labelled, read_preferences])
def test_other_files_of_lines_are_unpacked_by_the_same(read: Any, tmp_path: Path) -> None:
    """Whether the package is there or not it is what is asked: this was a name of no kind."""
    (tmp_path / "a.jsonl.zst").write_bytes(b"no zstd")
    with pytest.raises(TextError, match=r"a.jsonl.zst(: unpacking .zst needs the package| is not a whole zstd file)"):
        read(tmp_path / "a.jsonl.zst")
