"""ONNX graphs of encoders: what onnxruntime makes of them is what the model does, at any batch and length, padded too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.errors import CheckpointError, SpecError, UsageError
from anyformer.families import preset
from anyformer.hub.onnx_writing import refuse_graph, write_onnx
from anyformer.resizing import resize, shrink
from anyformer.spec import ModelSpec
from tests.cli.running import refused, run, succeeded
from tests.laws.models import ids_for, randomised

# Segments and three heads; positions by padding; a table shared by all layers; positions by content; windows and RoPE.
ENCODERS = ["bert-base", "roberta-base", "albert-base", "deberta-v3-base", "modernbert-base"]


def answers(path: Path, given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is of the extra `onnx`")
    session: Any = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == list(given)
    return [torch.tensor(each) for each in session.run(None, {name: value.numpy() for name, value in given.items()})]


def computes_the_model(spec: ModelSpec, path: Path, *shapes: tuple[int, int, int]) -> None:
    """Assert that onnxruntime and the model agree on rows, tokens and how many of these are padding, first or last."""
    pytest.importorskip("onnxscript", reason="onnxscript is of the extra `onnx`")
    model = randomised(spec).eval()
    saved = write_onnx(model, path)
    for batch, n, padded in shapes:
        ids = ids_for(spec, batch, n, seed=n)
        mask = torch.ones_like(ids)
        if padded:
            mask[0, -padded:] = 0
            mask[-1, :padded] = 0
        given = {"input_ids": ids, "attention_mask": mask}
        if len(saved.inputs) > 2:
            given["token_type_ids"] = (torch.arange(n) > n // 2).long().expand(batch, n).contiguous()
        with torch.no_grad():
            out = model(ids, mask, token_type_ids=given.get("token_type_ids"))
        expected = [out.last_hidden_state, *out.outputs.values()]
        found = answers(saved.path, given)
        assert len(found) == len(expected) == len(saved.outputs)
        for mine, its in zip(expected, found, strict=True):
            real = mask.bool() if mine.shape[:2] == mask.shape else torch.ones(batch, dtype=torch.bool)
            assert float((mine[real] - its[real]).abs().max()) < 1e-5 * max(1.0, float(mine[real].abs().max()))


@pytest.mark.parametrize("name", ["gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in ENCODERS)])
def test_onnxruntime_computes_the_model(name: str, tmp_path: Path) -> None:
    computes_the_model(shrink(preset(name).spec), tmp_path / "m.onnx", (1, 5, 0), (3, 17, 4), (5, 40, 9))


def test_a_context_shorter_than_what_is_traced_at_most(tmp_path: Path) -> None:
    spec = resize(shrink(preset("bert-base").spec), context=8)
    computes_the_model(spec, tmp_path / "m.onnx", (1, 5, 0), (3, 8, 2))


def test_what_the_exporter_cannot_do_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is of the extra `onnx`")

    def fails(*args: Any, **options: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(torch.export, "export", fails)
    with pytest.raises(
        SpecError, match="PyTorch cannot make an ONNX graph of this model: AssertionError; give a directory"
    ):
        write_onnx(af.build(shrink(preset("gpt2").spec)), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_writes_a_file(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is of the extra `onnx`")
    model = randomised(shrink(preset("bert-base").spec))
    af.save(model, tmp_path / "m")
    said = succeeded(run("convert", tmp_path / "m", tmp_path / "m.onnx")).stdout
    assert "is an ONNX graph: input_ids, attention_mask, token_type_ids → last_hidden_state" in said
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["m", "m.onnx"]
    refused(run("convert", tmp_path / "m", tmp_path / "m.onnx"), "exists already")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("t5-small", "has an encoder and a decoder"),
        ("mamba2-130m", "a pass of SSD depends on the number of tokens"),
        ("reformer-enwik8", "a pass of LSHAttention depends on the number of tokens"),
        ("mixtral-8x7b", "a pass of MoE depends on the number of tokens"),
    ],
)
def test_what_is_no_graph_is_refused(name: str, says: str, tmp_path: Path) -> None:
    spec = shrink(preset(name).spec)
    with pytest.raises(SpecError, match=says):
        refuse_graph(spec)
    af.save(af.build(spec, seed=0), tmp_path / "m", form="anyformer")
    with pytest.raises(SpecError, match=says):
        af.convert(tmp_path / "m", tmp_path / "m.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    model = af.build(shrink(preset("bert-base").spec), seed=0)
    af.save(model, tmp_path / "m")
    with pytest.raises(UsageError, match="in float32: leave --to, --class, --dtype, --quantise and --shard-size out"):
        af.convert(tmp_path / "m", tmp_path / "m.onnx", dtype=torch.float16)
    (tmp_path / "there.onnx").touch()
    with pytest.raises(CheckpointError, match="exists already"):
        af.convert(tmp_path / "m", tmp_path / "there.onnx")
    with pytest.raises(UsageError, match="is the name of a file, and a directory is written"):
        af.save(model, tmp_path / "m.onnx")
