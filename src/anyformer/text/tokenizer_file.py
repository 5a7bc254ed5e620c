"""A `tokenizer.json` on its way to the library that reads it: ids are checked before, and whatever it throws is one refusal."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.disk.foreign import inside, parse_json
from anyformer.disk.run_layout import TOKENIZER
from anyformer.errors import AnyformerError, TextError, first_line
from anyformer.screen import muted

if TYPE_CHECKING:
    import tokenizers

FILE = "tokenizer.json"
# The library reserves memory by the largest id. Published vocabularies leave few ids out.
SPARE, TIMES = 1 << 17, 8
TRIAL = ("a", "A b\n", "é \N{LATIN SMALL LETTER E}1", "\N{GRINNING FACE}")


def located(path: Path) -> Path:
    """The file that is meant by its path, by that of the directory that holds it, or of a run. Raises TextError for none."""
    if (path / TOKENIZER / FILE).is_file() and not (path / FILE).exists():
        path /= TOKENIZER
    file = inside(path / FILE, TextError) if path.is_dir() else path
    if not file.is_file():
        remedy = "train one with `anyformer tokenizer train`"
        if (path / "tokenizer.model").is_file():
            remedy = "there is a SentencePiece tokenizer.model, which transformers can save as tokenizer.json"
        raise TextError(f"no tokenizer at {path}: {file} does not exist; {remedy}")
    return file


def read_tokenizer(content: bytes, where: str) -> tokenizers.Tokenizer:
    """The library's tokenizer of a file; `where` names it in messages.

    Raises TextError for what the library does not read, or cannot encode with, and where it would give ids that the file
    does not: of two tokens with one id, of added tokens that leave ids out, far beyond the number of tokens.
    """
    from tokenizers import Tokenizer as Inner

    data = parse_json(content, where, TextError)
    model = data.get("model") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(model, dict):
        raise TextError(
            f"{where} is not a tokenizer that Hugging Face tokenizers reads (it has no model); copy it again"
        )
    vocabulary, added = model.get("vocab"), data.get("added_tokens") or []
    if isinstance(vocabulary, dict):
        refuse_ids(vocabulary.items(), where)
    listed = added if isinstance(added, list) else []  # the library refuses anything else
    entries = [(each.get("content"), each.get("id")) for each in listed if isinstance(each, dict)]
    with guarded(f"{where} is not a tokenizer that Hugging Face tokenizers reads"), muted():
        inner = Inner.from_str(content.decode())
        inner.no_truncation()
        inner.no_padding()
        for text in TRIAL:
            with suppress(Exception):  # of a vocabulary without these letters; a panic is none
                inner.decode(inner.encode(text).ids)
    for token, i in entries:
        if isinstance(token, str) and (found := inner.token_to_id(token)) != i:
            raise TextError(
                f"{where}: the added token {token!r} has the id {i!r}, and the library gives it {found}; copy the file again"
            )
    return inner


def without_pieces(data: Mapping[str, Any], pieces: Collection[str | None]) -> tokenizers.Tokenizer:
    """What cuts and frames text as a tokenizer.json says, with the same ids, but matches none of these pieces of its model."""
    from tokenizers import Tokenizer as Inner

    model, added = data["model"], {token["content"]: token["id"] for token in data["added_tokens"]}
    if isinstance(model["vocab"], list):  # in the order of the ids; no text holds the empty piece
        vocabulary: Any = [["" if piece in pieces else piece, score] for piece, score in model["vocab"]]
    else:
        known = {*model["vocab"]}.difference(pieces) | {model["unk_token"]}
        vocabulary = {piece: i for piece, i in model["vocab"].items() if piece in known}
    # A model of added tokens alone gives them their ids, which those outside a vocabulary have by its size.
    inner = Inner.from_str(json.dumps({**data, "model": {"type": "WordLevel", "vocab": added, "unk_token": ""}}))
    inner.model = Inner.from_str(
        json.dumps({**data, "added_tokens": [], "model": {**model, "vocab": vocabulary}})
    ).model
    return inner


def refuse_ids(tokens: Iterable[tuple[str, Any]], where: str) -> None:
    """Raise TextError for ids (token, id) that are no numbers from 0 on, that two tokens have, or that are far too large."""
    owner: dict[int, str] = {}
    for token, i in tokens:
        if type(i) is not int or i < 0:
            raise TextError(
                f"{where}: the token {token!r} has the id {i!r}, which is no number from 0 on; copy it again"
            )
        if owner.setdefault(i, token) != token:
            raise TextError(f"{where}: the tokens {owner[i]!r} and {token!r} both have the id {i}; copy it again")
    largest = max(owner, default=0)
    if largest >= TIMES * len(owner) + SPARE:
        raise TextError(
            f"{where}: the token {owner[largest]!r} has the id {largest}, far beyond its {len(owner)} tokens; copy it again"
        )


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Make of what the library throws, its panics included, a TextError that begins with `what`."""
    try:
        yield
    except AnyformerError:
        raise
    except BaseException as error:
        # The library raises Exception itself; a panic of Rust's is none, and is known by its name alone.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise TextError(f"{what} ({first_line(error)}); copy it again, or take another") from None
