"""A run of which any file is not what was written is refused by every reader, in one line that names the file."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from click.testing import Result

from anyformer.disk.run_layout import RECORD, checkpoints_in
from anyformer.disk.seal import FORMAT, read_manifest, read_seal, seal
from tests.cli.running import SMALL, failed, refused, run, succeeded

pytestmark = pytest.mark.usefixtures("_quick")


@pytest.fixture
def damaged(tmp_path: Path, trained: Path) -> Path:
    """A copy to be damaged, alone in its folder."""
    return Path(shutil.copytree(trained, tmp_path / "runs" / "run"))


def newest(out: Path) -> Path:
    return checkpoints_in(out / "checkpoints")[-1]


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) * 2 // 3] ^= 1
    file.write_bytes(content)


def eps(out: Path) -> Path:
    file = out / "spec.yaml"
    text = file.read_text()
    assert "1.0e-05" in text, text
    file.write_text(text.replace("1.0e-05", "1.0e-01"))
    return file


def ids(out: Path) -> Path:
    """Swap two ids of the vocabulary."""
    file = out / "tokenizer" / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    a, b = list(vocabulary)[70:72]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    file.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return file


def recipe(out: Path) -> Path:
    file = out / "recipe.yaml"
    text = file.read_text()
    file.write_text(text.replace("seq_len: 32", "seq_len: 16"))
    assert file.read_text() != text
    return file


def labels(out: Path) -> Path:
    (out / "labels.json").write_text('{"labels": ["a", "b"]}')
    return out / "labels.json"


def template(out: Path) -> Path:
    (out / "tokenizer" / "chat_template.jinja").write_text("{{ messages }}")
    return out / "tokenizer" / "chat_template.jinja"


def index(out: Path) -> Path:
    file = newest(out) / "model.safetensors.index.json"
    file.write_text('{"weight_map": {}}')
    return file


def lost(name: str) -> Callable[[Path], Path]:
    def change(out: Path) -> Path:
        file = newest(out) / name if name in CHECKPOINT else out / name
        file.unlink()
        return file

    return change


def flipped(name: str) -> Callable[[Path], Path]:
    def change(out: Path) -> Path:
        file = newest(out) / name if name in CHECKPOINT else out / name
        flip(file)
        return file

    return change


def renamed(out: Path) -> Path:
    return newest(out).rename(out / "checkpoints" / "step-00009999")


CHECKPOINT = ("manifest.json", "model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json")
CHECKPOINT = (*CHECKPOINT, "metrics.jsonl")
RUN = ("run.json", "spec.yaml", "recipe.yaml", "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json")
OF_RUN: dict[str, Callable[[Path], Path]] = {
    **{change.__name__: change for change in (eps, ids, recipe, labels, template)},
    **{f"{name} flipped": flipped(name) for name in RUN},
    **{f"{name} lost": lost(name) for name in RUN},
}
OF_CHECKPOINT: dict[str, Callable[[Path], Path]] = {
    **{change.__name__: change for change in (index, renamed)},
    **{f"{name} flipped": flipped(name) for name in CHECKPOINT},
    **{f"{name} lost": lost(name) for name in CHECKPOINT if name != "manifest.json"},
}

Reader = Callable[[Path, Path], Result]
OF_SPECIFICATIONS: dict[str, Reader] = {
    "show": lambda out, _: run("show", out),
    "cost": lambda out, _: run("cost", out),
    "profile": lambda out, _: run("profile", out, "--device", "cpu"),
    "compare": lambda out, text: run("compare", out, "gpt2", "--data", text, "--out", out.parent / "study", *SMALL),
}
OF_WEIGHTS: dict[str, Reader] = {
    "resume": lambda out, text: run("train", "llama2-7b", "--data", text, "--out", out, *SMALL),
    "init": lambda out, text: run(
        "train", "llama2-7b", "--data", text, "--out", out.parent / "new", "--init", out, *SMALL
    ),
    "evaluate": lambda out, text: run("evaluate", out, "--data", text, "--device", "cpu"),
    "evaluate a checkpoint": lambda out, text: run("evaluate", newest(out), "--data", text, "--device", "cpu"),
    "generate": lambda out, _: run("generate", "--model", out, "line", "--max-new-tokens", "2", "--device", "cpu"),
    "convert": lambda out, _: run("convert", out, out.parent / "hf"),
    "verify": lambda out, _: run("verify", out),
}


USUAL = ("eps", "ids", "evaluate", "optimizer.safetensors flipped")


def pairs(changes: Iterable[str], readers: Iterable[str]) -> list[ParameterSet]:
    """Every change with every reader; those of no usual change or reader are slow."""
    each = ((change, reader) for change in changes for reader in readers)
    return [pytest.param(*pair, marks=() if set(pair) & set(USUAL) else pytest.mark.slow) for pair in each]


@pytest.mark.parametrize(("change", "reader"), pairs(OF_RUN, [*OF_SPECIFICATIONS, *OF_WEIGHTS]))
def test_a_file_of_the_run(damaged: Path, text: Path, change: str, reader: str) -> None:
    file = OF_RUN[change](damaged)
    result = (OF_SPECIFICATIONS | OF_WEIGHTS)[reader](damaged, text)
    refused(result, str(file), "move it elsewhere" if change in ("labels", "template") else "restore it from a copy")
    if file.name == "spec.yaml":
        assert f"--init {damaged}" in result.stderr


@pytest.mark.parametrize(("change", "reader"), pairs(OF_CHECKPOINT, OF_WEIGHTS))
def test_a_file_of_the_checkpoint(damaged: Path, text: Path, change: str, reader: str) -> None:
    file = OF_CHECKPOINT[change](damaged)
    refused(OF_WEIGHTS[reader](damaged, text), str(file))


@pytest.mark.parametrize(
    "change", [*OF_RUN, *sorted(set(OF_CHECKPOINT) - {f"{name} flipped" for name in CHECKPOINT[1:5]})]
)
def test_the_list_of_runs(damaged: Path, change: str, caplog: pytest.LogCaptureFixture) -> None:
    """It reads no weights: of these it compares the sizes."""
    file = (OF_RUN | OF_CHECKPOINT)[change](damaged)
    listed = json.loads(succeeded(run("runs", damaged.parent, "--json")).stdout)["runs"]
    assert [each["state"] for each in listed] == ["damaged"]
    assert str(file) in caplog.text


def test_another_runs_checkpoint(damaged: Path, text: Path, trained: Path) -> None:
    """It is whole and of the same architecture; the specification beside it is another's."""
    record = read_seal(damaged / RECORD, "")
    (damaged / RECORD).write_bytes(seal({**record, "seed": 5}))
    for reader in OF_WEIGHTS.values():
        refused(reader(damaged, text), str(damaged / RECORD), newest(damaged).name, "another run")


def test_an_older_checkpoint_is_taken_aloud(damaged: Path, text: Path, caplog: pytest.LogCaptureFixture) -> None:
    older, last = checkpoints_in(damaged / "checkpoints")[-2:]
    (last / "manifest.json").unlink()
    with caplog.at_level(logging.WARNING):
        succeeded(run("evaluate", damaged, "--data", text, "--device", "cpu"))
    assert f"passing over the checkpoint {last}" in caplog.text
    assert older.exists()


@pytest.mark.parametrize("name", ["resume", "evaluate", "runs"])
def test_a_checkpoint_is_passed_over_only_where_nothing_is_refused(
    name: str, damaged: Path, text: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (newest(damaged) / "manifest.json").unlink()
    file = ids(damaged)
    if name == "runs":
        succeeded(run("runs", damaged.parent))
    else:
        refused(OF_WEIGHTS[name](damaged, text), str(file))
    assert "passing over" not in caplog.text


@pytest.mark.parametrize("name", ["resume", "evaluate"])
def test_a_record_that_says_nothing_is_no_older_one(name: str, damaged: Path, text: Path) -> None:
    shutil.copyfile(damaged / "recipe.yaml", damaged / RECORD)
    refused(OF_WEIGHTS[name](damaged, text), str(damaged / RECORD))


def test_an_older_run_is_read_and_it_is_said_once(damaged: Path, text: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As the version before wrote it: no seal of the run, no metrics in the checkpoint."""
    record = read_seal(damaged / RECORD, "")
    del record["files"]
    (damaged / RECORD).write_text(json.dumps({**record, "format": 1}, indent=1) + "\n")
    for checkpoint in checkpoints_in(damaged / "checkpoints"):
        manifest = read_manifest(checkpoint)
        (checkpoint / "metrics.jsonl").unlink()
        files = {name: saved for name, saved in manifest["files"].items() if name != "metrics.jsonl"}
        old = {"format": 1, "step": manifest["step"], "metric": manifest["metric"], "files": files}
        (checkpoint / "manifest.json").write_bytes(seal(old))
    before = (damaged / "metrics.jsonl").read_bytes()
    with caplog.at_level(logging.WARNING):
        for reader in ("resume", "evaluate", "generate"):
            succeeded(OF_WEIGHTS[reader](damaged, text))
    assert caplog.text.count(f"{damaged} is of an older version") == 1
    assert (damaged / "metrics.jsonl").read_bytes() == before
    lines = before.splitlines(keepends=True)
    (damaged / "metrics.jsonl").write_bytes(b"".join([*lines[:3], b"half", *lines[3:]]))
    with caplog.at_level(logging.WARNING):
        succeeded(OF_WEIGHTS["resume"](damaged, text))
    assert "metrics.jsonl is damaged or edited" in caplog.text
    assert (damaged / "metrics.jsonl.damaged-1").read_bytes().count(b"half") == 1


def test_a_format_to_come(damaged: Path, text: Path) -> None:
    record = read_seal(damaged / RECORD, "")
    (damaged / RECORD).write_bytes(seal({**record, "format": FORMAT + 1}))
    refused(OF_WEIGHTS["evaluate"](damaged, text), f"format {FORMAT + 1}", f"reads formats 1 to {FORMAT}")


class TestMetrics:
    """They come back as they were, and what was there instead is kept aside."""

    @pytest.mark.parametrize("change", ["a line", "a loss", "gone", "cut", "a directory", "bytes"])
    def test_of_a_stopped_run(self, damaged: Path, text: Path, change: str, caplog: pytest.LogCaptureFixture) -> None:
        file = damaged / "metrics.jsonl"
        before = file.read_bytes()
        lines = before.splitlines(keepends=True)
        match change:
            case "a line":
                file.write_bytes(b"".join([*lines[:4], b'{"step": 5, "tok\n', *lines[5:]]))
            case "a loss":
                loss = json.loads(lines[4])["loss"]
                file.write_bytes(before.replace(f'"loss": {loss}'.encode(), b'"loss": 0.125'))
            case "cut":
                file.write_bytes(before[: len(before) // 2])
            case "bytes":
                file.write_bytes(bytes(len(before)))
            case _:
                file.unlink()
                if change == "a directory":
                    file.mkdir()
        kept = file.read_bytes() if file.is_file() else None
        with caplog.at_level(logging.WARNING):
            assert json.loads(run("runs", damaged.parent, "--json").stdout)["runs"][0]["state"] == "damaged"
            succeeded(OF_WEIGHTS["resume"](damaged, text))
        assert file.read_bytes() == before
        words = "missing" if change == "gone" else "damaged or edited"
        assert f"{file} is {words}: it is made anew from the checkpoint of step 16" in caplog.text
        aside = damaged / "metrics.jsonl.damaged-1"
        assert aside.exists() == (change != "gone")
        assert kept is None or aside.read_bytes() == kept
        caplog.clear()
        succeeded(OF_WEIGHTS["resume"](damaged, text))
        assert "metrics" not in caplog.text

    def test_twice(self, damaged: Path, text: Path) -> None:
        for n in (1, 2):
            (damaged / "metrics.jsonl").write_text(f"mine {n}")
            succeeded(OF_WEIGHTS["resume"](damaged, text))
            assert (damaged / f"metrics.jsonl.damaged-{n}").read_text() == f"mine {n}"


def test_figures_of_a_comparison(tmp_path: Path, text: Path) -> None:
    command = ("compare", "llama2", "--data", text, "--out", tmp_path / "out", *SMALL)
    succeeded(run(*command))
    (file,) = (tmp_path / "out" / "runs").glob("*/result.json")
    file.write_text(file.read_text().replace('"tokens_seen": ', '"tokens_seen": 1'))
    result = run(*command)
    assert result.exit_code == 2
    assert f"error: {file} is damaged" in result.stderr.splitlines()[-1]
    assert "delete it" in result.stderr
    file.unlink()
    succeeded(run(*command))
    flip(newest(file.parent) / "optimizer.safetensors")
    result = run(*command)
    assert result.exit_code == 2
    assert str(newest(file.parent) / "optimizer.safetensors") in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "writes", "says"),
    [
        ("metrics.jsonl", 5, r"cannot write \S+/metrics.jsonl, which needs \d+ bytes more: "),
        ("step-00000006/metrics.jsonl", 0, r"checkpoint \S+/step-00000006, which needs [\d,]+ bytes: metrics.jsonl: "),
        ("step-00000006/state.json", 0, r"checkpoint \S+/step-00000006, which needs [\d,]+ bytes: state.json: "),
        ("step-00000006/manifest.json", 0, r"checkpoint \S+/step-00000006, which needs [\d,]+ bytes: manifest.json: "),
    ],
)
def test_a_disk_that_fills_up(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, name: str, writes: int, says: str
) -> None:
    """Which file, how much it needs, and that the former checkpoint is good; a file takes so many `writes` before."""
    out, write, left = tmp_path / "run", os.write, [writes]

    def full(descriptor: int, content: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(name):
            if not left[0]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            left[0] -= 1
        return write(descriptor, content)

    command = ("train", "llama2-7b", "--data", text, "--out", out, *SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        result = run(*command)
    failed(result, "No space left on device; the last good checkpoint is", "make room", "then start again")
    assert re.search(says, result.stderr), result.stderr
    good = checkpoints_in(out / "checkpoints")[-1]
    assert f"the last good checkpoint is {good};" in result.stderr
    succeeded(run("evaluate", good, "--data", text, "--device", "cpu"))
    succeeded(run(*command))


def test_figures_that_find_no_room(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("compare", "llama2", "--data", text, "--out", tmp_path / "out", *SMALL)
    write = os.write

    def full(descriptor: int, content: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("result.json"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        failed(run(*command), "result.json, which needs", "No space left on device", "last checkpoint is good")
    succeeded(run(*command))
