"""What a user can get wrong, through the command line: one line with thing, value and remedy, and nothing written."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

import anyformer as af
from anyformer.cli import main as cli
from anyformer.disk.lock import Lock
from anyformer.disk.seal import read_manifest, sealed
from anyformer.training.checkpoint import checkpoints as checkpoint
from anyformer.training.step import StepResult, Trainer
from tests.cli.running import SIZES, SMALL, everything, failed, refused, run, succeeded
from tests.hub.edits import settings, tensors

pytestmark = pytest.mark.usefixtures("_quick")
SHARED = {"--vocab": "300", **SIZES}


def train(data: Path, out: Path, *, model: object = "llama2-7b", **changed: str) -> Result:
    """Train with the small sizes but for those changed; an empty one is left out."""
    options = SHARED | {f"--{name.replace('_', '-')}": value for name, value in changed.items()}
    return run("train", model, "--data", data, "--out", out, *(w for o in options.items() if o[1] for w in o))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("cots", "gpt2"), ("no command 'cots'", "did you mean 'cost'")),
        (("cost", "gtp2"), ("no preset 'gtp2'", "did you mean 'gpt2'", "`anyformer presets` lists them")),
        (("presets", "--family", "lama"), ("no family 'lama'", "did you mean 'llama'")),
        (("cost", "gpt2", "--seq-len", "0"), ("--seq-len", "'0' is less than 1, the least that is taken here")),
        (("cost", "gpt2", "--seq-len", "1e3"), ("--seq-len", "'1e3' is not read here as a whole number; write it as")),
        (("cost", "gpt2", "--batch", "1.5"), ("--batch", "'1.5' is not read here as a whole number")),
        (("cost", "gpt2", "--seq-len", "1.0237k"), ("--seq-len", "'1.0237k' is not read here as a whole number")),
        (
            ("compare", "gpt2", "--seeds", "1.5"),
            ("--seeds", "'1.5' is not read here as a whole number; give one from 1"),
        ),
        (("serve", "no", "--port", "70,000"), ("--port", "'70,000' is more than 65,535, the most that is taken here")),
        (("train", "gpt2", "--data", "stdlib", "--seed", "-1.5"), ("--seed", "'-1.5' is less than 0, the least")),
        (
            ("history", "--since", "2020s"),
            ("--since", "'2020s' is not read here as a whole number; give one from 1 to"),
        ),
        (("generate", "--model", "no", "--top-p", "half"), ("--top-p", "'half' is no number from 0 to 1")),
        (("cost", "gpt2", "--dtype", "float23"), ("dtype = 'float23'", "did you mean 'float32'")),
        (("cost", "gpt2", "--convention", "exact"), ("'exact'", "exact-causal")),
        (("show", "gpt2", "--sepc", "yaml"), ("--sepc",)),
        (("show", "nowhere/model"), ("there is nothing at nowhere/model",)),
        (("compare",), ("MODEL",)),
        (("runs", "nowhere"), ("'nowhere' does not exist",)),
        (("evaluate", "nowhere", "--data", "stdlib", "--device", "cpu"), ("nothing at nowhere", "give a model's dir")),
        (("evaluate", "nowhere"), ("give either --data, or --source and --target",)),
        (("convert", "nowhere", "out"), ("nothing at nowhere", "give a model's directory")),
        (("generate", "--model", "gpt2", "x"), ("gpt2 is an architecture without weights",)),
        (("tokenizer", "train", "nowhere.txt", "--out", "out"), ("no corpus at nowhere.txt",)),
        (
            ("tokenizer", "train", "mix.yaml", "--out", "out"),
            ("mix.yaml is a mixture by its name", "give one of the texts"),
        ),
        (("tokenizer", "train", "", "--out", "out"), ("a corpus has an empty name",)),
        (("tokenizer", "train", "stdlib", "--out", ""), ("'--out'", "the name is empty; give one, or . for the dir")),
        (("evaluate", "", "--data", "stdlib"), ("'DIR'", "the name is empty")),
        (("embed", "--model", "gpt2", "--text", "a", "--out", ""), ("'--out'", "the name is empty")),
        (("generate", "--model", "", "x"), ("the name of the model is empty; give a model's directory",)),
        (("train", "gpt2", "--data", "", "--out", "out"), ("a corpus has an empty name",)),
        (("tokenizer", "encode", "--tokenizer", "nowhere"), ("'nowhere' does not exist",)),
    ],
    ids=lambda value: " ".join(value),
)
def test_names_and_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(run(*arguments), *says)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("d_ff:", "d_fff:", ("no field 'd_fff'", "did you mean 'd_ff'", "blocks.a.sublayers[1]")),
        ("kind: Attention", "kind: Atention", ("'Atention'", "did you mean 'Attention'")),
        ("n_kv_heads: 2", "n_kv_heads: 3", ("n_heads = 4", "must be a multiple of n_kv_heads = 3")),
        ("d_model: 32", "d_model: 36", ("9", "even")),  # 4 heads of 9 features do not rotate in pairs
        ("d_model: 32", "d_model: wide", ("stack.d_model = 'wide'", "int")),
        ("anyformer: 1", "anyformer: 7", ("version 7", "this is version 1")),
        ("anyformer: 1", "anyformer: [", ("neither JSON nor YAML",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("command", ["show", "cost", "train"])
def test_a_specification_that_cannot_be(
    tmp_path: Path, text: Path, command: str, before: str, after: str, says: tuple[str, ...]
) -> None:
    good = af.dumps(af.shrink(af.preset("llama2-70b")))
    assert before in good
    file = tmp_path / "mine.yaml"
    file.write_text(good.replace(before, after), encoding="utf-8")
    more = ("--data", text, "--out", tmp_path / "out", "--device", "cpu") if command == "train" else ()
    refused(run(command, file, *more), *says)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("recipe: 1\ntokenz: 5\n", ("no field 'tokenz'", "did you mean 'tokens'")),
        ("recipe: 1\ntokens: 0\n", ("tokens = 0", "must be at least 1")),
        ("recipe: 1\nclip: -1.0\n", ("clip = -1.0", "must be above 0, or null")),
        ("recipe: 2\n", ("version 2", "this is version 1")),
        ("tokens: 5\n", ("no first key 'recipe: 1'",)),
        (None, ("cannot read the recipe", "No such file")),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_recipe_that_cannot_be(
    tmp_path: Path, text: Path, command: str, written: str | None, says: tuple[str, ...]
) -> None:
    file = tmp_path / "mine.yaml"
    if written is not None:
        file.write_text(written, encoding="utf-8")
    words = (command, "gpt2", "--data", text, "--out", tmp_path / "out", "--recipe", file, "--device", "cpu")
    refused(run(*words), str(file) if "=" not in says[0] else "Recipe.", *says)
    assert not (tmp_path / "out").exists()


CORPORA: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "empty": (lambda p: p.write_text(""), ("is empty", "give one that holds text")),
    "binary": (lambda p: p.write_bytes(b"ab\0cd"), ("is binary", "byte 0 at offset 2")),
    "undecodable": (lambda p: p.write_bytes(b"abc\xff"), ("not UTF-8", "0xff at offset 3", "convert it")),
    "an empty folder": (lambda p: p.mkdir(), ("no documents in", ".txt")),
    "missing": (lambda p: None, ("no corpus at", "give a file, a folder, an address", "or the word stdlib")),
    "one line": (lambda p: p.write_text("one line, no more"), ("validation split is empty", "several lines")),
    "less than a batch": (lambda p: p.write_text("ab\ncd\n" * 5), ("less than one batch of 8", "give more text")),
}


@pytest.mark.parametrize(("write", "says"), CORPORA.values(), ids=list(CORPORA))
@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_corpus_that_cannot_be_used(
    tmp_path: Path, command: str, write: Callable[[Path], object], says: tuple[str, ...]
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    write(data)
    small = SMALL if command == "train" else (*SMALL, "--validation", "0.3")
    refused(run(command, "llama2-7b", "--data", data, "--out", out, *small), *says)
    assert not out.exists()


def test_a_validation_split_that_would_be_empty(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in ("a", "b"):
        (data / f"{name}.txt").write_text("many words\n" * 100)
    refused(train(data, tmp_path / "out"), "the validation split is empty", "50.0%", "0.05", "raise it")
    assert not (tmp_path / "out").exists()


def test_sizes_that_do_not_fit(tmp_path: Path, text: Path, trained: Path) -> None:
    out, tokenizer = tmp_path / "out", str(trained / "tokenizer")
    refused(train(text, out, tokenizer=tokenizer, vocab="260"), "vocabulary of 260", "300", "--vocab 300")
    refused(train(text, out, model="gpt2", seq_len="2048", batch_tokens="2048"), "2048", "1024 learned positions")
    refused(train(text, out, batch_tokens="100"), "batch_tokens = 100", "must be a multiple of seq_len = 32")
    refused(train(text, out, params="9"), "no model of this architecture has about 9 parameters", "nearest")
    assert not out.exists()


def test_a_run_given_as_a_text(tmp_path: Path, trained: Path) -> None:
    for of_run in (trained, next(iter((trained / "checkpoints").iterdir()))):
        said = f"{of_run} is of a run, and no text; give the text that is to be read"
        refused(train(of_run, tmp_path / "out"), said)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "run.json").write_text("{}")  # as anybody's may be called
    (tmp_path / "texts" / "a.txt").write_text("a text\n" * 500)
    succeeded(run("tokenizer", "train", tmp_path / "texts", "--vocab", "260", "--out", tmp_path / "tokenizer"))


class TestCheckpoints:
    @pytest.fixture
    def broken(self, tmp_path: Path, trained: Path) -> Path:
        """A run, to be spoilt."""
        return shutil.copytree(trained, tmp_path / "run")

    @staticmethod
    def weights(out: Path) -> Path:
        return max((out / "checkpoints").glob("step-*")) / "model.safetensors"

    def spoil(self, kind: str, out: Path) -> None:
        file = self.weights(out)
        content = bytearray(file.read_bytes())
        if kind == "missing":
            file.unlink()
        elif kind == "truncated":
            file.write_bytes(content[:-100])
        else:
            content[-5] ^= 1
            file.write_bytes(content)

    @pytest.mark.parametrize("kind", ["missing", "truncated", "corrupted"])
    def test_read_and_gone_on_with(self, kind: str, broken: Path, text: Path, tmp_path: Path) -> None:
        self.spoil(kind, broken)
        before, name = everything(broken), str(self.weights(broken))
        for command in (
            ("evaluate", broken, "--data", text, "--device", "cpu"),
            ("generate", "--model", broken, "x", "--device", "cpu"),
            ("convert", broken, tmp_path / "out"),
        ):
            refused(run(*command), name if kind == "corrupted" else str(self.weights(broken).parent))
        refused(train(text, broken), name, kind, "restore it from a copy, or delete")
        assert everything(broken) == before
        assert not (tmp_path / "out").exists()

    def test_none_yet(self, broken: Path, text: Path) -> None:
        shutil.rmtree(broken / "checkpoints")
        (broken / "checkpoints").mkdir()
        refused(run("evaluate", broken, "--data", text, "--device", "cpu"), "without a complete checkpoint")

    def test_nothing_to_resume(self, tmp_path: Path, text: Path) -> None:
        refused(run("train", "gpt2", "--data", text, "--out", tmp_path / "out", "--resume", *SMALL), "there is no run")
        assert not (tmp_path / "out").exists()

    def test_of_another_specification(self, trained: Path, text: Path, tmp_path: Path) -> None:
        before = everything(trained)
        refused(
            train(text, trained, model="llama-7b"),
            f"{trained} holds a run of another spec: stack.blocks[0].sublayers[0].norm_in.eps is 1e-05 there and 1e-06",
            "name a new directory",
        )
        refused(train(text, trained, lr="0.5"), "another recipe: optimizer.lr is 0.001 there and 0.5 here")
        other = tmp_path / "other.txt"
        other.write_text("quite another text\n" * 500)
        refused(train(other, trained), "holds a run on another data", "or another --validation); go on with")
        assert everything(trained) == before
        refused(
            train(text, tmp_path / "out", model="llama-7b", init=str(trained)),
            f"the weights in {trained} are of another architecture: stack.blocks[0].sublayers[0].norm_in.eps is 1e-05",
            f"give {trained} as the specification too, or leave --init out",
        )
        assert not (tmp_path / "out").exists()


def pickle_only(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


NORM, EXTRA, UP = "model.norm.weight", "model.extra.weight", "model.layers.0.mlp.up_proj.weight"
FOREIGN: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "architecture": (
        lambda d: settings(d, model_type="lama", architectures=["LamaForCausalLM"]),
        ("model_type 'lama'", "are those of 'llama'"),
    ),
    "missing": (lambda d: tensors(d, lambda held: held.pop(NORM)), (f"missing: {NORM}",)),
    "surplus": (
        lambda d: tensors(d, lambda held: held.update({EXTRA: torch.zeros(1)})),
        (f"surplus: {EXTRA}",),
    ),
    "shape": (
        lambda d: tensors(d, lambda held: held.update({NORM: torch.zeros(3)})),
        (f"{NORM} is [3], not [40]",),
    ),
    "pickle": (pickle_only, ("pickled weights only (pytorch_model.bin)", "safetensors")),
}


@pytest.mark.parametrize(("spoil", "says"), FOREIGN.values(), ids=list(FOREIGN))
def test_a_foreign_directory(
    tmp_path: Path, text: Path, converted: Path, spoil: Callable[[Path], object], says: tuple[str, ...]
) -> None:
    spoilt = shutil.copytree(converted, tmp_path / "model")
    spoil(spoilt)
    refused(run("convert", spoilt, tmp_path / "out"), str(spoilt), *says)
    refused(run("generate", "--model", spoilt, "x", "--device", "cpu"), *says)
    refused(run("evaluate", spoilt, "--data", text, "--device", "cpu"), *says)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_a_directory_in_use(tmp_path: Path, text: Path, trained: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes").write_text("of mine")
    refused(train(text, mine), f"{mine} holds no run but other things, such as notes", "new or an empty directory")
    refused(run("convert", trained, mine), f"{mine} exists already", "give a new directory")
    assert everything(mine) == {"notes": b"of mine"}
    succeeded(run("tokenizer", "train", text, "--vocab", "270", "--out", mine))
    before = everything(mine)
    refused(run("tokenizer", "train", text, "--vocab", "280", "--out", mine), f"{mine} holds a tokenizer already")
    assert everything(mine) == before
    running = shutil.copytree(trained, tmp_path / "running")
    lock = Lock(running / "lock", running)
    try:
        refused(train(text, running), "output directory in use", str(running), "running process")
    finally:
        lock.release()


def test_a_disk_that_fills_up(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second save fails; the first stays good, and the same command goes on from there."""
    saves, save_file = [0], checkpoint.save_file

    def filling(tensors: dict[str, torch.Tensor], path: Path) -> None:
        saves[0] += path.name == "optimizer.safetensors"
        if saves[0] == 2:
            raise OSError(28, "No space left on device", str(path))
        save_file(tensors, path)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", filling)
        failed(
            train(text, out),
            "cannot save the checkpoint",
            "No space left on device",
            f"the last good checkpoint is {out / 'checkpoints' / 'step-00000002'}",
            "make room",
        )
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-00000002"]
    sealed(out / "checkpoints" / "step-00000002")
    succeeded(train(text, out))


def test_a_folder_that_cannot_be_written(tmp_path: Path, text: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    result = train(text, tmp_path / "file" / "out")
    place = tmp_path / "file" / "out"
    failed(result, f"cannot create the run's directory {place}: Not a directory")
    failed(run("tokenizer", "train", text, "--vocab", "270", "--out", place), str(place), "Not a directory")
    failed(run("compare", "gpt2", "--data", text, "--out", place, *SMALL), str(place), "Not a directory")


def test_a_loss_that_is_no_number(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the fifth of 8 steps, with a checkpoint at each."""
    out, real = tmp_path / "out", Trainer.step

    def poisoned(self: Trainer, number: int, batch: Any) -> StepResult:
        result = real(self, number, batch)
        return result._replace(loss=float("nan")) if number == 5 else result

    monkeypatch.setattr(Trainer, "step", poisoned)
    result = train(text, out, tokens="2048")
    kept = max((out / "checkpoints").glob("step-*"))
    failed(result, "loss is not finite at step 5;", f"the last good checkpoint is {kept}", "lower learning rate")
    sealed(kept)
    assert read_manifest(kept)["step"] == 4


def test_a_learning_rate_that_blows_weights_up_leaves_no_checkpoint_of_them(tmp_path: Path, text: Path) -> None:
    result = train(text, tmp_path / "out", lr="1e30", tokens="2048")
    failed(result, "the validation loss is not finite after step 1; there is no checkpoint yet", "lower learning rate")
    assert not list((tmp_path / "out/checkpoints").glob("step-*"))


def test_nothing_leaks_a_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The whole program as it is started, for once: the frame's way out, not the test runner's."""
    monkeypatch.setattr(sys, "argv", ["anyformer"])
    with pytest.raises(SystemExit) as ended:
        cli.main(["show", str(tmp_path / "none.yaml")])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    "command",
    [
        "evaluate run",
        "inspect run",
        "compare llama2",
        "study some.yaml",
        "convert a b",
        "tokenizer compare bpe",
        "tokenizer audit run",
        "generate --model run",
        "embed --model run",
        "classify --model run",
    ],
)
def test_a_text_that_is_read_alone_is_one(command: str, text: Path) -> None:
    twice = run(*command.split(), "--data", text, "--data", text)
    refused(twice, "'--data'", f"2 are given, {text}, {text}; give one")


@pytest.mark.parametrize("command", ["train gpt2", "compare gpt2 llama2"])
def test_so_is_what_a_run_is_validated_on(command: str, text: Path) -> None:
    words = (*command.split(), "--data", text, "--recipe", "none.yaml", "--out", "out")
    refused(run(*words, "--validation-data", text, "--validation-data", text), "'--validation-data'", "2 are given")


def test_a_weight_is_of_a_mixture(text: Path) -> None:
    says = f"one text is read here, and no mixture, whose texts have weights; give {text}"
    refused(run("evaluate", "run", "--data", f"{text}=0.7"), "'--data'", says)
