"""Directories and files that somebody spoilt on purpose: one line that names the file and the remedy, nothing read elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from anyformer.errors import AnyformerError, CheckpointError, UsageError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.hub import convert, load, load_spec, save
from anyformer.hub.labels import read_labels
from anyformer.hub.weights import FILE, INDEX
from anyformer.model import build
from anyformer.resizing import shrink
from anyformer.spec import TableSpec
from anyformer.text import Tokenizer
from tests.hub.edits import settings
from tests.hub.refusing import refusal

LLAMA = shrink(preset("llama2-70b").spec)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("good") / "model"
    save(build(LLAMA), place, shard_nbytes=20_000)
    return place


@pytest.fixture
def directory(good: Path, tmp_path: Path) -> Path:
    """A good Hugging Face directory of several files, to be spoilt."""
    return Path(shutil.copytree(good, tmp_path / "model"))


class TestConfig:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("vocab_size", -1),
            ("vocab_size", 10**18),
            ("vocab_size", True),
            ("vocab_size", [300]),
            ("hidden_size", 0),
            ("intermediate_size", -1),
            ("intermediate_size", 0),
            ("intermediate_size", "64"),
            ("num_hidden_layers", 10**9),
            ("num_hidden_layers", -1),
            ("num_attention_heads", 0),
            ("num_key_value_heads", 0),
            ("num_key_value_heads", -2),
            ("max_position_embeddings", 0),
            ("max_position_embeddings", 10**30),
            ("rope_theta", 0),
            ("rope_theta", -10_000.0),
            ("rope_theta", 10**40 - 1),
            ("rope_theta", 1e-300),
            ("rms_norm_eps", -1e-5),
            ("rope_scaling", {"rope_type": "linear", "factor": 0}),
            ("rope_scaling", {"rope_type": "linear", "factor": "2"}),
            ("rope_scaling", {"rope_type": "yarn", "factor": -2.0}),
            ("rope_scaling", {"rope_type": ["linear"], "factor": 2}),
        ],
    )
    def test_a_number_that_no_model_has_is_named(self, directory: Path, name: str, value: Any) -> None:
        settings(directory, **{name: value})
        message = refusal(lambda: load_spec(directory))
        assert "config.json" in message
        assert (name if not isinstance(value, dict) else "rope_scaling") in message

    def test_what_scores_are_scaled_by_is_above_0(self, tmp_path: Path) -> None:
        save(build(shrink(preset("gemma2-2b").spec)), tmp_path / "model")
        settings(tmp_path / "model", query_pre_attn_scalar=0)
        assert "query_pre_attn_scalar = 0 must be above 0" in refusal(lambda: load_spec(tmp_path / "model"))

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ('{"model_type": "llama", "hidden_size": ' + "9" * 5000 + "}", "a number of 5,000 digits"),
            ('{"model_type": "llama", "hidden_size": NaN}', "NaN is no number"),
            ('{"model_type": "llama", "rope_theta": 1e999, "hidden_size": 8}', "1e999 is beyond the numbers"),
            ('{"model_type": "llama", "rope_scaling": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested deeper than 64"),
            ('{"model_type": "llama", "rope_scaling": ' + "[" * 200 + "]" * 200 + "}", "nested deeper than 64"),
            ('{"model_type": "llama", "hidden_size": 8, "hidden_size": 16}', "'hidden_size' stands twice"),
            ('{"model_type": "llama", "x": "\\ud800"}', "half a character"),
            ('{"model_type": ["llama"]}', "has no model_type"),
        ],
    )
    def test_what_json_cannot_say_is_refused(self, directory: Path, text: str, says: str) -> None:
        (directory / "config.json").write_text(text)
        message = refusal(lambda: load_spec(directory))
        assert "config.json" in message
        assert says in message

    def test_a_key_that_stands_twice_and_says_one_thing_passes(self, directory: Path) -> None:
        text = (directory / "config.json").read_text()
        (directory / "config.json").write_text('{"model_type": "llama",' + text.lstrip()[1:])
        assert load_spec(directory) == LLAMA

    def test_a_layer_list_that_multiplies_is_refused(self, tmp_path: Path) -> None:
        save(build(shrink(preset("gpt-neo-125m").spec)), tmp_path / "model")
        settings(tmp_path / "model", attention_types=[[["global"], 10**12]])
        assert "attention_types" in refusal(lambda: load_spec(tmp_path / "model"))

    def test_no_weights_are_read_for_what_the_configuration_says(self, directory: Path) -> None:
        for file in directory.glob("*.safetensors"):
            file.write_bytes(b"no weights")
        (directory / INDEX).write_text("no index")
        assert load_spec(directory) == LLAMA


class TestIndex:
    @pytest.mark.parametrize(
        "name",
        ["../other.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "", "a\nb", "a\x1b[31m", 7, None, ["a"]],
    )
    def test_only_plain_names_are_followed(self, directory: Path, name: Any) -> None:
        shutil.copy(next(directory.glob("*.safetensors")), directory.parent / "other.safetensors")
        index = json.loads((directory / INDEX).read_text())
        index["weight_map"]["model.norm.weight"] = name
        (directory / INDEX).write_text(json.dumps(index))
        message = refusal(lambda: load(directory))
        assert f"{INDEX} names {name!r}, which is no plain name" in message

    def test_a_tensor_in_two_files_is_named(self, directory: Path) -> None:
        one, other, *_ = sorted(directory.glob("*.safetensors"))
        twice = {**load_file(one), **load_file(other)}
        save_file(twice, other)
        assert "both hold" in refusal(lambda: load(directory))

    def test_a_whole_file_beside_an_index_of_others_is_named(self, directory: Path) -> None:
        """Transformers would read the one, which may be another model's."""
        save_file({}, directory / FILE)
        assert f"holds {FILE} and an index of other files" in refusal(lambda: load(directory))

    def test_a_tensor_in_another_file_than_said_is_named(self, directory: Path) -> None:
        index = json.loads((directory / INDEX).read_text())
        files = sorted(set(index["weight_map"].values()))
        name = next(name for name, file in index["weight_map"].items() if file == files[0])
        index["weight_map"][name] = files[1]
        (directory / INDEX).write_text(json.dumps(index))
        assert f"says that {name!r} is in {files[1]}, which lacks it" in refusal(lambda: load(directory))

    def test_weights_far_smaller_than_the_model_are_refused_before_it_is_laid_out(self, directory: Path) -> None:
        settings(directory, vocab_size=10**7, hidden_size=10**6)
        assert "the model of its configuration has" in refusal(lambda: load(directory))


class TestLinks:
    @pytest.mark.parametrize("name", ["config.json", INDEX, "model-00001-of-", "tokenizer.json"])
    @pytest.mark.parametrize("to", ["elsewhere", "nothing", "circle"])
    def test_one_that_leads_nowhere_or_elsewhere_is_refused(self, directory: Path, name: str, to: str) -> None:
        if name == "tokenizer.json":
            Tokenizer.train(["the cat"], 258).save(directory)
        file = next(path for path in sorted(directory.iterdir()) if path.name.startswith(name))
        target = {"elsewhere": directory.parent / "other", "nothing": directory / "nothing", "circle": file}[to]
        shutil.move(file, directory.parent / "other")
        file.symlink_to(target)
        message = refusal(lambda: load(directory))
        assert str(file) in message
        assert "is a link" in message

    def test_companions_are_not_copied_from_elsewhere(self, directory: Path) -> None:
        Tokenizer.train(["the cat"], 258).save(directory)
        (directory.parent / "secret").write_text("a secret")
        (directory / "chat_template.jinja").symlink_to(directory.parent / "secret")
        assert "chat_template.jinja is a link" in refusal(lambda: convert(directory, directory.parent / "out"))
        assert not (directory.parent / "out").exists()

    def test_those_of_a_folder_are_not_either(self, directory: Path) -> None:
        Tokenizer.train(["the cat"], 258).save(directory)
        (directory.parent / "secrets").mkdir()
        (directory.parent / "secrets" / "a.jinja").write_text("a secret")
        (directory / "additional_chat_templates").symlink_to(directory.parent / "secrets")
        assert "additional_chat_templates is a link" in refusal(lambda: load(directory))

    def test_the_cache_of_the_hub_and_links_to_neighbours_pass(self, directory: Path) -> None:
        cache = directory.parent / "models--x--y"
        snapshot, blobs = cache / "snapshots" / "abc", cache / "blobs"
        snapshot.mkdir(parents=True)
        blobs.mkdir()
        for i, file in enumerate(sorted(directory.iterdir())):
            shutil.move(file, blobs / str(i))
            (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / str(i))
        (snapshot / "generation_config.json").unlink()
        (snapshot / "generation_config.json").symlink_to("config.json")
        assert load(snapshot)[0].spec == LLAMA


class TestModules:
    @pytest.mark.parametrize("path", ["../other", "/etc", "a/b", "..", 3, {"a": 1}])
    def test_a_module_lies_in_its_directory(self, directory: Path, path: Any) -> None:
        kinds = [("Transformer", ""), ("Pooling", path)]
        listed = [{"type": f"sentence_transformers.models.{kind}", "path": where} for kind, where in kinds]
        (directory / "modules.json").write_text(json.dumps(listed))
        assert "which is no plain name" in refusal(lambda: load_spec(directory))

    @pytest.mark.parametrize(
        "text", ["3", "null", "[3]", '[{"type": 3}]', '{"a": 1}', '[{"type": [], "path": ""}]', "[]"]
    )
    def test_what_is_no_list_of_modules_is_refused(self, directory: Path, text: str) -> None:
        (directory / "modules.json").write_text(text)
        assert "modules.json" in refusal(lambda: load_spec(directory))

    @pytest.mark.parametrize(
        "said", [[], 3, {"pooling_mode": 3}, {"pooling_mode": [["mean"]]}, {"pooling_mode": {"a": 1}}]
    )
    def test_what_says_no_pooling_is_refused(self, directory: Path, said: Any) -> None:
        pooling(directory, said)
        assert "config.json" in refusal(lambda: load_spec(directory))

    @pytest.mark.parametrize("limit", [-1, 0, "128", True, [], {}])
    def test_a_length_that_is_none_is_refused(self, directory: Path, limit: Any) -> None:
        pooling(directory, {"pooling_mode_mean_tokens": True})
        (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": limit}))
        assert "max_seq_length" in refusal(lambda: load_spec(directory))


def pooling(directory: Path, said: Any) -> None:
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    listed = [{"type": f"sentence_transformers.models.{kind}", "path": where} for kind, where in kinds]
    (directory / "modules.json").write_text(json.dumps(listed))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(said))


class TestSafetensors:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        save(build(LLAMA), tmp_path / "model")
        return tmp_path / "model" / FILE

    def test_a_spoilt_header_is_one_line(self, file: Path) -> None:
        content = file.read_bytes()
        (n,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + n])
        name = next(name for name in header if name != "__metadata__")
        entry = header[name]
        spoilt: list[dict[str, Any]] = [
            {**entry, "dtype": "F99"},
            {**entry, "shape": [-1, 3]},
            {**entry, "shape": [2**63, 2**63]},
            {**entry, "shape": [10**9]},
            {**entry, "data_offsets": [0, 10**15]},
            {**entry, "data_offsets": [4, 0]},
            {**entry, "data_offsets": [-4, 0]},
            {"dtype": "F32"},
        ]
        for each in spoilt:
            text = json.dumps({**header, name: each}).encode()
            file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + n :])
            assert f"{file} is truncated or no safetensors file" in refusal(lambda: load(file.parent))
        for length in (0, 2**31, 2**63, 2**64 - 1):
            file.write_bytes(struct.pack("<Q", length) + content[8:])
            assert f"{file} is truncated or no safetensors file" in refusal(lambda: load(file.parent))

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
    def test_pipes_and_folders_are_no_files(self, file: Path) -> None:
        (file.parent / "x.safetensors").mkdir()
        os.mkfifo(file.parent / "y.safetensors")
        file.unlink()
        assert "holds no weights" in refusal(lambda: load(file.parent))


@pytest.mark.parametrize("name", ["out.safetensors", "OUT.JSON", "out.bin"])
def test_a_directory_is_not_called_like_a_file(good: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="is the name of a file, and a directory is written"):
        convert(good, tmp_path / name)
    assert not (tmp_path / name).exists()
    save(load(good)[0], tmp_path / "v1.5")  # a dot alone makes no file


def test_ids_that_no_vocabulary_has_are_refused(directory: Path) -> None:
    Tokenizer.train(["the cat"], 258).save(directory)
    for value in (-1, 2**31, "1", [1, "2"], 1.5, True):
        (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
        with pytest.raises(AnyformerError, match="eos_token_id"):
            load(directory)


def test_nothing_is_given_to_weights_of_another_type(directory: Path) -> None:
    file = sorted(directory.glob("*.safetensors"))[0]
    held = {name: tensor.to(torch.uint8) for name, tensor in load_file(file).items()}
    save_file(held, file)
    with pytest.raises(CheckpointError, match="quantised or packed"):
        load(directory)


@pytest.mark.parametrize("value", [{"a": 1}, "2", [1, "2"], True, 1.5])
def test_ids_in_a_configuration_are_numbers(directory: Path, value: Any) -> None:
    settings(directory, eos_token_id=value)
    assert "eos_token_id" in refusal(lambda: load_spec(directory))


def test_answers_begin_with_a_token_of_the_model(tmp_path: Path) -> None:
    spec = changed(shrink(preset("t5-small").spec), TableSpec, rows=300)
    save(build(spec), tmp_path / "model", Tokenizer.train(["the cat"], 258))
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps({"decoder_start_token_id": 10**6}))
    assert "answers begin with the token 1000000" in refusal(lambda: load(tmp_path / "model"))


@pytest.mark.parametrize("text", ["[" * 200_000, '{"labels": [1]}', "[]", "{}", "\xff"])
def test_damaged_labels_are_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "labels.json").write_text(text, encoding="latin-1")
    assert "labels.json" in refusal(lambda: read_labels(tmp_path))
