"""Tokenizers: Hugging Face's `tokenizer.json` for everything, tiktoken where it gives the same ids faster.

Byte-level BPE: Sennrich et al. 2016, arXiv:1508.07909, over bytes as in Radford et al. 2019 (GPT-2), section 2.2.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.disk.foreign import read_bytes
from anyformer.errors import TextError
from anyformer.text.byte_level import fast_encoding, is_blank_run
from anyformer.text.companions import (
    TEMPLATE,
    chat_template,
    content_of,
    opening_and_closing,
    read_companions,
    read_config,
    rewritten,
    write_companions,
)
from anyformer.text.fitting import fit, refuse_many
from anyformer.text.framing import Framed, around, framed, with_frame
from anyformer.text.generation_config import answer_ids, closing_ids, settings_of, with_defaults
from anyformer.text.languages import answers_in, sides_in
from anyformer.text.places import refuse_surrogates
from anyformer.text.stream import TextStream
from anyformer.text.tokenizer_file import FILE, guarded, located, read_tokenizer, without_pieces

if TYPE_CHECKING:
    import tiktoken
    import tokenizers

END_OF_TEXT = "<|endoftext|>"
N_IDS = 2**32  # that the library can be asked for; no vocabulary has others


class Tokenizer:
    """Text to ids and back. Made by `Tokenizer.train` or `Tokenizer.load`; immutable.

    `begin_of_text` and `end_of_text` are the ids that open and close a document, None where the vocabulary has none;
    `closing_ids` are those that end a generated text: what generation_config.json beside it names, or without one
    config.json, else `end_of_text`; `special_ids` are all ids that stand for no text; `data` is what its tokenizer.json says;
    `kind` is "byte-level-bpe", "bpe", "unigram", "wordpiece" or "wordlevel".
    """

    def __init__(
        self, inner: tokenizers.Tokenizer, config: dict[str, Any], files: Mapping[str, bytes] | None = None
    ) -> None:
        """`files` are those it was read from and what lay beside them; they are written again as they were."""
        # Files of sentence encoders cut or pad every text to a length, which would silently lose the rest of a corpus.
        inner.no_truncation()
        inner.no_padding()
        inner.encode_special_tokens = False
        self._inner = inner
        self._config, self._files = config, dict(files or {})
        self.data: dict[str, Any] = json.loads(inner.to_str())
        added = inner.get_added_tokens_decoder()
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        opening, closing = opening_and_closing(config, {added[token].content for token in self.special_ids})
        self.begin_of_text = inner.token_to_id(opening) if opening else None
        self.end_of_text = inner.token_to_id(closing) if closing else None
        self._generation = settings_of(self._files)
        self._named_closing = closing_ids(self._generation)
        self._named_start, self._named_first = answer_ids(self._generation)
        model, decoder = self.data["model"]["type"], (self.data.get("decoder") or {}).get("type")
        self.kind = "byte-level-bpe" if (model, decoder) == ("BPE", "ByteLevel") else model.lower()

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, n_added: int = 0) -> Tokenizer:
        """A byte-level BPE learned from `texts`; the same texts give the same tokenizer, in any order.

        Ids: 0 is `<|endoftext|>`, which opens and closes documents; 1 to 256 are the bytes; then the merges in order.
        Fewer than `vocab_size` tokens come out where the texts have no more pairs to merge, and `n_added` fewer, for which
        room is left. Raises TextError for a `vocab_size` below 257 and these or above `fitting.MOST`, and for texts without
        a character.
        """
        from tokenizers import Tokenizer as Inner
        from tokenizers import decoders, models, pre_tokenizers, trainers

        alphabet = pre_tokenizers.ByteLevel.alphabet()
        if vocab_size < (least := 1 + len(alphabet) + n_added):
            more = f", {END_OF_TEXT} and {n_added} more special ones" if n_added else f" and {END_OF_TEXT}"
            raise TextError(
                f"a byte-level vocabulary of {vocab_size} tokens is too small: 256 bytes{more} make {least}"
            )
        refuse_many(vocab_size)
        inner = Inner(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - n_added,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=alphabet,
            show_progress=False,
        )
        fit(inner, trainer, texts)
        # The class name is what lets transformers' AutoTokenizer open the directory.
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END_OF_TEXT,
            "eos_token": END_OF_TEXT,
            "add_bos_token": True,
        }
        return cls(inner, config)

    @classmethod
    def load(cls, path: str | Path, settings: Mapping[str, Any] | None = None) -> Tokenizer:
        """The tokenizer of a `tokenizer.json`, of a directory that holds one or of a run. Raises TextError where that fails.

        `settings`: of the config.json beside it, which says what a generation_config.json would, where there is none.
        """
        file = located(Path(path))
        inner = read_tokenizer(read_bytes(file, TextError), str(file))
        files = with_defaults(read_companions(file.parent), settings or {}) if file.name == FILE else None
        return cls(inner, read_config(file.parent), files)

    def save(self, directory: str | Path) -> None:
        """Write `tokenizer.json`, `tokenizer_config.json` and what lay beside them, which transformers reads too."""
        files = self._files or rewritten({}, self._inner.to_str(pretty=True), self._config, {})
        write_companions(files, Path(directory))

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id: the rows that an embedding table needs."""
        return 1 + max(self._inner.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def start_of_answer(self) -> int | None:
        """The id that begins what a decoder beside an encoder writes: what generation_config.json beside it names, else
        the one that opens a text, else the one that closes it."""
        opening = self.end_of_text if self.begin_of_text is None else self.begin_of_text
        return opening if self._named_start is None else self._named_start

    @property
    def answer_opening(self) -> list[int]:
        """The ids that a decoder beside an encoder reads before it writes; empty where nothing is known.

        They are `start_of_answer`, and what every answer begins with according to generation_config.json
        (`forced_bos_token_id`), a language's token, say.
        """
        return [each for each in (self.start_of_answer, self._named_first) if each is not None]

    @property
    def closing_ids(self) -> tuple[int, ...]:
        """The ids that end a generated text."""
        return self._named_closing or (() if self.end_of_text is None else (self.end_of_text,))

    def closing_at(self, ids: Iterable[int]) -> Tokenizer:
        """One whose generated texts end at these ids too."""
        found = copy(self)
        found._named_closing = tuple(dict.fromkeys((*self.closing_ids, *ids)))
        return found

    @cached_property
    def unknown(self) -> int | None:
        """The id of what the vocabulary cannot spell; None where it has none, and leaves such text out or spells bytes."""
        model = self.data["model"]
        spelled = model.get("unk_token")
        return model.get("unk_id") if spelled is None else self._inner.token_to_id(spelled)

    def with_specials(self, tokens: Iterable[str] = (), roles: Mapping[str, str] | None = None) -> Tokenizer:
        """This vocabulary with special tokens after its last id, those that it has already left where they are.

        `roles` are tokens by what tokenizer_config.json calls them, {"mask_token": "<mask>"}. Raises TextError for an
        empty token, and for one that text is encoded to.
        """
        from tokenizers import AddedToken
        from tokenizers import Tokenizer as Inner

        named = dict(roles or {})
        added: list[str] = list(dict.fromkeys([*named.values(), *tokens]))
        if not all(added):
            raise TextError("a special token is empty; give it a spelling such as <mask>")
        inner = Inner.from_str(self._inner.to_str())
        inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in added])
        found = Tokenizer(inner, {**self._config, **named})
        for token in added:
            if not found.special_ids.isdisjoint({*found.encode(token)} - {found.unknown}):
                raise TextError(
                    f"the special token {token!r} is what text is encoded to in this vocabulary; spell it <{token}>, say"
                )
        return found

    def frame(self, texts: Sequence[str], longest: int | None = None, *, words: bool = False) -> Framed:
        """A text, a pair of texts, or the `words` of one as one input, as `text.framing.framed` does."""
        for text in texts:
            refuse_surrogates(text)
        with guarded("the tokenizer cannot encode this text"):
            return framed(self._plain, texts, longest, words=words)

    @cached_property
    def around(self) -> tuple[list[int], list[int]]:
        """The ids that its rules put before a text, and those behind it."""
        return around(self._inner)

    @property
    def around_source(self) -> tuple[list[int], list[int]]:
        """The ids before what an encoder reads, and behind it: of its rules, or without any what closes a text."""
        if any(self.around) or self.end_of_text is None:
            return self.around
        return [], [self.end_of_text]

    def with_frame(self) -> Tokenizer:
        """One that opens and closes each text, where this one's rules add nothing and it knows what closes one."""
        if any(self.around) or self.end_of_text is None:
            return self
        opening = [] if self.begin_of_text is None else [self.begin_of_text]
        # Classes of transformers that are known by a name make rules of their own instead of reading these.
        config = {**self._config, "tokenizer_class": "PreTrainedTokenizerFast"}
        return Tokenizer(with_frame(self._inner, opening, [self.end_of_text]), config)

    def between(self, source: str | None = None, target: str | None = None) -> Tokenizer:
        """One for texts of the language that the special token `source` names, and answers in that of `target`.

        The one stands where the tokenizer's rules have a language, or opens a text; the other is always written first, or, where
        rules put languages behind texts, read first. Raises TextError for what is no special token of a language, and for rules
        that have no place for one.
        """
        inner, config, said = self._inner, dict(self._config), dict[str, Any]()
        if source is not None:
            inner, config = with_frame(inner, *sides_in(self, source)), config | {"src_lang": source}
        if target is not None:
            said, config = answers_in(self, target), config | {"tgt_lang": target}
        return Tokenizer(inner, config, rewritten(self._files, inner.to_str(pretty=True), config, said))

    def naming_types(self) -> Tokenizer:
        """One whose tokenizer_config.json has transformers give a model the types of texts; unless files say how it is."""
        if self._files or "model_input_names" in self._config:
            return self
        names = ["input_ids", "token_type_ids", "attention_mask"]
        return Tokenizer(self._inner, {**self._config, "model_input_names": names})

    @property
    def padding(self) -> int | None:
        """The id that tokenizer_config.json names for padding; None where it names none."""
        named = content_of(self._config.get("pad_token"))
        return None if named is None else self._inner.token_to_id(named)

    @property
    def config(self) -> dict[str, Any]:
        """A copy of what `tokenizer_config.json` said."""
        return dict(self._config)

    @property
    def generation(self) -> dict[str, Any]:
        """A copy of what generation_config.json said, or config.json in its place."""
        return dict(self._generation)

    @property
    def chat_template(self) -> str | None:
        """The jinja2 template that came with it, by which conversations are written; None without one."""
        return chat_template(self._files, self._config)

    def with_chat_template(self, template: str) -> Tokenizer:
        """One by which conversations are written so."""
        files = {**self._files, TEMPLATE: template.encode()} if self._files else {}
        return Tokenizer(self._inner, {**self._config, "chat_template": template}, files)

    @cached_property
    def fingerprint(self) -> str:
        """Hexadecimal sha256 of the tokenizer's canonical JSON and of the ids that open and close a document."""
        content = {"tokenizer": self.data, "begin": self.begin_of_text, "end": self.end_of_text}
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @cached_property
    def fast(self) -> tiktoken.Encoding | None:
        """What encodes in its place, where tiktoken gives the same ids."""
        return fast_encoding(self.data)

    def spelling(self, token: int) -> str | None:
        """How the vocabulary writes a token; None for an id that it does not have."""
        return self._inner.id_to_token(token) if 0 <= token < N_IDS else None

    def token(self, spelling: str) -> int | None:
        """The id that the vocabulary writes so, special or not; None where it has none."""
        return self._inner.token_to_id(spelling)

    def encode(self, text: str, *, specials: bool = False) -> list[int]:
        """Ids of `text`, nothing put before or after it.

        What is spelled like a special token is plain text unless `specials` is True (prompts, chat templates): a
        document that mentions `<|endoftext|>` does not end there. Raises TextError for a lone surrogate.
        """
        if not isinstance(text, str):
            raise TextError(f"only text can be encoded, not {type(text).__name__}")
        refuse_surrogates(text)
        if not specials and (fast := self._fast_for(text)):
            return fast.encode_ordinary(text)
        inner = self._inner if specials else self._plain
        with guarded("the tokenizer cannot encode this text"):  # as a batch, for which other threads need not wait
            return inner.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def encoding(self, text: str) -> tokenizers.Encoding:
        """Ids of `text` as `encode` gives them, with the characters that each stands for."""
        refuse_surrogates(text)
        with guarded("the tokenizer cannot encode this text"):
            return self._plain.encode(text, add_special_tokens=False)

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """What encodes text in which a special token's spelling is text like any other: one of its own, since threads may ask
        for both at once."""
        from tokenizers import Tokenizer as Inner

        specials = {self.spelling(token) for token in self.special_ids}
        merges = "merges" in self.data["model"]
        plain = Inner.from_str(self._inner.to_str()) if merges else without_pieces(self.data, specials)
        plain.encode_special_tokens = True
        return plain

    def pieces(self, text: str) -> list[tuple[int, str, str]]:
        """The tokens of `text`, each with its id, its spelling in the vocabulary and the part of the text it stands for."""
        found = self.encoding(text)
        return [(i, token, text[a:b]) for i, token, (a, b) in zip(found.ids, found.tokens, found.offsets, strict=True)]

    def array(self, text: str) -> np.ndarray:
        """The ids [token] that `encode` gives, of `dtype`; without a list between, which takes a tenth of tiktoken's time."""
        if fast := self._fast_for(text):
            refuse_surrogates(text)
            return fast.encode_to_numpy(text, disallowed_special=()).astype(self.dtype)
        return np.array(self.encode(text), dtype=self.dtype)

    def _fast_for(self, text: str) -> tiktoken.Encoding | None:
        """What encodes this text, whose special tokens are text, in its place; None: nothing does."""
        return None if self.fast is None or is_blank_run(text) else self.fast

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The smallest of uint16 and uint32 that holds every id."""
        return np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)

    def decode(self, ids: Iterable[int], *, specials: bool = False) -> str:
        """Text of `ids`: U+FFFD for bytes that are not UTF-8, nothing for ids outside the vocabulary.

        Special tokens are left out unless `specials` is True.
        """
        known = [token for token in map(int, ids) if 0 <= token < N_IDS]
        return self._inner.decode(known, skip_special_tokens=not specials)

    def decode_behind(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """Text of `ids` where others stand before them: at the start a leading space is left out, by some vocabularies."""
        return self.decode([*before, *ids])[len(self.decode(before)) :]

    def stream(self) -> TextStream:
        """A decoder that takes one id at a time, and leaves special tokens out."""
        return TextStream(self)

    def __repr__(self) -> str:
        return f"Tokenizer({self.kind}, vocab_size={self.vocab_size}, fingerprint={self.fingerprint[:12]})"
