"""Reward models: losses by each text alone, scores against transformers', and answers that are drawn to be judged by one."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.errors import CheckpointError, TextError, UsageError
from anyformer.model import Transformer, build
from anyformer.recipe import GRPO, AdamW, Constant, Judge, Matches, Recipe, RewardModel, dumps, loads
from anyformer.spec import ModelSpec
from anyformer.text import Tokenizer
from anyformer.text.conversations import Exchange, ExchangeCorpus
from anyformer.training.objectives.answers.preferences import PreferenceData
from anyformer.training.objectives.objective import LossContext, objective_of, with_head_for
from anyformer.training.objectives.reward_model.data import EncodedAnswers
from anyformer.training.objectives.reward_model.scoring import scored_exchanges
from anyformer.training.objectives.rewarded import rewards_of
from anyformer.training.objectives.rewarded.data import PromptData
from anyformer.training.run import RunOptions, train
from anyformer.training.run.plan import flops_per_token
from anyformer.training.step import Trainer
from anyformer.training.step.state import fingerprint_at
from tests.cli.running import answer, refused, run, succeeded
from tests.training.crashing import hexadecimal, resumed
from tests.training.models import decoder, encoder_decoder
from tests.training.test_answers import check_alike, fitting, gradients, lines, preferences, tokenizer
from tests.training.test_objectives import CPU

HOW = RunOptions(device=CPU, validations=2, plan=False)


def data() -> PreferenceData:
    return PreferenceData(preferences(), preferences(10, 1), tokenizer())


def recipe(said: Any = None, **changes: Any) -> Recipe:
    how: dict[str, Any] = {"tokens": 20 * 400, "batch_tokens": 400, "seq_len": 64}
    plain = Recipe(objective=said or RewardModel(), schedule=(Constant(),), optimizer=AdamW(lr=3e-3), **how)
    return plain.but(**changes)


def judging(spec: ModelSpec | None = None) -> ModelSpec:
    return with_head_for(fitting(spec), RewardModel())


def built(spec: ModelSpec | None = None, seed: int = 0) -> Any:
    model = build(judging(spec), seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3 if parameter.dim() > 1 else 1)
    return model


def ids_of(row: Exchange) -> list[list[int]]:
    """Both texts whole, each with the token that ends it, written by hand: as the template has it, or prompt and answer."""
    own, found = tokenizer(), []
    end = own.config["eos_token"]
    for said in row.answers:
        if isinstance(row.before, str):
            text, opened = f"{row.before}{said}{end}", list(own.around[0]) or [own.begin_of_text]
        else:
            asked, told = row.before[0], said[0]
            assert not isinstance(asked, str)
            assert not isinstance(told, str)
            text, opened = f"user: {asked['content']}\nassistant: {told['content']}{end}", []
        found.append([each for each in opened if each is not None] + own.encode(text, specials=True))
    return found


def score_alone(model: Transformer, ids: list[int]) -> Tensor:
    """Of the vector of a text's last token, without padding, by the head's one row."""
    hidden = model(input_ids=torch.tensor([ids]), heads=()).last_hidden_state[0, -1]
    return hidden @ model.head("classes").table.weight[0]  # type: ignore[union-attr]


def _sum(values: list[Tensor]) -> float:
    return sum(float(each.detach()) for each in values)


@pytest.mark.parametrize("centre", [0.0, 0.3])
def test_the_loss_is_that_of_the_papers_formula(centre: float) -> None:
    """Losses and gradients of a padded batch are those of each text by itself; parts of a batch are the batch."""
    said, found = RewardModel(centre=centre), []
    rows = data().encoded(recipe(said)).batch(np.arange(12))
    for micro_tokens in (10**6, 60):
        model = built()
        trainer = Trainer(model, recipe(said), objective_of(said, model.spec), micro_tokens=micro_tokens)
        step = trainer.gradients(1, rows)
        found.append(gradients(model))
        slow = built()
        pairs = [[score_alone(slow, ids) for ids in ids_of(row)] for row in preferences().rows[:12]]
        losses = [-torch.log(torch.sigmoid(better - worse)) for better, worse in pairs]
        total = sum(losses) + centre * sum((better + worse) ** 2 for better, worse in pairs)
        (total / 12).backward()  # type: ignore[operator]
        check_alike(found[-1], gradients(slow))
        assert math.isclose(step.loss, _sum(losses) / 12, rel_tol=1e-5)
        assert step.parts is not None
        assert math.isclose(step.parts["score"], _sum([a + b for a, b in pairs]) / 24, rel_tol=1e-4, abs_tol=1e-6)
        assert math.isclose(step.parts["margin"], _sum([a - b for a, b in pairs]) / 12, rel_tol=1e-4, abs_tol=1e-6)
        assert step.right is not None
        assert step.right["margin"] == sum(bool(a > b) for a, b in pairs) / 12
    check_alike(*found)


def test_texts_are_read_whole() -> None:
    """With what opens them and the token that closes the answer, which a model that scores reads."""
    examples = data().encoded(recipe())
    for number, row in enumerate(preferences().rows):
        rows = examples.batch(np.array([number]))
        for ids, mask, expected in zip(rows.ids[0], rows.mask[0], ids_of(row), strict=True):
            assert ids[mask].tolist() == expected
            assert expected[-1] in tokenizer().closing_ids
        assert examples.lengths[number].tolist() == [len(ids) for ids in ids_of(row)]


def test_of_a_conversation_that_is_written_anew_the_last_text_is_scored() -> None:
    """As by a template that leaves out what was said in past answers."""
    template = (
        "{% for m in messages %}{{ m.role }}:{% if m.role == 'user' or loop.last %} {{ m.content }}{% endif %}"
        "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    own = Tokenizer(tokenizer()._inner, {**tokenizer().config, "chat_template": template})
    talk = ("user", "who?"), ("assistant", "ann is kind"), ("user", "and?"), ("assistant", "bob")
    messages = tuple({"role": role, "content": said} for role, said in talk)
    examples = EncodedAnswers(ExchangeCorpus((Exchange((), (messages,), 1),), "talk"), own)
    rows = examples.batch(np.array([0]))
    end = own.config["eos_token"]
    assert (
        own.decode(rows.ids[0, 0].tolist(), specials=True)
        == f"user: who?\nassistant:{end}\nuser: and?\nassistant: bob{end}"
    )


def test_what_is_too_long_is_refused_or_cut() -> None:
    longest = int(data().encoded(recipe()).lengths.max())
    data().encoded(recipe(seq_len=longest))
    with pytest.raises(TextError, match=rf"line \d+: it is {longest} tokens long, and a row holds {longest - 1}"):
        data().encoded(recipe(seq_len=longest - 1))
    cut = data().encoded(recipe(RewardModel(truncate=True), seq_len=longest - 1))
    assert (cut.cut >= 1, int(cut.lengths.max())) == (True, longest - 1)


LONGER = recipe(tokens=40 * 400, optimizer=AdamW(lr=5e-3))
ENCODER = af.resize(af.preset("bert-base"), n_params=30_000, vocab_size=300)


@cache
def learnt() -> Any:
    return train(judging(), LONGER, data(), options=HOW)


@pytest.mark.parametrize("spec", [None, ENCODER], ids=["decoder", "encoder"])
def test_what_is_preferred_scores_higher(spec: ModelSpec | None) -> None:
    """Of pairs that it never saw, and around 0."""
    found = learnt() if spec is None else train(judging(spec), LONGER, data(), options=HOW)
    assert found.evaluation is not None
    assert found.evaluation.parts["margin"].accuracy == 1.0
    assert found.evaluation.loss < 0.3 < math.log(2)
    assert found.unigram_loss == pytest.approx(math.log(2))
    assert abs(found.evaluation.parts["score"].loss) < 0.3 * found.evaluation.parts["margin"].loss


def test_a_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    what, options = (judging(), recipe(tokens=6 * 400), data()), replace(HOW, save_every=2)
    whole = train(*what, out=tmp_path / "whole", options=options)
    assert hexadecimal(resumed(3, *what, out=tmp_path / "run", options=options)) == hexadecimal(whole)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (encoder_decoder(), "it has an encoder, and no template makes one text of both sides"),
        (decoder(), "it has no head called classes that says one number of a text"),
        (af.with_classifier(decoder(), 2), "it has no head called classes that says one number of a text"),
    ],
    ids=["both", "tokens", "classes"],
)
def test_what_scores_nothing_is_refused(spec: ModelSpec, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        train(fitting(spec), recipe(), data(), options=HOW)
    with pytest.raises(UsageError, match="RewardModel has no label_smoothing"):
        train(judging(), recipe(label_smoothing=0.1), data(), options=HOW)


def test_scores_are_those_of_transformers(tmp_path: Path) -> None:
    """Of the texts, alone and padded, as its class for sequences says them of the directory that is written."""
    transformers = pytest.importorskip("transformers")
    spec = judging(af.resize(af.preset("llama2"), n_params=30_000, vocab_size=300))
    model: Any = build(spec, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    af.save(model, tmp_path / "ours", tokenizer=tokenizer())
    af.convert(tmp_path / "ours", tmp_path / "hf")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf")
    assert theirs.config.num_labels == 1
    rows = preferences().rows
    good = ExchangeCorpus(tuple(row._replace(answers=row.answers[:1]) for row in rows), "good")
    scores = scored_exchanges(model, tokenizer(), good)
    with torch.no_grad():
        expected = [float(theirs(torch.tensor([ids_of(row)[0]])).logits[0, 0]) for row in rows]
    np.testing.assert_allclose(scores[:, 0], expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(scores) > 0.1


# --- rewards by a judge


def prompts(messages: bool = True) -> ExchangeCorpus:
    rows = (row for row in preferences(12).rows if messages or isinstance(row.before, str))
    return ExchangeCorpus(tuple(row._replace(answers=(), facts={}) for row in rows), "prompts.jsonl")


@pytest.fixture
def judge(tmp_path: Path) -> Path:
    af.save(learnt().model, tmp_path / "judge", tokenizer=tokenizer())
    return tmp_path / "judge"


def by_judge(judge: Path, **fields: Any) -> GRPO:
    return GRPO(rewards=(Judge(model=str(judge), **fields),), group=4, max_new_tokens=8)


def writing(said: GRPO) -> tuple[Any, Any, Any]:
    """A model, its objective and a batch of what it answered."""
    model = build(fitting(), 0)
    given = recipe(said, batch_tokens=1000)
    objective = objective_of(said, model.spec, tokenizer())
    rows = PromptData(prompts(), None, tokenizer()).encoded(given).batch(np.arange(2, 6), np.arange(16).reshape(4, 4))
    return model, objective, objective.answered(LossContext(model, model.head(), CPU), rows)


def test_an_answer_is_worth_how_probably_it_is_preferred(judge: Path) -> None:
    """To one that has a number of its own: the logistic function of the difference; beside what rules give."""
    half = Matches(pattern="a", weight=0.5)
    said = GRPO(rewards=(Judge(model=str(judge), beside=0.4, weight=2.0), half), group=4, max_new_tokens=8)
    _, objective, rows = writing(said)
    for (asked,), group, rewards in zip(rows.exchange, rows.answers, rows.rewards, strict=True):
        for each, reward in zip(group, rewards, strict=True):
            text = each.text if isinstance(asked.before, str) else ({"role": "assistant", "content": each.text},)
            score = float(score_alone(learnt().model, ids_of(asked._replace(answers=(text,)))[0]).detach())
            expected = 2 / (1 + math.exp(0.4 - score)) + 0.5 * ("a" in each.text)
            assert reward == pytest.approx(expected, rel=1e-4)
    assert len({isinstance(row.before, str) for (row,) in rows.exchange}) == 2, "prompts, and messages"
    assert objective.judges == (judge,)


def test_what_a_judge_prefers_becomes_likelier(judge: Path) -> None:
    """No answer is the right one to it, so none are counted."""
    given = recipe(by_judge(judge), tokens=40 * 1000, batch_tokens=1000, optimizer=AdamW(lr=1e-2))
    found = train(fitting(), given, PromptData(prompts(), prompts(), tokenizer()), options=HOW)
    rewards = [(step.parts or {})["reward"] for step in found.steps]
    assert np.mean(rewards[-5:]) > np.mean(rewards[:5]) + 0.1
    assert all("reward" not in (step.right or {}) for step in found.steps)
    assert found.evaluation is not None
    assert found.evaluation.parts["reward"].accuracy is None


def test_a_judges_reading_is_counted(judge: Path) -> None:
    given = recipe(by_judge(judge), batch_tokens=1000)
    load = PromptData(prompts(), None, tokenizer()).load(given)
    alone, with_judge = (
        flops_per_token(fitting(), load, objective_of(said, fitting(), tokenizer()))
        for said in (GRPO(rewards=(Matches(pattern="a"),), group=4), given.objective)
    )
    assert with_judge - alone == pytest.approx(flops_per_token(judging(), load) / 3)


def test_a_run_knows_its_judge(judge: Path, tmp_path: Path) -> None:
    """One that has learnt on is another one, and the run does not go on with it."""
    given, sums = recipe(by_judge(judge), tokens=2000, batch_tokens=1000), PromptData(prompts(), None, tokenizer())
    train(fitting(), given, sums, out=tmp_path / "run", options=HOW)
    train(fitting(), given, sums, out=tmp_path / "run", options=HOW)
    prints = json.loads((tmp_path / "run" / "run.json").read_text())["fingerprints"]
    other = {**prints, f"judge {judge}": "0" * 64}
    assert other != prints
    (tmp_path / "other").mkdir()
    moved = tmp_path / "other" / "judge"
    judge.rename(moved)
    af.save(build(judging(), 5), judge, tokenizer=tokenizer())
    fingerprint_at.cache_clear()
    with pytest.raises(CheckpointError, match=r"holds a run on another judge .*judge: "):
        train(fitting(), given, sums, out=tmp_path / "run", options=HOW)


def test_what_cannot_judge_is_refused(judge: Path, tmp_path: Path) -> None:
    af.save(build(fitting(), 0), tmp_path / "writer", tokenizer=tokenizer())
    af.save(learnt().model, tmp_path / "mute", tokenizer=Tokenizer(tokenizer()._inner, {}))
    af.save(learnt().model, tmp_path / "bare")
    for name, kind, says in (
        ("writer", UsageError, "the judge .*writer: it has no head .*; a reward model is trained by --objective"),
        ("bare", UsageError, "the judge .*bare has no tokenizer beside its weights"),
        ("mute", TextError, r"prompts.jsonl, line \d: it asks by messages, and the judge .*mute has no chat template"),
        ("none", CheckpointError, "there is nothing at .*none; give a model's directory"),
    ):
        with pytest.raises(kind, match=says):
            PromptData(prompts(), None, tokenizer()).encoded(recipe(by_judge(tmp_path / name)))
    PromptData(prompts(messages=False), None, tokenizer()).encoded(recipe(by_judge(tmp_path / "mute")))


def test_a_judge_is_named_by_its_directory(judge: Path) -> None:
    assert rewards_of([str(judge), "equal"])[0] == Judge(model=str(judge))
    with pytest.raises(UsageError, match=r"there is no reward 'judgd'; .* or give the directory of a reward model"):
        rewards_of(["judgd"])
    said = recipe(by_judge(judge, beside=1.5))
    assert loads(dumps(said)) == said


# --- on the command line


def test_from_preferences_to_a_judge_to_rewards(tmp_path: Path) -> None:
    """A reward model is made of one that writes, judges pairs and answers, is a class of transformers', and rewards."""
    prefs, plain, judge = lines(preferences(), tmp_path / "prefs.jsonl"), tmp_path / "plain", tmp_path / "judge"
    af.save(build(fitting(), 0), plain, tokenizer=tokenizer())
    sizes = ("--tokens", "12k", "--batch-tokens", 384, "--seq-len", 64, "--lr", 3e-3, "--device", "cpu")
    told = run("train", plain, "--init", plain, "--objective", "reward-model", "--data", prefs, *sizes, "--out", judge)
    assert "100.0% right, by " in succeeded(told).stdout
    assert "RewardModel trains a head 'classes', in the place of 'lm'" in told.stderr
    found = answer("evaluate", judge, "--data", prefs)
    assert found.keys() == {"version", "objective", "loss", "chance_loss", "accuracy", "margin", "pairs", "score"}
    assert (found["objective"], found["accuracy"], found["pairs"]) == ("RewardModel", 1.0, 40)
    assert f"an answer scores {found['score']:.4f}" in succeeded(run("evaluate", judge, "--data", prefs)).stdout

    answers = tmp_path / "answers.jsonl"
    row = preferences().rows[0]
    told = [{"messages": [*row.before, *each]} for each in row.answers]
    told += [{"prompt": "ann:", "completion": f" ann is {word}"} for word in ("kind", "bad")]
    answers.write_text("\n".join(map(json.dumps, told)))
    scores = [each["value"] for each in answer("classify", "--model", judge, "--data", answers)["results"]]
    assert scores[0] > scores[1]
    assert scores[2] > scores[3]
    shown = succeeded(run("classify", "--model", judge, "--data", answers)).stdout.split()
    assert [float(each) for each in shown] == pytest.approx(scores, rel=1e-5)
    refused(
        run("classify", "--model", judge, "--text", "ann"), "this model scores answers to what was said; give --data"
    )

    hf = tmp_path / "hf"
    succeeded(run("convert", judge, hf))
    again = answer("evaluate", hf, "--data", prefs, "--objective", "reward-model")
    assert again["margin"] == pytest.approx(found["margin"], rel=1e-5)
    there = answer("classify", "--model", hf, "--data", answers)["results"]
    assert [each["value"] for each in there] == pytest.approx(scores, rel=1e-5)

    asked = tmp_path / "asked.jsonl"
    asked.write_text("\n".join(json.dumps({"prompt": f"{name}:"}) for name in ("ann", "bob", "cat", "dan")))
    judged = answer("evaluate", plain, "--objective", "grpo", "--reward", judge, "--data", asked, "--max-new-tokens", 4)
    assert judged["accuracy"] is None
    assert 0 < judged["reward"] < 1
    refused(run("evaluate", plain, "--objective", "grpo", "--reward", plain, "--data", asked), "the judge", "no head")
