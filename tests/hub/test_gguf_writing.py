"""GGUF files that we write: read back bit by bit, by transformers too, run by llama.cpp; what would change is refused."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers
from tokenizers import Tokenizer as Inner

import anyformer as af
from anyformer.errors import AnyformerError, CheckpointError, SpecError, TextError, UsageError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.families.gguf import DIALECTS
from anyformer.families.hf.mapping import computed
from anyformer.hub.gguf_writing import SavedFile
from anyformer.layers import AttentionSpec, GQASpec, Llama3Scaling, RotarySpec
from anyformer.layers.rope_scaling import LinearScaling, YaRN
from anyformer.model import Transformer
from anyformer.resizing import resize, shrink
from anyformer.spec import Length, ModelSpec, ScaleSpec, TableSpec, Width
from anyformer.text import Tokenizer
from anyformer.text.byte_level import BYTE_OF
from anyformer.text.gguf_vocabulary import CUTS, tokenizer_in
from anyformer.text.gguf_vocabulary_writing import metadata_of_tokenizer
from anyformer.text.prompts import encode_prompt
from tests.cli.running import refused, run, succeeded
from tests.hostile.faulty_disk import no_space_left
from tests.laws.models import randomised
from tests.laws.tolerance import FLOAT32, distance
from tests.laws.weights import edited
from tests.serving.conftest import TEMPLATE

TEXT = "the quick brown fox jumps over the lazy dog, twice: naïve café 12345 東京 🙂\n" * 20
# Of each architecture that is written a model; Gemma's files hold no scale of attention but that of a head's width.
PRESETS = {
    "llama": "llama2-70b",
    "llama, scaled": "llama3.1-8b",
    "llama, tied": "llama3.2-1b",
    "llama, of another family": "mistral-7b-v0.3",
    "qwen2": "qwen2.5-7b",
    "gemma": "gemma-2b",
    "gemma2": "gemma2-2b",
    "gemma3": "gemma3-1b",
    "phi3": "phi3-mini-4k",
}
# llama.cpp reads Phi-3's window, says that it is disabled there, and computes without it.
LLAMA_CPP = PRESETS | {"phi3": "phi4-14b"}


def of(name: str) -> ModelSpec:
    spec = shrink(preset(name).spec)
    if name.startswith("gemma"):
        spec = edited(spec, AttentionSpec, lambda value: value.but(scale=ScaleSpec(power=-0.5)))
    return edited(spec, Llama3Scaling, lambda value: value.but(original_context=Length(8192)))


def tokenizer(**config: Any) -> Tokenizer:
    return Tokenizer(Tokenizer.train([TEXT], 300)._inner, config)


def saved(spec: ModelSpec, folder: Path, words: Tokenizer | None = None, *, coarse: bool = False) -> Transformer:
    """A model of random weights, in a directory; coarse ones have few digits, so that 1 can be added and taken away."""
    model = randomised(spec)
    if coarse:
        for weight in model.parameters():
            weight.data = ((weight.data * 256).round() / 256).clamp(-200, 200)
    af.save(model, folder, tokenizer=words)
    return model


def equal(one: Transformer, other: Transformer) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_written_is_read_bit_by_bit(name: str, tmp_path: Path) -> None:
    model = saved(of(PRESETS[name]), tmp_path / "model", coarse=name.startswith("gemma"))
    told = af.convert(tmp_path / "model", tmp_path / "out.gguf")
    assert isinstance(told, SavedFile)
    assert told.architecture == name.split(",")[0]
    assert set(told.kinds) == {"f32"}
    assert ("attention.sliding_window" in str(told)) == (name == "phi3")
    found, words = af.load(tmp_path / "out.gguf")
    assert words is None
    assert equal(found, model)
    assert computed(found.spec) == computed(model.spec)
    ids = torch.randint(0, model.spec.vocab_size, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(found(ids).logits, model(ids).logits)


@pytest.mark.parametrize(
    "scaling",
    [
        LinearScaling(factor=4.0),
        YaRN(factor=4.0, original_context=Length(32)),
    ],
    ids=lambda scaling: scaling.kind,
)
def test_scaled_positions(scaling: Any, tmp_path: Path) -> None:
    spec = edited(of("llama2-7b"), RotarySpec, lambda value: value.but(scaling=scaling))
    model = saved(spec, tmp_path / "model")
    af.convert(tmp_path / "model", tmp_path / "out.gguf")
    found, _ = af.load(tmp_path / "out.gguf")
    assert equal(found, model)
    ids = torch.randint(0, model.spec.vocab_size, (1, 60), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(found(ids).logits, model(ids).logits)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_0"])
def test_transformers_reads_it_too(kind: str, tmp_path: Path) -> None:
    words = tokenizer(chat_template=TEMPLATE)
    spec = resize(changed(of("llama2-70b"), TableSpec, rows=words.vocab_size + 5), d_model=64)
    saved(spec, tmp_path / "model", words)
    succeeded(run("convert", tmp_path / "model", tmp_path / "out.gguf", "--quantise", kind))
    ours, read = af.load(tmp_path / "out.gguf", dtype=torch.float32)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="out.gguf", dtype=torch.float32)
    ids = torch.randint(0, words.vocab_size, (2, 30), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert distance(ours(ids).logits, theirs(ids).logits) < FLOAT32
    assert read is not None
    assert read.encode(TEXT) == words.encode(TEXT)
    assert read.chat_template == TEMPLATE
    assert (read.begin_of_text, read.end_of_text) == (words.begin_of_text, words.end_of_text)
    kinds = {tensor.tensor_type.name.lower() for tensor in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    assert kinds <= {"f32", kind, "f16"}
    assert kind in kinds


def test_rows_that_no_block_divides_stay_f16(tmp_path: Path) -> None:
    spec = resize(of("llama2-7b"), d_model=48)
    saved(spec, tmp_path / "model")
    told = str(af.convert(tmp_path / "model", tmp_path / "out.gguf", quantise="q8_0"))
    assert "whose rows are no multiple of 32 long, such as token_embd.weight, are f16" in told
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    assert kinds["token_embd.weight"] == kinds["blk.0.attn_q.weight"] == "F16"
    assert kinds["output_norm.weight"] == "F32"


def cut_by(pre: str) -> Tokenizer:
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    said = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": alphabet}
    return tokenizer_in({**said, "tokenizer.ggml.merges": []})


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_the_way_that_text_is_cut_is_named(pre: str) -> None:
    words = cut_by(pre)
    said, notes = metadata_of_tokenizer(words, words.vocab_size)
    assert said["tokenizer.ggml.pre"] == pre
    assert not notes
    assert tokenizer_in(said).data == words.data


def test_ways_that_have_no_name_are_refused() -> None:
    from tokenizers import normalizers, pre_tokenizers

    odd = Inner.from_str(tokenizer()._inner.to_str())
    odd.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel(use_regex=False)]
    )
    with pytest.raises(TextError, match="cuts it otherwise"):
        metadata_of_tokenizer(Tokenizer(odd, {}), 300)
    lower = Inner.from_str(tokenizer()._inner.to_str())
    lower.normalizer = normalizers.Lowercase()
    with pytest.raises(TextError, match="cuts it otherwise"):
        metadata_of_tokenizer(Tokenizer(lower, {}), 300)
    composed = Inner.from_str(tokenizer()._inner.to_str())
    composed.normalizer = normalizers.NFC()
    assert "composes characters" in metadata_of_tokenizer(Tokenizer(composed, {}), 300)[1][0]
    from anyformer.text import scheme

    with pytest.raises(TextError, match="this tokenizer is unigram"):
        metadata_of_tokenizer(scheme("unigram", 100).train([TEXT]), 100)


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_goes_both_ways(prefix: bool, tmp_path: Path) -> None:
    import sentencepiece

    (tmp_path / "text").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "sp"), vocab_size=600, model_type="bpe",
        byte_fallback=True, add_dummy_prefix=prefix, normalization_rule_name="identity",
        remove_extra_whitespaces=False, minloglevel=2,
    )  # fmt: skip
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "sp.model"))
    ids = range(theirs.get_piece_size())
    types = [2 if theirs.is_unknown(i) else 3 if theirs.is_control(i) else 6 if theirs.is_byte(i) else 1 for i in ids]
    given = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [theirs.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [theirs.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.add_space_prefix": prefix,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    said, _ = metadata_of_tokenizer(tokenizer_in(given), len(ids))
    for name in ("tokens", "token_type", "add_space_prefix", "bos_token_id", "eos_token_id", "unknown_token_id"):
        assert said[f"tokenizer.ggml.{name}"] == given[f"tokenizer.ggml.{name}"], name
    text = Path(__file__).read_text(encoding="utf-8")
    assert tokenizer_in(said).encode(text) == theirs.encode(text)


LETTERS = sorted(BYTE_OF)
WORDS = [*LETTERS, "th", "the", "Zebra", "<s>", "</s>"]  # no merge makes the third of the words


def bytewise(pre: str = "llama-bpe", **changes: Any) -> Tokenizer:
    """A tokenizer that a file's metadata describes, with changes of its tokenizer.json, of its model's part by names of it."""
    read = tokenizer_in(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": WORDS,
            "tokenizer.ggml.token_type": [1] * (len(WORDS) - 2) + [3, 3],
            "tokenizer.ggml.merges": ["t h", "th e"],
        }
    )
    data = json.loads(read._inner.to_str())
    data |= {name: changes.pop(name) for name in ("post_processor", "added_tokens", "normalizer") if name in changes}
    data["model"] |= changes
    return Tokenizer(Inner.from_str(json.dumps(data)), {"bos_token": "<s>", "eos_token": "</s>"})


def test_words_that_merges_do_not_make_are_read_as_they_were() -> None:
    """llama.cpp takes a word that is a token whole where text is cut as LLaMA 3 cuts it, and nowhere else."""
    words = bytewise(ignore_merges=True)
    zebra = WORDS.index("Zebra")
    assert words.encode("Zebra") == [zebra]
    read = tokenizer_in(metadata_of_tokenizer(words, len(WORDS))[0])
    assert read.encode("Zebra the") == words.encode("Zebra the")
    for pre, ignored in (("llama-bpe", False), ("qwen2", True), ("gpt-2", True)):
        with pytest.raises(
            TextError, match=f"this tokenizer's ignore_merges is {ignored}, and .* convert to a directory"
        ):
            metadata_of_tokenizer(bytewise(pre, ignore_merges=ignored), len(WORDS))
    made = {token: i for i, token in enumerate([*LETTERS, "th", "the"])}
    told, _ = metadata_of_tokenizer(bytewise(ignore_merges=False, vocab=made, added_tokens=[]), len(made))
    assert told["tokenizer.ggml.pre"] == "llama-bpe"


@pytest.mark.parametrize(
    ("name", "value"), [("dropout", 0.1), ("continuing_subword_prefix", "##"), ("end_of_word_suffix", "</w>")]
)
def test_options_that_no_file_says_are_refused(name: str, value: Any) -> None:
    with pytest.raises(TextError, match=f"this tokenizer's {name} is '?{re.escape(str(value))}'?, and"):
        metadata_of_tokenizer(bytewise("gpt-2", merges=[], **{name: value}), len(WORDS))


def test_what_is_unknown_matters_where_not_every_byte_is_a_token() -> None:
    metadata_of_tokenizer(bytewise(unk_token="</s>", fuse_unk=True), len(WORDS))
    few = {token: i for i, token in enumerate("abc")}
    unknown = bytewise("gpt-2", unk_token="c", vocab=few, merges=[], added_tokens=[])
    assert unknown.encode("ad") == [0, 2]
    with pytest.raises(TextError, match="this tokenizer's unk_token is 'c', and"):
        metadata_of_tokenizer(unknown, len(few))


def framing(*single: str) -> Any:
    """Rules that put tokens around a text, as a tokenizer.json has them; `A` is the text."""
    specials = {
        token: {"id": token, "ids": [WORDS.index(token)], "tokens": [token]} for token in ("<s>", "</s>", "the")
    }
    items = [{"SpecialToken" if t != "A" else "Sequence": {"id": t, "type_id": 0}} for t in single]
    pair = [*items, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": items, "pair": pair, "special_tokens": specials}


@pytest.mark.parametrize("single", [("<s>", "A"), ("A", "</s>"), ("<s>", "A", "</s>"), ("A",)], ids=" ".join)
def test_what_is_put_around_a_text_goes_along(single: tuple[str, ...]) -> None:
    words = bytewise(post_processor=framing(*single))
    said, _ = metadata_of_tokenizer(words, len(WORDS))
    read = tokenizer_in(said)
    assert read.frame(["the A"]).ids.tolist() == words.frame(["the A"]).ids.tolist()
    assert said["tokenizer.ggml.add_bos_token"] == ("<s>" in single)
    assert said.get("tokenizer.ggml.add_eos_token") == (None if single == ("A",) else "</s>" in single)
    assert encode_prompt(read, "the") == encode_prompt(words, "the")
    assert encode_prompt(read, "the")[0] == WORDS.index("<s>" if "<s>" in single else "the")


def test_what_more_is_put_around_a_text_is_refused() -> None:
    for single, says in (
        (("the", "A"), "puts the before a text and nothing behind it"),
        (("<s>", "A", "</s>", "</s>"), "puts <s> before a text and </s></s> behind it"),
    ):
        with pytest.raises(TextError, match=f"{says}, which is not what GGUF files can say; convert to a directory"):
            metadata_of_tokenizer(bytewise(post_processor=framing(*single)), len(WORDS))


def test_vectors_are_those_of_the_directory(tmp_path: Path) -> None:
    words = bytewise(post_processor=framing("<s>", "A", "</s>"))
    saved(changed(of("llama2-7b"), TableSpec, rows=len(WORDS)), tmp_path / "model", words)
    af.convert(tmp_path / "model", tmp_path / "out.gguf")
    one, other = (af.embed(path, texts=["the A", "Zebra"]) for path in (tmp_path / "model", tmp_path / "out.gguf"))
    assert torch.equal(one, other)


def token(content: str, **options: Any) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": WORDS.index(content), "content": content, "special": True, **plain, **options}


def test_how_added_tokens_are_found_is_said() -> None:
    special = [token("<s>", lstrip=True, rstrip=True), token("</s>")]
    for option in ("lstrip", "rstrip", "single_word"):
        word = token("Zebra", special=False, **{option: True})
        _, notes = metadata_of_tokenizer(bytewise(added_tokens=[word, *special]), len(WORDS))
        assert notes == [f"readers do not know what goes with Zebra ({option}), <s> (lstrip, rstrip)"]
    composed = bytewise(normalizer={"type": "NFC"}, added_tokens=[token("Zebra", special=False, normalized=True)])
    _, notes = metadata_of_tokenizer(composed, len(WORDS))
    assert notes[0] == "readers do not know what goes with Zebra (normalized)"
    assert metadata_of_tokenizer(bytewise(added_tokens=special[1:]), len(WORDS))[1] == []


def test_every_token_that_ends_a_text_goes_along(tmp_path: Path) -> None:
    closing = [WORDS.index(each) for each in ("</s>", "<s>", "the", "th")]
    words = bytewise()
    for ids in (closing[:1], closing[:2], closing[:3], closing):
        words.save(tmp_path)
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
        said, notes = metadata_of_tokenizer(Tokenizer.load(tmp_path), len(WORDS))
        read = tokenizer_in(said)
        assert read.closing_ids == tuple(ids[:3])
        assert notes == ["it ends a text at th too, for which files have no key"] * (len(ids) > 3)
        read.save(tmp_path / "read")
        assert Tokenizer.load(tmp_path / "read").closing_ids == tuple(ids[:3])


def test_how_texts_are_drawn_goes_along(tmp_path: Path) -> None:
    drawn = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
    said = {"repetition_penalty": 1.05, "min_p": -1, "typical_p": 1.0, "guidance_scale": 2.0}
    bytewise().save(tmp_path)
    for generation, expected, lost in (
        (drawn, drawn, ""),
        ({**drawn, **said}, drawn, "min_p, repetition_penalty, guidance_scale"),
        ({"temperature": 0.6, "max_length": 9}, {}, "max_length"),
    ):
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        found, notes = metadata_of_tokenizer(Tokenizer.load(tmp_path), len(WORDS))
        held = {key: torch.tensor(v).item() if isinstance(v, float) else v for key, v in found.items()}  # 32 bits
        assert tokenizer_in(held).generation == expected
        assert notes == [f"its generation_config.json says {lost} too, for which files have no key"] * bool(lost)
    found, _ = metadata_of_tokenizer(bytewise(), len(WORDS))
    with pytest.raises(TextError, match=r"general.sampling.temp = 'hot' is no number; take the model's Hugging Face"):
        tokenizer_in({**found, "general.sampling.temp": "hot"})


def test_what_no_file_would_say_is_refused(tmp_path: Path) -> None:
    for name, says in (
        ("gpt2", r"computes this model; those that are written: llama, qwen2, .*; keep the directory$"),
        ("gemma2-27b", "files would say"),
    ):
        saved(shrink(preset(name).spec), tmp_path / name)
        with pytest.raises(SpecError, match=says):
            af.convert(tmp_path / name, tmp_path / "out.gguf")
    olmo, hybrid = shrink(preset("olmo3-7b").spec), shrink(preset("granite-4.0-h-micro").spec)
    full = changed(olmo.stack.blocks[-1], RotarySpec, scaling=Llama3Scaling(factor=8.0))
    stretched = olmo.but(stack=olmo.stack.but(blocks=(*olmo.stack.blocks[:-1], full)))
    for name, spec, says in (
        ("olmo", stretched, "one set of frequencies, and layers turn by several"),
        ("granite", changed(hybrid, GQASpec, head_dim=Width(9)), "heads of 9 features have no halves"),
    ):
        saved(spec, tmp_path / name)
        with pytest.raises(SpecError, match=says):
            af.convert(tmp_path / name, tmp_path / "out.gguf")
    saved(of("llama2-7b"), tmp_path / "model")
    for options, says in (
        ({"dtype": torch.float16}, "--quantise for --dtype"),
        ({"form": "hf"}, "leave --to"),
        ({"shard_nbytes": 9}, "--shard-size"),
    ):
        with pytest.raises(UsageError, match=says):
            af.convert(tmp_path / "model", tmp_path / "out.gguf", **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"ends in \.gguf"):
        af.convert(tmp_path / "model", tmp_path / "out", quantise="q8_0")
    with pytest.raises(AnyformerError, match="is the name of a file"):
        af.convert(tmp_path / "model", tmp_path / "out.safetensors")
    assert not list(tmp_path.glob("*.gguf"))
    assert not list(tmp_path.glob(".any*"))
    af.convert(tmp_path / "model", tmp_path / "out.gguf")
    with pytest.raises(CheckpointError, match="exists already"):
        af.convert(tmp_path / "model", tmp_path / "out.gguf")
    refused(run("convert", tmp_path / "model", tmp_path / "o.gguf", "--quantise", "q4_k_m"), "q4_k_m")


def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(of("llama2-7b"), tmp_path / "model")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", no_space_left)
    with pytest.raises(AnyformerError, match="No space left") as caught:
        af.convert(tmp_path / "model", tmp_path / "out.gguf")
    assert caught.value.exit_status == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None, reason="the package llama-cpp-python is not installed"
)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LLAMA_CPP)
def test_llama_cpp_writes_the_same_text(name: str, tmp_path: Path) -> None:
    """Greedy, in f32, with its cache in f32 (it would be f16), token by token."""
    import llama_cpp  # type: ignore[import-not-found]

    words = tokenizer()
    spec = changed(of(LLAMA_CPP[name]), TableSpec, rows=words.vocab_size)
    model = saved(spec, tmp_path / "one", words)
    architecture = name.split(",")[0]
    af.convert(tmp_path / "one", tmp_path / "model", hf_type=DIALECTS[architecture].hf_type)
    told = af.convert(tmp_path / "model", tmp_path / "out.gguf", quantise="f32")
    assert isinstance(told, SavedFile)
    assert told.architecture == architecture
    theirs = llama_cpp.Llama(
        str(tmp_path / "out.gguf"),
        n_ctx=64,
        logits_all=True,
        verbose=False,
        type_k=0,
        type_v=0,
        n_threads=1,
        n_batch=64,
    )
    try:
        prompt = words.encode("the quick brown")
        assert theirs.tokenize(TEXT[:60].encode(), add_bos=False) == words.encode(TEXT[:60])
        expected = prompt + _greedy(model, prompt, 24)
        theirs.reset()
        theirs.eval(expected)
        logits = torch.tensor(theirs.scores[: len(expected)]).float()
        with torch.no_grad():
            assert distance(logits[None], model(torch.tensor([expected])).logits) < 1e-3
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == expected[len(prompt) :]
    finally:
        theirs.close()


def _greedy(model: Transformer, prompt: list[int], n: int) -> list[int]:
    from anyformer.generation import generate_ids

    return generate_ids(model, torch.tensor([prompt]), max_new_tokens=n)[0].tolist()


def test_every_name_of_cutting_is_tried() -> None:
    assert set(CUTS) >= {"gpt-2", "llama-bpe", "qwen2", "smollm"}
