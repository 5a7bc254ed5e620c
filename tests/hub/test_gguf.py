"""GGUF files are read as transformers reads them, their tokenizers as sentencepiece and ours encode; others are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from gguf import GGMLQuantizationType as Kind

from anyformer.errors import AnyformerError
from anyformer.families import FAMILIES, preset
from anyformer.families.gguf import DIALECTS, config_of
from anyformer.families.hf.mapping import theirs_of
from anyformer.hub import load, load_spec
from anyformer.layers import AttentionSpec, Llama3Scaling, RotarySpec
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, ScaleSpec
from anyformer.text import Tokenizer
from anyformer.text.gguf_vocabulary import tokenizer_in
from tests.hub.gguf_files import FOUR_NORMS, NAMES, interleaved, write
from tests.laws.tolerance import FLOAT32, distance
from tests.laws.weights import edited, filled, telling

SIZES = {
    "block_count": 2,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "context_length": 128,
    "rope.freq_base": 10_000.0,
}
VOCAB, WIDTH, FEED, HEADS, KV_HEADS, HEAD_DIM = 300, 64, 96, 4, 2, 16
TEXT = "the quick brown fox jumps over the lazy dog, twice: naïve café 12345\n" * 20


def llama_tensors(tied: bool = False) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)

    def matrix(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype(np.float32) * 1.5 * shape[-1] ** -0.5

    def gain() -> np.ndarray:
        return 1 + 0.3 * generator.standard_normal(WIDTH).astype(np.float32)

    found = {"model.embed_tokens.weight": matrix(VOCAB, WIDTH) * 8, "model.norm.weight": gain()}
    if not tied:
        found["lm_head.weight"] = matrix(VOCAB, WIDTH)
    for i in range(SIZES["block_count"]):  # type: ignore[arg-type]
        layer = f"model.layers.{i}"
        found |= {
            f"{layer}.input_layernorm.weight": gain(),
            f"{layer}.self_attn.q_proj.weight": matrix(WIDTH, WIDTH),
            f"{layer}.self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, WIDTH),
            f"{layer}.self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, WIDTH),
            f"{layer}.self_attn.o_proj.weight": matrix(WIDTH, WIDTH),
            f"{layer}.post_attention_layernorm.weight": gain(),
            f"{layer}.mlp.gate_proj.weight": matrix(FEED, WIDTH),
            f"{layer}.mlp.up_proj.weight": matrix(FEED, WIDTH),
            f"{layer}.mlp.down_proj.weight": matrix(WIDTH, FEED),
        }
    return found


def turned(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    heads = {"q_proj": HEADS, "k_proj": KV_HEADS}
    kinds = {name: name.split(".")[-2] for name in tensors}
    return {name: interleaved(t, heads[kinds[name]]) if kinds[name] in heads else t for name, t in tensors.items()}


def byte_level() -> tuple[Tokenizer, dict[str, Any]]:
    """A tokenizer of ours, and how a file would hold it."""
    tokenizer = Tokenizer.train([TEXT], VOCAB)
    inner = tokenizer.data["model"]
    tokens = sorted(inner["vocab"], key=inner["vocab"].__getitem__)
    return tokenizer, {
        "ggml.model": "gpt2",
        "ggml.pre": "gpt-2",
        "ggml.tokens": tokens,
        "ggml.token_type": [3, *[1] * (len(tokens) - 1)],
        "ggml.merges": [" ".join(merge) for merge in inner["merges"]],
        "ggml.bos_token_id": 0,
        "ggml.eos_token_id": 0,
    }


@pytest.mark.parametrize(
    "kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0], ids=lambda k: k.name
)
@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_those_of_transformers_load(tmp_path: Path, kind: Kind, tied: bool) -> None:
    tokenizer, tokens = byte_level()
    write(tmp_path / "model.gguf", "llama", turned(llama_tensors(tied)), SIZES, kind=kind, tokens=tokens)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    ours, read = load(tmp_path / "model.gguf", dtype=torch.float32)
    ids = torch.randint(0, VOCAB, (2, 30), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert distance(ours(ids).logits, theirs(ids).logits) < FLOAT32
    assert read is not None
    assert read.encode(TEXT) == tokenizer.encode(TEXT)
    assert read.end_of_text == tokenizer.end_of_text
    assert read.decode(read.encode(TEXT)) == TEXT


def test_a_stored_dtype_is_kept(tmp_path: Path) -> None:
    half = turned(llama_tensors())
    write(tmp_path / "model.gguf", "llama", half, SIZES, kind=Kind.Q8_0)
    model, tokenizer = load(tmp_path / "model.gguf")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert tokenizer is None


def test_the_factors_of_llama_3_become_its_scaling(tmp_path: Path) -> None:
    plain = [10_000.0 ** (-i / 8) for i in range(8)]
    waves = [2 * np.pi / f for f in plain]
    factors = []
    for wave in waves:  # Grattafiori et al. 2024; here written out once more
        smooth = min(max((8192 / wave - 1) / 3, 0), 1)
        factors.append(1 / ((1 - smooth) / 8 + smooth))
    tensors = turned(llama_tensors()) | {"rope_freqs.weight": np.array(factors)}
    write(tmp_path / "model.gguf", "llama", tensors, SIZES)
    found = load_spec(tmp_path / "model.gguf").nested()
    scaling = next(value for value in found if isinstance(value, Llama3Scaling))
    assert (scaling.factor, scaling.original_context) == (8.0, 8192)
    write(tmp_path / "odd.gguf", "llama", tensors | {"rope_freqs.weight": np.array(factors) ** 2}, SIZES)
    with pytest.raises(AnyformerError, match=r"rope_freqs\.weight is no scaling known here"):
        load_spec(tmp_path / "odd.gguf")


YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
PLAIN_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
SCALINGS: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    # settings of the file, the same for transformers; llama.cpp multiplies attn_factor to 1 + ln(factor) / 10
    "linear": ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    "yarn": (YARN, PLAIN_YARN),
    "yarn, cos and sin multiplied": (
        YARN | {"rope.scaling.attn_factor": 0.5},
        PLAIN_YARN | {"attention_factor": 0.5 * (1 + np.log(4.0) / 10)},
    ),
    "yarn, another ramp": (
        YARN | {"rope.scaling.yarn_beta_fast": 8.0, "rope.scaling.yarn_beta_slow": 2.0},
        PLAIN_YARN | {"beta_fast": 8.0, "beta_slow": 2.0},
    ),
    "yarn, all else neutral": (
        YARN
        | {f"rope.scaling.{name}": 1.0 for name in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor")}
        | {"rope.scaling.yarn_log_multiplier": 0.0, "rope.scaling.finetuned": 1},
        PLAIN_YARN,
    ),
    "none": ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
    "only said": ({"rope.scaling.original_context_length": 128, "rope.scaling.finetuned": 0}, None),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_scalings_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    settings, theirs = SCALINGS[name]
    write(tmp_path / "model.gguf", "llama", turned(llama_tensors()), SIZES | {"vocab_size": VOCAB} | settings)
    config = transformers.AutoConfig.from_pretrained(tmp_path, gguf_file="model.gguf")
    config.rope_parameters = {"rope_theta": 10_000.0, **(theirs or {"rope_type": "default"})}
    other = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", config=config, dtype=torch.float32
    )
    ours, _ = load(tmp_path / "model.gguf")
    ids = torch.randint(0, VOCAB, (2, 60), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert distance(ours(ids).logits, other(ids).logits) < FLOAT32


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_vocabularies_encode_as_sentencepiece_does(tmp_path: Path, prefix: bool) -> None:
    (tmp_path / "text").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "sp"), vocab_size=800, model_type="bpe",
        byte_fallback=True, add_dummy_prefix=prefix, normalization_rule_name="identity",
        remove_extra_whitespaces=False, minloglevel=2,
    )  # fmt: skip
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "sp.model"))
    ids = range(theirs.get_piece_size())
    types = [2 if theirs.is_unknown(i) else 3 if theirs.is_control(i) else 6 if theirs.is_byte(i) else 1 for i in ids]
    ours = tokenizer_in(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [theirs.id_to_piece(i) for i in ids],
            "tokenizer.ggml.scores": [theirs.get_score(i) for i in ids],
            "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.add_space_prefix": prefix,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        }
    )
    for text in (
        "the quick brown fox",
        "  two  spaces",
        "naïve café",
        "日本 🙂 unseen",
        "lazy dog, twice: 12345",
        Path(__file__).read_text(encoding="utf-8"),
    ):
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "a 1234 b", ["a", "Ġ1234", "Ġb"]),
        ("smollm", "a 1234 b", ["a", "Ġ", "1", "2", "3", "4", "Ġb"]),
        ("llama-bpe", "a 1234 b", ["a", "Ġ", "123", "4", "Ġb"]),
        ("qwen2", "a 1234 b", ["a", "Ġ", "1", "2", "3", "4", "Ġb"]),
    ],
)
def test_text_is_cut_as_the_file_says(pre: str, text: str, pieces: list[str]) -> None:
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": alphabet,
        "tokenizer.ggml.merges": [],
    }
    found = tokenizer_in(metadata)._inner.pre_tokenizer.pre_tokenize_str(text)
    assert [piece for piece, _ in found] == pieces


def spoilt(tmp_path: Path, **changes: Any) -> Path:
    kind = changes.pop("kind", Kind.F32)
    tensors = turned(llama_tensors()) | changes.pop("tensors", {})
    lost = changes.pop("lost", None)
    tensors = {name: t for name, t in tensors.items() if name != lost}
    return write(
        tmp_path / "model.gguf", changes.pop("architecture", "llama"), tensors, SIZES | changes.pop("settings", {}),
        kind=kind, tokens=changes.pop("tokens", None),
    )  # fmt: skip


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown architecture": ({"architecture": "lama"}, r"architecture 'lama' are not read here \(did you mean 'llama'"),
    "unknown setting": ({"settings": {"attention.magic": 3}}, r"llama\.attention\.magic = 3 is unknown here"),
    **{
        f"{key} = {value} with {kind}": (
            {"settings": {"rope.scaling.type": kind, "rope.scaling.factor": 2.0} | more | {f"rope.scaling.{key}": value}},
            rf"llama\.rope\.scaling\.{key} = {value} is unknown here and might change",
        )
        for kind, more in (("linear", {}), ("yarn", {"rope.scaling.original_context_length": 32}), ("none", {}))
        for key, value in (
            ("attn_factor", 0.5), ("yarn_beta_fast", 8.0), ("yarn_ext_factor", 0.5), ("yarn_attn_factor", 2.0),
            ("yarn_log_multiplier", 0.5), ("alpha", 2.0), ("later_invention", 0.0),
        )
        if not (kind == "yarn" and key in ("attn_factor", "yarn_beta_fast"))
    },
    "a scaling without its type": (
        {"settings": {"rope.scaling.factor": 2.0}}, r"llama\.rope\.scaling\.factor = 2\.0 is unknown here"
    ),
    "yarn without its context": (
        {"settings": {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}},
        r"llama\.rope\.scaling\.original_context_length is missing; the file is not whole",
    ),
    "a factor of nothing": (
        {"settings": {"rope.scaling.type": "linear", "rope.scaling.factor": 0.0}},
        r"llama\.rope\.scaling\.factor = 0\.0 is no number above 0",
    ),
    "unknown scaling": ({"settings": {"rope.scaling.type": "odd"}}, r"llama\.rope\.scaling\.type = 'odd' is unknown"),
    "missing tensor": ({"lost": "model.layers.1.mlp.up_proj.weight"}, r"missing: blk\.1\.ffn_up\.weight"),
    "surplus tensor": ({"tensors": {"model.layers.2.mlp.up_proj.weight": np.ones((96, 64))}}, r"surplus: blk\.2\.ffn_up\.weight"),
    "wrong shape": ({"tensors": {"model.norm.weight": np.ones(32)}}, r"output_norm\.weight is \[32\], not \[64\]"),
    "a lie about the sizes": ({"settings": {"feed_forward_length": 80}}, r"ffn_gate\.weight is \[96, 64\], not \[80, 64\]"),
    "a lie about the vocabulary": ({"settings": {"vocab_size": 299}}, r"llama\.vocab_size = 299, and the model has 300"),
    "a lie about the values": (
        {"settings": {"attention.value_length": 8}}, r"llama\.attention\.value_length = 8, and the model has 16; convert"
    ),
    "unknown tokenizer": ({"tokens": {"ggml.model": "t5", "ggml.tokens": ["a"]}}, "tokenizer is of kind 't5'"),
    "unknown cutting": (
        {"tokens": {"ggml.model": "gpt2", "ggml.pre": "tekken", "ggml.tokens": ["a"]}},
        "cuts text as 'tekken'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    changes, message = REFUSED[name]
    path = spoilt(tmp_path, **dict(changes))
    with pytest.raises(AnyformerError, match=message) as refused:
        load(path)
    assert refused.value.exit_status == 2
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [({}, (0,)), ({"eot": 5}, (0, 5)), ({"eot": 5, "eom": 6}, (0, 5, 6)), ({"eot": 0}, (0,)), ({"eot": 10**6}, (0,))],
)
def test_each_token_that_ends_a_turn_ends_a_text(
    ids: dict[str, int], expected: tuple[int, ...], tmp_path: Path
) -> None:
    told = {f"tokenizer.{name}": value for name, value in byte_level()[1].items()}
    found = tokenizer_in(told | {f"tokenizer.ggml.{name}_token_id": i for name, i in ids.items()})
    assert found.closing_ids == expected
    found.save(tmp_path)
    assert Tokenizer.load(tmp_path).closing_ids == expected
    assert Tokenizer.load(tmp_path).encode(TEXT) == byte_level()[0].encode(TEXT)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"bos": True, "eos": False}, [1, 3]),
        ({"bos": True, "eos": True}, [1, 3, 2]),
        ({"bos": False, "eos": True}, [3, 2]),
        ({"bos": True}, [3]),  # which is about prompts alone
        ({}, None),
    ],
)
def test_what_a_file_says_of_both_ends_is_put_around_texts(kind: str, flags: dict[str, bool], expected: Any) -> None:
    """Where it says nothing, llama.cpp opens a text of SentencePiece's and one that is cut as LLaMA 3 cuts it."""
    told = {"model": kind, "tokens": ["<unk>", "<s>", "</s>", "a"], "token_type": [2, 3, 3, 1], "scores": [0.0] * 4}
    told |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "add_space_prefix": False}
    told |= {f"add_{name}_token": put for name, put in flags.items()}
    found = tokenizer_in({f"tokenizer.ggml.{name}": value for name, value in told.items()})
    assert found.frame(["a"]).ids.tolist() == (expected or ([1, 3] if kind == "llama" else [3]))
    if kind == "gpt2" and expected is None:
        cut = tokenizer_in({f"tokenizer.ggml.{name}": value for name, value in {**told, "pre": "llama-bpe"}.items()})
        assert cut.frame(["a"]).ids.tolist() == [1, 3]


@pytest.mark.parametrize("share", [0.0, 0.001, 0.05, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    path = spoilt(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(AnyformerError, match=re.escape(f"{path} is truncated or no GGUF file")):
        load(path)


def test_each_dialect_names_a_family_that_is_there() -> None:
    assert {dialect.hf_type for dialect in DIALECTS.values()} <= set(FAMILIES)


OTHERS = {
    # preset: (general.architecture, names of its tensors, gains are stored with 1 added, further settings of the file)
    "qwen2.5-7b": ("qwen2", NAMES, False, ()),
    "gemma-2b": ("gemma", NAMES, True, ("attention.key_length",)),
    "gemma2-2b": (
        "gemma2",
        FOUR_NORMS,
        True,
        ("attention.key_length", "attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"),
    ),
    "gemma3-1b": ("gemma3", FOUR_NORMS, True, ("attention.key_length", "attention.sliding_window")),
    "phi3-mini-4k": ("phi3", NAMES, False, ("attention.sliding_window", "rope.dimension_count")),
}

THEY_READ = {"qwen2", "gemma2", "gemma3"}  # transformers knows no GGUF of gemma, and no tiny one of phi3


@pytest.mark.parametrize("name", OTHERS)
def test_every_dialect_gives_the_model_that_was_written(tmp_path: Path, name: str) -> None:
    architecture, names, offset, more = OTHERS[name]
    # Files do not hold the scale of attention: it is that of a head's width, but for Gemma's 27B.
    spec = edited(shrink(preset(name).spec), AttentionSpec, lambda value: value.but(scale=ScaleSpec(power=-0.5)))
    family = FAMILIES[DIALECTS[architecture].hf_type]
    config, weights = family.to_config(spec), telling(spec)
    further = {"rope.dimension_count": "head_dim", "attention.sliding_window": "sliding_window"}
    keys = {**DIALECTS[architecture].settings, **further}
    settings = {key: config[keys[key]] for key in (*SIZES, *more) if keys[key] in config}
    settings |= {"rope.freq_base": theta(spec), "vocab_size": spec.vocab_size}
    tensors = {name: t.numpy() for name, t in theirs_of(family.rows(spec), weights.__getitem__)}
    if offset:
        tensors = {name: t + 1 if name.split(".")[-2].endswith("norm") else t for name, t in tensors.items()}
    write(tmp_path / "model.gguf", architecture, tensors, settings, names=names)
    found, _ = load(tmp_path / "model.gguf")
    ids = torch.randint(0, spec.vocab_size, (2, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert distance(found(ids).logits, filled(spec, weights)(ids).logits) < FLOAT32

    if architecture in THEY_READ:
        config = transformers.AutoConfig.from_pretrained(tmp_path, gguf_file="model.gguf")
        if hasattr(config, "query_pre_attn_scalar"):
            config.query_pre_attn_scalar = config.head_dim  # which they leave at 256, whatever the file says
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path, gguf_file="model.gguf", config=config, dtype=torch.float32
        )
        with torch.no_grad():
            assert distance(found(ids).logits, theirs(ids).logits) < FLOAT32


@pytest.mark.parametrize(("architecture", "n_layers", "width"), [("gemma2", 46, 4608 / 32), ("gemma3", 62, 5376 / 32)])
def test_the_27b_of_gemma_scales_by_its_own_rule(architecture: str, n_layers: int, width: float) -> None:
    """Gemma team 2024, arXiv:2408.00118, and 2025, arXiv:2503.19786: d_model / n_heads, not the width of a head."""
    sizes = {"block_count": n_layers, "embedding_length": int(32 * width), "attention.head_count": 32}
    settings = {f"{architecture}.{key}": value for key, value in (sizes | {"attention.key_length": 128}).items()}
    metadata = {"general.architecture": architecture, **settings}
    assert config_of(metadata, [], (100, 64), "file")["query_pre_attn_scalar"] == width
    fewer = config_of(metadata | {f"{architecture}.block_count": 26}, [], (100, 64), "file")
    assert fewer["query_pre_attn_scalar"] == 128


def theta(spec: ModelSpec) -> float:
    """The largest of a model's thetas: files name one, the global layers'."""
    return max(value.theta for value in spec.nested() if isinstance(value, RotarySpec))
