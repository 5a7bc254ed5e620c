"""Labelled text: what each kind of file says, what is refused and how, how it is split, and inputs as the library frames them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyformer.errors import TextError
from anyformer.text import Tokenizer, WordPiece, read_labelled, split_labelled
from anyformer.text.corpus import set_aside
from anyformer.text.labelled import EncodedLabelled

TEXTS = ["the cat sat on the mat", "a dog, a log and a frog", "it's a very long story about nothing at all", "mat"]


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_words_and_whole_numbers_are_classes(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": "pos"}, {"text": "b", "text_pair": "c", "label": "neg"}]
    corpus = read_labelled(lines(tmp_path / "a.jsonl", *rows))
    assert (corpus.kind, corpus.names()) == ("classes", ("neg", "pos"))
    assert [(row.texts, row.label, row.line) for row in corpus.rows] == [(("a",), "pos", 1), (("b", "c"), "neg", 2)]
    stars = read_labelled(lines(tmp_path / "b.jsonl", *({"text": "x", "label": n} for n in (10, 9, 2, 10))))
    assert (stars.kind, stars.names()) == ("classes", ("2", "9", "10"))
    assert [row.label for row in stars.as_kind("numbers").rows] == [10.0, 9.0, 2.0, 10.0]
    assert stars.names(("9", "2", "10", "11")) == ("9", "2", "10", "11")


def test_numbers_with_a_fraction_are_numbers(tmp_path: Path) -> None:
    corpus = read_labelled(lines(tmp_path / "a.jsonl", {"text": "x", "label": 0.5}, {"text": "y", "label": 2}))
    assert (corpus.kind, [row.label for row in corpus.rows]) == ("numbers", [0.5, 2.0])


def test_tables_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('label,text\npos,"one, two\nthree"\nneg,four\n', encoding="utf-8")
    corpus = read_labelled(tmp_path / "a.csv")
    assert [(row.texts, row.label, row.line) for row in corpus.rows] == [
        (("one, two\nthree",), "pos", 2),
        (("four",), "neg", 4),
    ]
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(b"text\ttext_pair\tlabel\na\tb\t1.5\nc\td\t-2\n"))
    pairs = read_labelled(tmp_path / "b.tsv.gz")
    assert [(row.texts, row.label) for row in pairs.rows] == [(("a", "b"), 1.5), (("c", "d"), -2.0)]
    (tmp_path / "c.csv").write_text("text,label\na,1\nb,0\n", encoding="utf-8")
    assert read_labelled(tmp_path / "c.csv").names() == ("0", "1")
    (tmp_path / "long.csv").write_text(f"text, label\n{'a ' * 200_000}, pos\nb,pos\nc,neg\n", encoding="utf-8")
    long = read_labelled(tmp_path / "long.csv")
    assert [len(row.texts[0]) for row in long.rows] == [400_000, 1, 1]
    assert long.names() == ("neg", "pos")
    (tmp_path / "d.csv").write_text("text,label\na,10\nb, 7\nc,007\nd,1_0\ne,7\n", encoding="utf-8")
    codes = read_labelled(tmp_path / "d.csv")
    assert codes.names() == ("007", "7", "10", "1_0")
    assert [row.label for row in codes.as_kind("numbers").rows] == [10, 7, 7, 10, 7]


def test_words_have_a_class_each(tmp_path: Path) -> None:
    rows = [{"tokens": ["Ada", "saw", "Bob"], "labels": ["NAME", "O", "NAME"]}]
    corpus = read_labelled(lines(tmp_path / "a.jsonl", *rows))
    assert (corpus.kind, corpus.names(), list(corpus.texts())) == ("words", ("NAME", "O"), ["Ada saw Bob"])


def test_labels_may_be_missing_where_nobody_needs_them(tmp_path: Path) -> None:
    plain = lines(tmp_path / "a.jsonl", {"text": "x"}, {"text": "y"})
    with pytest.raises(TextError, match=r"a\.jsonl, line 1: there is no 'label' among 'text'"):
        read_labelled(plain)
    assert [row.label for row in read_labelled(plain, unlabelled=True).rows] == [None, None]
    some = lines(tmp_path / "some.jsonl", {"text": "a", "label": "x"}, {"text": "b"}, {"text": "c", "label": []})
    assert [row.label for row in read_labelled(some, unlabelled=True).rows] == [None, None, None]
    both = lines(tmp_path / "both.jsonl", {"text": "a"}, {"tokens": ["b"]})
    with pytest.raises(TextError, match="line 2: it has one of text and tokens, and line 1 the other; write all alike"):
        read_labelled(both, unlabelled=True)
    words = lines(tmp_path / "b.jsonl", {"tokens": ["x", "y"]})
    assert read_labelled(words, unlabelled=True).kind == "words"


GOOD = {"text": "x", "label": "pos"}
REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "no text": (
        [{"txt": "x", "label": "pos"}],
        r"line 1: there is no 'text' among 'txt', 'label' \(did you mean 'txt'",
    ),
    "empty text": ([GOOD, {"text": "  ", "label": "neg"}], "line 2: text is empty"),
    "empty second text": ([{**GOOD, "text_pair": ""}], "line 1: text_pair is empty"),
    "no words of text": ([{"text": 3, "label": "pos"}], "line 1: text = 3 is not a text"),
    "null label": ([{"text": "x", "label": None}], "line 1: the label is null"),
    "empty label": ([GOOD, {"text": "x", "label": ""}], "line 2: the label is empty"),
    "label of labels": ([{"text": "x", "label": {"a": 1}}], "is neither a word nor a number"),
    "two kinds": (
        [GOOD, {"text": "x", "label": 1}],
        "line 2: the label 1 is a whole number, and that of line 1, 'pos'",
    ),
    "beyond what float32 squares": (
        [{"text": "x", "label": 0.5}, {"text": "x", "label": -2e18}],
        "line 2: the label -2e.18 is beyond ±1e.18; write labels in other units",
    ),
    "a whole number beyond all floats": (
        [{"text": "x", "label": 0.5}, {"text": "x", "label": 10**400}],
        "line 2: the label 1000",
    ),
    "no finite number": ([{"text": "x", "label": float("nan")}], "line 1: the label nan is no finite number"),
    "unequal": ([{"tokens": ["a", "b"], "labels": ["O"]}], "line 1: there are 2 tokens and 1 labels"),
    "empty word": ([{"tokens": ["a", ""], "labels": ["O", "O"]}], "tokens = .* is not a list of words"),
    "texts and words": ([GOOD, {"tokens": ["a"], "labels": ["O"]}], "line 2: the label .* is a list of words"),
    "nothing": ([], "holds no examples"),
    "half a character": ([GOOD, {"text": "x", "label": "\ud800"}], r"line 2: half a character \(surrogate U\+D800\)"),
    "a long label": (
        [GOOD, {"text": "x", "label": ["y" * 1000] * 1000}],
        "line 2: the label .{0,2000} is neither a word",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_said_with_its_line(case: str, tmp_path: Path) -> None:
    rows, says = REFUSED[case]
    with pytest.raises(TextError, match=says):
        read_labelled(lines(tmp_path / "a.jsonl", *rows))


@pytest.mark.parametrize("depth", [900, 100_000])
def test_deep_labels_are_refused(depth: int, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"text": "x", "label": "a"}\n{"text": "x", "label": ' + "[" * depth + "]" * depth + "}"
    )
    with pytest.raises(
        TextError, match=r"line 2: (the label .{,100} is neither a word|lists or objects inside each other)"
    ):
        read_labelled(tmp_path / "a.jsonl")


def test_what_a_line_says_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x", "label": "a"}\n{"text": "y", "label": "b", "label": "a"}\n')
    with pytest.raises(TextError, match=r"line 2: not JSON \('label' stands twice and says two things"):
        read_labelled(tmp_path / "a.jsonl")


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TextError, match=r"is no labelled text; give a file that ends in \.jsonl"):
        read_labelled(tmp_path / "a.txt")
    with pytest.raises(TextError, match="it is not a file"):
        read_labelled(tmp_path / "a.csv")
    (tmp_path / "a.jsonl").write_text('{"text": "x", "label": "a"}\n{"text"\n')
    with pytest.raises(TextError, match="line 2: not JSON"):
        read_labelled(tmp_path / "a.jsonl")
    (tmp_path / "b.csv").write_text("text,label\na,b,c\n")
    with pytest.raises(TextError, match="line 2: it has 3 columns and the header 2"):
        read_labelled(tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text("text,text\na,b\n")
    with pytest.raises(TextError, match="two columns of the header have one name"):
        read_labelled(tmp_path / "c.csv")


def test_one_class_and_unknown_labels_are_refused(tmp_path: Path) -> None:
    one = read_labelled(lines(tmp_path / "a.jsonl", GOOD, GOOD))
    with pytest.raises(TextError, match="has one class only, 'pos': there is nothing to tell apart"):
        one.names()
    other = read_labelled(lines(tmp_path / "b.jsonl", GOOD, {"text": "x", "label": "possitive"}))
    with pytest.raises(
        TextError, match=r"line 2: the label 'possitive' is none of those trained on \(did you mean 'pos"
    ):
        other.names(("neg", "pos", "positive"))
    with pytest.raises(TextError, match="a class for each text, and what is asked for needs a class for each word"):
        one.as_kind("words")
    with pytest.raises(TextError, match="line 1: the label 'pos' is no number"):
        one.as_kind("numbers")


def test_a_split_has_its_share_of_every_class(tmp_path: Path) -> None:
    """Classes that alternate, or stand in blocks, are set aside alike."""
    labels = ["a", "b"] * 100 + ["c"] * 40
    corpus = read_labelled(
        lines(tmp_path / "a.jsonl", *({"text": str(i), "label": name} for i, name in enumerate(labels)))
    )
    train, held_out = split_labelled(corpus, 0.1)
    assert held_out.counts() == {"a": 10, "b": 10, "c": 4}
    assert sorted([*train.rows, *held_out.rows], key=lambda row: row.line) == list(corpus.rows)
    assert train.rows == tuple(sorted(train.rows, key=lambda row: row.line))
    for share, of_a in ((0.3, 30), (0.35, 35), (0.4, 40), (0.45, 45), (0.5, 50)):
        assert split_labelled(corpus, share)[1].counts() == {"a": of_a, "b": of_a, "c": of_a * 2 // 5}
    for share in (0.001, 0.6, float("nan")):
        with pytest.raises(TextError, match=rf"the validation split is empty: {share} of 240 examples; .* up to 0.5"):
            split_labelled(corpus, share)


@pytest.mark.parametrize("every", [2, 3, 7, 10, 50])
def test_of_a_share_each_last_one_is_set_aside(every: int) -> None:
    assert [*set_aside(range(1009), 1 / every, "pairs")[1]] == [*range(every - 1, 1009, every)]


TOKENIZERS = {
    "byte-level": lambda: Tokenizer.train(TEXTS * 9, 300).with_frame(),
    "wordpiece": lambda: WordPiece(60).train(TEXTS * 9),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("longest", [None, 6, 9, 14])
def test_inputs_are_framed_and_cut_as_the_library_does(kind: str, longest: int | None, tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Inner

    own = TOKENIZERS[kind]()
    own.save(tmp_path)
    oracle = Inner.from_file(str(tmp_path / "tokenizer.json"))
    if longest is not None:
        oracle.enable_truncation(longest, strategy="longest_first")
    for texts in [(text,) for text in TEXTS] + [(a, b) for a in TEXTS for b in TEXTS]:
        expected = oracle.encode(texts[0], texts[1] if len(texts) > 1 else None)
        found = own.frame(texts, longest)
        assert found.ids.tolist() == expected.ids, texts
        assert found.types.tolist() == expected.type_ids
        assert (found.cut > 0) == bool(expected.overflowing)
    assert set(own.frame(TEXTS[:2]).types.tolist()) == {0, 1}


def test_a_tokenizer_that_frames_nothing_is_given_a_frame() -> None:
    plain = Tokenizer.train(TEXTS * 9, 300)
    framed = plain.with_frame()
    end = plain.end_of_text
    assert plain.around == ([], [])
    assert framed.around == ([end], [end])
    assert framed.with_frame() is framed
    assert plain.frame(TEXTS[:1]).ids.tolist() == plain.encode(TEXTS[0])
    assert framed.frame(TEXTS[:1]).ids.tolist() == [end, *plain.encode(TEXTS[0]), end]
    assert framed.encode(TEXTS[0]) == plain.encode(TEXTS[0])
    assert framed.frame(["<|endoftext|>"]).ids.tolist()[1:-1] == plain.encode("<|endoftext|>")


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_words_label_stands_at_its_first_token(kind: str) -> None:
    tokenizer, words = TOKENIZERS[kind](), ("a", "dog,", "storyline", "été", "mat")
    found = tokenizer.frame(words, words=True)
    spelled = [tokenizer.decode([int(token)]).strip() for token in found.ids]
    assert len(found.firsts) == len(words)
    assert list(found.firsts) == sorted(set(found.firsts))
    for word, place in zip(words[:3], found.firsts, strict=False):
        assert word.startswith(spelled[place].removeprefix("##"))
        assert spelled[place]
    short = tokenizer.frame(words, len(found.ids) - 1, words=True)
    assert short.cut == 1
    assert all(a in (b, -1) for a, b in zip(short.firsts, found.firsts, strict=True))
    with pytest.raises(TextError, match="no room for text"):
        tokenizer.frame(words, 2, words=True)


def test_batches_are_padded_at_the_right(tmp_path: Path) -> None:
    tokenizer = WordPiece(60).train(TEXTS * 9)
    corpus = read_labelled(lines(tmp_path / "a.jsonl", *({"text": t, "label": i + 0.5} for i, t in enumerate(TEXTS))))
    examples = EncodedLabelled(corpus, tokenizer, ())
    rows = examples.batch(np.array([2, 0]))
    long, short = (tokenizer.frame([TEXTS[i]]).ids for i in (2, 0))
    assert rows.input_ids[0].tolist() == long.tolist()
    assert rows.input_ids[1].tolist() == [*short, *[tokenizer.padding] * (len(long) - len(short))]
    assert rows.document.sum(1).tolist() == [len(long), len(short)]
    assert rows.shifted[:, 1:].tolist() == rows.input_ids[:, :-1].tolist()
    assert (rows.values.tolist(), rows.labels.tolist()) == ([[2.5], [0.5]], [[0], [0]])
    with pytest.raises(TextError, match=rf"a\.jsonl, line 3: it is {len(long)} tokens long, and a row holds 12"):
        EncodedLabelled(corpus, tokenizer, (), 12)
    cut = EncodedLabelled(corpus, tokenizer, (), 12, truncate=True)
    assert cut.cut == sum(len(tokenizer.frame([text]).ids) > 12 for text in TEXTS)
    assert int(cut.lengths.max()) == 12
