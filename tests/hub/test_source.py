"""What of a directory, a run or a name is found."""

import json
import shutil
import zlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from anyformer.errors import CheckpointError, SpecError
from anyformer.families import preset
from anyformer.hub import load, load_spec, save
from anyformer.hub.weights import FILE
from anyformer.model import build
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, dumps
from anyformer.text import Tokenizer

LLAMA = shrink(preset("llama2-70b").spec)
GPT2 = shrink(preset("gpt2").spec)


def table(model: torch.nn.Module) -> torch.Tensor:
    return model.state_dict()["shared.tokens.weight"]


class TestRun:
    """A run's directory as training writes it: spec.yaml, tokenizer/, checkpoints/step-…/ with a manifest."""

    @staticmethod
    def checkpoint(run: Path, spec: ModelSpec, name: str, seed: int, complete: bool = True) -> Path:
        place = run / "checkpoints" / name
        place.mkdir(parents=True)
        save_file(dict(build(spec, seed=seed).named_parameters()), place / FILE)
        if complete:
            content = (place / FILE).read_bytes()
            files = {FILE: {"nbytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}}
            (place / "manifest.json").write_text(json.dumps({"format": 1, "files": files}))
        return place

    @pytest.fixture
    def run(self, tmp_path: Path) -> Path:
        run = tmp_path / "run"
        for name, seed, complete in (
            ("step-00000009", 9, True),
            ("step-00000100", 1, True),
            ("step-00000100.1", 2, True),
            ("step-00000200", 3, False),
            (".tmp-1-step-00000300", 4, True),
        ):
            self.checkpoint(run, GPT2, name, seed, complete)
        (run / "spec.yaml").write_text(dumps(GPT2))
        (run / "run.json").write_text(json.dumps({"architecture": "gpt2", "steps": 200, "fingerprints": {}}))
        Tokenizer.train(["abc"], 257).save(run / "tokenizer")
        return run

    def test_the_latest_complete_checkpoint_is_loaded(self, run: Path) -> None:
        model, tokenizer = load(run)
        assert model.spec == GPT2
        assert tokenizer is not None
        assert torch.equal(table(model), table(build(GPT2, seed=2)))

    def test_another_is_loaded_by_its_own_directory(self, run: Path) -> None:
        model, tokenizer = load(run / "checkpoints" / "step-00000009")
        assert tokenizer is not None
        assert torch.equal(table(model), table(build(GPT2, seed=9)))

    def test_a_run_without_a_checkpoint_is_refused(self, run: Path) -> None:
        shutil.rmtree(run / "checkpoints")
        (run / "checkpoints").mkdir()
        with pytest.raises(CheckpointError, match="is a run without a complete checkpoint; let it train on"):
            load(run)

    def test_a_run_of_unfinished_checkpoints_alone_is_refused_in_one_line(
        self, run: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        for manifest in (run / "checkpoints").glob("*/manifest.json"):
            manifest.unlink()
        with pytest.raises(CheckpointError, match="is a run without a complete checkpoint; let it train on"):
            load(run)
        assert not any("passing over" in said for said in caplog.messages)

    def test_a_flipped_bit_is_found(self, run: Path) -> None:
        file = run / "checkpoints" / "step-00000100.1" / FILE
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"model.safetensors is corrupted or edited"):
            load(run)

    def test_its_specification_is_read_without_a_checkpoint(self, run: Path) -> None:
        shutil.rmtree(run / "checkpoints")
        assert load_spec(run) == GPT2


class TestLoadSpec:
    def test_a_name_is_a_preset(self) -> None:
        assert load_spec("llama3.1-8b") == preset("llama3.1-8b").spec
        with pytest.raises(SpecError, match=r"no preset 'lama2-7b' \(did you mean 'llama2-7b'\?\)"):
            load_spec("lama2-7b")

    def test_every_kind_of_path(self, tmp_path: Path) -> None:
        (tmp_path / "mine.yaml").write_text(dumps(LLAMA))
        (tmp_path / "mine.json").write_text(dumps(LLAMA, "json"))
        save(build(LLAMA), tmp_path / "ours", form="anyformer")
        directory = save(build(LLAMA), tmp_path / "hf").path
        assert load_spec(tmp_path / "mine.yaml") == load_spec(str(tmp_path / "mine.json")) == LLAMA
        assert load_spec(str(tmp_path / "ours")) == LLAMA
        assert load_spec(directory) == load_spec(directory / "config.json") == load(directory)[0].spec == LLAMA

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("nowhere/model", "there is nothing at nowhere/model"),
            ("model.gguf", "there is nothing at model.gguf"),
            ("missing.yaml", "there is nothing at missing.yaml"),
        ],
    )
    def test_what_is_not_there_is_refused(self, name: str, message: str) -> None:
        with pytest.raises(CheckpointError, match=message):
            load_spec(name)

    def test_a_json_file_of_something_else_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "x.json").write_text("{}")
        with pytest.raises(SpecError, match="has no first key 'anyformer: 1'"):
            load_spec(tmp_path / "x.json")
        (tmp_path / "x.txt").write_text("x")
        with pytest.raises(SpecError, match="is no specification"):
            load_spec(tmp_path / "x.txt")
