"""What lies beside the weights travels: transformers reads tokenizer, chat template and defaults as it did before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from anyformer.errors import TextError
from anyformer.families import preset
from anyformer.generation import Sampling, generate_text
from anyformer.hub import convert, load, save
from anyformer.resizing import shrink
from anyformer.spec import TableSpec
from anyformer.text import Tokenizer
from tests.cli.running import refused, run
from tests.hub.edits import settings
from tests.laws.weights import edited, filled, telling

TEXT = "the quick brown fox jumps over the lazy dog, twice: naïve café 12345\n" * 20
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] | trim }}"
    "<|turn|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
TALK = [{"role": "user", "content": " What is naïve? "}, {"role": "assistant", "content": "A café."}]
VOCAB = 300


def model_directory(path: Path, *, inside: bool) -> Path:
    """Write a model as its publisher would: a tokenizer of transformers with a chat template, ends as a list."""
    plain = Tokenizer.train([TEXT], VOCAB - 2)
    plain.save(path)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(path / "tokenizer.json"),
        bos_token="<|endoftext|>",
        eos_token="<|turn|>",
        pad_token="<|pad|>",
    )
    theirs.chat_template = TEMPLATE
    theirs.save_pretrained(path, save_jinja_files=not inside)
    (path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|turn|>", "pad_token": "<|pad|>"}))
    (path / "merges.txt").write_text("#version: 0.2\nt h\n")
    if not inside:
        (path / "additional_chat_templates").mkdir()
        (path / "additional_chat_templates" / "tool.jinja").write_text("{{ messages }} with tools")
    spec = edited(shrink(preset("llama2-7b").spec), TableSpec, lambda table: table.but(rows=VOCAB))
    saved = save(filled(spec, telling(spec)), path.with_name("weights")).path
    for file in saved.iterdir():
        file.rename(path / file.name)
    transformers.GenerationConfig(
        bos_token_id=0, eos_token_id=[theirs.eos_token_id, 0], pad_token_id=theirs.pad_token_id, do_sample=True,
        temperature=0.6, top_p=0.9, top_k=40,
    ).save_pretrained(path)  # fmt: skip
    settings(path, bos_token_id=0, eos_token_id=[theirs.eos_token_id, 0], pad_token_id=theirs.pad_token_id)
    return path


def by_loading(source: Path, target: Path) -> None:
    model, tokenizer = load(source)
    save(model, target, tokenizer)


def by_ours(source: Path, target: Path) -> None:
    convert(source, target.with_name("ours"), form="anyformer")
    convert(target.with_name("ours"), target)


def by_ours_loaded(source: Path, target: Path) -> None:
    model, tokenizer = load(source)
    save(model, target.with_name("ours"), tokenizer, form="anyformer")
    by_loading(target.with_name("ours"), target)


Way = Callable[[Path, Path], Any]
WAYS: dict[str, Way] = {
    "convert": convert,
    "convert to another class": lambda source, target: convert(source, target, hf_type="phi3"),
    "load and save": by_loading,
    "through a directory of ours": by_ours,
    "through ours, loaded": by_ours_loaded,
}


@pytest.mark.parametrize("inside", [False, True], ids=["template in a file", "template in the configuration"])
@pytest.mark.parametrize("way", WAYS)
def test_transformers_reads_what_it_read_before(way: str, inside: bool, tmp_path: Path) -> None:
    source = model_directory(tmp_path / "source", inside=inside)
    assert (source / "chat_template.jinja").exists() != inside
    WAYS[way](source, tmp_path / "out")
    for file in source.rglob("*"):
        if file.is_file() and file.suffix != ".safetensors" and file.name != "config.json":
            assert (tmp_path / "out" / file.relative_to(source)).read_bytes() == file.read_bytes(), file.name
    before, after = (transformers.AutoTokenizer.from_pretrained(path) for path in (source, tmp_path / "out"))
    for prompt in (False, True):
        asked = [{"tokenize": False, "add_generation_prompt": prompt}, {"add_generation_prompt": prompt}]
        for options in asked:
            assert after.apply_chat_template(TALK, **options) == before.apply_chat_template(TALK, **options)
    assert "<|user|>\nWhat is naïve?<|turn|>" in after.apply_chat_template(TALK, tokenize=False)
    assert inside or after.get_chat_template("tool") == "{{ messages }} with tools"
    assert (after.eos_token_id, after.pad_token_id) == (before.eos_token_id, before.pad_token_id)
    first, last = (transformers.GenerationConfig.from_pretrained(path) for path in (source, tmp_path / "out"))
    assert last.to_dict() == first.to_dict()
    assert (last.temperature, last.top_k, last.eos_token_id) == (0.6, 40, [before.eos_token_id, 0])
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert config.eos_token_id == [before.eos_token_id, 0]
    if way.startswith("convert"):
        assert config.pad_token_id == before.pad_token_id


def written(source: Path, ends: Any, **drawn: Any) -> tuple[list[int], str]:
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": ends, **drawn}))
    model, tokenizer = load(source)
    assert tokenizer is not None
    (found,) = generate_text(model, tokenizer, ["the quick"], max_new_tokens=30, sampling=Sampling(2.0), seed=3)
    return found.token_ids, found.ended_by


def test_each_id_that_ends_a_text_does(tmp_path: Path) -> None:
    source = model_directory(tmp_path / "source", inside=False)
    whole, reason = written(source, [VOCAB + 7])  # which the model never writes
    assert (len(whole), reason) == (30, "length")
    order = sorted(set(whole), key=whole.index)
    assert len(order) > 5
    for ends in ([order[3], order[2]], [order[2]], order[2], [order[5]]):
        cut = min(whole.index(token) for token in (ends if isinstance(ends, list) else [ends]))
        assert written(source, ends) == (whole[:cut], "end_of_text")


@pytest.mark.parametrize("way", WAYS)
def test_without_a_generation_config_the_ids_are_the_configuration_s(way: str, tmp_path: Path) -> None:
    source = model_directory(tmp_path / "source", inside=False)
    whole, _ = written(source, [VOCAB + 7])
    (source / "generation_config.json").unlink()
    settings(source, eos_token_id=[whole[4], VOCAB + 7])
    expected = transformers.GenerationConfig.from_model_config(transformers.AutoConfig.from_pretrained(source))
    WAYS[way](source, tmp_path / "out")
    for place in (source, tmp_path / "out"):
        tokenizer = load(place)[1]
        assert tokenizer is not None
        assert list(tokenizer.closing_ids) == expected.eos_token_id == [whole[4], VOCAB + 7]
    settings(source, eos_token_id=None, decoder_start_token_id=whole[5])
    tokenizer = load(source)[1]
    assert tokenizer is not None
    assert (tokenizer.closing_ids, tokenizer.start_of_answer) == ((tokenizer.end_of_text,), whole[5])


def test_how_tokens_are_drawn_is_what_the_caller_says(tmp_path: Path) -> None:
    source = model_directory(tmp_path / "source", inside=False)
    assert written(source, None) == written(source, None, do_sample=True, temperature=0.1, top_k=1, top_p=0.1)


def test_without_ids_the_tokenizer_ends_a_text(tmp_path: Path) -> None:
    source = model_directory(tmp_path / "source", inside=False)
    for silent in ("{}", '{"eos_token_id": null}'):
        (source / "generation_config.json").write_text(silent)
        tokenizer = Tokenizer.load(source)
        assert tokenizer.closing_ids == (tokenizer.end_of_text,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "generation_config.json beside the tokenizer is not JSON"),
        ("[1]", "generation_config.json beside the tokenizer holds no JSON object"),
        ('{"eos_token_id": ["</s>"]}', r"eos_token_id = \['</s>'\] must be a token's id or a list of them"),
        ('{"eos_token_id": true}', "eos_token_id = True must be a token's id or a list of them"),
    ],
)
def test_broken_defaults_are_refused_in_one_line(tmp_path: Path, content: str, message: str) -> None:
    source = model_directory(tmp_path / "source", inside=False)
    (source / "generation_config.json").write_text(content)
    with pytest.raises(TextError, match=message):
        load(source)
    refused(run("generate", "a", "--model", source))
