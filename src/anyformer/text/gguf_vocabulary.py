"""The tokenizer inside a GGUF file, as a tokenizer.json: byte-level BPE, SentencePiece's BPE with byte fallback, and BERT's
WordPiece.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.errors import TextError, did_you_mean
from anyformer.text.companions import rewritten
from anyformer.text.generation_config import of_metadata
from anyformer.text.tokenizer import Tokenizer
from anyformer.text.tokenizer_file import guarded
from anyformer.text.wordpiece import CONTINUES

# What a file calls the cutting before byte-level BPE, with the pattern that cuts; None: GPT-2's own.
LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN_2 = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
CUTS: dict[str, str | None] = {
    **dict.fromkeys(("gpt-2", "default", "smollm", "modern-bert", "roberta-bpe")),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2"), LLAMA_3),
    "qwen2": QWEN_2,
}
WHOLE_WORDS = LLAMA_3  # where text is cut so, what is a token is taken whole, whatever the merges
SINGLE_DIGITS = {"smollm"}  # those that first cut every digit off by itself
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # token types of the format
SEPARATOR = "seperator"  # as the format spells it
ALSO_CLOSING = ("eot", "eom")  # parts of tokens that end a text as eos does
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
SMALL, PLAIN = (f"tokenizer.ggml.normalizer.{name}" for name in ("lowercase", "strip_accents"))  # of BERT's letters


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
        tokens = [_piece(token, of) for token, of in zip(tokens, types, strict=True)]
    made = (token for token, of in zip(tokens, types, strict=True) if of == NORMAL and len(token) > 1)
    if kind == "gpt2" and not metadata.get("tokenizer.ggml.merges") and (token := next(made, None)):
        raise TextError(
            f"a byte-level vocabulary without merges (tokenizer.ggml.merges) never makes its token {token!r}; "
            "take the model's Hugging Face directory"
        )
    with guarded("the file's tokenizer cannot be read"):
        inner = builders[kind](metadata, tokens)
        _add(inner, tokens, types)
    config = _config(metadata, tokens)
    closing = [i for part in ("eos", *ALSO_CLOSING) if (i := _id(metadata, part, tokens)) is not None]
    said = of_metadata(metadata)
    if not {*closing} <= {_id(metadata, "eos", tokens)}:
        said |= {"eos_token_id": list(dict.fromkeys(closing))}
    files = rewritten({}, inner.to_str(pretty=True), config, said) if said else None
    return Tokenizer(inner, config, files)


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


def _flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    """What is said to be so or not. Raises TextError."""
    if not isinstance(found := metadata.get(key, default), bool):
        raise _damaged(key.removeprefix("tokenizer.ggml."), f"= {found!r} is neither true nor false")
    return found


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
    pattern = CUTS[pre]
    whole = pattern == WHOLE_WORDS
    inner = Inner(models.BPE(vocab=_vocabulary(tokens), merges=merges, ignore_merges=whole))
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre in SINGLE_DIGITS else []
    if pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(pattern), "isolated"))
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", False))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=pattern is None))
    inner.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = _frame(metadata, tokens, opens=whole)
    return inner


def _frame(metadata: Mapping[str, Any], tokens: list[str], *, opens: bool) -> Any:
    """What opens and closes a text where a file says of both whether it does; where of neither, what opens it if that `opens`.

    Of the one alone files of ours speak whose tokenizer has no such rules: it is about prompts.
    """
    from tokenizers import processors

    said = [metadata.get(f"tokenizer.ggml.add_{name}_token") for name in ("bos", "eos")]
    if said == [None, None]:
        wanted = [opens, False]
    else:
        wanted = [False, False] if None in said else said
    ids = [_id(metadata, name, tokens) if put else None for name, put in zip(("bos", "eos"), wanted, strict=True)]
    first, last = ([] if i is None else [tokens[i]] for i in ids)
    if not first and not last:
        return None
    return processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *(f"{each}:1" for each in (*first, "$B", *last))],
        special_tokens=[(token, tokens.index(token)) for token in dict.fromkeys((*first, *last))],
    )


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
    inner.post_processor = _frame(metadata, tokens, opens=True)
    return inner


def _piece(token: str, kind: int) -> str:
    """A piece as BERT spells it: files mark where words begin, BERT where they do not."""
    if kind in (CONTROL, UNKNOWN):
        return token
    return token[1:] if token.startswith(SPACE) else CONTINUES + token


def _wordpiece(metadata: Mapping[str, Any], tokens: list[str]) -> Any:
    """Letters are small where nothing is said, and without accents where they are small. llama.cpp's words have any length."""
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    vocab = _vocabulary(tokens)
    unknown = _id(metadata, "unknown", tokens)
    if unknown is None:
        raise _damaged("unknown_token_id", "is missing")
    inner = Inner(models.WordPiece(vocab=vocab, unk_token=tokens[unknown], continuing_subword_prefix=CONTINUES))
    small = _flag(metadata, SMALL, True)
    plain = _flag(metadata, PLAIN, small)
    inner.normalizer = normalizers.BertNormalizer(lowercase=small, strip_accents=None if plain == small else plain)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(prefix=CONTINUES)
    bos, cls, closing = (_id(metadata, name, tokens) for name in ("bos", "cls", SEPARATOR))
    opening = cls if bos is None else bos
    if opening is not None and closing is not None:  # whatever add_bos_token says
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
