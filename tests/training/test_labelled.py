"""Classification, regression, token classification: losses as transformers has them, whole runs, what cannot start."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional as F

import anyformer as af
from anyformer.errors import CheckpointError, TextError, UsageError
from anyformer.hub import load_into
from anyformer.layers.context import Dropout
from anyformer.layers.cross_entropy import LossOptions
from anyformer.model import build
from anyformer.recipe import (
    AdamW,
    CausalLM,
    Classification,
    DropoutSpec,
    Labelled,
    LoRA,
    Regression,
    TokenClassification,
)
from anyformer.resizing import resize, shrink
from anyformer.spec import ModelSpec
from anyformer.text import NOT_PREDICTED
from anyformer.text.labelled import EncodedLabelled, Kind, LabelledRows
from anyformer.training.data.feed import parts_of
from anyformer.training.objectives.labelled.data import LabelledData, LabelledValidation
from anyformer.training.objectives.objective import LossContext, objective_of
from anyformer.training.run import RunOptions, train
from anyformer.training.run.baseline import trivial_loss
from anyformer.training.run.progress import Watcher
from anyformer.training.step import Trainer
from anyformer.training.step.trainer import rows_of
from tests.laws.models import randomised
from tests.training.labelled import RECIPE, corpus, labelled

CPU = torch.device("cpu")
HOW = RunOptions(device=CPU, validations=0, plan=False)
OBJECTIVES: dict[Kind, Labelled] = {
    "classes": Classification(),
    "numbers": Regression(),
    "words": TokenClassification(),
}


def some(data: LabelledData, n: int = 9) -> LabelledRows:
    """The first examples, padded: one text and pairs of them."""
    validation = LabelledValidation(EncodedLabelled(data.train, data.tokenizer, data.labels))
    return validation.examples.batch(np.arange(n))


def model_for(name: str, data: LabelledData, said: Labelled) -> ModelSpec:
    spec = resize(shrink(af.preset(name).spec), vocab_size=data.vocab_size)
    return af.with_classifier(spec, len(data.labels) or 1, said.head)


# Our class, the kind of labels, transformers' class, and what a regression is called there.
THEIRS = [
    ("bert-base", "classes", "BertForSequenceClassification"),
    ("bert-base", "numbers", "BertForSequenceClassification"),
    ("bert-base", "words", "BertForTokenClassification"),
    ("roberta-base", "classes", "RobertaForSequenceClassification"),
    ("distilbert-base", "classes", "DistilBertForSequenceClassification"),
    ("electra-small", "words", "ElectraForTokenClassification"),
    ("gpt2", "classes", "GPT2ForSequenceClassification"),
    ("gpt2", "words", "GPT2ForTokenClassification"),
    ("llama2-7b", "classes", "LlamaForSequenceClassification"),
    ("llama2-7b", "numbers", "LlamaForSequenceClassification"),
]


@pytest.mark.parametrize(("name", "kind", "architecture"), THEIRS)
def test_scores_and_losses_are_those_of_transformers(name: str, kind: Kind, architecture: str, tmp_path: Path) -> None:
    """The whole way: our files, their class, their loss on the same padded rows of one text and of pairs."""
    data, said = labelled(kind, 12, None), OBJECTIVES[kind]
    model = randomised(model_for(name, data, said))
    model.labels = data.labels or None
    assert af.save(model, tmp_path / "model", data.tokenizer, form="hf").form == "hf"
    theirs = getattr(transformers, architecture).from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
    assert theirs.config.num_labels == (len(data.labels) or 1)
    if data.labels:
        assert [theirs.config.id2label[i] for i in range(len(data.labels))] == list(data.labels)
    rows = some(data)
    assert 0 < rows.document.mean() < 1  # some are padded
    ids, mask, types = (torch.from_numpy(field) for field in (rows.input_ids, rows.document, rows.types))
    labels = torch.from_numpy(rows.values[:, 0] if kind == "numbers" else rows.labels)
    given: dict[str, Any] = {"token_type_ids": types} if name == "bert-base" else {}
    given |= {"token_type_ids": types} if name == "electra-small" else {}
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask, labels=labels if kind != "classes" else labels[:, 0], **given)
        objective = objective_of(said, model.spec)
        found = objective(LossContext(model, model.head(), CPU), rows)
    n = int((rows.labels != NOT_PREDICTED).sum())
    assert float(found.total) / n == pytest.approx(float(expected.loss), rel=2e-5)
    assert float(found.each.sum()) == pytest.approx(float(found.total), rel=1e-5)
    scores = objective.scores(LossContext(model, model.head(), CPU), rows)  # type: ignore[attr-defined]
    real = mask.bool() if kind == "words" else slice(None)
    torch.testing.assert_close(scores[real], expected.logits[real], rtol=1e-4, atol=2e-5)
    assert float(expected.logits.std()) > 0.05


def test_a_text_alone_scores_as_in_a_padded_batch() -> None:
    for name in ("bert-base", "gpt2", "bart-base", "xlnet-base"):
        data = labelled("classes", 12, None)
        model = randomised(model_for(name, data, Classification()))
        objective = objective_of(Classification(), model.spec)
        rows, by = some(data), LossContext(model, model.head(), CPU)
        with torch.no_grad():
            together = objective.scores(by, rows)  # type: ignore[attr-defined]
            for i, n in enumerate(rows.document.sum(1).tolist()):
                alone = type(rows)(*(field[i : i + 1, :n] for field in rows))
                torch.testing.assert_close(
                    objective.scores(by, alone)[0],  # type: ignore[attr-defined]
                    together[i],
                    rtol=1e-4,
                    atol=2e-5,
                )


def test_smoothing_and_z_loss_are_obeyed() -> None:
    data = labelled("classes", 12, None)
    model = randomised(model_for("gpt2", data, Classification()))
    rows = some(data)
    objective = objective_of(Classification(), model.spec)
    plain = LossContext(model, model.head(), CPU)
    found = objective(plain._replace(options=LossOptions(0.2, 0.1)), rows)
    scores = objective.scores(plain, rows)  # type: ignore[attr-defined]
    labels = torch.from_numpy(rows.labels[:, 0])
    by_hand = F.cross_entropy(scores, labels, label_smoothing=0.2, reduction="sum")
    by_hand = by_hand + 0.1 * scores.logsumexp(1).square().sum()
    assert float(found.total.detach()) == pytest.approx(float(by_hand.detach()), rel=1e-5)
    torch.testing.assert_close(found.each[:, 0], F.cross_entropy(scores, labels, reduction="none").detach())


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_micro_batches_are_the_whole_batch(kind: Kind) -> None:
    data, said = labelled(kind, 24, None), OBJECTIVES[kind]
    spec = model_for("bert-base", data, said)
    recipe = RECIPE.but(objective=said)
    rows = some(data, 24)
    assert len(parts_of(rows, rows_of(rows, 32))) > 2
    gradients = []
    for micro in (None, 32):
        model = build(spec, seed=1)
        trainer = Trainer(model, recipe, objective_of(said, spec), micro_tokens=micro)
        trainer.gradients(1, rows)
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for whole, parts in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_a_run_gone_on_with_is_the_unbroken_one(kind: Kind, tmp_path: Path) -> None:
    data, said = labelled(kind, 36), OBJECTIVES[kind]
    spec = model_for("bert-base", data, said)
    recipe = RECIPE.but(objective=said, tokens=6 * 128, dropout=DropoutSpec(residual=0.1))
    options = dataclasses.replace(HOW, validations=2, save_every=2)
    unbroken = train(spec, recipe, data, out=tmp_path / "unbroken", options=options)
    broken = tmp_path / "broken"

    class Power(Watcher):
        """Fails after four steps."""

        def step(self, metrics: Any) -> None:
            if metrics.step == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(spec, recipe, data, out=broken, options=options, watcher=Power())
    again = train(spec, recipe, labelled(kind, 36), out=broken, options=options)
    assert [step.loss.hex() for step in again.steps] == [step.loss.hex() for step in unbroken.steps]
    for name, tensor in unbroken.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name
    model, tokenizer = af.load(broken)
    assert model.labels == (data.labels or None)
    assert tokenizer is not None
    assert any(tokenizer.around)


def test_what_is_easy_is_learnt_and_beats_what_knows_nothing() -> None:
    for kind, said in OBJECTIVES.items():
        data = labelled(kind, 120, 0.1)
        spec = model_for("gpt2", data, said)
        recipe = RECIPE.but(objective=said, tokens=100 * 128, optimizer=AdamW(lr=5e-3))
        result = train(spec, recipe, data, options=HOW)
        assert result.evaluation is not None
        assert result.unigram_loss is not None
        assert result.evaluation.loss < 0.5 * result.unigram_loss, kind
        assert result.model.labels == (data.labels or None)


def test_the_baselines_are_frequencies_and_means() -> None:
    data = labelled("classes")
    validation = data.validation(RECIPE)
    assert isinstance(validation, LabelledValidation)
    found = trivial_loss(RECIPE.but(tokens=9999 * RECIPE.batch_tokens), data, validation)
    # Each class is said equally often, in training and after: log 3, whatever is added to the counts.
    assert found == pytest.approx(math.log(3), rel=1e-3)
    data = labelled("numbers", 48)
    validation = data.validation(RECIPE)
    assert isinstance(validation, LabelledValidation)
    values = [float(row.label) for row in data.train.rows]  # type: ignore[arg-type]
    unseen = [float(row.label) for row in validation.examples.corpus.rows]  # type: ignore[arg-type]
    one_epoch = RECIPE.but(objective=Regression(), tokens=_batches_of_an_epoch(data) * RECIPE.batch_tokens)
    found = trivial_loss(one_epoch, data, validation)
    assert found == pytest.approx(np.mean((np.array(unseen) - np.mean(values)) ** 2), rel=1e-9)


def test_a_mean_without_a_loss_is_no_share_of_anything(tmp_path: Path) -> None:
    (file := tmp_path / "ones.csv").write_text("text,label\n" + "".join(f"text {i},1.0\n" for i in range(60)))
    given: dict[str, Any] = {"vocab_size": 280, "tokens": 64, "batch_tokens": 64, "seq_len": 16, "device": "cpu"}
    options = RunOptions(validations=0, plan=False)
    trained = af.train(shrink(af.preset("bert-base")), file, objective="regression", options=options, **given)
    assert trained.result.unigram_loss == 0
    assert "%" not in str(trained)


def _batches_of_an_epoch(data: LabelledData) -> int:
    feed, n, rows = data.feed(RECIPE.but(objective=Regression())), 0, 0
    while rows < len(data.train.rows):
        rows += len(next(feed).labels)
        n += 1
    return n


def test_a_head_is_put_on_and_given_weights_lack_it(tmp_path: Path) -> None:
    data = labelled()
    bare = resize(shrink(af.preset("bert-base").spec), vocab_size=data.vocab_size)
    given = randomised(bare)
    af.save(given, tmp_path / "given")
    spec = af.with_classifier(bare, 3)
    model = build(spec, seed=1)
    fresh = load_into(model, tmp_path / "given")
    assert fresh == ["heads.0.bias", "heads.0.table.weight"]
    start, before = build(spec, seed=1).state_dict(), given.state_dict()
    pooler = next(i for i, head in enumerate(bare.heads) if head.name == "nsp")
    for name, tensor in model.state_dict().items():
        source = name.replace("heads.0.", f"heads.{pooler}.")
        assert torch.equal(tensor, start[name] if name in fresh else before[source]), name
    result = train(spec, RECIPE.but(tokens=128), data, init=tmp_path / "given", options=HOW)
    assert result.steps[0].loss > 0
    af.save(randomised(spec), tmp_path / "three")
    two = build(af.with_classifier(spec, 2), seed=1)
    assert load_into(two, tmp_path / "three") == ["heads.0.bias", "heads.0.table.weight"]


def test_only_heads_may_be_missing(tmp_path: Path) -> None:
    bare = shrink(af.preset("bert-base").spec)
    af.save(randomised(bare), tmp_path / "given")
    deeper = af.with_classifier(bare.but(stack=bare.stack.but(blocks=(*bare.stack.blocks, bare.stack.blocks[0]))), 3)
    with pytest.raises(CheckpointError, match=r"given are of another architecture: .*blocks"):
        load_into(build(deeper), tmp_path / "given")
    plain = shrink(af.preset("gpt2").spec)
    af.save(randomised(plain), tmp_path / "decoder")
    capped = plain.but(heads=(plain.heads[0].but(softcap=30.0),))
    with pytest.raises(CheckpointError, match="softcap"):
        load_into(build(capped), tmp_path / "decoder")


def test_other_labels_start_anew(tmp_path: Path) -> None:
    spec = af.with_classifier(shrink(af.preset("bert-base").spec), 2)
    given = randomised(spec)
    given.labels = ("neg", "pos")
    af.save(given, tmp_path / "given")
    for labels, fresh in ((("neg", "pos"), []), (("ham", "spam"), ["heads.0.bias", "heads.0.table.weight"])):
        model = build(spec, seed=1)
        model.labels = labels
        assert load_into(model, tmp_path / "given") == fresh


@pytest.mark.parametrize("base", ["float32", "nf4"])
def test_an_adapter_is_not_put_on_other_labels(base: Any, tmp_path: Path) -> None:
    """It trains no head, so that rows of other labels, or of the same in another order, would stay what they were."""
    data = labelled()
    spec = af.with_classifier(resize(shrink(af.preset("bert-base").spec), vocab_size=data.vocab_size), 3)
    recipe = RECIPE.but(tokens=128, lora=LoRA(r=2, base=base))
    for labels in (("a", "b", "c"), data.labels[::-1], data.labels, None):
        given = randomised(spec)
        given.labels, place = labels, tmp_path / "-".join(labels or ("none",))
        af.save(given, place, form="anyformer")
        if labels in (data.labels, None):
            assert train(spec, recipe, data, init=place, options=HOW).steps[0].loss > 0
            continue
        with pytest.raises(
            UsageError, match=rf"the labels in {place} are {', '.join(labels or ())}, and here neg, pos"
        ):
            train(spec, recipe, data, init=place, options=HOW)


def test_labels_go_along_with_what_an_adapter_is_put_on_and_into_our_classes(tmp_path: Path) -> None:
    data = labelled()
    spec = af.with_classifier(resize(shrink(af.preset("bert-base").spec), vocab_size=data.vocab_size), 3)
    given = randomised(spec)
    given.labels = data.labels
    af.save(given, tmp_path / "given", form="anyformer")
    run = tmp_path / "run"
    train(spec, RECIPE.but(tokens=128, lora=LoRA(r=2)), data, init=tmp_path / "given", out=run, options=HOW)
    af.convert(run / "base", tmp_path / "base", form="transformers")
    for place in (run, run / "base", tmp_path / "base"):
        assert af.load(place)[0].labels == data.labels, place


def refused(match: str, spec: ModelSpec, said: Labelled, data: Any) -> None:
    with pytest.raises((UsageError, TextError), match=match):
        train(spec, RECIPE.but(objective=said), data, options=HOW)


def test_what_cannot_start_says_why() -> None:
    data = labelled()
    bert = resize(shrink(af.preset("bert-base").spec), vocab_size=data.vocab_size)
    refused("it has no head called classes that says so; `anyformer train` puts one on", bert, Classification(), data)
    three = af.with_classifier(bert, 3)
    refused("head classes has 3 rows; Regression needs 1 row", three, Regression(), labelled("numbers"))
    refused(
        "head classes has 1 row; Classification needs 2 or more", af.with_classifier(bert, 1), Classification(), data
    )
    refused("head classes has 4 rows and there are 3 labels", af.with_classifier(bert, 4), Classification(), data)
    for field, value in (("label_smoothing", 0.1), ("z_loss", 0.1)):
        numbers = RECIPE.but(objective=Regression(), **{field: value})
        with pytest.raises(UsageError, match=f"Regression has no {field}, and the recipe says 0.1; leave it out"):
            train(af.with_classifier(bert, 1), numbers, labelled("numbers"), options=HOW)
    bart = resize(shrink(af.preset("bart-base").spec), vocab_size=data.vocab_size)
    words = labelled("words")
    refused(
        "its decoder does not stand where the words do",
        af.with_classifier(bart, 4, "token_classes"),
        TokenClassification(),
        words,
    )
    gpt2 = resize(shrink(af.preset("gpt2").spec), vocab_size=data.vocab_size)
    with pytest.raises(UsageError, match=r"CausalLM reads one text .*, and what is given is labelled text"):
        train(gpt2, RECIPE.but(objective=CausalLM()), data, options=HOW)
    with pytest.raises(
        TextError, match=r"test\.jsonl, line \d+: it is \d+ tokens long, and a row holds 8; .*--truncate"
    ):
        train(three, RECIPE.but(seq_len=8), data, options=HOW)
    with pytest.raises(TextError, match=r"hold [\d,]+ tokens, less than one batch of 99,999"):
        train(three, RECIPE.but(batch_tokens=99_999), data, options=HOW)
    cut = RECIPE.but(seq_len=8, objective=Classification(truncate=True))
    assert data.longest(gpt2, cut, 8) == 8
    assert data.cut(cut) > 0
    with pytest.raises(TextError, match="line 1: the label 'neg' is none of those trained on"):
        LabelledData(corpus(), None, data.tokenizer, ("bad", "good"))
    with pytest.raises(
        TextError, match=r"has a class for each word .*, and what is asked for needs a number for each text"
    ):
        LabelledData(corpus("numbers"), corpus("words"), data.tokenizer)


def test_dropout_is_obeyed() -> None:
    data = labelled("classes", 12, None)
    model = randomised(model_for("bert-base", data, Classification()))
    objective, rows = objective_of(Classification(), model.spec), some(data)
    by = LossContext(model, model.head(), CPU)
    calm = objective(by, rows).total
    torch.manual_seed(0)
    shaken = objective(by._replace(dropout=Dropout(0.5, 0.5, 0.5, 0.5)), rows).total
    assert float(calm.detach()) != pytest.approx(float(shaken.detach()), rel=1e-3)
