"""Answers learnt, and preferred: losses and gradients against PyTorch's on all logits, runs that learn, stop and go on."""

from __future__ import annotations

import copy
import json
import math
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer import layers
from anyformer.errors import AnyformerError, TextError, UsageError
from anyformer.layers import cross_entropy as head_loss
from anyformer.model import Transformer, build
from anyformer.recipe import (
    DPO,
    IPO,
    ORPO,
    SFT,
    AdamW,
    ComparedAnswers,
    Constant,
    LoRA,
    ObjectiveSpec,
    PreferenceSpec,
    Recipe,
    SimPO,
    dumps,
    loads,
)
from anyformer.resizing import resize
from anyformer.spec import ModelSpec
from anyformer.text import NOT_PREDICTED, Tokenizer
from anyformer.text.conversations import Exchange, ExchangeCorpus
from anyformer.training.checkpoint.metrics import read_metrics
from anyformer.training.cluster.world import ALONE, World
from anyformer.training.objectives.answers.data import ConversationData
from anyformer.training.objectives.answers.preferences import PreferenceData
from anyformer.training.objectives.answers.preferred import AnswerPairs, preferred
from anyformer.training.objectives.objective import LossContext, objective_of
from anyformer.training.run import RunOptions, train
from anyformer.training.step import Trainer
from anyformer.training.step.trainer import rows_of
from tests.cli.running import refused, run, succeeded
from tests.test_docs import keys_of
from tests.training.crashing import resumed
from tests.training.models import decoder, encoder_decoder
from tests.training.test_objectives import CPU, sharpened

HOW = RunOptions(device=CPU, validations=2, plan=False)
NAMES = ["ann", "bob", "cat", "dan", "eve", "fox", "gil", "hal"]
TEMPLATE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}"
    "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def asked(name: str) -> dict[str, str]:
    return {"role": "user", "content": f"who is {name}?"}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": f" {text}"}


def conversations(n: int = 40, seed: int = 0) -> ExchangeCorpus:
    """Each answer names who was asked about; every second conversation has a further turn, every fifth is a prompt alone."""
    rng, rows = random.Random(seed), []
    for i in range(n):
        name = rng.choice(NAMES)
        talk = (asked(name), said(f"{name} is a friend"))
        talk += (asked("that"), said(f"{name} again")) * (i % 2)
        rows.append(Exchange(f"{name}:", (f" {name} it is",), i + 1) if i % 5 == 4 else Exchange((), (talk,), i + 1))
    return ExchangeCorpus(tuple(rows), "talk.jsonl")


def preferences(n: int = 40, seed: int = 0) -> ExchangeCorpus:
    """An answer that is kind is preferred to one that is not."""
    rng, rows = random.Random(seed), []
    for i in range(n):
        name = rng.choice(NAMES)
        good, bad = f"{name} is kind" + " and clever" * (i % 3), f"{name} is bad" + " and mean" * (i % 2)
        told = ((said(good),), (said(bad),))
        rows.append(Exchange(f"{name}:", (good, bad), i + 1) if i % 5 == 4 else Exchange((asked(name),), told, i + 1))
    return ExchangeCorpus(tuple(rows), "prefs.jsonl")


@cache
def tokenizer() -> Tokenizer:
    plain = Tokenizer.train([*conversations().texts(), *preferences().texts()], 300)
    return Tokenizer(plain._inner, {**plain.config, "chat_template": TEMPLATE})


def data(said: ObjectiveSpec) -> Any:
    if isinstance(said, ComparedAnswers):
        return PreferenceData(preferences(), preferences(10, 1), tokenizer())
    return ConversationData(conversations(), conversations(10, 1), tokenizer())


def recipe(said: ObjectiveSpec, **changes: Any) -> Recipe:
    plain = Recipe(
        objective=said, tokens=6 * 400, batch_tokens=400, seq_len=64, schedule=(Constant(),), optimizer=AdamW(lr=3e-3)
    )
    return plain.but(**changes)


def fitting(spec: ModelSpec | None = None) -> ModelSpec:
    return resize(spec or decoder(), vocab_size=tokenizer().vocab_size)


def log_likelihood(model: Transformer, ids: np.ndarray, learned: np.ndarray) -> Tensor:
    """Of the tokens that are learnt, given all before them: by the logits of the text alone, without padding."""
    logits = model(torch.from_numpy(ids)[None]).logits[0, :-1].double()
    each = logits.log_softmax(-1).gather(1, torch.from_numpy(ids)[1:, None])[:, 0]
    return each[torch.from_numpy(learned)[1:]].sum()


def gradients(model: Transformer) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def check_alike(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, one in theirs.items():
        torch.testing.assert_close(ours[name], one, atol=1e-6 + 1e-5 * float(one.abs().max()), rtol=0, msg=name)


def test_the_loss_is_that_of_the_answers_alone() -> None:
    """Loss and gradients of a padded batch are those of each text by itself, on all logits."""
    given = data(SFT())
    examples = given.encoded(recipe(SFT()))
    rows = next(given.feed(recipe(SFT())))
    assert (rows.document == 0).any()
    model: Any = sharpened(fitting())
    found = objective_of(SFT(), model.spec)(LossContext(model, model.head(), CPU), rows)
    found.total.backward()
    ours = gradients(model)
    by_ids = {tuple(text.ids[:-1]): text for (text,) in examples.examples}
    texts = [by_ids[tuple(ids[mask > 0])] for ids, mask in zip(rows.input_ids, rows.document, strict=True)]
    total = -torch.stack([log_likelihood(model, *text) for text in texts]).sum()
    total.backward()
    torch.testing.assert_close(found.total.double(), total, rtol=1e-5, atol=0)
    torch.testing.assert_close(found.each.double().sum(), total, rtol=1e-5, atol=0)
    check_alike(ours, gradients(model))
    assert int((rows.labels != NOT_PREDICTED).sum()) == sum(int(text.learned.sum()) for text in texts)


def begun(model: Transformer, given: Recipe, world: World = ALONE) -> tuple[Trainer, Any]:
    """A trainer that has noted what the model said before its first step."""
    data_ = data(given.objective)
    trainer = Trainer(model, given, objective_of(given.objective, model.spec), world=world)
    trainer.objective.begin(given, data_, trainer.over)
    return trainer, data_


def log_sigmoid(x: Any) -> Tensor:
    return -(1 + (-x).exp()).log()


def log_odds(mean: Any) -> Tensor:
    return (mean.exp() / (1 - mean.exp())).log()


# By the gains of the two answers, log p / p_0, and by log p of a token: the difference of the rewards, and the loss.
FORMULAS: dict[PreferenceSpec, Callable[..., tuple[Tensor, Tensor]]] = {
    DPO(beta=0.3): lambda gain, mean: (0.3 * (gain[0] - gain[1]), -log_sigmoid(0.3 * (gain[0] - gain[1]))),
    IPO(tau=0.2): lambda gain, mean: (0.2 * (gain[0] - gain[1]), (gain[0] - gain[1] - 2.5) ** 2),
    SimPO(beta=1.5, gamma=0.7): lambda gain, mean: (
        1.5 * (mean[0] - mean[1]),
        -log_sigmoid(1.5 * mean[0] - 1.5 * mean[1] - 0.7),
    ),
    ORPO(weight=0.4): lambda gain, mean: (
        log_odds(mean[0]) - log_odds(mean[1]),
        -mean[0] - 0.4 * log_sigmoid(log_odds(mean[0]) - log_odds(mean[1])),
    ),
}


@pytest.mark.parametrize("said", FORMULAS, ids=lambda each: each.kind)
def test_the_loss_is_that_of_the_papers_formula(said: PreferenceSpec) -> None:
    """Against a frozen copy of the model that was begun with, each text by itself; at first no answer is preferred."""
    given = recipe(said)
    model: Any = sharpened(fitting())
    trainer, pairs = begun(model, given)
    first = copy.deepcopy(model)
    rows = next(pairs.feed(given))
    by = LossContext(model, model.head(), CPU)
    at_first = torch.isclose(trainer.objective(by, rows).each, torch.tensor(math.log(2)), rtol=1e-5, atol=0)
    assert bool(at_first.all()) == isinstance(said, DPO | IPO) == bool(trainer.objective.told)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    found = trainer.objective(by, rows)
    found.total.backward()
    ours, each, total, chosen, margins = gradients(model), [], [], [], []
    for number in rows.number[:, 0]:
        better, worse = pairs.encoded(given).examples[number]
        both = [log_likelihood(model, *text) for text in (better, worse)]
        with torch.no_grad():
            before = [log_likelihood(first, *text) for text in (better, worse)]
        chosen.append(both[0])
        gain = [now - then for now, then in zip(both, before, strict=True)]
        mean = [now / int(text.learned.sum()) for now, text in zip(both, (better, worse), strict=True)]
        margin, loss = FORMULAS[said](gain, mean)
        each.append(-log_sigmoid(margin))
        margins.append(float(margin.detach()))
        total.append(loss)
    torch.stack(total).sum().backward()
    assert max(each) > 1.1 * min(each)
    torch.testing.assert_close(found.each[:, 0].double(), torch.stack(each).detach(), rtol=2e-4, atol=0)
    torch.testing.assert_close(found.total.double(), torch.stack(total).sum(), rtol=2e-4, atol=0)
    torch.testing.assert_close(
        -found.parts["chosen"].nats.double(), torch.stack(chosen).sum().detach(), rtol=1e-5, atol=0
    )
    margin = found.parts["margin"]
    assert margin.right is not None
    assert int(margin.labels) == len(margins) >= int(margin.right) == sum(one > 0 for one in margins) > 0
    assert float(margin.nats) == pytest.approx(sum(margins), rel=1e-3)
    theirs = gradients(model)
    for name, one in theirs.items():
        torch.testing.assert_close(ours[name], one, atol=3e-4 * float(one.abs().max()), rtol=0, msg=name)


def test_an_answer_that_is_certain_has_odds_that_can_be_learnt_by() -> None:
    said = torch.tensor([[0.0, -3.0], [-4.0, -1e-9]], requires_grad=True)
    tokens = torch.full((2, 2), 2.0)
    margin, loss = preferred(ORPO(), AnswerPairs(said, torch.zeros(2, 2), tokens))
    loss.sum().backward()
    assert margin[0] > 10 > -10 > margin[1]
    assert said.grad is not None
    assert bool(said.grad.isfinite().all())
    assert said.grad[1, 0] < -0.5  # the chosen answer's mean is learnt all the same


@pytest.mark.parametrize("objective", [SFT(), *FORMULAS], ids=lambda each: each.kind)
def test_parts_of_a_batch_are_the_batch(objective: ObjectiveSpec) -> None:
    found = []
    for micro_tokens in (10**6, 100):
        model: Any = sharpened(fitting())
        trainer, given = begun(model, recipe(objective))
        trainer.micro_tokens = micro_tokens
        rows = next(given.feed(recipe(objective)))
        assert (rows_of(rows, micro_tokens) < len(rows.labels)) == (micro_tokens == 100)
        found.append((trainer.gradients(1, rows).loss, gradients(model)))
    assert math.isclose(found[0][0], found[1][0], rel_tol=1e-6)
    check_alike(found[0][1], found[1][1])


@pytest.mark.parametrize("objective", [SFT(), DPO(), ORPO()], ids=lambda each: each.kind)
def test_a_run_goes_on_bit_for_bit(objective: ObjectiveSpec, tmp_path: Path) -> None:
    """Also what the model said before its first step, which the weights of now could not tell."""
    given = recipe(objective, tokens=8 * 400)
    whole = train(fitting(), given, data(objective), options=HOW)
    options = RunOptions(device=CPU, validations=2, plan=False, save_every=3)
    again = resumed(5, fitting(), given, data(objective), out=tmp_path / "run", options=options)
    assert [m.loss.hex() for m in again.steps] == [m.loss.hex() for m in whole.steps]
    assert again.evaluation is not None
    assert whole.evaluation is not None
    assert again.evaluation.loss.hex() == whole.evaluation.loss.hex()
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), whole.model.parameters(), strict=True))


@pytest.mark.parametrize("objective", [DPO(), IPO(), SimPO(), ORPO()], ids=lambda each: each.kind)
def test_what_is_preferred_becomes_likelier(objective: PreferenceSpec) -> None:
    """By as much as it may: IPO's rewards are to differ by a half, and no more."""
    given = recipe(objective, tokens=30 * 400)
    found = train(fitting(), given, data(objective), options=HOW)
    assert found.evaluation is not None
    assert math.isclose(found.unigram_loss or 0.0, math.log(2))
    if isinstance(objective, IPO):
        assert math.isclose(found.evaluation.loss, math.log(1 + math.exp(-0.5)), abs_tol=0.03)
    else:
        assert found.evaluation.loss < 0.3
    assert found.evaluation.tokens == 10  # pairs


def test_an_adapter_learns_and_what_it_is_put_on_is_what_it_is_compared_with(tmp_path: Path) -> None:
    model = train(fitting(), recipe(SFT()), data(SFT()), options=HOW).model
    af.save(model, tmp_path / "base", tokenizer=tokenizer())
    given = recipe(DPO(), lora=LoRA(r=4, alpha=8), tokens=30 * 400, optimizer=AdamW(lr=3e-2))
    found = train(fitting(), given, data(DPO()), init=tmp_path / "base", out=tmp_path / "run", options=HOW)
    assert math.isclose(found.steps[0].loss, math.log(2), rel_tol=1e-5)
    assert found.evaluation is not None
    assert found.evaluation.loss < 0.66  # a small adapter on a model that hardly learnt


def test_evaluating_makes_no_gradient_of_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch tells a function that its inputs need gradients even where none are asked for."""

    def never(*_: object) -> None:
        raise AssertionError("a gradient was made")

    model: Any = sharpened(fitting())
    rows = next(data(SFT()).feed(recipe(SFT())))
    by = LossContext(model, model.head(), CPU)
    monkeypatch.setattr(head_loss, "_accumulate", never)
    with torch.no_grad():
        objective_of(SFT(), model.spec)(by, rows)
    with pytest.raises(AssertionError, match="was made"):
        objective_of(SFT(), model.spec)(by, rows)


@pytest.mark.parametrize("objective", [SFT(), DPO()], ids=lambda each: each.kind)
def test_what_is_too_long_is_refused_or_cut(objective: Any) -> None:
    given = data(objective)
    longest = int(given.encoded(recipe(objective)).lengths.max())
    with pytest.raises(TextError, match=r"line \d+: it is \d+ tokens long, and a row holds"):
        given.feed(recipe(objective, seq_len=longest - 1))
    cutting = recipe(objective.but(truncate=True), seq_len=longest - 1)
    assert given.cut(cutting) >= 1
    found = given.encoded(cutting)
    assert int(found.lengths.max()) == longest - 1
    assert all(text.learned.any() for texts in found.examples for text in texts)
    with pytest.raises(TextError, match="no answer begins within 2 tokens"):
        given.encoded(recipe(objective.but(truncate=True), seq_len=2))


@pytest.mark.parametrize("objective", [SFT(), DPO()], ids=lambda each: each.kind)
@pytest.mark.parametrize(
    ("spec", "changes", "says"),
    [
        (encoder_decoder(), {}, "it has an encoder, and no template"),
        (decoder(layers.Everything()), {}, "lets a token see the ones it has to predict"),
        (decoder(), {"batch_tokens": 20}, "a batch holds 20"),
        (decoder(), {"batch_tokens": 100_000}, "less than one batch"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_is_refused(objective: Any, spec: ModelSpec, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(AnyformerError, match=says):
        train(fitting(spec), recipe(objective, **changes), data(objective), options=HOW)


def test_an_encoder_and_decoder_is_refused_before_a_file_is_read() -> None:
    with pytest.raises(UsageError, match="it has an encoder, and no template"):
        af.train(encoder_decoder(), "none.jsonl", objective="sft")


def test_data_of_the_other_kind_and_classes_are_refused() -> None:
    with pytest.raises(UsageError, match=r"SFT reads conversations .*, and what is given is preferences"):
        train(fitting(), recipe(SFT()), data(DPO()), options=HOW)
    with pytest.raises(UsageError, match="DPO has no label_smoothing"):
        train(fitting(), recipe(DPO(), label_smoothing=0.1), data(DPO()), options=HOW)
    without = Tokenizer(tokenizer()._inner, {})
    with pytest.raises(
        TextError, match=r"talk.jsonl, line 1: messages need a chat template, and the tokenizer brings none; name one"
    ):
        train(fitting(), recipe(SFT()), ConversationData(conversations(), None, without), options=HOW)


def test_recipes_carry_them() -> None:
    for said in (SFT(truncate=True), DPO(beta=0.2)):
        assert loads(dumps(recipe(said))) == recipe(said)


def lines(corpus: ExchangeCorpus, path: Path) -> Path:
    """The file that the exchanges would have been read from."""
    names = ("prompt", "completion") if len(corpus.rows[0].answers) == 1 else ("prompt", "chosen", "rejected")
    entries = [dict(zip(names, (row.before, *row.answers), strict=True)) for row in corpus.rows]
    path.write_text("\n".join(map(json.dumps, entries)), encoding="utf-8")
    return path


def test_from_answers_to_preferences_to_a_conversation(tmp_path: Path) -> None:
    """On the command line: what follows instructions is made of what does not, and talks."""
    talk, prefs = lines(conversations(), tmp_path / "talk.jsonl"), lines(preferences(), tmp_path / "prefs.jsonl")
    plain = tmp_path / "plain"
    af.save(build(fitting(), 0), plain, tokenizer=tokenizer())
    sizes = ("--tokens", "30k", "--batch-tokens", 384, "--seq-len", 64, "--lr", 3e-3, "--device", "cpu")
    how = (plain, "--init", plain, "--objective", "sft", "--data", talk, *sizes)
    told = succeeded(run("train", *how, "--out", tmp_path / "tuned"))
    assert "nats a token" in told.stdout
    found = json.loads(succeeded(run("evaluate", tmp_path / "tuned", "--data", talk, "--json")).stdout)
    assert found["objective"] == "SFT"
    assert found["documents"] == 40
    assert found["bits_per_byte"] is None
    assert found["loss"] < 4.0 < math.log(tokenizer().vocab_size)
    assert succeeded(run("chat", tmp_path / "tuned", typed="who is ann?\n")).stdout.strip()
    better = (tmp_path / "tuned", "--init", tmp_path / "tuned", "--objective", "dpo", "--data", prefs, *sizes)
    told = succeeded(run("train", *better, "--out", tmp_path / "better")).stdout
    assert "nats a pair" in told
    assert re.search(r"[0-9.]+% right, by -?[0-9.]+ on average", told)
    last = read_metrics(tmp_path / "better").steps[-1]
    assert last.parts is not None
    assert last.right is not None
    assert last.right["margin"] > 0.5
    assert last.parts["margin"] > 0
    assert "pairs predicted" in told
    assert "perplexity" not in told
    hf = tmp_path / "hf"
    succeeded(run("convert", tmp_path / "tuned", hf))
    judged = ("--data", talk, "--json", "--objective", "sft", "--seq-len", 64)
    again = json.loads(succeeded(run("evaluate", hf, *judged)).stdout)
    assert math.isclose(again["loss"], found["loss"], rel_tol=1e-6)
    assert again | {"loss": 0, "nats": 0, "perplexity": 0} == found | {"loss": 0, "nats": 0, "perplexity": 0}
    assert json.loads(succeeded(run("evaluate", tmp_path / "better", *judged)).stdout)["tokens"] == found["tokens"]
    refused(
        run("evaluate", hf, "--data", talk, "--objective", "dpo"),
        "a text is judged by sft, causal-lm, simpo, orpo, reward-model or grpo",
    )
    (tmp_path / "plain.txt").write_text("who is ann? ann is a friend")
    text = ("--data", tmp_path / "plain.txt", "--objective", "causal-lm", "--json")
    assert json.loads(succeeded(run("evaluate", tmp_path / "tuned", *text)).stdout)["objective"] == "CausalLM"
    refused(
        run("evaluate", tmp_path / "better", "--data", prefs),
        "and judges itself while it learns",
        "--objective simpo where they are preferences, sft where they are conversations",
    )
    as_simpo = ("--data", prefs, "--objective", "simpo", "--seq-len", 64, "--json")
    of_preferences = json.loads(succeeded(run("evaluate", tmp_path / "better", *as_simpo)).stdout)
    assert keys_of("evaluate, preferences") == {*of_preferences, "score"}  # which reward models alone have
    assert of_preferences["pairs"] == 40
    plain_tokenizer = Tokenizer(tokenizer()._inner, {"eos_token": "<|endoftext|>"})
    plain_tokenizer.save(tmp_path / "own")
    (tmp_path / "own.jinja").write_text(TEMPLATE + "{# mine #}")
    bare = (plain, *judged, "--tokenizer", tmp_path / "own")
    refused(run("evaluate", *bare), "the tokenizer brings none; name one (--chat-template)")
    (tmp_path / "talk.jinja").write_text(TEMPLATE)
    succeeded(run("evaluate", *bare, "--chat-template", tmp_path / "talk.jinja"))
    named = ("--tokenizer", tmp_path / "own", "--chat-template", tmp_path / "own.jinja")
    changed = [4096 if word == "30k" else word for word in how]
    succeeded(run("train", *changed, *named, "--out", tmp_path / "named"))
    assert "mine" in (Tokenizer.load(tmp_path / "named" / "tokenizer").chat_template or "")
    missing = (*named[:-1], tmp_path / "none.jinja", "--out", tmp_path / "missing")
    refused(run("train", *changed, *missing), "none.jinja")
    plainly = (plain, "--init", plain, "--data", talk, *sizes, "--out", tmp_path / "plainly")
    refused(run("train", *plainly), 'not an object with a string "text"', "--objective sft learns the answers")
    assert not (tmp_path / "plainly").exists()
