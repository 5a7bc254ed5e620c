"""Encoders in GGUF files: WordPiece as transformers cuts with it, how tokens become one vector, heads that are left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers
from tokenizers import Tokenizer as Inner

import anyformer as af
from anyformer.errors import AnyformerError, TextError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.families.heads import sentence_embedding
from anyformer.hub.gguf_writing import SavedFile
from anyformer.layers import FirstTokenSpec, LastTokenSpec, MeanTokensSpec, UnitLengthSpec
from anyformer.resizing import shrink
from anyformer.spec import HeadSpec, ModelSpec, PoolSpec, TableSpec
from anyformer.text import Tokenizer, scheme
from anyformer.text.gguf_vocabulary import tokenizer_in
from anyformer.text.gguf_vocabulary_writing import metadata_of_tokenizer
from tests.laws.models import randomised
from tests.laws.tolerance import FLOAT32, distance

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] [unused0] the quick fox ##es jump ##ed naive cafe s ##s a . , ! ' ( ) # 1 ##3 ##2 東 京"
TEXTS = (
    "The quick foxes jumped!",
    "naïve CAFÉ (東京), 123",
    "zebras [MASK] the fox's  \t a\n#fox",
    "a" * 120,
    "",
)


def theirs() -> Any:
    """BERT's tokenizer of transformers, with a vocabulary of few pieces."""
    return transformers.BertTokenizer(vocab={piece: i for i, piece in enumerate(PIECES.split())})


def filed() -> dict[str, Any]:
    """What llama.cpp's conversion says of it: pieces that begin a word have a mark before them, the others none."""
    bert = theirs()
    special = set(bert.all_special_ids)
    types = [gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in range(len(bert))]
    pieces = PIECES.split()
    tokens = [
        piece if kind == gguf.TokenType.CONTROL else piece[2:] if piece.startswith("##") else "\u2581" + piece
        for piece, kind in zip(pieces, types, strict=True)
    ]
    ids = {"bos": 2, "unknown": 1, "seperator": 3, "padding": 0, "cls": 2, "mask": 4}
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "bert-bge",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        **{f"tokenizer.ggml.{name}_token_id": i for name, i in ids.items()},
    }


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_cut_as_transformers_cuts_it(text: str) -> None:
    ours, bert = tokenizer_in(filed()), theirs()
    assert ours.encode(text, specials=True) == bert(text, add_special_tokens=False)["input_ids"]
    plain = text.replace("[MASK]", "")
    assert ours.frame([plain]).ids.tolist() == bert(plain)["input_ids"]
    assert ours.frame([plain, "the fox"]).types.tolist() == bert(plain, "the fox")["token_type_ids"]


def test_it_is_written_as_it_was_read(tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    said, notes = metadata_of_tokenizer(ours, ours.vocab_size)
    assert not notes
    expected = filed() | {"tokenizer.ggml.pre": "default"}
    assert {key: said.get(key) for key in expected} == expected
    padded, _ = metadata_of_tokenizer(ours, ours.vocab_size + 3)  # rows of the model beyond the vocabulary
    for text in TEXTS:
        for each in (said, padded):
            assert tokenizer_in(each).frame([text]).ids.tolist() == ours.frame([text]).ids.tolist()


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("plain", [None, True, False])
def test_letters_are_as_a_file_says(small: bool, plain: bool | None, tmp_path: Path) -> None:
    pieces = {piece: i for i, piece in enumerate([*PIECES.split(), "The", "CAFÉ", "café", "CAFE", "naïve"])}
    bert = transformers.BertTokenizer(vocab=pieces, do_lower_case=small, strip_accents=plain)
    bert.save_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    said, notes = metadata_of_tokenizer(ours, ours.vocab_size)
    told = {key.rpartition(".")[2]: value for key, value in said.items() if "normalizer" in key}
    stripped = small if plain is None else plain
    assert told == ({} if small else {"lowercase": False}) | ({} if stripped == small else {"strip_accents": stripped})
    assert bool(notes) == bool(told)
    for each in (said, said | {"tokenizer.ggml.normalizer.lowercase": small}):  # as llama.cpp's conversion says it
        for text in (text.replace("[MASK]", "") for text in TEXTS):
            assert tokenizer_in(each).frame([text]).ids.tolist() == bert(text)["input_ids"]
    for key in ("lowercase", "strip_accents"):
        with pytest.raises(TextError, match=f"normalizer.{key} = 1 is neither true nor false"):
            tokenizer_in(said | {f"tokenizer.ggml.normalizer.{key}": 1})


def test_a_text_is_opened_by_bos() -> None:
    """What llama.cpp takes, and all that its conversion says: whether it is told to or not, and of no other token."""
    said = filed()
    del said["tokenizer.ggml.cls_token_id"]
    for flags in ({}, {"tokenizer.ggml.add_bos_token": False}, {"tokenizer.ggml.add_sep_token": False}):
        ours = tokenizer_in(said | flags)
        assert ours.frame(["the fox"]).ids.tolist() == theirs()("the fox")["input_ids"]
    two = {"tokenizer.ggml.bos_token_id": 4, "tokenizer.ggml.cls_token_id": 2}
    assert tokenizer_in(said | two).frame(["the"]).ids[0] == 4
    ours = tokenizer_in(filed())
    other = Tokenizer(ours._inner, ours.config | {"bos_token": "[PAD]"})
    assert metadata_of_tokenizer(other, other.vocab_size)[0]["tokenizer.ggml.bos_token_id"] == 2


def test_what_readers_would_cut_otherwise_is_refused(tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path)
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    data["normalizer"]["handle_chinese_chars"] = False
    apart = Tokenizer(Inner.from_str(json.dumps(data)), {})
    with pytest.raises(TextError, match="Chinese characters by themselves"):
        metadata_of_tokenizer(apart, apart.vocab_size)
    data["normalizer"]["handle_chinese_chars"], data["post_processor"] = True, None
    bare = Tokenizer(Inner.from_str(json.dumps(data)), {"cls_token": "[CLS]", "sep_token": "[SEP]"})
    with pytest.raises(TextError, match="puts nothing before a text and nothing behind it"):
        metadata_of_tokenizer(bare, bare.vocab_size)
    lost = {key: value for key, value in filed().items() if "unknown" not in key}
    with pytest.raises(TextError, match="unknown_token_id is missing"):
        tokenizer_in(lost)
    twice = filed()
    twice["tokenizer.ggml.tokens"] = [*twice["tokenizer.ggml.tokens"][:-1], "\u2581the"]
    with pytest.raises(TextError, match="holds 'the' twice"):
        tokenizer_in(twice)


def _encoder(**heads: Any) -> ModelSpec:
    spec = changed(shrink(preset("nomic-embed-text-v1").spec), TableSpec, rows=len(PIECES.split()))
    return spec.but(**heads)


def test_words_that_are_learned_here_are_held() -> None:
    own = scheme("wordpiece", 100).train(TEXTS)
    said, _ = metadata_of_tokenizer(own, own.vocab_size)
    assert [tokenizer_in(said).frame([text]).ids.tolist() for text in TEXTS] == [
        own.frame([t]).ids.tolist() for t in TEXTS
    ]


@pytest.mark.parametrize("pool", [MeanTokensSpec(), FirstTokenSpec(), LastTokenSpec()], ids=lambda pool: pool.kind)
@pytest.mark.parametrize("unit", [False, True])
def test_how_tokens_become_one_vector_is_held(pool: PoolSpec, unit: bool, tmp_path: Path) -> None:
    head = sentence_embedding(pool).but(transform=(UnitLengthSpec(),) if unit else ())
    model = randomised(_encoder(heads=(head,)))
    theirs().save_pretrained(tmp_path / "words")
    af.save(model, tmp_path / "model", tokenizer=Tokenizer.load(tmp_path / "words"))
    told = af.convert(tmp_path / "model", tmp_path / "out.gguf")
    assert isinstance(told, SavedFile)
    assert ("length 1" in str(told)) == unit
    kinds = {
        "MeanTokens": gguf.PoolingType.MEAN,
        "FirstToken": gguf.PoolingType.CLS,
        "LastToken": gguf.PoolingType.LAST,
    }
    assert gguf.GGUFReader(tmp_path / "out.gguf").fields["nomic-bert.pooling_type"].contents() == kinds[pool.kind]
    found, words = af.load(tmp_path / "out.gguf")
    assert found.spec.heads == (head.but(transform=()),)
    assert af.load_spec(tmp_path / "out.gguf") == found.spec
    assert words is not None
    ids = torch.tensor([words.frame(["the quick foxes"]).ids.tolist()])
    with torch.no_grad():
        ours, expected = (each(ids).outputs[head.name] for each in (found, model))
    ours = torch.nn.functional.normalize(ours, dim=-1) if unit else ours
    assert distance(ours, expected) < FLOAT32


def test_other_heads_are_left_out_and_named(tmp_path: Path) -> None:
    model = randomised(_encoder())
    af.save(model, tmp_path / "model")
    told = af.convert(tmp_path / "model", tmp_path / "out.gguf")
    assert "its heads, mlm, have no place there" in str(told)
    found, _ = af.load(tmp_path / "out.gguf")
    assert found.spec.heads == ()
    ids = torch.arange(9)[None]
    with torch.no_grad():
        assert distance(found(ids).last_hidden_state, model(ids).last_hidden_state) < FLOAT32


@pytest.mark.parametrize("kind", [4, True, "mean"])
def test_a_way_that_is_not_computed_is_refused(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    af.save(randomised(_encoder(heads=(HeadSpec(name="embedding", pool=MeanTokensSpec()),))), tmp_path / "model")
    monkeypatch.setattr("anyformer.hub.gguf_writing.pooling_type", lambda spec: kind)
    af.convert(tmp_path / "model", tmp_path / "out.gguf")
    with pytest.raises(AnyformerError, match=f"pooling_type = {kind!r} is not computed"):
        af.load(tmp_path / "out.gguf")
