"""Ways to make a vocabulary of one's own text: words, letters, pieces by frequency, by score and by likelihood.

Each is a value with a `train`, and comes out as a `tokenizer.json` that Hugging Face's tokenizers and transformers encode by.
`vocab_size` counts what is learned; special tokens come on top of it (byte-level BPE, whose special token has id 0, counts it).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from anyformer.errors import TextError, among
from anyformer.text.fitting import NO_TEXT, fit, refuse_many, separate
from anyformer.text.tokenizer import END_OF_TEXT, Tokenizer
from anyformer.text.wordpiece import CONTINUES, wordpieces

if TYPE_CHECKING:
    import tokenizers

UNKNOWN = "<unk>"
TABLE = 2_500_000  # characters of words, which take about 100 bytes each while pieces of them are learnt
PENALTY = 1e-4  # between two letters that the library's unigrams get back
PLAIN_SPECIALS = {"unk_token": UNKNOWN, "bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "add_bos_token": True}
BERT_SPECIALS = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
# Letters, digits and marks apart, each with the space before it, so that joining the pieces gives the text again.
_WITH_SPACES = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+"

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

# How running text is cut into words: at white space, or as two conventions do: Marcus et al. 1993, "Building a Large Annotated
# Corpus of English", and its tokenisation rules as NLTK's TreebankWordTokenizer has them; spaCy's English rules (Honnibal &
# Montani). Each is one expression that finds the words, so that it can be written into a `tokenizer.json`.
SPLITS: Mapping[str, str] = {"whitespace": r"\S+", "treebank": "|".join(_TREEBANK), "spacy": "|".join(_SPACY)}


class Scheme(ABC):
    """A way to train a tokenizer."""

    table: ClassVar[int | None] = TABLE  # characters of different words that it may learn from; None: any number

    @abstractmethod
    def train(self, texts: Iterable[str]) -> Tokenizer:
        """The tokenizer learned from texts; the same texts give the same one. Raises TextError for no text."""


@dataclass(frozen=True)
class ByteLevelBPE(Scheme):
    """Byte-pair encoding of bytes, which encodes everything: Radford et al. 2019 (GPT-2), section 2.2."""

    vocab_size: int

    def train(self, texts: Iterable[str]) -> Tokenizer:
        return Tokenizer.train(texts, self.vocab_size)


@dataclass(frozen=True)
class CharacterBPE(Scheme):
    """Byte-pair encoding of letters: Sennrich et al. 2016, arXiv:1508.07909, section 3.2. What it never saw is unknown.

    The most frequent pair is merged first; a space belongs to the word after it.
    """

    vocab_size: int

    def train(self, texts: Iterable[str]) -> Tokenizer:
        from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

        inner = _empty(models.BPE(unk_token=UNKNOWN))
        inner.pre_tokenizer = pre_tokenizers.Split(Regex(_WITH_SPACES), "isolated")
        inner.decoder = decoders.Fuse()
        n, specials = _in_range(self.vocab_size, 1), [END_OF_TEXT, UNKNOWN]
        size = n + len(specials)
        trainer = trainers.BpeTrainer(vocab_size=size, limit_alphabet=n, special_tokens=specials, show_progress=False)
        fit(inner, trainer, texts)
        return _named(inner, PLAIN_SPECIALS)


@dataclass(frozen=True)
class Unigram(Scheme):
    """The vocabulary under which a unigram model finds the text likeliest: Kudo 2018, arXiv:1804.10959, section 3.2."""

    vocab_size: int

    def train(self, texts: Iterable[str]) -> Tokenizer:
        from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

        inner = _empty(models.Unigram())
        words, spaces = Regex(r" ?\S+|\s+"), pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
        inner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(words, "isolated"), spaces])
        inner.decoder = decoders.Metaspace(prepend_scheme="never", split=False)
        specials = [END_OF_TEXT, UNKNOWN]
        size = _in_range(self.vocab_size, 2) + len(specials)
        trainer = trainers.UnigramTrainer(
            vocab_size=size, special_tokens=specials, unk_token=UNKNOWN, show_progress=False
        )
        fit(inner, trainer, texts)
        learned = json.loads(inner.to_str())["model"]["vocab"]
        pieces = [*((name, 0.0) for name in specials), *_settled(learned, specials)]
        settled = _empty(models.Unigram(pieces, unk_id=1))  # the one that learnt keeps the ids that its tokens had then
        settled.pre_tokenizer, settled.decoder = inner.pre_tokenizer, inner.decoder
        settled.add_special_tokens(specials)
        return _named(settled, PLAIN_SPECIALS)


@dataclass(frozen=True)
class WordPiece(Scheme):
    """Pieces by score, see text.wordpiece; words are cut at white space and marks, and encoded greedily, longest first.

    Its special tokens and `##` are BERT's (Devlin et al. 2019, arXiv:1810.04805), whose files of a vocabulary look alike.
    """

    vocab_size: int
    min_count: int = 1  # pairs seen less often are never merged
    lowercase: bool = False

    def train(self, texts: Iterable[str]) -> Tokenizer:
        from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

        unknown, opening, closing = (BERT_SPECIALS[f"{role}_token"] for role in ("unk", "cls", "sep"))
        inner = _empty(models.WordPiece({unknown: 0}, unk_token=unknown))
        inner.normalizer = normalizers.BertNormalizer(lowercase=self.lowercase, strip_accents=False)
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        learned = wordpieces(word_counts(inner, texts), _in_range(self.vocab_size, 1), self.min_count)
        ids = {piece: i for i, piece in enumerate((*BERT_SPECIALS.values(), *learned))}
        inner.model = models.WordPiece(ids, unk_token=unknown, continuing_subword_prefix=CONTINUES)
        inner.decoder = decoders.WordPiece(prefix=CONTINUES)
        inner.post_processor = processors.BertProcessing((closing, ids[closing]), (opening, ids[opening]))
        inner.add_special_tokens(list(BERT_SPECIALS.values()))
        return _named(inner, {**BERT_SPECIALS, "bos_token": opening, "eos_token": closing})


@dataclass(frozen=True)
class Words(Scheme):
    """A token a word, the most frequent ones; `split` says what a word is; see SPLITS."""

    table: ClassVar[int | None] = 2 * TABLE
    vocab_size: int
    split: str = "whitespace"
    min_count: int = 1
    lowercase: bool = False

    def train(self, texts: Iterable[str]) -> Tokenizer:
        from tokenizers import Regex, models, normalizers, pre_tokenizers

        rules = _empty(models.WordLevel({UNKNOWN: 0}, unk_token=UNKNOWN))
        if self.lowercase:
            rules.normalizer = normalizers.Lowercase()
        rules.pre_tokenizer = pre_tokenizers.Split(Regex(expression(self.split)), "removed", invert=True)
        return _of_counts(rules, word_counts(rules, texts), _in_range(self.vocab_size, 1), self.min_count)


@dataclass(frozen=True)
class Characters(Scheme):
    """A token a character, white space among them; the most frequent ones where `vocab_size` is given."""

    table: ClassVar[int | None] = None
    vocab_size: int | None = None
    min_count: int = 1

    def train(self, texts: Iterable[str]) -> Tokenizer:
        from tokenizers import Regex, decoders, models, pre_tokenizers

        rules = _empty(models.WordLevel({UNKNOWN: 0}, unk_token=UNKNOWN))
        rules.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        rules.decoder = decoders.Fuse()
        counts: Counter[str] = Counter()
        for text in separate(texts):
            counts.update(text)
        if not counts:
            raise TextError(NO_TEXT)
        size = len(counts) if self.vocab_size is None else _in_range(self.vocab_size, 1)
        return _of_counts(rules, counts, size, self.min_count)


SCHEMES: Mapping[str, Callable[[int], Scheme]] = {
    "byte-level-bpe": ByteLevelBPE,
    "bpe": CharacterBPE,
    "wordpiece": WordPiece,
    "unigram": Unigram,
    "words": Words,
    "words-treebank": partial(Words, split="treebank"),
    "words-spacy": partial(Words, split="spacy"),
    "characters": Characters,
}


def scheme(name: str, vocab_size: int, min_count: int = 1) -> Scheme:
    """The scheme of a name. Raises TextError with the nearest name, and where a scheme knows no `min_count`."""
    if name not in SCHEMES:
        raise TextError(f"there is no kind of tokenizer {name!r}{among(name, SCHEMES)}")
    chosen = SCHEMES[name](vocab_size)
    if min_count == 1:
        return chosen
    if not isinstance(chosen, WordPiece | Words | Characters):
        raise TextError(f"{name} has no min_count ({min_count}): its vocabulary is bounded by its size alone")
    return replace(chosen, min_count=min_count)


def expression(split: str) -> str:
    """The expression that finds the words, in Oniguruma's syntax. Raises TextError with the nearest name."""
    if split not in SPLITS:
        raise TextError(f"there is no split {split!r}{among(split, SPLITS)}")
    return SPLITS[split]


def word_counts(rules: tokenizers.Tokenizer, texts: Iterable[str]) -> Counter[str]:
    """How often each word occurs, as the tokenizer's own rules normalise and split. Raises TextError for no text."""
    counts: Counter[str] = Counter()
    for text in separate(texts):
        normal = rules.normalizer.normalize_str(text) if rules.normalizer else text
        counts.update(word for word, _ in rules.pre_tokenizer.pre_tokenize_str(normal))
    if not counts:
        raise TextError(NO_TEXT)
    return counts


def _empty(model: Any) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Inner

    return Inner(model)


def _settled(vocabulary: list[list[Any]], specials: list[str]) -> list[tuple[str, float]]:
    """Pieces and log-probabilities as they are whatever order the library summed in: rounded, then by spelling.

    Letters that no longer pay for themselves the library puts at the least score of all, each PENALTY above the one before, in
    the order in which a hash table gives them; here they all stand at one step below the rest.
    """
    scores = {piece: score for piece, score in vocabulary if piece not in specials}
    least = min(scores.values())

    def returned(piece: str, score: float) -> bool:
        above = (score - least) / PENALTY
        return len(piece) == 1 and above < len(scores) and abs(above - round(above)) < 1e-6

    settled = {
        piece: round(round(least, 3) - 0.001, 3) if returned(piece, score) else round(score, 3)
        for piece, score in scores.items()
    }
    return sorted(settled.items(), key=lambda item: (-item[1], item[0]))


def _of_counts(inner: tokenizers.Tokenizer, counts: Mapping[str, int], size: int, min_count: int) -> Tokenizer:
    """A tokenizer of whole words (or letters) with these rules: the most frequent first, then by spelling."""
    from tokenizers import models

    known = [word for word, times in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if times >= min_count]
    ids = {word: i for i, word in enumerate(dict.fromkeys((END_OF_TEXT, UNKNOWN, *known[:size])))}
    inner.model = models.WordLevel(ids, unk_token=UNKNOWN)
    inner.add_special_tokens([END_OF_TEXT, UNKNOWN])
    return _named(inner, PLAIN_SPECIALS)


def _named(inner: tokenizers.Tokenizer, config: Mapping[str, Any]) -> Tokenizer:
    # The class name is what lets transformers' AutoTokenizer open the directory.
    return Tokenizer(inner, {"tokenizer_class": "PreTrainedTokenizerFast", **config})


def _in_range(vocab_size: int, least: int) -> int:
    if vocab_size < least:
        raise TextError(f"a vocabulary of {vocab_size} tokens is too small; it has at least {least}")
    refuse_many(vocab_size)
    return vocab_size
