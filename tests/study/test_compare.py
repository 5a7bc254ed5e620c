"""The comparison itself on real tiny runs: seeds, learning rates, failures, and what is not done twice."""

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from anyformer.errors import RunFailed, UsageError
from anyformer.recipe import Recipe
from anyformer.spec import ModelSpec
from anyformer.study import compare as module
from anyformer.study.compare import ComparisonTask, named, run_all
from anyformer.text import Corpus, Tokenizer, encode_corpus
from anyformer.text.sources import Document
from anyformer.training.data.text import TextData
from anyformer.training.run import RunOptions, TrainingResult
from anyformer.training.run.progress import Watcher
from anyformer.training.run.signals import Stopped
from tests.sample import in_turn
from tests.training.models import decoder

HOW = RunOptions(device=torch.device("cpu"), validations=4, plan=False, save_every=8, keep_last=1)
RECIPE = Recipe(tokens=1024, batch_tokens=128, seq_len=16)
SPECS = {"first": decoder(vocab=270), "second": decoder(vocab=270, tied=False)}


@pytest.fixture(scope="module")
def data() -> TextData:
    words = ("cat", "dog", "owl", "hen")
    lines = [f"line {i}: the {words[i % 4]} sees the {words[i * 7 % 3]}.\n" for i in range(300)]
    train = Corpus.of(tuple(Document(f"{i}", "".join(lines[i::4])) for i in range(4)))
    held_out = Corpus.of(tuple(Document(f"v{i}", "".join(lines[i::30])) for i in range(3)))
    tokenizer = Tokenizer.train(train.texts(), 270)
    return TextData(encode_corpus(train, tokenizer), encode_corpus(held_out, tokenizer), tokenizer)


class Trained:
    """Counts the runs that are really trained, by directory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.real, self.names, self.failing = module.train, [], {}  # type: ignore[var-annotated]
        monkeypatch.setattr(module, "train", self)
        monkeypatch.setattr(module, "SAMPLE_TOKENS", 9)

    def __call__(self, spec: ModelSpec, recipe: Recipe, data: TextData, *, out: Path, **options: Any) -> TrainingResult:
        self.names.append(out.name.rpartition("-")[0])
        for part, error in self.failing.items():
            if part in out.name:
                raise error
        return self.real(spec, recipe, data, out=out, **options)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Trained:
    return Trained(monkeypatch)


def question(specs: Mapping[str, ModelSpec] = SPECS, **options: Any) -> ComparisonTask:
    return ComparisonTask(architectures=specs, recipe=options.pop("recipe", RECIPE), prompt="line", **options)


def go(asked: ComparisonTask, data: TextData, out: Path) -> Any:
    return run_all(asked, data, out, HOW, lambda _: Watcher())


def test_an_unknown_equality_is_not_that_of_tokens() -> None:
    with pytest.raises(
        UsageError, match=r"not made equal in 'flop' \(did you mean 'flops'\?\); there are tokens, flops"
    ):
        question(equal="flop")


def test_seeds_are_runs_of_their_own(tmp_path: Path, data: TextData, trained: Trained) -> None:
    runs, tuning = go(question(seeds=2), data, tmp_path)
    assert [(run.architecture, run.seed) for run in runs] == [(n, s) for n in SPECS for s in range(2)]
    assert tuning == ()
    assert len(trained.names) == len(set(trained.names)) == 4
    assert len({run.validation_loss for run in runs}) == 4
    assert {run.tokens_seen for run in runs} == {runs[0].tokens_seen}
    assert data.held_out is not None
    assert {tuple(d.nbytes for d in run.documents) for run in runs} == {tuple(data.held_out.document_nbytes.tolist())}
    assert all(run.early_loss is not None and run.sample.startswith("line") for run in runs)
    # The same question: nothing is trained, all is there again. One more seed: only that one is trained.
    trained.names.clear()
    assert go(question(seeds=2), data, tmp_path)[0] == runs
    assert trained.names == []
    assert go(question(seeds=3), data, tmp_path)[0][:2] == runs[:2]
    assert trained.names == ["first-lr0.001-seed2", "second-lr0.001-seed2"]


def test_each_gets_its_best_learning_rate(tmp_path: Path, data: TextData, trained: Trained) -> None:
    rates = (1e-9, 3e-3, 1e-2)
    runs, tuning = go(question(learning_rates=rates, seeds=2), data, tmp_path)
    assert [tune.architecture for tune in tuning] == list(SPECS)
    for tune in tuning:
        losses = {trial.learning_rate: trial.validation_loss for trial in tune.trials}
        assert tuple(losses) == rates
        assert tune.chosen == min(losses, key=lambda rate: losses[rate]) != 1e-9
        chosen = [run for run in runs if run.architecture == tune.architecture]
        assert [(run.seed, run.learning_rate) for run in chosen] == [(0, tune.chosen), (1, tune.chosen)]
        assert chosen[0].validation_loss == losses[tune.chosen]
    assert len(trained.names) == 2 * (3 + 1)  # the other seed is run with the best rate alone


def test_a_failed_run_is_its_row_and_the_others_go_on(tmp_path: Path, data: TextData, trained: Trained) -> None:
    trained.failing["first-lr0.001-seed1"] = RunFailed("the loss is not finite\n at step 7")
    runs, _ = go(question(seeds=2), data, tmp_path)
    assert [run.finished for run in runs] == [True, False, True, True]
    failed = runs[1]
    assert (failed.failure, failed.seed, failed.documents) == ("the loss is not finite at step 7", 1, ())
    assert failed.n_params == runs[0].n_params
    # It is tried again the next time, and it alone.
    trained.names.clear()
    trained.failing.clear()
    assert all(run.finished for run in go(question(seeds=2), data, tmp_path)[0])
    assert trained.names == ["first-lr0.001-seed1"]


def test_what_a_kill_left_of_a_runs_directory_is_not_taken_for_it(
    tmp_path: Path, data: TextData, trained: Trained
) -> None:
    asked = question({"first": SPECS["first"]})
    name = f"first-{module.identity(asked.job('first', None, 0, data), 0)}"
    left = tmp_path / "runs" / f".tmp-4194305-{name}"  # beyond the largest process id
    left.mkdir(parents=True)
    (left / "spec.yaml").write_text("half of it")
    assert all(run.finished for run in go(asked, data, tmp_path)[0])
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [name]


def test_a_rate_that_fails_is_not_chosen(tmp_path: Path, data: TextData, trained: Trained) -> None:
    trained.failing["-lr0.01-"] = RunFailed("the loss is not finite")
    runs, tuning = go(question(learning_rates=(1e-2, 1e-3)), data, tmp_path)
    assert [run.learning_rate for run in runs] == [1e-3, 1e-3]
    assert [trial.validation_loss is None for trial in tuning[0].trials] == [True, False]


@pytest.mark.parametrize("error", [UsageError("output directory in use"), Stopped("stopped by SIGTERM", 15)])
def test_what_stops_all_is_raised(tmp_path: Path, data: TextData, trained: Trained, error: Exception) -> None:
    trained.failing["first"] = error
    with pytest.raises(type(error)):
        go(question(), data, tmp_path)
    assert len(trained.names) == 1


@pytest.mark.parametrize(
    ("call", "error"),
    [
        in_turn("directory.atomic.write_file", OSError(errno.ENOSPC, "No space left on device")),
        in_turn("metrics.os.write", OSError(errno.ENOSPC, "No space left on device")),
        ("checkpoints.save_file", SafetensorError("I/O error: No space left on device (os error 28)")),
    ],
)
def test_a_full_disk_is_no_failure_of_a_model(
    call: str, error: Exception, tmp_path: Path, data: TextData, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(f"anyformer.training.checkpoint.{call}", full)
        with pytest.raises(RunFailed, match="No space left on device"):
            go(question(), data, tmp_path)
    assert len(trained.names) == 1
    assert all(run.finished for run in go(question(), data, tmp_path)[0])


def test_what_would_stop_a_later_run_stops_the_first(tmp_path: Path, data: TextData, trained: Trained) -> None:
    specs = {"first": SPECS["first"], "short": decoder(vocab=270, learned_positions=8)}
    with pytest.raises(UsageError, match="16 tokens go beyond the model's 8 learned positions"):
        go(question(specs), data, tmp_path)
    assert trained.names == []
    assert list(tmp_path.iterdir()) == []


def test_another_prompt_is_continued_without_training(tmp_path: Path, data: TextData, trained: Trained) -> None:
    (before,), _ = go(question({"first": SPECS["first"]}), data, tmp_path)
    trained.names.clear()
    asked = ComparisonTask(architectures={"first": SPECS["first"]}, recipe=RECIPE, prompt="the hen sees")
    (after,), _ = go(asked, data, tmp_path)
    assert trained.names == []
    assert after.sample.startswith("the hen sees")
    assert (after.documents, after.curve) == (before.documents, before.curve)
    assert go(question({"first": SPECS["first"]}), data, tmp_path)[0] == (before,)  # the same words as at first


def test_equal_flops(tmp_path: Path, data: TextData, trained: Trained) -> None:
    (first, second), _ = go(question(equal="flops"), data, tmp_path)
    assert first.tokens_seen != second.tokens_seen or first.flops_per_token == second.flops_per_token
    assert second.flops == pytest.approx(first.flops, rel=0.15)  # to whole steps


def test_a_changed_question_is_another_run(tmp_path: Path, data: TextData, trained: Trained) -> None:
    only = {"first": SPECS["first"]}
    go(question(only), data, tmp_path)
    go(question(only, recipe=RECIPE.but(clip=None)), data, tmp_path)
    go(question({"first": SPECS["second"]}), data, tmp_path)
    assert trained.names == ["first-lr0.001-seed0"] * 3
    assert len(list((tmp_path / "runs").iterdir())) == 3


@pytest.mark.parametrize("name", ["a" * 200, "模" * 200, "é/" * 100])
def test_a_long_name_is_cut_to_what_a_disk_takes(tmp_path: Path, name: str) -> None:
    place = module.directory_of(tmp_path, name, "lr0.001-seed1-0123abcd")
    (tmp_path / f".tmp-4194304-{place.name}").mkdir()  # as it is written aside
    assert 90 < len(place.name.encode()) < 130


def test_two_of_one_name_are_numbered() -> None:
    spec = SPECS["first"]
    assert list(named(["gpt2", "a/gpt2", "gpt2.yaml", "llama2-7b"], [spec] * 4)) == [
        "gpt2",
        "gpt2 (2)",
        "gpt2 (3)",
        "llama2-7b",
    ]
