"""The tokenizer inside a GGUF file, as a tokenizer.json, and back: byte-level BPE, SentencePiece's BPE with byte fallback, and
BERT's WordPiece.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.errors import TextError, did_you_mean
from anyformer.text.companions import content_of
from anyformer.text.tokenizer import Tokenizer
from anyformer.text.tokenizer_file import guarded
from anyformer.text.wordpiece import CONTINUES

# What a file calls the cutting before byte-level BPE, with the pattern that cuts; None: GPT-2's own.
LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN_2 = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
CUTS: dict[str, str | None] = {
    **dict.fromkeys(("gpt-2", "default", "smollm", "modern-bert")),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2"), LLAMA_3),
    "qwen2": QWEN_2,
}
SINGLE_DIGITS = {"smollm"}  # those that first cut every digit off by itself
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # token types of the format
SEPARATOR = "seperator"  # as the format spells it
NAMED = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
    "cls_token": "cls",
    "sep_token": SEPARATOR,
    "mask_token": "mask",
}
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def tokenizer_in(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file's metadata (`tokenizer.ggml.*`) describes.

    Raises TextError for a kind, or a way of cutting text, that is not known here.
    """
    kind = metadata.get("tokenizer.ggml.model")
    builders = {"gpt2": _byte_level, "llama": _sentencepiece, "bert": _wordpiece}
    if not isinstance(kind, str) or kind not in builders:
        raise TextError(
            f"the file's tokenizer is of kind {kind!r}{did_you_mean(str(kind), builders)}; "
            f"{', '.join(builders)} are read; convert from the model's Hugging Face directory"
        )
    tokens: list[str] = _listed(metadata, "tokens", str)
    types: list[int] = _listed(metadata, "token_type", int, [1] * len(tokens))
    if len(types) != len(tokens):
        raise _damaged("token_type", f"has {len(types)} entries for {len(tokens)} tokens")
    if kind == "bert":
        tokens = [_piece(token, kind) for token, kind in zip(tokens, types, strict=True)]
    with guarded("the file's tokenizer cannot be read"):
        inner = builders[kind](metadata, tokens)
        _add(inner, tokens, types)
    return Tokenizer(inner, _config(metadata, tokens))


def _listed(metadata: Mapping[str, Any], name: str, kind: type, default: list[Any] | None = None) -> list[Any]:
    """A list of the metadata, whose items are all of one type. Raises TextError."""
    found = metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(found, list) or not all(isinstance(item, kind) for item in found) or not (found or default == []):
        raise _damaged(name, "is missing" if found is None else f"is no list of {kind.__name__}")
    return found


def _id(metadata: Mapping[str, Any], name: str, tokens: list[str]) -> int | None:
    """The id of a token by its part; None where the file names none, or, as old files do, one that is no token's."""
    found = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if found is not None and type(found) is not int:
        raise _damaged(f"{name}_token_id", f"= {found!r} is no id")
    return found if found is not None and 0 <= found < len(tokens) else None


def _damaged(name: str, reason: str) -> TextError:
    return TextError(f"the file's tokenizer is damaged: tokenizer.ggml.{name} {reason}; copy the file again")


def _byte_level(metadata: Mapping[str, Any], tokens: list[str]) -> Any:
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Inner

    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    if pre not in CUTS:
        raise TextError(
            f"the file's tokenizer cuts text as {pre!r}{did_you_mean(pre, CUTS)}; {', '.join(CUTS)} are known; "
            "convert from the model's Hugging Face directory"
        )
    merges = [tuple(merge.split(" ", 1)) for merge in _listed(metadata, "merges", str, [])]
    if wrong := next((merge for merge in merges if len(merge) != 2), None):
        raise _damaged("merges", f"holds {wrong[0]!r}, which is no two pieces")
    inner = Inner(models.BPE(vocab=_vocabulary(tokens), merges=merges))
    pattern = CUTS[pre]
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre in SINGLE_DIGITS else []
    if pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(pattern), "isolated"))
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", False))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=pattern is None))
    inner.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    inner.decoder = decoders.ByteLevel()
    return inner


def _vocabulary(tokens: list[str]) -> dict[str, int]:
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        twice = next(token for i, token in enumerate(tokens) if vocabulary[token] != i)
        raise _damaged("tokens", f"holds {twice!r} twice")
    return vocabulary


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str]) -> Any:
    """SentencePiece's BPE joins the neighbours whose joint piece scores best; that is an order of merges."""
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, normalizers

    vocab = _vocabulary(tokens)
    scores: list[float] = _listed(metadata, "scores", float)
    if len(scores) != len(tokens):
        raise _damaged("scores", f"has {len(scores)} entries for {len(tokens)} tokens")
    merges: list[tuple[float, int, str, str]] = []
    for piece, i in vocab.items():
        halves = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        merges += [(-scores[i], vocab[a], a, b) for a, b in halves if a in vocab and b in vocab]
    ordered = [(a, b) for _, _, a, b in sorted(merges, key=lambda merge: merge[:2])]
    unknown = tokens[_id(metadata, "unknown", tokens) or 0]
    inner = Inner(models.BPE(vocab=vocab, merges=ordered, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    begin, strip = ([normalizers.Prepend(SPACE)], [decoders.Strip(" ", 1, 0)]) if prefix else ([], [])
    inner.normalizer = normalizers.Sequence([*begin, normalizers.Replace(" ", SPACE)])
    spaced = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    inner.decoder = decoders.Sequence(spaced)
    return inner


def _piece(token: str, kind: int) -> str:
    """A piece as BERT spells it: files mark where words begin, BERT where they do not."""
    if kind in (CONTROL, UNKNOWN):
        return token
    return token[1:] if token.startswith(SPACE) else CONTINUES + token


def _phantom(piece: str, kind: int) -> str:
    """A piece as files spell it."""
    if kind in (CONTROL, UNKNOWN):
        return piece
    return piece.removeprefix(CONTINUES) if piece.startswith(CONTINUES) else SPACE + piece


def _wordpiece(metadata: Mapping[str, Any], tokens: list[str]) -> Any:
    """llama.cpp writes letters small and without accents, whatever the file; its words have any length."""
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    vocab = _vocabulary(tokens)
    unknown = _id(metadata, "unknown", tokens)
    if unknown is None:
        raise _damaged("unknown_token_id", "is missing")
    inner = Inner(models.WordPiece(vocab=vocab, unk_token=tokens[unknown], continuing_subword_prefix=CONTINUES))
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(prefix=CONTINUES)
    opening, closing = (_id(metadata, name, tokens) for name in ("cls", SEPARATOR))
    if opening is not None and closing is not None and metadata.get("tokenizer.ggml.add_bos_token", True):
        inner.post_processor = processors.BertProcessing((tokens[closing], closing), (tokens[opening], opening))
    return inner


def _add(inner: Any, tokens: list[str], types: list[int]) -> None:
    """Take out of the text's reach what no merge makes: control tokens as special ones, a user's as words."""
    from tokenizers import AddedToken

    pairs = list(zip(tokens, types, strict=True))
    special = [token for token, kind in pairs if kind in (UNKNOWN, CONTROL)]
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    inner.add_tokens([AddedToken(token, normalized=False) for token, kind in pairs if kind == USER_DEFINED])


def _config(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name, key in NAMED.items():
        i = _id(metadata, key, tokens)
        if i is not None:
            config[name] = tokens[i]
    if "tokenizer.ggml.add_bos_token" in metadata:
        config["add_bos_token"] = bool(metadata["tokenizer.ggml.add_bos_token"])
    if metadata.get("tokenizer.chat_template"):
        config["chat_template"] = metadata["tokenizer.chat_template"]
    return config


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
    added = {each["id"]: each for each in data["added_tokens"]}
    tokens, types = [], []
    for i in range(rows):
        spelling = tokenizer.spelling(i)
        tokens.append(f"[UNUSED{i}]" if spelling is None else spelling)
        types.append(_type(i, spelling, added, model))
    said = {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.add_bos_token": bool(
            tokenizer.begin_of_text is not None and tokenizer.config.get("add_bos_token", True)
        ),
    }
    ids = {"bos": tokenizer.begin_of_text, "eos": tokenizer.end_of_text, "unknown": tokenizer.unknown}
    ids |= {"padding": tokenizer.padding}
    if kind == "bert":
        spelled = {each["content"]: i for i, each in added.items()}
        roles = ("cls_token", "sep_token", "mask_token")
        ids |= {NAMED[role]: spelled.get(content_of(tokenizer.config.get(role))) for role in roles}
        # Readers open a text with the first of these and close it with the separator, if they are told to.
        usual = {"bos": ids["cls"], "eos": ids[SEPARATOR]}
        ids |= {name: usual[name] for name in usual if ids[name] is None}
        framed = data.get("post_processor") is not None
        said |= {"tokenizer.ggml.add_bos_token": framed, "tokenizer.ggml.add_sep_token": framed}
    said |= {f"tokenizer.ggml.{name}_token_id": i for name, i in ids.items() if i is not None}
    if tokenizer.chat_template is not None:
        said["tokenizer.chat_template"] = tokenizer.chat_template
    notes = []
    if (data.get("normalizer") or {}).get("type") == "NFC" and kind == "gpt2":
        notes.append("its tokenizer composes characters (NFC), which readers of GGUF files do not")
        data = {**data, "normalizer": None}
    return said_of(said, data), notes


def _type(i: int, spelling: str | None, added: Mapping[int, Any], model: Mapping[str, Any]) -> int:
    if spelling is None:
        return UNUSED
    if spelling == model.get("unk_token"):
        return CONTROL if model["type"] == "WordPiece" else UNKNOWN
    if i in added:
        return CONTROL if added[i]["special"] else USER_DEFINED
    is_byte = model.get("byte_fallback") and len(spelling) == 6 and spelling.startswith("<0x")
    return BYTE if is_byte else NORMAL


def _said_of_bytes(said: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """With the merges, and the name of the way that text is cut; the first under which it is read back as it is."""
    said = said | {"tokenizer.ggml.merges": [" ".join(merge) for merge in data["model"]["merges"]]}
    steps = _steps(data.get("pre_tokenizer"))
    prefix = bool(steps and steps[-1].get("add_prefix_space"))
    for pre in CUTS:
        found = said | {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_space_prefix": prefix}
        if _alike(tokenizer_in(found).data, data, "pre_tokenizer", "normalizer"):
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
        if _alike(tokenizer_in(found).data, data, "normalizer", "pre_tokenizer", "decoder"):
            return found
    raise TextError(
        "this tokenizer joins, splits or normalises text otherwise than SentencePiece's BPE in GGUF files does; "
        "convert to a directory"
    )


def _said_of_pieces(said: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """With pieces as files spell them."""
    pairs = zip(said["tokenizer.ggml.tokens"], said["tokenizer.ggml.token_type"], strict=True)
    found = said | {"tokenizer.ggml.tokens": [_phantom(*pair) for pair in pairs], "tokenizer.ggml.pre": "default"}
    read = tokenizer_in(found).data
    own = {**data["model"], "vocab": {**read["model"]["vocab"], **data["model"]["vocab"]}}
    accents = data.get("normalizer") or {}
    if accents.get("strip_accents") == accents.get("lowercase"):  # which is what it is where nothing is said
        data = {**data, "normalizer": {**accents, "strip_accents": None}}
    if _alike(read, data, "normalizer", "pre_tokenizer", "decoder") and read["model"] == own:
        return found
    raise TextError(
        "GGUF files know WordPiece as BERT's: small letters without accents, ## before what continues a word; this tokenizer "
        "cuts or normalises text otherwise; convert to a directory"
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
