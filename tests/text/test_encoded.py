"""The cache of encoded corpora: right, whole, and never half-written."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyformer.disk.atomic import ASIDE
from anyformer.disk.cache import cache_directory
from anyformer.errors import RunFailed, TextError
from anyformer.text import Corpus, Tokenizer, encode_corpus, encoded
from anyformer.text.pieces import Part
from anyformer.text.sources import Document
from tests.hostile.faulty_disk import no_space_left
from tests.text.samples import TEXTS, llama_like

DOCUMENTS = [Document(f"{i}", text) for i, text in enumerate((*TEXTS, "é", "x<|endoftext|>y"))]
CORPUS = Corpus.of(DOCUMENTS)


@pytest.fixture
def count(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever a corpus is encoded anew."""
    calls: list[int] = []
    encode = encoded.parts_of_documents
    monkeypatch.setattr(encoded, "parts_of_documents", lambda *given: (calls.append(1), encode(*given))[1])
    return calls


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_documents_with_their_delimiters(tokenizer: Tokenizer, tmp_path: Path) -> None:
    made = encode_corpus(CORPUS, tokenizer, tmp_path)
    assert made.n_documents == 6
    for i, document in enumerate(DOCUMENTS):
        ids = made.document(i).tolist()
        assert ids == [0, *tokenizer.encode(document.text), 0]
        assert 0 not in ids[1:-1]  # "<|endoftext|>" in a document does not end it
        assert made.document_nbytes[i] == len(document.text.encode())
    assert made.tokens.dtype == np.uint16
    assert isinstance(made.tokens, np.memmap)
    assert made.predictions == sum(len(tokenizer.encode(d.text)) + 1 for d in DOCUMENTS)
    assert listing(tmp_path) == ["document_nbytes.bin", "meta.json", "offsets.bin", "tokens.bin"]


def test_begin_and_end_may_differ(tmp_path: Path) -> None:
    tokenizer = Tokenizer(llama_like(), {"bos_token": "<s>", "eos_token": "</s>"})
    made = encode_corpus(Corpus.of((Document("a", "the cat"),)), tokenizer, tmp_path)
    assert made.document(0).tolist() == [1, *tokenizer.encode("the cat"), 2]


def test_bert_s_files_name_nothing_and_have_what_opens_and_closes(tmp_path: Path) -> None:
    from transformers import BertTokenizer

    vocabulary = {token: i for i, token in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat"))}
    BertTokenizer(vocab=vocabulary).save_pretrained(tmp_path)
    made = encode_corpus(Corpus.of((Document("a", "The cat"),)), Tokenizer.load(tmp_path), tmp_path / "cache")
    assert made.document(0).tolist() == [2, 5, 6, 3]
    alone = Tokenizer(llama_like(), {"eos_token": "</s>"})
    assert encode_corpus(Corpus.of((Document("a", "the cat"),)), alone, tmp_path).document(0)[0] == 2


def test_encoded_once_for_each_corpus_and_tokenizer(tokenizer: Tokenizer, tmp_path: Path, count: list[int]) -> None:
    first = encode_corpus(CORPUS, tokenizer, tmp_path)
    again = encode_corpus(CORPUS, tokenizer, tmp_path)
    assert len(count) == 1
    assert first.fingerprint == again.fingerprint
    assert np.array_equal(first.tokens, again.tokens)
    other = encode_corpus(Corpus.of(DOCUMENTS[:2]), tokenizer, tmp_path)
    another = encode_corpus(CORPUS, Tokenizer.train(TEXTS, 300), tmp_path)
    assert len(count) == 3
    assert len({first.fingerprint, other.fingerprint, another.fingerprint}) == 3


@pytest.mark.parametrize("name", ["tokens.bin", "offsets.bin", "document_nbytes.bin", "meta.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "lose", "empty"])
def test_damage_is_seen_and_mended(
    tokenizer: Tokenizer, tmp_path: Path, count: list[int], name: str, damage: str
) -> None:
    whole = encode_corpus(CORPUS, tokenizer, tmp_path)
    tokens, offsets = np.array(whole.tokens), np.array(whole.offsets)
    (path,) = tmp_path.rglob(name)
    content = bytearray(path.read_bytes())
    if damage == "lose":
        path.unlink()
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes({"flip": content, "cut": content[:-3], "empty": b""}[damage])
    mended = encode_corpus(CORPUS, tokenizer, tmp_path)
    if (name, damage) != ("meta.json", "flip"):  # a flip may hit what nobody reads, a blank
        assert len(count) == 2
    assert np.array_equal(mended.tokens, tokens)
    assert np.array_equal(mended.offsets, offsets)
    assert listing(tmp_path) == ["document_nbytes.bin", "meta.json", "offsets.bin", "tokens.bin"]


def test_a_failure_leaves_nothing(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsync", "rename"):
        with monkeypatch.context() as patch:
            (tmp_path / "encoded").mkdir(exist_ok=True)  # which is synced too, where it is new
            patch.setattr(os, name, no_space_left)
            with pytest.raises(RunFailed, match=r"cannot write the encoded corpus to .*: No space left on device"):
                encode_corpus(CORPUS, tokenizer, tmp_path)
        assert list((tmp_path / "encoded").iterdir()) == []


def test_a_cache_that_is_no_folder(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFailed, match="cannot write the encoded corpus"):
        encode_corpus(CORPUS, tokenizer, tmp_path / "file")


def test_two_at_once(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process finishes the same cache between our look and our rename: its copy stays and is used."""
    other = tmp_path / "other"
    encode_corpus(CORPUS, tokenizer, other)
    (key,) = (path.name for path in (other / "encoded").iterdir())
    encode = encoded.parts_of_documents

    def late(*given: Any) -> Iterator[tuple[int, Part]]:
        yield from encode(*given)
        shutil.copytree(other / "encoded" / key, tmp_path / "mine" / "encoded" / key)
        (tmp_path / "mine" / "encoded" / key / "theirs").touch()

    monkeypatch.setattr(encoded, "parts_of_documents", late)
    made = encode_corpus(CORPUS, tokenizer, tmp_path / "mine")
    assert (tmp_path / "mine" / "encoded" / key / "theirs").exists()
    assert made.document(3).tolist() == [0, *tokenizer.encode(DOCUMENTS[3].text), 0]
    assert len(list((tmp_path / "mine" / "encoded").iterdir())) == 1


@pytest.mark.parametrize("place", ["fsync", "rename"])
def test_a_kill_while_writing(tokenizer: Tokenizer, tmp_path: Path, place: str) -> None:
    tokenizer.save(tmp_path / "tokenizer")
    code = (
        "import os, signal, sys\n"
        "from anyformer.text import *\nfrom anyformer.text.sources import Document\n"
        "os.makedirs(sys.argv[2] + '/encoded', exist_ok=True)\n"
        f"os.{place} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "encode_corpus(Corpus.of((Document('a', 'text'),)), Tokenizer.load(sys.argv[1]), sys.argv[2])\n"
    )

    def left() -> Path:
        killed = subprocess.run([sys.executable, "-c", code, tmp_path / "tokenizer", tmp_path / "cache"], check=False)
        assert killed.returncode == -signal.SIGKILL
        (found,) = (tmp_path / "cache" / "encoded").glob(f"{ASIDE}*")
        return found

    first = left()
    encode_corpus(CORPUS, tokenizer, tmp_path / "cache")
    assert first.exists()  # of another corpus, and new: it might be another process's that is about to write …
    a_day_ago = time.time() - 90_000
    os.utime(first, (a_day_ago, a_day_ago))
    encode_corpus(Corpus.of(DOCUMENTS[:2]), tokenizer, tmp_path / "cache")
    assert not first.exists()  # … but not for a day
    second = left()
    made = encode_corpus(Corpus.of((Document("a", "text"),)), tokenizer, tmp_path / "cache")
    assert made.document(0).tolist() == [0, *tokenizer.encode("text"), 0]
    assert not second.exists()  # of the same corpus, and nobody holds it


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tokenizer: Tokenizer) -> None:
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "mine"))
    assert cache_directory() == tmp_path / "mine"
    encode_corpus(CORPUS, tokenizer)
    assert "meta.json" in listing(tmp_path / "mine")
    assert set(json.loads(next(tmp_path.rglob("meta.json")).read_text())) == {"tokens", "offsets", "document_nbytes"}
    monkeypatch.delenv("ANYFORMER_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "anyformer"


def test_a_tokenizer_that_ends_nothing(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as HuggingFace
    from tokenizers import models

    nothing = Tokenizer(HuggingFace(models.WordLevel({"a": 0}, unk_token="a")), {})
    with pytest.raises(TextError, match="this wordlevel tokenizer names no token that ends a text"):
        encode_corpus(CORPUS, nothing, tmp_path)
