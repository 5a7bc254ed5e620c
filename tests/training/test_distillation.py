"""A teacher's answers, learnt: losses and gradients written out in float64, runs that go on to the bit, refusals in a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.amounts import count
from anyformer.errors import AnyformerError, CheckpointError, SpecError, UsageError
from anyformer.families import preset, with_classifier
from anyformer.hub import load, save
from anyformer.layers import cross_entropy, head
from anyformer.model import Transformer, build
from anyformer.recipe import (
    DPO,
    CausalLM,
    Constant,
    Distillation,
    LoRA,
    MultiToken,
    PrefixLM,
    Recipe,
    Regression,
    distillation_of,
)
from anyformer.recipe import dumps as recipe_text
from anyformer.recipe import loads as recipe_of
from anyformer.resizing import resize, shrink
from anyformer.spec import ModelSpec
from anyformer.study.cells import Runs, read_texts
from anyformer.study.compare import ComparisonTask, identity
from anyformer.study.comparison import compare
from anyformer.study.specification import ModelEntry, StudySpec
from anyformer.study.train import prepare_training
from anyformer.text import NOT_PREDICTED, Tokenizer
from anyformer.training.chosen_recipe import changed
from anyformer.training.objectives.denoising.loss import in_one_row
from anyformer.training.objectives.objective import LossContext, Teacher, objective_of
from anyformer.training.run import Job, Run, RunOptions, train
from anyformer.training.run.plan import flops_per_token
from anyformer.training.step import Trainer
from anyformer.training.step.state import fingerprint_at, fingerprint_of
from tests.laws.models import randomised
from tests.laws.tolerance import in_float64
from tests.training import noisy
from tests.training.cluster.steps import batch_for, recipe_for
from tests.training.crashing import hexadecimal, resumed
from tests.training.labelled import RECIPE as LABELLED
from tests.training.labelled import labelled
from tests.training.models import VOCAB
from tests.training.test_labelled import OBJECTIVES, model_for, some
from tests.training.test_objectives import CPU
from tests.training.texts import text_data

HOW = RunOptions(device=CPU, validations=2, plan=False, save_every=2)
ELSEWHERE = Distillation(teacher="elsewhere", weight=0.7, temperature=2.5)  # where tests give the teacher themselves


def small(name: str, rows: int = VOCAB) -> ModelSpec:
    return resize(shrink(preset(name).spec), vocab_size=rows)


def by_hand(student: Tensor, teacher: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
    """The loss, from logits [place, vocab] and labels [place], place by place."""
    how = recipe.distillation
    assert how is not None
    total = torch.zeros(())
    for ours, theirs, label in zip(student, teacher, labels.tolist(), strict=True):
        if label == NOT_PREDICTED:
            continue
        soft = [(each / how.temperature).exp() / (each / how.temperature).exp().sum() for each in (ours, theirs)]
        divergence = sum(p * (p.log() - q.log()) for q, p in zip(*soft, strict=True))
        logs = (ours.exp() / ours.exp().sum()).log()
        hard = -(1 - recipe.label_smoothing) * logs[label] - recipe.label_smoothing * logs.mean()
        hard = hard + recipe.z_loss * ours.exp().sum().log() ** 2
        total = total + how.weight * how.temperature**2 * divergence + (1 - how.weight) * hard
    return total


def taught_by(model: Transformer, recipe: Recipe) -> Teacher:
    assert recipe.distillation is not None
    return Teacher(model, objective_of(recipe.objective, model.spec), recipe.distillation)


PAIRS = [
    ("gemma2-2b", "gpt2"),  # soft-caps and a scale of logits, a tied table
    ("mamba2-130m", "llama2-7b"),
    ("gpt2", "mixtral-8x7b"),
    ("roberta-base", "bert-base"),  # heads with a transform and a bias
    ("t5-base", "transformer-base"),
    ("xlnet-base", "xlnet-base"),
]


@pytest.mark.parametrize(("mine", "other"), PAIRS, ids=lambda name: str(name))
@in_float64()
def test_loss_and_gradients_are_those_written_out(monkeypatch: pytest.MonkeyPatch, mine: str, other: str) -> None:
    monkeypatch.setattr(head, "MOST_ROWS", 7)  # several chunks
    spec, teacher = small(mine, 32), randomised(small(other, 32), 5)
    recipe = recipe_for(spec, distillation=ELSEWHERE, label_smoothing=0.1, z_loss=0.02, clip=None)
    rows, objective = batch_for(spec, 1), objective_of(recipe.objective, spec)
    trainer = Trainer(randomised(spec), recipe, objective, teacher=taught_by(teacher, recipe))
    result = trainer.gradients(1, rows)

    student = randomised(spec)
    asked = objective.asked(rows, CPU) | {"output_logits": True}
    with torch.no_grad():
        wanted = teacher(**asked, heads=[teacher.spec.heads[0].name]).logits.flatten(0, 1)
    labels = torch.from_numpy(rows.labels).flatten()
    logits = student(**asked).logits.flatten(0, 1)
    n = int((labels != NOT_PREDICTED).sum())
    loss = by_hand(logits, wanted, labels, recipe) / n
    loss.backward()
    for name, parameter in student.named_parameters():
        found = dict(trainer.model.named_parameters())[name].grad
        assert (found is None) == (parameter.grad is None), name
        if found is not None and parameter.grad is not None:
            torch.testing.assert_close(
                found, parameter.grad, rtol=1e-7, atol=1e-10, msg=lambda said, at=name: f"{at}: {said}"
            )
    plain = torch.nn.functional.cross_entropy(logits, labels, ignore_index=NOT_PREDICTED)
    assert result.loss == pytest.approx(float(plain.detach()), rel=1e-9)
    only = recipe.but(distillation=Distillation(teacher="elsewhere", temperature=2.5), label_smoothing=0.0, z_loss=0.0)
    divergence = by_hand(logits.detach(), wanted, labels, only) / 2.5**2 / n
    assert result.parts == {"teacher": pytest.approx(float(divergence), rel=1e-9)}
    assert all(parameter.grad is None for parameter in teacher.parameters())


@pytest.mark.parametrize("name", ["gpt2", "t5-base"])
def test_what_a_head_reads_in_one_row_or_two(name: str) -> None:
    """Of a source and a target: the share of the objective is what it is without a teacher, and a copy has nothing to teach."""
    from tests.training.test_prefix import spec as prefix_spec

    spec = prefix_spec() if name == "gpt2" else small(name, noisy.tokenizer().vocab_size)
    objective, model = objective_of(PrefixLM(), spec), randomised(spec)
    rows = next(noisy.text_data().feed(Recipe(objective=PrefixLM(), tokens=64, batch_tokens=64, seq_len=32)))
    by = LossContext(model, model.head(), CPU)
    plain = objective(by, rows)
    none, copy = (
        objective(by._replace(teacher=Teacher(each, objective, Distillation(teacher="a", weight=weight))), rows)
        for each, weight in ((randomised(spec, 3), 0.0), (randomised(spec), 1.0))
    )
    torch.testing.assert_close(none.total, plain.total)
    torch.testing.assert_close(none.each, plain.each)
    assert none.parts["teacher"].nats > 0.1 * none.parts["teacher"].labels
    assert abs(float(copy.total.detach())) < 1e-3


@pytest.mark.parametrize("kind", ["classes", "words"])
@in_float64()
def test_classes_are_learnt_by_who_reads_otherwise(kind: Any) -> None:
    """The teacher is told which text of two a token is of, the student is not."""
    data, said = labelled(kind, 12, None), OBJECTIVES[kind]
    spec, other = (model_for(name, data, said) for name in ("distilbert-base", "bert-base"))
    recipe = LABELLED.but(objective=said, distillation=ELSEWHERE, label_smoothing=0.1, clip=None)
    rows, student, teacher = some(data), randomised(spec), randomised(other, 5)
    trainer = Trainer(randomised(spec), recipe, objective_of(said, spec), teacher=taught_by(teacher, recipe))
    result = trainer.gradients(1, rows)
    labels = torch.from_numpy(rows.labels).flatten()
    ids, mask, types = (torch.from_numpy(field) for field in (rows.input_ids, rows.document, rows.types))
    logits = student(ids, attention_mask=mask).logits.flatten(0, -2)
    with torch.no_grad():
        wanted = teacher(ids, attention_mask=mask, token_type_ids=types).logits.flatten(0, -2)
    assert (types > 0).any() == (kind == "classes")
    loss = by_hand(logits, wanted, labels, recipe) / result.tokens
    loss.backward()
    for name, parameter in student.named_parameters():
        found = dict(trainer.model.named_parameters())[name].grad
        torch.testing.assert_close(found, parameter.grad, rtol=1e-7, atol=1e-10)
    assert not objective_of(Regression(), model_for("bert-base", labelled("numbers"), Regression())).has_teacher


@in_float64()
def test_an_encoder_beside_a_decoder_teaches_what_reads_both_in_one_row() -> None:
    from tests.training.test_prefix import spec as prefix_spec

    spec, teacher = prefix_spec(), randomised(small("t5-base", noisy.tokenizer().vocab_size), 5)
    recipe = Recipe(objective=PrefixLM(), tokens=64, batch_tokens=64, seq_len=32, distillation=ELSEWHERE, clip=None)
    rows = next(noisy.text_data().feed(recipe))
    objective = objective_of(PrefixLM(), spec)
    trainer = Trainer(randomised(spec), recipe, objective, teacher=taught_by(teacher, recipe))
    result = trainer.gradients(1, rows)
    with torch.no_grad():
        wanted = teacher(**objective_of(PrefixLM(), teacher.spec).asked(rows, CPU) | {"output_logits": True}).logits
        given = objective.asked(rows, CPU) | {"output_logits": True}
        at = torch.from_numpy(in_one_row(rows)["predicts"])
        logits = torch.stack([row[places] for row, places in zip(randomised(spec)(**given).logits, at, strict=True)])
    assert recipe.distillation is not None
    only = recipe.but(distillation=recipe.distillation.but(weight=1.0))
    divergence = by_hand(logits.flatten(0, 1), wanted.flatten(0, 1), torch.from_numpy(rows.labels).flatten(), only)
    assert result.parts == {"teacher": pytest.approx(float(divergence) / 2.5**2 / result.tokens, rel=1e-9)}


def test_rows_without_a_label() -> None:
    spec = small("gpt2")
    rows = batch_for(spec, 1)
    trainer = Trainer(
        build(spec),
        recipe_for(spec, distillation=ELSEWHERE),
        objective_of(CausalLM(), spec),
        teacher=taught_by(build(spec), recipe_for(spec, distillation=ELSEWHERE)),
    )
    result = trainer.step(1, rows._replace(labels=rows.labels * 0 + NOT_PREDICTED))
    assert (result.loss, result.grad_norm, result.parts) == (0, 0, {"teacher": 0})


# Runs


SPEC, LARGE = small("llama2-7b"), small("gpt2")
RECIPE = Recipe(tokens=8 * 64, batch_tokens=64, seq_len=16, schedule=(Constant(),))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learnt something."""
    out = tmp_path_factory.mktemp("teacher") / "run"
    train(LARGE, RECIPE.but(tokens=64 * 150), text_data(), out=out, options=HOW)
    return out


def taught(by: Path, **changes: Any) -> Recipe:
    return RECIPE.but(distillation=Distillation(teacher=str(by), weight=0.5, temperature=2.0), **changes)


def test_a_student_comes_nearer_to_its_teacher(teacher: Path) -> None:
    recipe = taught(teacher, tokens=64 * 150)
    result = train(SPEC, recipe, text_data(), options=HOW)
    away = [step.parts["teacher"] for step in result.steps if step.parts is not None]
    assert len(away) == 150
    assert sum(away[-10:]) < 0.5 * sum(away[:10])
    alone = train(SPEC, recipe.but(distillation=None), text_data(), options=HOW)
    assert alone.steps[0].loss == pytest.approx(result.steps[0].loss, rel=1e-6)
    assert alone.steps[-1].loss != result.steps[-1].loss


@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_run_that_stopped_goes_on_to_the_bit(teacher: Path, at: int, tmp_path: Path) -> None:
    recipe = taught(teacher)
    whole = train(SPEC, recipe, text_data(), options=HOW)
    again = resumed(at, SPEC, recipe, text_data(), out=tmp_path / "run", options=HOW)
    assert hexadecimal(again) == hexadecimal(whole)


def test_another_teacher_under_the_same_name_is_another_run(tmp_path: Path) -> None:
    by = tmp_path / "teacher"
    save(randomised(LARGE), by, form="anyformer")
    train(SPEC, taught(by), text_data(), out=tmp_path / "run", options=HOW)
    save(randomised(LARGE, 7), tmp_path / "other", form="anyformer")
    (tmp_path / "other" / "model.safetensors").replace(by / "model.safetensors")
    with pytest.raises(CheckpointError, match="holds a run on another teacher: "):
        train(SPEC, taught(by, tokens=10 * 64), text_data(), out=tmp_path / "run", options=HOW)


def test_results_of_a_comparison_are_kept_for_one_teacher_alone(tmp_path: Path) -> None:
    by = tmp_path / "teacher"
    save(randomised(LARGE), by, form="anyformer")
    question = ComparisonTask(architectures={"student": SPEC}, recipe=taught(by))
    first = identity(question.job("student", None, 0, text_data()), 0)
    assert identity(question.job("student", None, 0, text_data()), 0) == first
    save(randomised(LARGE, 7), tmp_path / "other", form="anyformer")
    (tmp_path / "other" / "model.safetensors").replace(by / "model.safetensors")
    fingerprint_at.cache_clear()  # as for another process
    assert identity(question.job("student", None, 0, text_data()), 0) != first


def test_every_number_of_a_teacher_counts() -> None:
    """Single ones too, such as the factor of a layer of Gemma 4, and of any dtype."""
    model = randomised(small("gemma4-e2b")).bfloat16()
    names = [name for name, each in model.named_parameters() if each.shape == ()]
    assert names
    before = fingerprint_of(model)
    with torch.no_grad():
        model.get_parameter(names[0]).mul_(2)
    assert fingerprint_of(model) != before


def test_an_adapter_learns_from_a_teacher(teacher: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    save(randomised(SPEC), tmp_path / "given", form="anyformer")
    recipe = taught(teacher, lora=LoRA(r=2, targets=("all",)), tokens=64 * 40)
    result = train(SPEC, recipe, text_data(), init=tmp_path / "given", options=HOW)
    first, last = (result.steps[i].parts for i in (0, -1))
    assert first is not None
    assert last is not None
    assert last["teacher"] < 0.9 * first["teacher"]


def test_a_teacher_costs_a_pass(teacher: Path) -> None:
    run = Run(Job(SPEC, taught(teacher), text_data()), HOW)
    load_of = text_data().load(RECIPE)
    alone, forward = (flops_per_token(spec, load_of) for spec in (SPEC, LARGE))
    assert run.planned.flops_per_token == pytest.approx(alone + forward / 3)
    n = sum(p.numel() for p in load(teacher)[0].parameters())
    assert run.plan().n_taught == n
    assert f"and a teacher of {count(n)}, 8 steps" in run.plan().lines()[0]


@pytest.mark.slow
def test_compiled(teacher: Path) -> None:
    plain, compiled = (
        train(SPEC, taught(teacher), text_data(), options=RunOptions(device=CPU, plan=False, compiled=each))
        for each in (False, True)
    )
    assert [s.loss for s in compiled.steps] == pytest.approx([s.loss for s in plain.steps], rel=1e-4)


# Words and refusals


def test_written_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert distillation_of("runs/a") == Distillation(teacher="runs/a")
    assert distillation_of("a,b,weight=.5") == Distillation(teacher="a,b", weight=0.5)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a,b=c").mkdir()
    assert distillation_of("a,b=c,temperature=2,weight=.5") == Distillation(teacher="a,b=c", weight=0.5, temperature=2)
    assert changed("small", {"distillation": "a"}).distillation == Distillation(teacher="a")
    recipe = RECIPE.but(distillation=ELSEWHERE)
    assert recipe_of(recipe_text(recipe)) == recipe


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,weight=much", "weight = 'much' is no number; write weight=0.5"),
        ("a,temp=2", "a,temp=2: 'temp' is none of its options; write a,weight=0.5,temperature=2"),
        ("a,weight=.5,heat=2", "'heat' is none of its options; write a,weight=0.5,temperature=2"),
        ("a,weight=.5,weight=.6", "'weight' is none of its options"),
        ("a,weight=.5,temperature", "'temperature' is none of its options"),
        ("a,weight=2", "weight"),
        ("a,temperature=0", "temperature"),
        ("", "teacher"),
        (",weight=1", "teacher"),
    ],
)
def test_what_it_cannot_be(text: str, says: str) -> None:
    with pytest.raises((UsageError, SpecError), match=says):
        distillation_of(text)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"memory": 16}, "memory = 16 is not for runs with a teacher, who keeps none"),
        ({"z_loss": 0.1}, "z_loss = 0.1 changes nothing where distillation.weight is 1"),
        ({"label_smoothing": 0.1}, "label_smoothing = 0.1 changes nothing where distillation.weight is 1"),
    ],
)
def test_recipes_that_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        RECIPE.but(distillation=Distillation(teacher="a"), **changes)


def test_a_teacher_of_other_labels_is_refused(tmp_path: Path) -> None:
    data = labelled("classes")
    spec = model_for("distilbert-base", data, OBJECTIVES["classes"])
    teacher = randomised(model_for("bert-base", data, OBJECTIVES["classes"]))
    teacher.labels = data.labels[::-1]
    save(teacher, tmp_path / "given", data.tokenizer)
    recipe = LABELLED.but(distillation=Distillation(teacher=str(tmp_path / "given")))
    with pytest.raises(UsageError, match="tells so-so, pos, neg apart, in that order, and the data neg, pos, so-so"):
        train(spec, recipe, data, options=HOW)


def refused(by: Transformer | None, tmp_path: Path, recipe: Recipe = RECIPE, spec: ModelSpec = SPEC) -> str:
    if by is not None:
        save(by, tmp_path / "given", form="anyformer")
    how = recipe.but(distillation=Distillation(teacher=str(tmp_path / "given")))
    with pytest.raises(AnyformerError) as caught:
        train(spec, how, text_data(), out=tmp_path / "run", options=HOW)
    assert caught.value.exit_status == 2
    assert not (tmp_path / "run").exists()
    return str(caught.value)


def test_teachers_that_are_refused(tmp_path: Path) -> None:
    assert "there is nothing at" in refused(None, tmp_path)
    (tmp_path / "a").mkdir()
    assert f"scores {VOCAB + 1} tokens, and the model {VOCAB}; resize it with --vocab {VOCAB + 1}" in refused(
        randomised(small("gpt2", VOCAB + 1)), tmp_path / "a"
    )
    for name, says in (("bert-base", "Everything mask lets a token see"), ("t5-base", "it has an encoder")):
        (tmp_path / name).mkdir()
        assert f"the teacher {tmp_path / name / 'given'}: CausalLM does not go with" in (
            said := refused(randomised(small(name)), tmp_path / name)
        )
        assert says in said
    (tmp_path / "b").mkdir()
    short = resize(LARGE, context=8)
    assert "beyond the model's 8 learned positions" in refused(randomised(short), tmp_path / "b")


def test_the_rows_of_a_student(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of its teacher's head, be they more than the tokenizer's tokens, in runs, comparisons and studies."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the cat sees the dog.\n" * 400)
    tokenizer = Tokenizer.train(["the cat sees the dog.\n"], 257)
    save(randomised(small("gpt2", 260)), "given", tokenizer)
    models = (ModelEntry(name="llama", architecture="llama2"),)
    for name in ("given", "given+mask=SlidingWindow(size=8)"):
        how = taught(Path(name), tokens=64)
        assert prepare_training("llama2", "text.txt", n_params=30000, recipe=how).spec.n_scored == 260
        assert compare(["llama2"], "text.txt", n_params=30000, recipe=how, out=f"out/{name}").study.runs
        asked = StudySpec(title="a", models=models, data="text.txt", select=0.2, report=0.2, sizes=(30000,), recipe=how)
        found = Runs(asked, read_texts(asked, print), tmp_path / "runs", HOW)
        assert [spec.n_scored for spec in found.models.values()] == [260]
    save(randomised(with_classifier(small("bert-base", 260), 3, "classes")), "judge", tokenizer)
    with pytest.raises(UsageError, match="the teacher judge: CausalLM does not go with this architecture"):
        prepare_training("llama2", "text.txt", n_params=30000, recipe=taught(Path("judge")))


@pytest.mark.parametrize("objective", [MultiToken()], ids=lambda each: each.kind)
def test_objectives_without_a_teacher(objective: Any, tmp_path: Path) -> None:
    spec = small("deepseek-v3-mtp")
    said = refused(randomised(spec), tmp_path, RECIPE.but(objective=objective), spec)
    assert "MultiToken is not learnt from a teacher, who scores the tokens of one pass; leave --teacher out" in said
    assert not objective_of(DPO(), SPEC).has_teacher
    assert cross_entropy.PLAIN.z_loss == 0
