"""Text from a model: what is shown piece by piece is what decoding the tokens at once gives, cut at stop strings."""

import json
import re
from pathlib import Path

import pytest
import tokenizers
import torch
from transformers import AutoTokenizer

from anyformer.errors import InputError, TextError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.generation import Sampling, generate_ids, generate_text, lay_out_for_decoding
from anyformer.inference import generate
from anyformer.model import Transformer
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, TableSpec
from anyformer.text import Tokenizer
from anyformer.text.parallel import EncodedPairs, ParallelCorpus
from anyformer.text.prompts import encode_prompt, encode_source
from tests.laws.models import SHRUNK, randomised

TEXTS = ["Größe, naïve café, 東京, 🙂 and more of the same, said the fox. ", "if x > 0:\n    return x\n"] * 30


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS, 320)


def sized(spec: ModelSpec, vocab_size: int) -> ModelSpec:
    """Return the decoder with another vocabulary."""
    return changed(spec, TableSpec, rows=vocab_size)


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Transformer:
    spec = next(spec for name, spec in SHRUNK.items() if "llama2" in name)
    return randomised(sized(spec, tokenizer.vocab_size))


def tokens_of(model: Transformer, tokenizer: Tokenizer, prompt: str, n: int, seed: int) -> list[int]:
    ids = torch.tensor([[tokenizer.begin_of_text, *tokenizer.encode(prompt)]])
    return generate_ids(model, ids, max_new_tokens=n, sampling=Sampling(1.0), seed=seed)[0].tolist()


def test_a_batch_writes_what_each_prompt_writes_alone(model: Transformer, tokenizer: Tokenizer) -> None:
    prompts = ["if x", "Größe 東", "the fox said", ""]
    together = generate(model, tokenizer, prompts, max_new_tokens=40, temperature=1.0, seed=5)
    for row, (prompt, text) in enumerate(zip(prompts, together, strict=True)):
        tokens = tokens_of(model, tokenizer, prompt, 40, seed=5 + row)
        ended = tokens[: tokens.index(tokenizer.end_of_text)] if tokenizer.end_of_text in tokens else tokens
        assert text == tokenizer.decode(ended)
        assert generate(model, tokenizer, prompt, max_new_tokens=40, temperature=1.0, seed=5 + row) == text
    assert "\ufffd" in "".join(together), "random bytes should break characters, or the test shows less than it says"


def test_pieces_are_the_text(model: Transformer, tokenizer: Tokenizer) -> None:
    pieces: dict[int, list[str]] = {0: [], 1: []}
    written = generate_text(
        model,
        tokenizer,
        ["東", "return"],
        max_new_tokens=30,
        sampling=Sampling(1.0),
        on_text=lambda row, piece: pieces[row].append(piece),
    )
    for row, each in enumerate(written):
        assert "".join(pieces[row]) == each.text
        assert len(pieces[row]) > 5
        assert all(pieces[row])


def test_a_stop_string_cuts_across_tokens(model: Transformer, tokenizer: Tokenizer) -> None:
    whole = generate(model, tokenizer, "the fox", max_new_tokens=40, temperature=1.0, seed=2)
    tokens = tokens_of(model, tokenizer, "the fox", 40, seed=2)
    edge = len(tokenizer.decode(tokens[:6]))
    stop = whole[edge - 2 : edge + 2]  # its first half is the end of one token, its second the beginning of the next
    at = whole.index(stop)
    (written,) = generate_text(
        model, tokenizer, ["the fox"], max_new_tokens=40, sampling=Sampling(1.0), seed=2, stop=[stop, "never there"]
    )
    assert (written.text, written.ended_by) == (whole[:at], "stop")
    assert written.token_ids == tokens[: len(written.token_ids)]
    assert len(written.token_ids) < 10, "the row should have stopped"


def test_prompts_of_ids_are_those_of_their_texts(model: Transformer, tokenizer: Tokenizer) -> None:
    texts = ["if x", "Größe 東"]
    given = [encode_prompt(tokenizer, text) for text in texts]
    assert generate_text(model, tokenizer, given, max_new_tokens=9) == generate_text(
        model, tokenizer, texts, max_new_tokens=9
    )
    with pytest.raises(InputError, match="a prompt without a token cannot be continued"):
        generate_text(model, tokenizer, [[1], []])


def test_why_a_text_ended(model: Transformer, tokenizer: Tokenizer) -> None:
    tokens = tokens_of(model, tokenizer, "if", 30, seed=3)
    (whole,) = generate_text(model, tokenizer, ["if"], max_new_tokens=30, sampling=Sampling(1.0), seed=3)
    assert (whole.ended_by, whole.token_ids) == ("length", tokens)
    tokenizer.end_of_text, end = tokens[20], tokenizer.end_of_text  # as if the model had written the end there
    try:
        (cut,) = generate_text(model, tokenizer, ["if"], max_new_tokens=30, sampling=Sampling(1.0), seed=3)
    finally:
        tokenizer.end_of_text = end
    kept = tokens[: tokens.index(tokens[20])]
    assert (cut.ended_by, cut.token_ids, cut.text) == ("end_of_text", kept, tokenizer.decode(kept))


def test_a_prompt_begins_a_text_once(tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert encode_prompt(tokenizer, "if x") == [0, *tokenizer.encode("if x")]
    assert encode_prompt(tokenizer, "<|endoftext|>if x") == [0, *tokenizer.encode("if x")]
    tokenizer.save(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"eos_token": "<|endoftext|>"}')
    assert encode_prompt(Tokenizer.load(tmp_path), "if x") == tokenizer.encode("if x")
    with pytest.raises(TextError, match="the prompt is empty"):
        encode_prompt(Tokenizer.load(tmp_path), "")
    for more in ("", ', "add_bos_token": false'):
        config.write_text(f'{{"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"{more}}}')
        assert encode_prompt(Tokenizer.load(tmp_path), "if x") == tokenizer.encode("if x")
        assert encode_prompt(Tokenizer.load(tmp_path), "") == [0]


@pytest.mark.parametrize("says", [{}, {"add_bos_token": False}, {"add_bos_token": True}], ids=str)
@pytest.mark.parametrize("around", [("<s>", ""), ("<s>", "</s>"), ("", "</s>"), ("<go><s>", "")], ids=str)
def test_what_a_model_reads_is_what_transformers_encodes(
    around: tuple[str, str], says: dict[str, bool], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Its rules stand in tokenizer.json, whatever its configuration says beside them."""
    before, behind = (re.findall("<[^>]*>", side) for side in around)
    inner = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.data))
    inner.add_special_tokens(["<s>", "</s>", "<go>"])
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single=[*before, "$A", *behind],
        special_tokens=[(token, inner.token_to_id(token)) for token in (*before, *behind)],
    )
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer.json").write_text(inner.to_str())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named | says))
    ours, theirs = Tokenizer.load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in ("if x", "", "return </s> the fox"):
        expected = theirs(text).input_ids
        assert encode_source(ours, text) == expected
        if text:
            assert encode_prompt(ours, text) == expected[: len(expected) - len(behind)]
    pairs = EncodedPairs(ParallelCorpus((("if x", "the fox"),)), ours)
    assert pairs.source[0].tolist() == theirs("if x").input_ids


def test_a_tokenizer_of_another_model_is_refused(tokenizer: Tokenizer) -> None:
    spec = next(spec for name, spec in SHRUNK.items() if "llama2" in name)
    other = randomised(sized(spec, 60))
    with pytest.raises(InputError, match=f"{tokenizer.vocab_size} tokens and the model 60"):
        generate(other, tokenizer, "the fox said")


def test_the_layout_for_decoding_changes_nothing(model: Transformer, tokenizer: Tokenizer) -> None:
    laid_out = randomised(model.spec)
    before = {name: weight.clone() for name, weight in laid_out.state_dict().items()}
    assert lay_out_for_decoding(laid_out) is laid_out
    after = laid_out.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    moved = {name for name, weight in after.items() if not weight.is_contiguous()}
    assert {name.rsplit(".", 2)[-2] for name in moved} >= {"gate", "up"}
    assert not any("embedding" in name or "shared" in name for name in moved)
    assert generate(laid_out, tokenizer, ["if x", "café"]) == generate(model, tokenizer, ["if x", "café"])


def test_experts_lie_by_columns_for_one_text_alone() -> None:
    spec = shrink(preset("mixtral-8x7b").spec)
    for several in (False, True):
        laid_out = lay_out_for_decoding(randomised(spec), several=several)
        for name, weight in randomised(spec).state_dict().items():
            other = laid_out.state_dict()[name]
            assert torch.equal(other, weight)
            if "experts" in name:
                assert other.is_contiguous() == (several or "down" in name), name
