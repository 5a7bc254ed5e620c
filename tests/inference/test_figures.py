"""Figures of labels: by hand and by scipy; what is classified is what the class of transformers says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from scipy import stats

import anyformer as af
from anyformer.errors import SpecError, TextError, UsageError
from anyformer.families import with_classifier
from anyformer.inference import figures
from anyformer.inference.classification import labelled_objective, said_of
from anyformer.inference.figures import figures_of_classes, figures_of_numbers
from anyformer.resizing import resize, shrink
from anyformer.text import LabelledRow, Tokenizer
from anyformer.training.objectives.labelled.data import LabelledValidation
from anyformer.training.run.evaluation import evaluate
from tests.laws.models import randomised
from tests.training.labelled import RECIPE, labelled


def test_figures_of_classes_by_hand() -> None:
    meant, said = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 4, 4])  # nobody says or means 3
    found = figures_of_classes(said, meant)
    # of 0, 1, 2 and 4: hits 2, 1, 0, 0; said 2, 2, 0, 2; meant 3, 2, 1, 0
    assert found["macro_f1"] == pytest.approx((2 * 2 / 5 + 2 * 1 / 4 + 0 + 0) / 4)
    assert found["accuracy"] == pytest.approx(3 / 6)
    assert found["majority_accuracy"] == pytest.approx(3 / 6)


def test_figures_of_numbers_are_scipys() -> None:
    rng = np.random.default_rng(0)
    meant = rng.normal(size=50).astype(np.float32)
    said = (meant + rng.normal(size=50)).round(1).astype(np.float32)  # with ties
    found = figures_of_numbers(said, meant)
    assert found["pearson"] == pytest.approx(np.corrcoef(said, meant)[0, 1], rel=1e-6)
    ranks = [stats.rankdata(x) for x in (said, meant)]
    assert found["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1], rel=1e-6)
    assert found["rmse"] == pytest.approx(float(np.sqrt(((said - meant) ** 2).mean())), rel=1e-5)
    assert found["mean_rmse"] == pytest.approx(float(meant.std()), rel=1e-5)
    flat = figures_of_numbers(np.zeros(5), meant[:5])
    assert (flat["pearson"], flat["spearman"]) == (None, None)


def test_a_head_of_another_name_is_no_head_for_labels() -> None:
    name: Any = "clases"
    with pytest.raises(SpecError, match=r"no head 'clases' for labels \(did you mean 'classes'\?\)"):
        with_classifier("gpt2", 3, name)


@pytest.mark.parametrize("name", ["bert-base", "gpt2"])
def test_what_is_said_is_what_transformers_says(name: str, tmp_path: Path) -> None:
    """With transformers' own tokenizer of the directory that was written, padding included."""
    data = labelled("classes", 12)
    model = randomised(af.with_classifier(resize(shrink(af.preset(name).spec), vocab_size=data.vocab_size), 3))
    model.labels = data.labels
    af.save(model, tmp_path / "model", data.tokenizer, form="hf")
    texts = ["cat good", "the sun and the sea", ("bad owl", "which of them")]
    found = af.classify(*_loaded(tmp_path / "model"), texts)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    assert theirs.config.problem_type == "single_label_classification"
    for group in (texts[:2], texts[2:]):
        inputs = tokenizer(group, return_tensors="pt", padding=True)
        kept = {key: inputs[key] for key in ("input_ids", "attention_mask")}
        kept |= {"token_type_ids": inputs["token_type_ids"]} if name == "bert-base" else {}
        with torch.no_grad():
            shares = theirs(**kept).logits.softmax(-1)
        for row, text in zip(shares, group, strict=True):
            said = found[texts.index(text)]
            assert said.label == theirs.config.id2label[int(row.argmax())]
            assert list(said.probabilities.values()) == pytest.approx(row.tolist(), abs=2e-5)
            assert list(said.probabilities) == list(data.labels)


def _loaded(path: Path) -> tuple[af.Transformer, Tokenizer]:
    model, tokenizer = af.load(path)
    assert tokenizer is not None
    return model, tokenizer


def test_figures_are_of_all_examples() -> None:
    data = labelled("classes", 48)
    model = randomised(af.with_classifier(resize(shrink(af.preset("gpt2").spec), vocab_size=data.vocab_size), 3))
    model.labels = data.labels
    validation, objective = data.validation(RECIPE), labelled_objective(model.spec)
    assert isinstance(validation, LabelledValidation)
    found = figures(model, objective, validation)
    rows = validation.examples.corpus.rows
    said = af.classify(model, data.tokenizer, [row.texts if len(row.texts) > 1 else row.texts[0] for row in rows])  # type: ignore[misc]
    assert found["accuracy"] == pytest.approx(
        np.mean([a.label == row.label for a, row in zip(said, rows, strict=True)])
    )
    nats = [-np.log(a.probabilities[str(row.label)]) for a, row in zip(said, rows, strict=True)]
    assert evaluate(model, objective, validation).loss == pytest.approx(float(np.mean(nats)), rel=1e-4)


def test_words_are_said_one_by_one() -> None:
    data = labelled("words", 12)
    model = randomised(
        af.with_classifier(resize(shrink(af.preset("bert-base").spec), vocab_size=data.vocab_size), 4, "token_classes")
    )
    model.labels = data.labels
    words = ["cat", "good", "sea"]
    rows = [LabelledRow(tuple(words), None, 1)]
    (found,) = said_of(model, data.tokenizer, rows, "texts")
    frame = data.tokenizer.frame(words, words=True)
    with torch.no_grad():
        logits = model(torch.from_numpy(frame.ids)[None]).logits[0]
    assert [said.label for said in found] == [data.labels[int(logits[place].argmax())] for place in frame.firsts]
    (cut,) = said_of(model, data.tokenizer, rows, "texts", longest=len(frame.ids) - 1, truncate=True)
    assert [said.label is None for said in cut] == [
        place == -1 for place in data.tokenizer.frame(words, len(frame.ids) - 1, words=True).firsts
    ]


def test_what_cannot_be_classified_says_why() -> None:
    data = labelled("classes", 12)
    bare = resize(shrink(af.preset("gpt2").spec), vocab_size=data.vocab_size)
    with pytest.raises(UsageError, match="this model has no head for labels; train it on labelled text"):
        af.classify(af.build(bare), data.tokenizer, ["a"])
    model = af.build(af.with_classifier(bare, 3))
    with pytest.raises(UsageError, match=r"nothing names the classes of this model"):
        af.classify(model, data.tokenizer, ["a"])
    model.labels = ("one",)
    with pytest.raises(UsageError, match=r"model\.labels has 1 names, and the model 3 classes; name each"):
        af.classify(model, data.tokenizer, ["a"])
    model.labels = data.labels
    with pytest.raises(UsageError, match="text 2 is empty"):
        af.classify(model, data.tokenizer, ["a", " "])
    with pytest.raises(TextError, match=r"texts, line 1: it is .* tokens long, and a row holds"):
        af.classify(model, data.tokenizer, ["a cat " * 2000])
    assert len(af.classify(model, data.tokenizer, ["a cat " * 2000], truncate=True)) == 1
    assert af.classify(model, data.tokenizer, []) == []
