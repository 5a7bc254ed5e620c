"""Corpora: what is read, what is refused, how it is divided."""

import codecs
import gzip
import hashlib
import json
import os
import sysconfig
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyformer.errors import TextError
from anyformer.text import Corpus, read_corpus, sources
from anyformer.text.sources import Document


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") and isinstance(content, str) else raw)
    return folder


def test_a_folder(tmp_path: Path) -> None:
    lines = [
        json.dumps({"text": "three\u2028\n", "id": 3}, ensure_ascii=False),
        "",
        json.dumps({"text": "four"}, ensure_ascii=False),
    ]
    write(
        tmp_path,
        {
            "b.txt": "one\r\ntwo\r",
            "a/z.md": "é",
            "a.py": "pass\n",
            "c.jsonl": "\n".join(lines) + "\n",
            "c/d.jsonl.gz": '{"text": "packed"}',
            "c/e.txt.gz": "packed too",
            "empty.txt": "",
            "picture.png": b"\x89PNG\x00\xff",
            ".hidden/f.txt": "no",
            ".g.txt": "no",
        },
    )
    assert list(read_corpus(tmp_path).documents()) == [
        ("a.py", "pass\n"),
        ("a/z.md", "é"),
        ("b.txt", "one\r\ntwo\r"),
        ("c.jsonl:1", "three\u2028\n"),
        ("c.jsonl:3", "four"),
        ("c/d.jsonl.gz:1", "packed"),
        ("c/e.txt.gz", "packed too"),
    ]
    assert read_corpus(tmp_path).nbytes == 5 + 2 + 9 + 9 + 4 + 6 + 10


def test_a_file_named_outright_may_have_any_suffix(tmp_path: Path) -> None:
    write(tmp_path, {"train.de.gz": "ein Satz\n", "plain": "text"})
    assert list(read_corpus(tmp_path / "train.de.gz").documents()) == [Document("train.de.gz", "ein Satz\n")]
    assert list(read_corpus(str(tmp_path / "plain")).documents()) == [("plain", "text")]


def test_suffixes_in_capital_letters_say_the_same(tmp_path: Path) -> None:
    rows = '{"text": "one"}\n{"text": "two"}'
    write(tmp_path, {"A.JSONL": rows, "b.JsonL.GZ": gzip.compress(rows.encode()), "C.TXT": "three", "d.txt": "four"})
    read = [("A.JSONL:1", "one"), ("A.JSONL:2", "two"), ("C.TXT", "three")]
    read += [("b.JsonL.GZ:1", "one"), ("b.JsonL.GZ:2", "two"), ("d.txt", "four")]
    assert list(read_corpus(tmp_path).documents()) == read
    assert list(read_corpus(tmp_path / "A.JSONL").documents()) == read[:2]


def test_the_standard_library() -> None:
    corpus = read_corpus("stdlib")
    documents = list(corpus.documents())
    names = [document.name for document in documents]
    library = Path(sysconfig.get_path("stdlib"))
    assert names == sorted(names)
    assert {"json/decoder.py", "textwrap.py", "asyncio/events.py"} <= set(names)
    left_out = {"test", "tests", "idle_test", "site-packages", "dist-packages"}
    assert not any(left_out & set(name.split("/")) for name in names)
    for document in documents[::40]:
        assert (library / document.name).read_bytes() == document.text.encode()
    kept = set(names)
    for path in library.rglob("*.py"):  # every file that is not there has a reason
        parts = path.relative_to(library).parts
        if path.relative_to(library).as_posix() not in kept and not left_out & set(parts):
            content = path.read_bytes()
            assert not content or b"\0" in content or not decodes(content) or any(p.startswith(".") for p in parts)


def decodes(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_the_fingerprint_is_of_names_texts_and_their_borders(tmp_path: Path) -> None:
    base = Corpus.of((Document("a", "bc"), Document("d", "e")))
    assert base.fingerprint == Corpus.of((Document("a", "bc"), Document("d", "e"))).fingerprint
    others = [
        (Document("ab", "c"), Document("d", "e")),
        (Document("a", "b"), Document("cd", "e")),
        (Document("d", "e"), Document("a", "bc")),
        (Document("a", "bc"),),
    ]
    assert len({base.fingerprint, *(Corpus.of(documents).fingerprint for documents in others)}) == 5
    for name in ("here", "there"):
        write(tmp_path / name, {"x.txt": "same", "sub/y.md": "text"})
    assert read_corpus(tmp_path / "here").fingerprint == read_corpus(tmp_path / "there").fingerprint


@pytest.mark.parametrize(
    ("files", "source", "message"),
    [
        ({}, "nowhere", "no corpus at .*nowhere: give a file, a folder, an address .*, or the word stdlib"),
        ({"a.txt": ""}, "a.txt", "a.txt is empty"),
        ({"a.txt": "", "b.md": ""}, ".", "is empty"),
        ({"a.csv": "x", "b": "y"}, ".", r"no documents in .*: no file ends in \.txt, \.md, \.py, \.jsonl"),
        ({"a.txt": b"abc\xffd"}, ".", "a.txt is not UTF-8 text: byte 0xff at offset 3"),
        ({"a.txt": b"ab\xc3"}, "a.txt", "a.txt is not UTF-8 text: byte 0xc3 at offset 2"),
        ({"a.bin": b"\x7fELF\x00\x01"}, "a.bin", "a.bin is binary, not text: byte 0 at offset 4"),
        ({"a.txt.gz": gzip.compress(b"text" * 99)[:-9]}, ".", "a.txt.gz is not a whole gzip file"),
        ({"a.txt.gz": b"text"}, ".", "a.txt.gz is not a whole gzip file"),
        ({"a.jsonl": '{"text": "x"}\n["text"]\n'}, ".", 'a.jsonl, line 2: not an object with a string "text"'),
        ({"a.jsonl": '{"text": "x"}\n\n{"txt": "x"}'}, ".", 'a.jsonl, line 3: not an object with a string "text"'),
        ({"a.jsonl": '{"text": "x", "text": "y"}'}, ".", "line 1: not JSON .'text' stands twice and says two things"),
        ({"a.jsonl": '{"text": 5}'}, ".", 'a.jsonl, line 1: not an object with a string "text"'),
        ({"a.jsonl": '{"text": "x"'}, ".", "a.jsonl, line 1: not JSON"),
        ({"a.jsonl": '{"text": "\\ud83e"}'}, ".", r"a.jsonl, line 1: half a character \(surrogate U\+D83E\)"),
    ],
)
def test_what_is_refused(files: dict[str, str | bytes], source: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TextError, match=message) as raised:
        read_corpus(write(tmp_path, files) / source)
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "text"})
    (tmp_path / "a.txt").chmod(0)
    with pytest.raises(TextError, match=r"cannot read .*a.txt: Permission denied"):
        read_corpus(tmp_path)


def fingerprint_of(documents: list[Document]) -> str:
    """As it was computed from texts in memory: runs and caches are known by it."""
    digest = hashlib.sha256()
    for document in documents:
        for content in (document.name.encode("utf-8", "surrogateescape"), document.text.encode()):
            digest.update(len(content).to_bytes(8, "little"))
            digest.update(content)
    return digest.hexdigest()


def order_of(documents: list[Document], seed: int) -> list[int]:
    """Likewise."""
    keys = [hashlib.sha256(f"{seed}:{i}:{d.name}".encode()).digest() for i, d in enumerate(documents)]
    return sorted(range(len(keys)), key=keys.__getitem__)


def divided(documents: list[Document], fraction: float, seed: int) -> set[int]:
    """Likewise, the numbers of those to validate on."""
    sizes, chosen = [len(document.text.encode()) for document in documents], set()
    room = fraction * sum(sizes)
    for index in order_of(documents, seed):
        if sizes[index] <= room:
            room -= sizes[index]
            chosen.add(index)
    return chosen


@given(st.lists(st.text(min_size=1), min_size=2), st.integers(0, 3), st.integers(1, 9), st.floats(0.2, 0.9))
def test_what_identifies_a_text_stays_what_it_was(texts: list[str], seed: int, block: int, fraction: float) -> None:
    documents = [Document(f"ä{i}", text) for i, text in enumerate(texts)]
    chosen = divided(documents, fraction, seed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sources, "BLOCK", block)
        corpus = Corpus.of(documents)
        assert corpus.fingerprint == fingerprint_of(documents)
        if chosen:
            training, held_out = corpus.split(fraction, seed)
            assert held_out.fingerprint == fingerprint_of([d for i, d in enumerate(documents) if i in chosen])
            assert training.fingerprint == fingerprint_of([d for i, d in enumerate(documents) if i not in chosen])
        taken, nbytes = set(), 0
        for index in order_of(documents, 0):
            if nbytes < round(corpus.nbytes * fraction):
                taken.add(index)
                nbytes += len(texts[index].encode())
        assert list(corpus.sample(round(corpus.nbytes * fraction)).documents()) == [documents[i] for i in sorted(taken)]


@given(
    text=st.text(alphabet="aé日🥊\n\r", min_size=1),
    mark=st.sampled_from([b"", codecs.BOM_UTF8]),
    bad=st.sampled_from([b"\xff", b"\0", b"\xc3"]),
    block=st.integers(1, 5),
)
def test_a_file_is_read_the_same_in_blocks_of_any_size(text: str, mark: bytes, bad: bytes, block: int) -> None:
    """A byte order mark is no text."""
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as folder:
        patched.setattr(sources, "BLOCK", block)
        for name in ("a.txt", "b.txt.gz"):
            written = write(Path(folder), {name: (mark + text.encode()).decode()}) / name
            assert read_corpus(written).fingerprint == fingerprint_of([Document(name, text)])
        for rest in (b"", b"a"):
            (Path(folder) / "a.txt").write_bytes(mark + text.encode() + bad + rest)
            with pytest.raises(TextError, match=f"at offset {len(mark + text.encode())}( |$)"):
                read_corpus(Path(folder) / "a.txt")


@pytest.mark.parametrize(
    ("name", "more"), [("a.txt", "more"), ("a.txt", ""), ("b.jsonl", '{"text": "x"}\n{"text": "yz"}')]
)
def test_a_file_that_changes_is_noticed(name: str, more: str, tmp_path: Path) -> None:
    corpus = read_corpus(
        write(tmp_path, {"a.txt": "one", "b.jsonl": '{"text": "xy"}\n{"text": "z"}', "c.txt": "three"})
    )
    write(tmp_path, {name: more})
    with pytest.raises(TextError, match=rf"{name}.* changed while it was being read"):
        list(corpus.pieces())


def test_the_kind_of_a_file_that_is_named_is_told_in_any_case(tmp_path: Path) -> None:
    corpus = read_corpus(write(tmp_path, {"A.JSONL": '{"text": "one"}\n{"text": "two"}'}) / "A.JSONL")
    assert list(corpus.texts()) == ["one", "two"]


def test_what_can_be_read_once_only_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TextError, match="pipe is no file: a text is read more than once; write what comes"):
        read_corpus(tmp_path / "pipe")


def test_lines_of_json_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LONGEST_LINE", 1000)
    monkeypatch.setattr(sources, "BLOCK", 100)
    with pytest.raises(
        TextError, match=r"a\.jsonl, line 2: more than 1,000 characters; put a text so long into a file"
    ):
        read_corpus(write(tmp_path, {"a.jsonl": '{"text": "x"}\n{"text": "' + "y" * 2000 + '"}'}))
    deep = '{"text": "x"}\n{"text": ' + "[" * 500
    with pytest.raises(TextError, match=r"a\.jsonl, line 2: not JSON"):
        read_corpus(write(tmp_path, {"a.jsonl": deep}))


def test_lines_of_json_are_not_too_deep(tmp_path: Path) -> None:
    with pytest.raises(TextError, match=r"a\.jsonl, line 2: lists or objects inside each other, too deep to read"):
        read_corpus(write(tmp_path, {"a.jsonl": '{"text": "x"}\n{"text": ' + "[" * 100_000}))


@given(
    texts=st.lists(st.text(min_size=1), min_size=2),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 5),
)
def test_documents_are_divided_whole(texts: list[str], fraction: float, seed: int) -> None:
    corpus = Corpus.of(tuple(Document(f"{i}", text) for i, text in enumerate(texts)))
    if min(corpus.document_nbytes) > fraction * corpus.nbytes:
        with pytest.raises(TextError, match="the validation split is empty: the smallest"):
            corpus.split(fraction, seed)
        return
    training, validation = corpus.split(fraction, seed)
    taught, held_out = list(training.documents()), list(validation.documents())
    assert sorted(taught + held_out) == sorted(corpus.documents())
    assert taught == [d for d in corpus.documents() if d not in set(held_out)]
    assert 0 < validation.nbytes <= fraction * corpus.nbytes
    assert len(training)
    assert not any(n <= fraction * corpus.nbytes - validation.nbytes for n in training.document_nbytes)  # it is filled
    assert [list(part.documents()) for part in corpus.split(fraction, seed)] == [taught, held_out]


def test_the_seed_draws_the_split() -> None:
    corpus = Corpus.of(tuple(Document(f"{i}", "x") for i in range(100)))
    splits = {tuple(corpus.split(0.2, seed)[1].documents()) for seed in range(5)}
    assert len(splits) == 5
    assert {len(documents) for documents in splits} == {20}


@given(text=st.text(alphabet="aé\n\r", min_size=1), fraction=st.floats(0.01, 0.99))
def test_a_single_document_is_cut_where_a_line_begins(text: str, fraction: float) -> None:
    corpus = Corpus.of((Document("only", text),))
    starts = [i + 1 for i, character in enumerate(text) if character == "\n" and i + 1 < len(text)]
    if not starts:
        with pytest.raises(TextError, match="only, has no line that could begin it"):
            corpus.split(fraction)
        return
    training, validation = corpus.split(fraction)
    (before,), (after,) = training.texts(), validation.texts()
    assert before + after == text
    cut = len(before)
    assert cut in starts
    target = corpus.nbytes - round(fraction * corpus.nbytes)
    at = {start: len(text[:start].encode()) for start in starts}
    later = [start for start in starts if at[start] >= target]
    assert cut == (later[0] if later else starts[-1])


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_fractions_that_leave_nothing(fraction: float) -> None:
    with pytest.raises(TextError, match="validation fraction"):
        Corpus.of((Document("a", "b\nc\nd"),)).split(fraction)


def test_a_sample_is_spread_over_the_corpus() -> None:
    corpus = Corpus.of(tuple(Document(f"{i}", f"{i:04d}") for i in range(1000)))
    taken = [int(text) for text in corpus.sample(400).texts()]
    assert len(set(taken)) == 100
    assert 300 < sum(taken) / 100 < 700  # the first hundred would give 50
    assert len(corpus.sample(10**9)) == 1000
