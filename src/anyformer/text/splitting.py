"""How running text is cut into words: at white space, as the Penn Treebank does, or as spaCy does.

Each is one expression that finds the words, so that it can be written into a `tokenizer.json`. The conventions: Marcus et al.
1993, "Building a Large Annotated Corpus of English", and its tokenisation rules as NLTK's TreebankWordTokenizer has them;
spaCy's English rules (Honnibal & Montani). Quotation marks keep their spelling.
"""

from __future__ import annotations

from collections.abc import Mapping

from anyformer.errors import TextError, did_you_mean

_SUFFIX = r"'(?:s|m|d|ll|re|ve|S|M|D|LL|RE|VE)(?!\w)"  # it's, I'm, they'd, we'll, you're, I've
_BEFORE_NOT = r"\w+?(?=n't(?!\w)|N'T(?!\w))"  # do in don't
_NOT = r"(?:n't|N'T)(?!\w)"
_INITIALS = r"(?:\p{L}\.){2,}"  # U.K., e.g.
_ENDS = r"\.(?=[\]\)}>\"'»”’]*(?:\z|\n|\s+[\"'“‘(\[]*\p{Lu}))"  # a full stop that ends a sentence
_TITLES = r"(?:Mrs?|Ms|Dr|Prof|St|Jr|Sr|vs|etc)\.(?!\w)"
_ELLIPSIS = r"\.\.\.|…"
_NUMBER = r"\d+(?:[.,:]\d+)*"

_TREEBANK = (
    _ELLIPSIS,
    _INITIALS,
    _TITLES,
    r"--",
    _SUFFIX,
    _NOT,
    _BEFORE_NOT,
    _ENDS,
    r"[;@#$%&?!\[\](){}<>\"“”‘’»«`*]",
    r"[,:](?!\d)",
    r"'(?!\w)|(?<!\w)'",
    # What is left: hyphens, full stops and commas inside a word belong to it.
    rf"(?:(?!{_SUFFIX})(?!{_NOT})(?!{_BEFORE_NOT})(?!{_ENDS})(?!--)(?!\.\.\.)(?![,:](?!\d))(?!'(?!\w))"
    r"[^\s;@#$%&?!\[\](){}<>\"“”‘’»«`*])+",
)
_SPACY = (
    _ELLIPSIS,
    _INITIALS,
    _TITLES,
    _SUFFIX,
    _NOT,
    _BEFORE_NOT,
    _NUMBER,
    # Hyphens, slashes and all other marks are words of their own; full stops between letters stay inside.
    rf"(?:(?!{_SUFFIX})(?!{_NOT})\w)+(?:\.\w+)*(?:(?!{_SUFFIX})'(?=[a-z])\w+)*",
    r"--+",
    r"[^\s\w]",
)

SPLITS: Mapping[str, str] = {
    "whitespace": r"\S+",
    "treebank": "|".join(_TREEBANK),
    "spacy": "|".join(_SPACY),
}


def expression(split: str) -> str:
    """The expression that finds the words, in Oniguruma's syntax. Raises TextError with the nearest name."""
    if split not in SPLITS:
        raise TextError(f"there is no split {split!r}{did_you_mean(split, SPLITS)}; there are {', '.join(SPLITS)}")
    return SPLITS[split]
