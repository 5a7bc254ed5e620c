"""A tokenizer as a GGUF file says it: what would be another one when it is read back is refused, by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from anyformer.errors import TextError
from anyformer.text.byte_level import BYTE_OF
from anyformer.text.companions import content_of
from anyformer.text.generation_config import as_metadata
from anyformer.text.gguf_vocabulary import (
    ALSO_CLOSING,
    BYTE,
    CONTROL,
    CUTS,
    NAMED,
    NORMAL,
    PLAIN,
    SEPARATOR,
    SMALL,
    SPACE,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    tokenizer_in,
)
from anyformer.text.prompts import opening
from anyformer.text.tokenizer import Tokenizer
from anyformer.text.wordpiece import CONTINUES

OF_KINDS = ("unk_token", "fuse_unk", "byte_fallback", "ignore_merges")  # options of BPE that follow from a file's kind
OPTIONS = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", *OF_KINDS)


def metadata_of_tokenizer(tokenizer: Tokenizer, rows: int) -> tuple[dict[str, Any], list[str]]:
    """(what a GGUF file says of a tokenizer for a model of so many `rows`, what is worth knowing of it).

    What is said is read back: raises TextError for a tokenizer that would be another one then.
    """
    data = tokenizer.data
    model = data["model"]
    builders = {
        "byte-level-bpe": ("gpt2", _said_of_bytes),
        "bpe": ("llama", _said_of_sentencepiece),
        "wordpiece": ("bert", _said_of_pieces),
    }
    if tokenizer.kind not in builders:
        raise TextError(
            f"GGUF files hold byte-level BPE, SentencePiece's BPE and WordPiece, and this tokenizer is {tokenizer.kind}; "
            "convert to a directory"
        )
    kind, said_of = builders[tokenizer.kind]
    if kind != "bert":  # of an affix or chance no file says anything, whatever is read of it
        _refuse_lost({}, data, OF_KINDS)
    added = {each["id"]: each for each in data["added_tokens"]}
    notes = _notes_of_added(added.values(), data.get("normalizer") is not None)
    tokens, types = [], []
    for i in range(rows):
        spelling = tokenizer.spelling(i)
        tokens.append(f"[UNUSED{i}]" if spelling is None else spelling)
        types.append(_type(i, spelling, added, model))
    said = {"tokenizer.ggml.model": kind, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    ids = {"bos": tokenizer.begin_of_text, "eos": tokenizer.end_of_text, "unknown": tokenizer.unknown}
    ids |= {"padding": tokenizer.padding}
    if kind == "bert":
        spelled = {each["content"]: i for i, each in added.items()}
        roles = ("cls_token", "sep_token", "mask_token")
        ids |= {NAMED[role]: spelled.get(content_of(tokenizer.config.get(role))) for role in roles}
        # Readers open a text with the first of these and close it with the separator.
        ids["bos"] = ids["bos"] if ids["cls"] is None else ids["cls"]
        ids["eos"] = ids[SEPARATOR] if ids["eos"] is None else ids["eos"]
    said |= _said_of_frame(tokenizer, ids, kind)
    others = [i for i in tokenizer.closing_ids if i != ids["eos"]]
    ids |= dict(zip(ALSO_CLOSING, others, strict=False))
    notes += [f"it ends a text at {tokenizer.spelling(i)} too, for which files have no key" for i in others[2:]]
    said |= {f"tokenizer.ggml.{name}_token_id": i for name, i in ids.items() if i is not None}
    drawn, lost = as_metadata(tokenizer.generation)
    said |= drawn
    if lost:
        notes.append(f"its generation_config.json says {', '.join(lost)} too, for which files have no key")
    if tokenizer.chat_template is not None:
        said["tokenizer.chat_template"] = tokenizer.chat_template
    if (data.get("normalizer") or {}).get("type") == "NFC" and kind == "gpt2":
        notes.append("its tokenizer composes characters (NFC), which readers of GGUF files do not")
        data = {**data, "normalizer": None}
    said = said_of(said, data)
    letters = " and ".join(key for key in (SMALL, PLAIN) if key in said)
    return said, [*notes, *([f"its letters are other ones to readers that do not know {letters}"] if letters else [])]


def _phantom(piece: str, kind: int) -> str:
    """A piece as files spell it."""
    if kind in (CONTROL, UNKNOWN):
        return piece
    return piece.removeprefix(CONTINUES) if piece.startswith(CONTINUES) else SPACE + piece


def _type(i: int, spelling: str | None, added: Mapping[int, Any], model: Mapping[str, Any]) -> int:
    if spelling is None:
        return UNUSED
    if spelling == model.get("unk_token"):
        return CONTROL if model["type"] == "WordPiece" else UNKNOWN
    if i in added:
        return CONTROL if added[i]["special"] else USER_DEFINED
    is_byte = model.get("byte_fallback") and len(spelling) == 6 and spelling.startswith("<0x")
    return BYTE if is_byte else NORMAL


def _said_of_frame(tokenizer: Tokenizer, ids: dict[str, int | None], kind: str) -> dict[str, bool]:
    """Whether something opens and closes a text, or opens a prompt where the tokenizer's rules add nothing.

    Its tokens are named in `ids` where nothing else is. Raises TextError for what is more than one token on a side.
    """
    ends = ("bos", SEPARATOR) if kind == "bert" else ("bos", "eos")
    flags = [f"tokenizer.ggml.add_{name}_token" for name in ("bos", "sep" if kind == "bert" else "eos")]
    around = tokenizer.around
    if not any(around) and kind != "bert":
        return {flags[0]: bool(opening(tokenizer))}
    for name, each in zip(ends, around, strict=True):
        if ids[name] is None and len(each) == 1:
            ids[name] = each[0]
    known = all(each in ([], [ids[name]]) for name, each in zip(ends, around, strict=True))
    if not known or (kind == "bert" and not all(around)):
        shown = ["".join(tokenizer.spelling(i) or "" for i in each) or "nothing" for each in around]
        raise TextError(
            f"this tokenizer puts {shown[0]} before a text and {shown[1]} behind it, which is not what GGUF files can say; "
            "convert to a directory"
        )
    return dict(zip(flags, map(bool, around), strict=True))


def _notes_of_added(added: Iterable[Mapping[str, Any]], normalises: bool) -> list[str]:
    """What is worth knowing of tokens that text is searched for: files do not say how words of it are found."""
    lost = {}
    for each in added:
        names = [name for name in ("lstrip", "rstrip", "single_word") if each[name]]
        names += ["normalized"] if each["normalized"] and normalises and not each["special"] else []
        lost |= {each["content"]: names} if names else {}
    shown = [f"{token} ({', '.join(names)})" for token, names in lost.items()]
    more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
    return [f"readers do not know what goes with {', '.join(shown[:3])}{more}"] if shown else []


def _refuse_lost(read: Mapping[str, Any], data: Mapping[str, Any], idle: Collection[str]) -> None:
    """Raise TextError for an option of BPE's that would be another one; those that are `idle` change nothing here."""
    for name in OPTIONS:
        own, would = data["model"].get(name), read.get(name)
        if (
            name not in idle
            and (own or None) != (would or None)
            and (name != "ignore_merges" or not _all_are_made(data))
        ):
            raise TextError(
                f"this tokenizer's {name} is {own!r}, and a GGUF file of it would be read with {would!r}; "
                "convert to a directory"
            )


def _all_are_made(data: Mapping[str, Any]) -> bool:
    """Whether merges make each token of its own characters, so that ignoring them for whole words changes nothing."""
    from tokenizers import models

    vocab, merges = data["model"]["vocab"], data["model"]["merges"]
    plain = models.BPE(vocab=vocab, merges=[tuple(merge) for merge in merges])
    words = vocab.keys() - {each["content"] for each in data["added_tokens"]}
    return all([each.value for each in plain.tokenize(word)] == [word] for word in words)


def _said_of_bytes(said: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """With the merges, and the name of the way that text is cut; the first under which it is read back as it is."""
    said = said | {"tokenizer.ggml.merges": [" ".join(merge) for merge in data["model"]["merges"]]}
    steps = _steps(data.get("pre_tokenizer"))
    prefix = bool(steps and steps[-1].get("add_prefix_space"))
    for pre in CUTS:
        found = said | {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_space_prefix": prefix}
        read = tokenizer_in(found).data
        if _alike(read, data, "pre_tokenizer", "normalizer"):
            idle = ("unk_token", "fuse_unk", "byte_fallback") if data["model"]["vocab"].keys() >= BYTE_OF.keys() else ()
            _refuse_lost(read["model"], data, idle)
            return found
    raise TextError(
        f"GGUF files have a name for the ways of cutting text of {', '.join(CUTS)}, and this tokenizer cuts it otherwise; "
        "convert to a directory"
    )


def _said_of_sentencepiece(said: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """With scores that put its merges in their order."""
    merges = [tuple(merge) for merge in data["model"]["merges"]]
    ranks: dict[str, int] = {}
    for rank, (a, b) in enumerate(merges):
        ranks.setdefault(a + b, rank)
    scores = [-float(ranks[token]) - 1 if token in ranks else 0.0 for token in said["tokenizer.ggml.tokens"]]
    for prefix in (True, False):
        found = said | {"tokenizer.ggml.scores": scores, "tokenizer.ggml.add_space_prefix": prefix}
        read = tokenizer_in(found).data
        if _alike(read, data, "normalizer", "pre_tokenizer", "decoder"):
            there = {f"<0x{byte:02X}>" for byte in range(256)} & data["model"]["vocab"].keys()
            if len(there) == 256 and data["model"]["byte_fallback"]:  # nothing is unknown
                idle = ("unk_token", "fuse_unk")
            else:
                idle = () if there else ("byte_fallback",)
            _refuse_lost(read["model"], data, idle)
            return found
    raise TextError(
        "this tokenizer joins, splits or normalises text otherwise than SentencePiece's BPE in GGUF files does; "
        "convert to a directory"
    )


def _said_of_pieces(said: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """With pieces as files spell them, and what becomes of letters where they are not small and without accents."""
    pairs = zip(said["tokenizer.ggml.tokens"], said["tokenizer.ggml.token_type"], strict=True)
    found = said | {"tokenizer.ggml.tokens": [_phantom(*pair) for pair in pairs], "tokenizer.ggml.pre": "default"}
    letters = data.get("normalizer") or {}
    small, plain = letters.get("lowercase", True), letters.get("strip_accents")
    if plain in (None, small):  # which is what it is where nothing is said
        data = {**data, "normalizer": {**letters, "strip_accents": None}}
    found |= ({} if small else {SMALL: False}) | ({} if plain in (None, small) else {PLAIN: plain})
    read = tokenizer_in(found).data
    own = {**data["model"], "vocab": {**read["model"]["vocab"], **data["model"]["vocab"]}}
    if _alike(read, data, "normalizer", "pre_tokenizer", "decoder") and read["model"] == own:
        return found
    raise TextError(
        "GGUF files know WordPiece as BERT's: clean text, Chinese characters by themselves, ## before what continues a word; "
        "this tokenizer cuts or normalises text otherwise; convert to a directory"
    )


def _alike(read: Mapping[str, Any], data: Mapping[str, Any], *parts: str) -> bool:
    """Whether a tokenizer was read back as it is: its merges, and these parts."""
    merges = [[tuple(merge) for merge in each["model"].get("merges", ())] for each in (read, data)]
    return merges[0] == merges[1] and all(_steps(read.get(part)) == _steps(data.get(part)) for part in parts)


def _steps(part: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """What a part of a tokenizer.json does, step by step, without what changes no token."""
    if part is None:
        return []
    inner = next((part[name] for name in ("pretokenizers", "normalizers", "decoders") if name in part), None)
    if inner is not None:
        return [step for each in inner for step in _steps(each)]
    return [{name: value for name, value in part.items() if name != "trim_offsets"}]
