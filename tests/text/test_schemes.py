"""Vocabularies trained on one's own text: what they learn, and that transformers encodes with them alike."""

from itertools import permutations
from pathlib import Path

import pytest

from anyformer.errors import TextError
from anyformer.text import (
    SCHEMES,
    CharacterBPE,
    Characters,
    Corpus,
    Tokenizer,
    WordPiece,
    Words,
    compared,
    scheme,
    spelled,
)
from anyformer.text.schemes import _settled
from anyformer.text.sources import Document
from tests.text.samples import TEXTS

HUGS = ["hug"] * 10 + ["pug"] * 5 + ["pun"] * 12 + ["bun"] * 4 + ["hugs"] * 5
every_kind = pytest.mark.parametrize("kind", SCHEMES)


def learned(tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.spelling(i) or "" for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids]


def test_the_classic_example() -> None:
    tokenizer = CharacterBPE(vocab_size=10).train(HUGS)
    assert learned(tokenizer) == ["b", "g", "h", "n", "p", "s", "u", "ug", "un", "hug"]
    assert spelled(tokenizer, "puns") == ["p", "un", "s"]


def test_wordpiece_is_encoded_greedily() -> None:
    tokenizer = WordPiece(vocab_size=9).train(HUGS)
    assert learned(tokenizer)[7:] == ["##gs", "pu"]
    assert spelled(tokenizer, "pugs hugs xs") == ["pu", "##gs", "h", "##u", "##gs", "[xs]"]


@every_kind
def test_transformers_encodes_alike(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = scheme(kind, 400).train(TEXTS)
    tokenizer.save(tmp_path)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), Tokenizer.load(tmp_path)
    assert ours.fingerprint == tokenizer.fingerprint
    for text in [*TEXTS, "Unseen: 東京, I'm fast-paced…"]:
        assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text) == ours.encode(text)
    assert theirs.eos_token_id == tokenizer.end_of_text is not None
    assert tokenizer.unknown == (None if kind == "byte-level-bpe" else theirs.unk_token_id)


@every_kind
def test_the_same_text_gives_the_same_vocabulary(kind: str) -> None:
    once, again = (scheme(kind, 400).train(texts) for texts in (TEXTS, TEXTS[::-1]))
    assert once.fingerprint == again.fingerprint
    assert once.fingerprint != scheme(kind, 400).train([*TEXTS, "quizzically " * 99]).fingerprint


def test_letters_given_back_stand_below_the_rest() -> None:
    """The library gives dropped letters the least score and 0.0001 more each, in another order in each process."""
    kept = [["the", -2.0], ["e", -2.5], ["q", -9.0001], ["rare", -9.0]]
    back = ["x", "y", "z"]
    specials = [["<unk>", 0.0]]
    found = [
        _settled([*specials, *kept, *([ch, -9.0001 + i * 1e-4] for i, ch in enumerate(order))], ["<unk>"])
        for order in permutations(back)
    ]
    assert all(each == found[0] for each in found)
    assert found[0][:3] == [("the", -2.0), ("e", -2.5), ("rare", -9.0)]
    assert {piece for piece, score in found[0] if score == pytest.approx(-9.001)} == {*back, "q"}


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "byte-level-bpe"])
def test_text_comes_back(kind: str) -> None:
    text = "To be, or not to be:\n\n  that is  the question. "
    tokenizer = scheme(kind, 300).train([text * 3])
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_words_are_the_most_frequent() -> None:
    tokenizer = Words(vocab_size=2, split="treebank", min_count=2).train(["a b, b c", "c b. Rare"])
    assert learned(tokenizer) == ["b", "c"]
    result = compared(tokenizer, Corpus.of([Document("a", "a b c.")]))
    assert result.unknown_rate == pytest.approx(2 / 4)
    assert spelled(tokenizer, "a b c.") == ["[a]", "b", "c", "[.]"]
    assert learned(Words(vocab_size=9, lowercase=True).train(["The the end."])) == ["the", "end."]
    assert learned(Characters().train(["ab\nb"])) == ["b", "\n", "a"]


def test_what_is_compared() -> None:
    corpus = Corpus.of([Document("a", "abc abc"), Document("b", "abd")])
    result = compared(Characters().train(["abcx "]), corpus)
    assert (result.vocab_size, result.n_tokens, result.bytes_per_token) == (7, 10, 1.0)
    assert result.unknown_rate == pytest.approx(0.1)
    assert result.unused_rate == pytest.approx(1 / 5)  # the x
    assert (result.length_median, result.length_max, result.restored_rate) == (5.0, 7, 0.5)
    assert result.nbytes_per_second > 0


def test_special_tokens_come_on_top(tmp_path: Path) -> None:
    tokenizer = scheme("bpe", 40).train(TEXTS)
    more = tokenizer.with_specials(["<extra_0>", "<|endoftext|>"], roles={"mask_token": "<mask>"})
    assert more.vocab_size == tokenizer.vocab_size + 2
    assert more.encode("a<mask>", specials=True)[-1] == tokenizer.vocab_size
    assert tokenizer.encode("a<mask>") == more.encode("a<mask>")
    more.save(tmp_path)
    assert Tokenizer.load(tmp_path).config["mask_token"] == "<mask>"
    assert pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path).mask_token_id == 42
    with pytest.raises(TextError, match="special token is empty"):
        tokenizer.with_specials([""])


@pytest.mark.parametrize("kind", ["byte-level-bpe", "bpe"])
def test_a_special_token_that_text_is_encoded_to_is_refused(kind: str) -> None:
    tokenizer = scheme(kind, 300).train(["### head\nsome text ### more\n"] * 9)
    with pytest.raises(
        TextError, match="special token '###' is what text is encoded to in this vocabulary; spell it <###>"
    ):
        tokenizer.with_specials(["<mask>", "###"])
    with pytest.raises(TextError, match="special token 's'"):
        tokenizer.with_specials((), {"sep_token": "s"})


@every_kind
def test_one_text_is_not_read_letter_by_letter(kind: str) -> None:
    with pytest.raises(TextError, match=r"'to be or not to be' is one text, .* put it into brackets"):
        scheme(kind, 300).train("to be or not to be")


@every_kind
def test_no_text_is_refused(kind: str) -> None:
    with pytest.raises(TextError, match="no text to train a tokenizer on"):
        scheme(kind, 300).train([""])


@every_kind
def test_a_text_may_spell_a_special_token(kind: str, tmp_path: Path) -> None:
    tokenizer = scheme(kind, 400).train([*TEXTS, "a<|endoftext|>b c<|endoftext|>d e<unk>f <|endoftext|> g<unk>h " * 9])
    tokenizer.save(tmp_path)
    assert tokenizer.end_of_text is not None
    assert tokenizer.spelling(tokenizer.end_of_text) in ("<|endoftext|>", "[SEP]")
    assert Tokenizer.load(tmp_path).fingerprint == tokenizer.fingerprint
    assert len({tokenizer.spelling(i) for i in range(tokenizer.vocab_size)}) == tokenizer.vocab_size
    said, opened = "a <|endoftext|> <unk> [SEP] b", set(Tokenizer.load(tmp_path).frame(["a"]).ids)
    for found in (tokenizer.encode(said), tokenizer.encoding(said).ids, tokenizer.frame([said]).ids):
        assert set(found) & tokenizer.special_ids <= {tokenizer.unknown, *opened}
    assert tokenizer.end_of_text not in tokenizer.encode(said)
    spelled_out = f"a {tokenizer.spelling(tokenizer.end_of_text)} b"
    assert tokenizer.end_of_text in tokenizer.encode(spelled_out, specials=True)
    assert tokenizer.end_of_text not in tokenizer.encode(spelled_out)


def test_a_special_token_that_is_a_piece_of_a_loaded_model_is_no_text_either() -> None:
    """As T5 has them: `</s>` is a piece, with the best score of all, and `<` is none."""
    tokenizers = pytest.importorskip("tokenizers")
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((letter, -3.0) for letter in "▁abs/")]
    inner = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=2))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    inner.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer = Tokenizer(inner, {"eos_token": "</s>"})
    assert [token for token, _, _ in tokenizer.pieces("a </s> b")] == [3, 4, 3, 2, 7, 6, 2, 3, 5]
    assert tokenizer.encode("</s>", specials=True) == [1]


@every_kind
def test_a_vocabulary_that_no_memory_holds_is_refused(kind: str) -> None:
    with pytest.raises(TextError, match="a vocabulary of 10,000,000,000 tokens is too large; 10,000,000 is the most"):
        scheme(kind, 10**10).train(["the cat sat on the mat"])


def test_bad_choices() -> None:
    with pytest.raises(TextError, match=r"no kind of tokenizer 'wordpeice' .did you mean 'wordpiece'"):
        scheme("wordpeice", 300)
    with pytest.raises(TextError, match="bpe has no min_count"):
        scheme("bpe", 300, min_count=2)
    with pytest.raises(TextError, match="vocabulary of 0 tokens is too small"):
        scheme("words", 0).train(TEXTS)
