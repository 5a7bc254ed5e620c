"""A corpus encoded by several processes, killed and gone on with: the tokens are those of one process that nobody killed."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyformer.errors import RunFailed, TextError
from anyformer.text import Corpus, Tokenizer, ahead, encode_corpus, encoded, growing, read_corpus
from anyformer.text.pieces import SHARE
from anyformer.text.sources import Document
from tests.text.samples import TEXTS, llama_like

LONG = " ".join(f"word{i % 97} and {i}." for i in range(SHARE // 12))
DOCUMENTS = [Document(f"{i}", f"{text} {i}") for i, text in enumerate(TEXTS * 40)]
DOCUMENTS[3:3] = [Document("long", LONG)]


def plain(tokenizer: Tokenizer, documents: list[Document]) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, offsets), each text encoded at once."""
    begin = tokenizer.end_of_text if tokenizer.begin_of_text is None else tokenizer.begin_of_text
    each = [[begin, *tokenizer.encode(document.text), tokenizer.end_of_text] for document in documents]
    return np.concatenate([np.array(ids) for ids in each]), np.cumsum([0, *map(len, each)])


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded, "processes_for", lambda nbytes: 2)
    monkeypatch.setattr(ahead, "_LOT", 20_000)


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("kind", ["byte-level", "llama-like"])
def test_two_processes_make_the_tokens_of_one(tokenizer: Tokenizer, tmp_path: Path, kind: str) -> None:
    own = tokenizer if kind == "byte-level" else Tokenizer(llama_like(), {"bos_token": "<s>", "eos_token": "</s>"})
    found = encode_corpus(Corpus.of(DOCUMENTS), own, tmp_path)
    tokens, offsets = plain(own, DOCUMENTS)
    assert np.array_equal(found.tokens, tokens)
    assert np.array_equal(found.offsets, offsets)


@pytest.mark.usefixtures("two")
def test_whoever_reads_the_ids_keeps_its_own_warnings(tokenizer: Tokenizer) -> None:
    parts = ((i, document.text) for i, document in enumerate(DOCUMENTS))
    before = list(warnings.filters)
    ids = ahead.encoded_ahead(tokenizer, parts, 2)
    next(ids)
    assert list(warnings.filters) == before
    ids.close()  # type: ignore[attr-defined]


def test_small_texts_need_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert [ahead.processes_for(n) for n in (0, ahead.LARGE - 1, ahead.LARGE)] == [0, 0, 8]
    monkeypatch.setattr(sys, "platform", "darwin")
    assert ahead.processes_for(ahead.LARGE) == 0


CHILD = """
import os, sys
from pathlib import Path
from anyformer.text import Tokenizer, ahead, encode_corpus, encoded, growing, read_corpus
text, tokenizer, cache, kill_at = sys.argv[1:]
encoded.processes_for = lambda nbytes: 2
ahead._LOT, growing.SETTLED = 4_000, 8_000
noted, note = 0, growing.Grown.note
def counted(self, content):
    global noted
    note(self, content)
    noted += 1
    if noted == int(kill_at):
        print(*Path(f"/proc/self/task/{os.getpid()}/children").read_text().split(), flush=True)
        os.kill(os.getpid(), 9)
growing.Grown.note = counted
encode_corpus(read_corpus(text), Tokenizer.load(tokenizer), cache)
print("whole")
"""


def started(text: Path, tokenizer: Path, cache: Path, kill_at: int) -> subprocess.Popen[str]:
    child = [sys.executable, "-W", "ignore", "-c", CHILD, *map(str, (text, tokenizer, cache, kill_at))]
    return subprocess.Popen(child, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def written(tmp_path: Path, tokenizer: Tokenizer) -> tuple[Path, Path, Path]:
    """A text, a tokenizer, a cache."""
    tokenizer.save(tmp_path / "tokenizer")
    lines = [json.dumps({"text": document.text}) for document in DOCUMENTS]
    (tmp_path / "text.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path / "text.jsonl", tmp_path / "tokenizer", tmp_path / "cache"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_killed_it_goes_on(
    written: tuple[Path, Path, Path], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each kill as much is left as was settled, in the middle of a document too, and no process."""
    text, _, cache = written
    parts = []
    for kill_at in (2, 1, 3):
        child = started(*written, kill_at)
        said, _ = child.communicate(timeout=60)
        assert child.returncode == -signal.SIGKILL
        assert len(said.split()) == 2
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{pid}/cmdline").exists() for pid in said.split()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not any(Path(f"/proc/{pid}/cmdline").exists() for pid in said.split())
        (index,) = cache.rglob(growing.INDEX)
        parts.append(json.loads(index.read_text())["parts"])
    assert 0 < parts[0] < parts[1] < parts[2]
    asked = []
    monkeypatch.setattr(Tokenizer, "array", lambda own, text: (asked.append(text), array(own, text))[1])
    found = encode_corpus(read_corpus(text), tokenizer, cache)
    assert 0 < len(asked) == sum(1 for _ in encoded.parts_of_documents(tokenizer, read_corpus(text))) - parts[-1]
    tokens, offsets = plain(tokenizer, DOCUMENTS)
    assert np.array_equal(found.tokens, tokens)
    assert np.array_equal(found.offsets, offsets)
    assert len(list((cache / "encoded").iterdir())) == 1


array = Tokenizer.array


@pytest.mark.skipif(sys.platform != "linux", reason="one process encodes elsewhere")
@pytest.mark.parametrize("damage", ["flip", "cut", "more", "index"])
def test_what_is_left_and_damaged_is_made_anew(
    written: tuple[Path, Path, Path], tokenizer: Tokenizer, damage: str
) -> None:
    text, _, cache = written
    started(*written, 2).communicate(timeout=60)
    (left,) = cache.rglob("tokens.bin")
    content = bytearray(left.read_bytes())
    content[5] ^= damage == "flip"
    left.write_bytes(content[:-9000] if damage == "cut" else content + b"more" * (damage == "more"))
    if damage == "index":
        left.with_name(growing.INDEX).write_text("{}")
    found = encode_corpus(read_corpus(text), tokenizer, cache)
    assert np.array_equal(found.tokens, plain(tokenizer, DOCUMENTS)[0])


def test_who_comes_second_waits(written: tuple[Path, Path, Path]) -> None:
    """Of processes that want one corpus at once, as those of one run do, one encodes it."""
    text, _, cache = written
    children = [started(*written, 0) for _ in range(3)]
    assert [child.communicate(timeout=60)[0].strip() for child in children] == ["whole"] * 3
    (made,) = (cache / "encoded").iterdir()
    times = {path.stat().st_mtime_ns for path in made.iterdir()}
    assert started(text, written[1], cache, 0).communicate(timeout=60)[0].strip() == "whole"
    assert {path.stat().st_mtime_ns for path in made.iterdir()} == times


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("every", [False, True], ids=["one of two", "both"])
def test_a_process_that_is_killed_is_told_of(
    every: bool, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the other ends, which waits for more text and heeds no SIGTERM."""
    real, first = ahead.ids_of, tmp_path / "first"

    def dying(own: Tokenizer, part: Any) -> Any:
        try:
            first.touch(exist_ok=every)
        except FileExistsError:
            return real(own, part)
        return os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(ahead, "ids_of", dying)
    with pytest.raises(RunFailed, match="a process that encodes text has been killed"):
        encode_corpus(Corpus.of(DOCUMENTS), tokenizer, tmp_path)


def test_another_text_of_the_same_lengths(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """As another machine may have it under the same name."""
    (tmp_path / "a.txt").write_text("one and two\nand more\n")
    corpus = read_corpus(tmp_path / "a.txt")
    assert len(corpus.fingerprint) == 64
    (tmp_path / "a.txt").write_text("two and one\nand more\n")
    with pytest.raises(TextError, match="changed while it was being read"):
        encode_corpus(corpus, tokenizer, tmp_path / "cache")
    assert list((tmp_path / "cache" / "encoded").iterdir()) == []


MEMORY = r"""
import re, resource, sys
from anyformer.text import Tokenizer, ahead, encode_corpus, pack, read_corpus, Sampler
own = Tokenizer.load(sys.argv[2])
# Not ru_maxrss of this process: that begins with what the one that started it had.
peak = lambda: 1024 * int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1])
own.encode("warm up")
before = peak()
rows = pack(encode_corpus(read_corpus(sys.argv[1]), own, sys.argv[3]), 512, seed=0)
sampler = Sampler(rows.n_rows, 8, 0)
for _ in range(50):
    rows.batch(next(sampler))
print(peak() - before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 - before, rows.n_rows)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("nbytes", [50_000_000, pytest.param(5_000_000_000, marks=pytest.mark.slow)])
def test_memory_is_no_question_of_the_text(tmp_path: Path, tokenizer: Tokenizer, nbytes: int) -> None:
    """Read, encoded, packed and drawn from; what is mapped and can be read again counts as memory here too."""
    tokenizer.save(tmp_path / "tokenizer")
    lines = (json.dumps({"text": " ".join(TEXTS[:2])[:500] * 20}) + "\n").encode() * 100
    with open(tmp_path / "text.jsonl", "wb") as file:
        file.writelines(lines for _ in range(nbytes // len(lines)))
    child = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        MEMORY,
        *(tmp_path / n for n in ("text.jsonl", "tokenizer", "cache")),
    ]
    done = subprocess.run(child, check=True, capture_output=True, text=True)
    mine, theirs, n_rows = map(int, done.stdout.split())
    assert n_rows > nbytes // 2000
    assert max(mine, theirs) < (120_000_000 if nbytes < 1e9 else 1_000_000_000)
