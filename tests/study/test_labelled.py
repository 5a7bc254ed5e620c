"""Comparisons by labels and by other losses: what is judged, what is drawn and what is left out, on real tiny runs."""

import csv
import io
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anyformer import layers
from anyformer.errors import UsageError
from anyformer.families import with_classifier
from anyformer.inference import classify
from anyformer.inference.figures import right_labels
from anyformer.measure.calibrate import Machine
from anyformer.recipe import (
    AdamW,
    Classification,
    Contrastive,
    LoRA,
    MaskedLM,
    ObjectiveSpec,
    Recipe,
    Regression,
    ReplacedTokens,
    Seq2Seq,
    TokenClassification,
)
from anyformer.resizing import resize
from anyformer.spec import ModelSpec
from anyformer.study import compare as module
from anyformer.study.compare import ComparisonTask, run_all
from anyformer.study.describe import describe
from anyformer.study.report import render_report
from anyformer.study.results import ACCURACY, BITS, LOSS, DocumentLoss, RunResult, Study
from anyformer.study.statistics import analyse, bootstrap_ratio, t_interval
from anyformer.study.table import as_json, results_table
from anyformer.text import LabelledCorpus, LabelledRow, Tokenizer
from anyformer.training.data.feed import TrainingData
from anyformer.training.objectives.labelled.data import LabelledData
from anyformer.training.run import RunOptions
from anyformer.training.run.progress import Watcher
from tests.study.studies import one_seed, run, three_seeds
from tests.training.models import decoder
from tests.training.noisy import text_data

HOW = RunOptions(device=torch.device("cpu"), validations=2, plan=False, save_every=100, keep_last=1)
ANIMALS, TOOLS = ("cat", "dog", "owl"), ("saw", "axe", "pen")


def examples(n: int, seed: int) -> LabelledCorpus:
    rng = random.Random(seed)
    rows = []
    for line in range(1, n + 1):
        label = rng.choice(("animal", "tool", "tool"))
        word = rng.choice(ANIMALS if label == "animal" else TOOLS)
        rows.append(LabelledRow((f"there is {rng.choice(('a', 'one', 'some'))} {word} here",), label, line))
    return LabelledCorpus(tuple(rows), "classes", "examples.jsonl")


@pytest.fixture(scope="module")
def data() -> LabelledData:
    train, held_out = examples(200, 1), examples(40, 2)
    return LabelledData(train, held_out, Tokenizer.train(train.texts(), 280))


def recipe(objective: ObjectiveSpec, **changes: Any) -> Recipe:
    given = Recipe(objective=objective, tokens=12 * 160, batch_tokens=160, seq_len=32, optimizer=AdamW(lr=3e-3))
    return given.but(**changes)


def specs(data: TrainingData) -> dict[str, ModelSpec]:
    found = {"encoder": decoder(layers.Everything()), "decoder": decoder()}
    return {name: resize(with_classifier(spec, 2), vocab_size=data.vocab_size) for name, spec in found.items()}


def has_spec(question: ComparisonTask, runs: Any, tuning: Any, data: TrainingData) -> Study:
    machine = Machine("a processor", "cpu", 1, "2", {"float32": 1e11}, 1e10)
    return describe(question, runs, tuning, data, corpus="memory://files: some", command="compare", machine=machine)


@pytest.fixture(scope="module")
def studied(data: LabelledData, tmp_path_factory: pytest.TempPathFactory) -> Study:
    question = ComparisonTask(
        architectures=specs(data), recipe=recipe(Classification()), seeds=2, learning_rates=(1e-6, 1e-2)
    )
    runs, tuning = run_all(question, data, tmp_path_factory.mktemp("out"), HOW, lambda _: Watcher())
    return has_spec(question, runs, tuning, data)


def test_a_title_has_the_whole_name_of_the_text(studied: Study) -> None:
    assert studied.title == "encoder and decoder on memory://files"


def test_what_is_judged_follows_from_the_objective() -> None:
    by = {objective: ComparisonTask(architectures={"a": decoder()}, recipe=recipe(objective)).score for objective in (
        Classification(), TokenClassification(), Regression(), MaskedLM(), Recipe().objective
    )}  # fmt: skip
    assert list(by.values()) == [ACCURACY, ACCURACY, LOSS, LOSS, BITS]


def test_accuracy_is_the_share_of_the_labels_that_the_model_says(data: LabelledData) -> None:
    """Against `classify`, text by text."""
    from anyformer.training.run import train

    spec = specs(data)["decoder"]
    model = train(spec, recipe(Classification()), data, options=HOW).model
    model.labels = data.labels
    assert data.held_out is not None
    right = right_labels(model, data, recipe(Classification()))
    said = [one.label for one in classify(model, data.tokenizer, [row.texts[0] for row in data.held_out.rows])]
    assert list(right) == [int(label == row.label) for label, row in zip(said, data.held_out.rows, strict=True)]
    assert sum(right) > 0


def test_a_study_of_labels_says_accuracy_by_seed(studied: Study) -> None:
    assert (studied.score, studied.counted, studied.documents) == ("accuracy", "label", "examples")
    assert studied.unit == "nats per label"
    for one in studied.runs:
        assert len(one.right) == len(one.documents) == 40
        assert one.accuracy == pytest.approx(sum(one.right) / 40)
        assert one.sample == ""
    analysis = analyse(studied)
    assert analysis.method == "seeds"
    for finding in analysis.findings:
        values = [one.accuracy or 0.0 for one in studied.of(finding.architecture)]
        assert finding.score == t_interval(values)
    assert Study.from_json(studied.to_json()) == studied


def test_the_rate_is_chosen_by_what_is_judged(studied: Study) -> None:
    for tuning in studied.tuning:
        scores = {trial.learning_rate: trial.score for trial in tuning.trials}
        assert scores[tuning.chosen] == max(score for score in scores.values() if score is not None)
    by_loss = (replace(run("gpt2", 0), right=(2,) * 60), replace(run("gpt2", 1), right=(1,) * 60))
    assert min(by_loss, key=lambda one: module.rank(one, ACCURACY)) is by_loss[0]
    assert module.rank(replace(by_loss[0], documents=(), right=(), failure="x"), ACCURACY)[0] == math.inf


def test_the_floor_is_the_commonest_label(studied: Study, data: LabelledData) -> None:
    assert data.held_out is not None
    (floor,) = studied.baselines
    tools = [row.label for row in data.held_out.rows].count("tool") / 40
    assert (floor.name, floor.score) == ("the commonest label", pytest.approx(tools))
    assert floor.loss == pytest.approx(-(tools * math.log(2 / 3) + (1 - tools) * math.log(1 / 3)), abs=0.05)


def test_what_means_nothing_is_left_out(studied: Study) -> None:
    analysis = analyse(studied)
    page, table = render_report(studied, analysis), shown(studied, 100)
    for text in (page, table):
        assert "accuracy" in text
        for absent in ("bits per byte", "perplexity", "plexity", "tokens per second", "tokens\n/s"):
            assert absent not in text
    assert "Samples" not in page
    assert "labels per second" in page.replace("<br>", " ")
    rows = list(csv.DictReader(io.StringIO(studied.to_csv())))
    assert "bits_per_byte" not in rows[0]
    assert [float(row["accuracy"]) for row in rows] == [one.accuracy for one in studied.runs]
    answer = json.loads(json.dumps(as_json(studied, analysis)))
    assert (answer["score"], answer["higher"], answer["counted"]) == ("accuracy", True, "label")
    assert all(row["perplexity"] is None for row in answer["rows"])
    assert answer["rows"][0]["accuracy"] == pytest.approx(
        np.mean([one.accuracy or 0.0 for one in studied.of("encoder")])
    )


def shown(study: Study, width: int) -> str:
    from rich.console import Console

    console = Console(width=width, record=True, file=io.StringIO())
    console.print(results_table(study, analyse(study), width=width))
    return console.export_text()


def judged_by_accuracy(*runs: RunResult) -> Study:
    made = one_seed() if len(runs) == 2 else three_seeds()
    return replace(made, runs=runs, score="accuracy", unit="nats per label", counted="label", documents="examples")


def labelled(name: str, seed: int, rate: float) -> RunResult:
    rng = np.random.default_rng([seed, int(1000 * rate)])
    right = tuple((rng.random(60) < rate).astype(int).tolist())
    documents = tuple(DocumentLoss(0.5, 1, 30) for _ in range(60))
    return replace(run(name, seed), documents=documents, right=right)


def test_more_is_better() -> None:
    first, other = labelled("gpt2", 0, 0.2), labelled("llama2", 0, 0.95)
    analysis = analyse(judged_by_accuracy(first, other))
    finding = analysis.of("llama2")
    gaps = [float(a - b) for a, b in zip(other.right, first.right, strict=True)]
    assert finding.difference == bootstrap_ratio(gaps, [1.0] * 60)
    assert finding.difference is not None
    assert finding.difference.excludes_zero()
    assert "is right more often than gpt2" in finding.verdict
    assert "is right less often than llama2" in analyse(judged_by_accuracy(other, first)).of("gpt2").verdict
    assert any("60 validation examples (labels said rightly over all labels" in said for said in analysis.sentences)
    page = render_report(judged_by_accuracy(first, other), analysis)
    assert f'<span class="strong">llama2</span> came out at {sum(other.right) / 60:.3f} accuracy, the highest: ' in page
    assert "further right is better" in page


def test_over_seeds_more_is_better_too() -> None:
    runs = [labelled(name, seed, rate) for name, rate in (("gpt2", 0.2), ("llama2", 0.95)) for seed in range(3)]
    finding = analyse(judged_by_accuracy(*runs)).of("llama2")
    assert finding.claim
    assert finding.verdict.startswith("better than gpt2")
    assert "accuracy" in finding.verdict


def test_another_objective_is_judged_by_its_loss(tmp_path: Path) -> None:
    text = text_data()
    spec = resize(decoder(layers.Everything()), vocab_size=text.vocab_size)
    asked = ComparisonTask(
        architectures={"a": spec, "b": spec.but(context=None)}, recipe=recipe(MaskedLM(), batch_tokens=192, seq_len=48)
    )
    runs, tuning = run_all(asked, text, tmp_path, HOW, lambda _: Watcher())
    study = has_spec(asked, runs, tuning, text)
    assert (study.score, study.counted, study.unit) == ("loss", "token", "nats per token")
    analysis = analyse(study)
    finding = analysis.of("b").score
    assert finding is not None
    assert finding.value == pytest.approx(runs[1].validation_loss)
    assert [one.name for one in study.baselines] == ["unigrams"]
    assert study.baselines[0].score == study.baselines[0].loss > 0
    assert all(one.sample == "" for one in runs)
    page, table = render_report(study, analysis), shown(study, 100)
    assert "bits per byte" not in page + table
    assert "nats per token" in page


@pytest.mark.parametrize(
    ("objective", "says"),
    [(Seq2Seq(), "pairs of texts"), (Contrastive(), "pairs of texts"), (ReplacedTokens(), "generator of its own")],
)
def test_what_cannot_be_compared_is_refused(
    objective: ObjectiveSpec, says: str, data: LabelledData, tmp_path: Path
) -> None:
    asked = ComparisonTask(architectures=specs(data), recipe=recipe(objective))
    adapted = replace(asked, recipe=recipe(Classification()).but(lora=LoRA()))
    refused = {f"architectures cannot be compared by {objective.kind}: .*{says}": asked, "leave out lora": adapted}
    for message, question in refused.items():
        with pytest.raises(UsageError, match=message):
            run_all(question, data, tmp_path / "out", HOW, lambda _: Watcher())
    assert not (tmp_path / "out").exists()
