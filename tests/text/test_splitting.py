"""Words as three conventions cut them, against NLTK and spaCy where they are installed."""

import pytest
from tokenizers import Regex, pre_tokenizers

from anyformer.errors import TextError
from anyformer.text.schemes import expression

SENTENCES = [
    "I'm in the U.K. at the end.",
    "A fast-paced game, isn't it?",
    "Dr. Smith's dog can't bark & won't bite; we'd know.",
    "The U.S. economy grew 3.5% in 2019, didn't it?",
    "It cost $5.00 -- no, $6!",
    "Mr. Jones lives in St. Louis, doesn't he?",
    "We've seen John's and the boys' toys (all of them).",
    "They're here: at 12:30, or so... maybe.",
]


def split(convention: str, text: str) -> list[str]:
    words = pre_tokenizers.Split(Regex(expression(convention)), "removed", invert=True)
    return [word for word, _ in words.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("convention", "words"),
    [
        ("whitespace", "I'm|in|the|U.K.|to|the|end.|A|fast-paced|one."),
        ("treebank", "I|'m|in|the|U.K.|to|the|end|.|A|fast-paced|one|."),
        ("spacy", "I|'m|in|the|U.K.|to|the|end|.|A|fast|-|paced|one|."),
    ],
)
def test_what_each_is_known_for(convention: str, words: str) -> None:
    assert split(convention, "I'm in the U.K. to the end.\nA fast-paced one.") == words.split("|")


@pytest.mark.parametrize("text", SENTENCES)
def test_treebank_is_nltks(text: str) -> None:
    tokenize = pytest.importorskip("nltk.tokenize")
    assert split("treebank", text) == tokenize.TreebankWordTokenizer().tokenize(text)


@pytest.mark.parametrize("text", SENTENCES)
@pytest.mark.filterwarnings("ignore")  # spaCy's own, on import
def test_spacy_is_spacys(text: str) -> None:
    spacy = pytest.importorskip("spacy", reason="spaCy is not installed (pip install spacy)")
    assert split("spacy", text) == [token.text for token in spacy.blank("en")(text)]


def test_nothing_is_lost() -> None:
    text = "  “Quoted”, he said—no: 'tis 3,000.50€ (or so)!\n\tThey'll've gone; rock'n'roll @home #1 a_b\u00a0c…"
    for convention in ("whitespace", "treebank", "spacy"):
        assert "".join(split(convention, text)) == "".join(text.split())


def test_an_unknown_convention() -> None:
    with pytest.raises(TextError, match=r"no split 'treebnak' .did you mean 'treebank'"):
        expression("treebnak")
