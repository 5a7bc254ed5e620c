"""Learning from rewards: against plain sums over each answer's own logits, against all answers that there are, runs and files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.errors import RunFailed, SpecError, TextError, UsageError
from anyformer.layers import Everything
from anyformer.model import Transformer, build
from anyformer.recipe import (
    DAPO,
    DPO,
    GRPO,
    RLOO,
    AdamW,
    Boxed,
    Constant,
    Contains,
    Distillation,
    DrGRPO,
    DropoutSpec,
    Equal,
    LastNumber,
    Matches,
    Recipe,
    RewardedSpec,
    RewardRule,
    dumps,
    loads,
    lora_of,
)
from anyformer.resizing import resize
from anyformer.spec import HeadSpec, ModelSpec, TableSpec, Vocab
from anyformer.text import Tokenizer
from anyformer.text.conversations import Exchange, ExchangeCorpus, read_prompts
from anyformer.training.objectives.objective import LossContext, Losses, Teacher, objective_of
from anyformer.training.objectives.rewarded import rewards_of
from anyformer.training.objectives.rewarded.data import LIKELIEST, PromptData, PromptRows
from anyformer.training.objectives.rewarded.rollouts import rollouts
from anyformer.training.run import RunOptions, TrainingResult, train
from anyformer.training.run.evaluation import evaluate
from anyformer.training.run.plan import flops_per_token
from anyformer.training.step import Trainer
from anyformer.training.step.trainer import rows_of
from tests.cli.running import answer, refused, run, succeeded
from tests.training.crashing import Crash, Watching, crash
from tests.training.models import decoder, encoder_decoder
from tests.training.test_answers import TEMPLATE, check_alike, gradients, log_likelihood
from tests.training.test_objectives import CPU

HOW = RunOptions(device=CPU, validations=2, plan=False)
DIGITS = "0123456789"


class Evens(RewardRule):
    """The share of the answer's characters that are even digits, a smooth reward, and a little for what is asked."""

    def of(self, answer: str, line: Any) -> float:
        return 0.8 * sum(each in "02468" for each in answer) / max(1, len(answer)) + 0.2 * (
            str(line["answer"]) in answer
        )


@cache
def tokenizer() -> Tokenizer:
    plain = Tokenizer.train([DIGITS + "+=: ua\nsernit"] * 2, 257)
    return Tokenizer(plain._inner, {**plain.config, "chat_template": TEMPLATE})


def prompts(n: int = 24, seed: int = 0) -> ExchangeCorpus:
    """Sums, every third of them as a message."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        one, other = (int(each) for each in rng.integers(0, 10 ** (1 + i % 2), 2))
        asked = f"{one}+{other}="
        before = ({"role": "user", "content": asked},) if i % 3 == 2 else asked
        rows.append(Exchange(before, (), i + 1, facts={"answer": one + other}))
    return ExchangeCorpus(tuple(rows), "sums.jsonl")


def data() -> PromptData:
    return PromptData(prompts(), prompts(6, 1), tokenizer())


def recipe(said: RewardedSpec, **changes: Any) -> Recipe:
    plain = Recipe(
        objective=said, tokens=6 * 600, batch_tokens=600, seq_len=40, schedule=(Constant(),), optimizer=AdamW(lr=1e-3)
    )
    return plain.but(**changes)


def way(kind: type[RewardedSpec] = GRPO, **fields: Any) -> RewardedSpec:
    return kind(**{"rewards": (Evens(),), "group": 4, "max_new_tokens": 6, **fields})


def fitting() -> ModelSpec:
    head = HeadSpec(table=TableSpec(rows=Vocab(300)), bias=True)
    return resize(decoder(head=head), vocab_size=tokenizer().vocab_size)


def writer(seed: int = 0) -> Any:
    """A model that writes digits for the most part, and ends its answers, some sooner and some later."""
    model: Any = build(fitting(), seed)
    likely = [*(tokenizer().encode(each)[0] for each in DIGITS), *tokenizer().closing_ids]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and name != "shared.tokens.weight":
                parameter.mul_(8)
        model.head().bias.fill_(-6).index_fill_(0, torch.tensor(likely), 0.0)
    return model


def trained(given: Recipe, at: Path, **options: Any) -> TrainingResult:
    """A run that begins with the writer's weights."""
    if not (at / "base").exists():
        af.save(writer(), at / "base", tokenizer=tokenizer())
    return train(fitting(), given, data(), init=at / "base", **{"options": HOW, **options})


def losses(said: RewardedSpec, by: LossContext, rows: PromptRows) -> Losses:
    """Of what the model answers to some prompts."""
    assert isinstance(by.forward, Transformer)
    objective = objective_of(said, by.forward.spec, tokenizer())
    with torch.no_grad():
        answered = objective.answered(by, rows)
    return objective(by, answered)


def prompt_of(rows: PromptRows, i: int) -> list[int]:
    return rows.ids[i, 0, : int(rows.n[i, 0])].tolist()


# By rewards of a group and its answers' lengths: what multiplies -log p of each answer, as the papers' formulas have it.
FORMULAS: dict[type[RewardedSpec], Callable[[list[float], list[int]], list[float]]] = {
    GRPO: lambda r, n: [(each - mean(r)) / (deviation(r) + 1e-4) / of for each, of in zip(r, n, strict=True)],
    DAPO: lambda r, n: [(each - mean(r)) / (deviation(r) + 1e-4) * len(n) / sum(n) for each in r],
    DrGRPO: lambda r, n: [(each - mean(r)) / 6 for each in r],
    RLOO: lambda r, n: [each - (sum(r) - each) / (len(r) - 1) for each in r],
}


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def deviation(values: list[float]) -> float:
    return math.sqrt(sum((each - mean(values)) ** 2 for each in values) / (len(values) - 1))


@pytest.mark.parametrize("kind", FORMULAS, ids=lambda each: each.__name__)
def test_the_loss_is_that_of_the_papers_formula(kind: type[RewardedSpec]) -> None:
    """Of answers of different lengths to prompts of different lengths, each by itself, on all logits."""
    said = way(kind)
    rows: PromptRows = next(data().feed(recipe(said)))
    model = writer()
    found = losses(said, LossContext(model, model.head(), CPU), rows)
    found.total.backward()
    ours = gradients(model)
    answers = rollouts(model, tokenizer(), rows, said)
    total, missing, alike = [], [], 0
    for i in range(len(rows.labels)):
        own, before = answers[4 * i : 4 * i + 4], prompt_of(rows, i)
        worth = [Evens().of(each.text, rows.exchange[i, 0].facts) for each in own]
        missing, alike = [*missing, *(1 - each for each in worth)], alike + (len(set(worth)) == 1)
        for each, count in zip(own, FORMULAS[kind](worth, [len(each.ids) for each in own]), strict=True):
            learned = np.arange(len(before) + len(each.ids)) >= len(before)
            total.append(-count * log_likelihood(model, np.array([*before, *each.ids]), learned))
    torch.stack(total).sum().backward()
    assert len({len(each.ids) for each in answers}) > 1
    assert len({len(prompt_of(rows, i)) for i in range(len(rows.labels))}) > 1
    check_alike(ours, gradients(model))
    torch.testing.assert_close(found.each.flatten(), torch.tensor(missing), rtol=1e-6, atol=1e-7, check_dtype=False)
    parts = {name: (float(part.nats), int(part.labels)) for name, part in found.parts.items()}
    n = len(missing)
    assert parts["reward"] == (pytest.approx(n - sum(missing)), n)
    assert parts["length"] == (sum(len(each.ids) for each in answers), n)
    assert parts["ended"] == (sum(each.ids[-1] in tokenizer().closing_ids for each in answers), n)
    assert parts["entropy"][1] == parts["length"][0]
    assert parts["alike"] == (alike, len(rows.labels))


def test_a_teacher_is_heard_where_the_model_drew() -> None:
    """(1 - weight) of the loss, weight of Σ exp(d) - d - 1 over an answer's length, d = log p of the teacher - log p."""
    said = way(group=2)
    rows: PromptRows = next(data().feed(recipe(said)))
    model = writer()
    theirs: Any = writer(seed=7)
    teacher = Teacher(theirs, objective_of(said, theirs.spec), Distillation(teacher="there", weight=0.3))
    found = losses(said, LossContext(model, model.head(), CPU, teacher=teacher), rows)
    found.total.backward()
    ours = gradients(model)
    answers = rollouts(model, tokenizer(), rows, said)
    total, apart = [], []
    for i in range(len(rows.labels)):
        own, before = answers[2 * i : 2 * i + 2], prompt_of(rows, i)
        worth = [Evens().of(each.text, rows.exchange[i, 0].facts) for each in own]
        for each, count in zip(own, FORMULAS[GRPO](worth, [len(each.ids) for each in own]), strict=True):
            ids = torch.tensor([[*before, *each.ids]])
            mine, other = (of_each(one, ids, len(before)) for one in (model, theirs))
            d = other.detach() - mine
            apart.append((d.exp() - d - 1).sum())
            total.append(0.7 * -count * mine.sum() + 0.3 * apart[-1] / len(each.ids))
    torch.stack(total).sum().backward()
    check_alike(ours, gradients(model))
    assert float(found.parts["teacher"].nats) == pytest.approx(float(torch.stack(apart).sum().detach()), rel=1e-4)
    assert not [p for p in theirs.parameters() if p.grad is not None]


def test_further_updates_are_clipped() -> None:
    """Of answers that another model drew: the gradient of min(r A, clip(r) A), r by all logits of both (PPO, equation 7)."""
    said = way(updates=2, clip_below=0.1, clip_above=0.3)
    rows: PromptRows = next(data().feed(recipe(said)))
    then, now = writer(), writer()
    with torch.no_grad():
        for parameter in now.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    objective = objective_of(said, then.spec, tokenizer())
    with torch.no_grad():
        answered = objective.answered(LossContext(then, then.head(), CPU), rows)
    found = objective(LossContext(now, now.head(), CPU), answered)
    found.total.backward()
    ours = gradients(now)
    total, n, sides = [], [0, 0], set[tuple[bool, bool]]()
    for before, own in zip(map(partial(prompt_of, rows), range(len(rows.labels))), answered.answers, strict=True):
        worth = [Evens().of(each.text, rows.exchange[len(total), 0].facts) for each in own]
        loss = torch.zeros((), dtype=torch.float64)
        for each, counts in zip(own, FORMULAS[GRPO](worth, [len(each.ids) for each in own]), strict=True):
            ids = torch.tensor([[*before, *each.ids]])
            ratio = (of_each(now, ids, len(before)) - of_each(then, ids, len(before)).detach()).exp()
            kept, least = ratio.clamp(0.9, 1.3) * counts, ratio * counts
            loss = loss - torch.minimum(least, kept).sum()
            n = [n[0] + int((kept < least).sum()), n[1] + len(ratio)]
            sides |= {(counts > 0, bool(each)) for each in kept < least}
        total.append(loss)
    torch.stack(total).sum().backward()
    check_alike(ours, gradients(now))
    assert [int(each) for each in found.parts["clipped"][:2]] == n
    assert len(sides) == 4  # of tokens to become likelier and less likely, both


def test_a_step_makes_as_many_updates_as_are_asked() -> None:
    """The second by the answers of the first, at the same rate; from weights that drew them, the first clips nothing."""
    found = []
    for updates in (1, 2):
        model, given = writer(), recipe(way(updates=updates))
        trainer = Trainer(model, given, objective_of(given.objective, model.spec, tokenizer()))
        feed = data().feed(given)
        rows = next(feed)
        trainer.gradients(1, rows)
        first = gradients(model)
        trainer.optimizer.zero_grad(set_to_none=True)
        result = trainer.step(1, rows)
        found.append((first, result, trainer.optimizer.state[trainer.parameters[0]]["step"]))
    (one, once, steps), (two, twice, more) = found
    check_alike(one, two)
    assert (int(steps), int(more)) == (1, 2)
    assert once.loss == twice.loss
    assert once.grad_norm != twice.grad_norm
    assert "clipped" not in (once.parts or {})
    assert "clipped" in (twice.parts or {})


def test_a_stop_ends_an_answer() -> None:
    """Its text is what stands before; its tokens are learnt up to those that end it."""
    model = writer()
    encoded = data().encoded(recipe(way()))
    rows = encoded.batch(np.arange(9), np.arange(36).reshape(9, 4))
    whole, cut = (rollouts(model, tokenizer(), rows, way(stop=stop)) for stop in ((), ("4", "77")))
    met = 0
    for plain, each in zip(whole, cut, strict=True):
        places = [(at + len(stop), at) for stop in ("4", "77") if (at := plain.text.find(stop)) >= 0]
        if not places:
            assert each == plain
            continue
        met += 1
        end, begin = min(places)
        assert each.text == plain.text[:begin]
        assert each.ended
        assert each.ids == plain.ids[: len(each.ids)]
        assert tokenizer().decode(each.ids) == plain.text[:end]
    assert 3 < met < 33


def of_each(model: Transformer, ids: Tensor, n: int) -> Tensor:
    """Log p of each token behind the first n."""
    logits = model(ids).logits[0, :-1].double().log_softmax(-1)
    return logits.gather(1, ids[0, 1:, None])[n - 1 :, 0]


def test_the_gradient_is_that_of_the_expected_reward() -> None:
    """Of answers of one token all are known: the sum over them of p times reward. RLOO's gradient is that, on average."""
    said = way(RLOO, group=8, max_new_tokens=1)
    model = writer()
    corpus = ExchangeCorpus((Exchange("1+1=", (), 1, facts={"answer": 2}),), "one.jsonl")
    given, n = PromptData(corpus, None, tokenizer()), 600
    encoded = given.encoded(recipe(said))
    rows = encoded.batch(np.zeros(n, dtype=np.int64), np.arange(8 * n).reshape(n, 8))
    out = model(torch.tensor([prompt_of(rows, 0)])).logits[0, -1]
    texts = [tokenizer().decode([token]) for token in range(len(out))]
    worth = torch.tensor([Evens().of(text, {"answer": 2}) for text in texts])
    expected = -(out.softmax(-1) * worth).sum()  # which is to fall
    bias: Tensor = model.stack.norm.weight
    (exact,) = torch.autograd.grad(expected, bias)
    by, drawn = LossContext(model, model.head(), CPU), []
    for part in range(20):
        of = slice(part * 30, part * 30 + 30)
        some = PromptRows(*(field[of] for field in rows))
        (gradient,) = torch.autograd.grad(losses(said, by, some).total, bias)
        drawn.append(gradient / 240)
    found = torch.stack(drawn)
    error = found.std(0) / math.sqrt(len(found))
    assert ((found.mean(0) - exact).abs() <= 4 * error + 1e-7).all()
    assert (exact.abs() > 8 * error).any()  # it is no matter of chance


def test_answers_are_those_that_the_model_gives() -> None:
    """Greedy ones as without any cache; drawn ones as often as they are likely, and each alone as among others."""
    model = writer()
    encoded = data().encoded(recipe(way()))
    rows = encoded.batch(np.arange(9), np.full((9, 1), LIKELIEST))
    for i, own in enumerate(rollouts(model, tokenizer(), rows, way())):
        ids = prompt_of(rows, i)
        for _ in range(6):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] in tokenizer().closing_ids:
                break
        assert ids == prompt_of(rows, i) + own.ids
        assert own.ended == (ids[-1] in tokenizer().closing_ids)
    n = 2000
    one = encoded.batch(np.zeros(1, dtype=np.int64), np.arange(n)[None])
    drawn = rollouts(model, tokenizer(), one, way(max_new_tokens=1))
    first = np.bincount([each.ids[0] for each in drawn], minlength=model.spec.vocab_size)
    with torch.no_grad():
        likely = model(torch.tensor([prompt_of(one, 0)])).logits[0, -1].double().softmax(-1).numpy() * n
    often = likely >= 5
    square = (((first - likely) ** 2 / likely)[often]).sum()
    assert square < often.sum() + 5 * math.sqrt(2 * often.sum())
    some = encoded.batch(np.arange(5), np.arange(5, 15).reshape(5, 2))
    together = rollouts(model, tokenizer(), some, way())
    for i in range(5):
        alone = PromptRows(*(field[i : i + 1] for field in some))
        assert rollouts(model, tokenizer(), alone, way()) == together[2 * i : 2 * i + 2]


def test_parts_of_a_batch_are_the_batch() -> None:
    found, given = [], recipe(way())
    for micro_tokens in (10**6, 100):
        model = writer()
        objective = objective_of(given.objective, model.spec, tokenizer())
        trainer = Trainer(model, given, objective, micro_tokens=micro_tokens)
        rows = next(data().feed(given))
        assert (rows_of(rows, micro_tokens) < len(rows.labels)) == (micro_tokens == 100)
        found.append((trainer.gradients(1, rows).loss, gradients(model)))
    assert math.isclose(found[0][0], found[1][0], rel_tol=1e-6)
    check_alike(found[0][1], found[1][1])


def test_what_a_run_knows_of_its_prompts() -> None:
    """A row is a group of answers behind the prompt, each of which has one label; who writes messages is a part of the data."""
    given, said = data(), recipe(way())
    tokens = [len(tokenizer().encode(f"{row.before}")) for row in prompts().rows if isinstance(row.before, str)]
    load = given.load(said)
    assert load.batch == 4
    assert min(tokens) + 6 <= load.query <= 40
    assert given.predicted_share(said) == pytest.approx(1 / load.query)
    assert load.query == math.ceil(given.encoded(said).lengths.mean())
    other = Tokenizer(tokenizer()._inner, {**tokenizer().config, "chat_template": TEMPLATE + " "})
    assert PromptData(prompts(), prompts(6, 1), other).fingerprint != given.fingerprint


def test_what_is_written_is_counted_as_read() -> None:
    """A token of an answer is read where it is written, each time that it is learnt from, and once to see how likely it was."""
    load = data().load(recipe(way()))
    once = flops_per_token(fitting(), load)
    found = [
        flops_per_token(fitting(), load, objective_of(way(updates=n), fitting(), tokenizer())) / once for n in (1, 2, 5)
    ]
    assert found == pytest.approx([4 / 3, 8 / 3, 17 / 3])


def test_answers_are_told_by_their_lines() -> None:
    """In whatever batches they are judged."""
    model, given = writer(), recipe(way())
    objective, validation = objective_of(given.objective, model.spec, tokenizer()), data().validation(given)
    assert validation is not None
    whole, parts = (evaluate(model, objective, validation, batch_tokens=n) for n in (10**6, 1))
    assert whole.answers == parts.answers
    assert [(each.line, each.prompt) for each in whole.answers] == [
        (row.line, row.before) for row in prompts(6, 1).rows
    ]
    assert sum(each.reward for each in whole.answers) == pytest.approx(6 * whole.parts["reward"].loss)


def test_rules_are_added_up() -> None:
    """What all answers have to the full is the highest reward; from groups that are all alike nothing is learnt."""
    said = way(rewards=(Matches(pattern="^", weight=0.5), Matches(pattern="^", weight=0.2)))
    model = writer()
    rows = next(data().feed(recipe(said)))
    found = losses(said, LossContext(model, model.head(), CPU), rows)
    found.total.backward()
    reward, n = found.parts["reward"], rows.labels.size
    assert (float(reward.nats), int(reward.labels)) == (pytest.approx(0.7 * n), n)
    assert reward.right is not None
    assert int(reward.right) == n
    assert int(found.parts["alike"].nats) == len(rows.labels)
    assert not found.each.any()
    assert all(not bool(gradient.any()) for gradient in gradients(model).values())


def test_a_prompt_is_answered_otherwise_each_time_that_it_comes() -> None:
    feed, seeds = data().feed(recipe(way())), dict[int, list[tuple[int, ...]]]()
    for _ in range(12):
        rows = next(feed)
        for row, drawn in zip(rows.exchange[:, 0], rows.seed, strict=True):
            seeds.setdefault(row.line, []).append(tuple(drawn))
    assert max(map(len, seeds.values())) > 1
    other = next(data().feed(recipe(way(), seed=1)))
    assert tuple(other.seed[0]) not in seeds[other.exchange[0, 0].line]
    every = [seed for times in seeds.values() for drawn in times for seed in drawn]
    assert len(set(every)) == len(every)
    assert min(every) >= 0


def test_a_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Also with rows that are prepared by another process."""
    given = recipe(way(), tokens=8 * 600)
    whole = trained(given, tmp_path)
    options = RunOptions(device=CPU, validations=2, plan=False, save_every=3, workers=1)
    with pytest.raises(Crash):
        trained(given, tmp_path, out=tmp_path / "run", options=options, watcher=Watching(5, crash))
    again = trained(given, tmp_path, out=tmp_path / "run", options=options)
    assert [m.loss.hex() for m in again.steps] == [m.loss.hex() for m in whole.steps]
    assert again.evaluation is not None
    assert whole.evaluation is not None
    assert again.evaluation.loss.hex() == whole.evaluation.loss.hex()
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), whole.model.parameters(), strict=True))


@pytest.mark.parametrize("kind", FORMULAS, ids=lambda each: each.__name__)
def test_what_is_worth_more_becomes_likelier(kind: type[RewardedSpec], tmp_path: Path) -> None:
    found = trained(recipe(way(kind), tokens=40 * 600, optimizer=AdamW(lr=3e-3)), tmp_path)
    rewards = [(step.parts or {})["reward"] for step in found.steps]
    assert mean(rewards[-5:]) > 0.7 > 0.5 > rewards[0]
    assert found.unigram_loss == pytest.approx(1.0)  # no reward at all
    assert found.evaluation is not None
    assert found.evaluation.tokens == 6  # prompts
    assert found.evaluation.loss == pytest.approx(1 - found.evaluation.parts["reward"].loss)


def test_an_adapter_learns_and_a_teacher_holds_it(tmp_path: Path) -> None:
    """From a teacher alone, which is what the adapter is put on, there is nothing to learn; from rewards there is."""
    base = Distillation(teacher=str(tmp_path / "base"))
    given = recipe(way(), tokens=30 * 600, lora=lora_of("r=8,alpha=16,targets=all"), optimizer=AdamW(lr=1e-2))
    changed = []
    for each in (given, given.but(distillation=base)):
        found = trained(each, tmp_path)
        rewards = [(step.parts or {})["reward"] for step in found.steps]
        changed.append(abs(mean(rewards[-5:]) - mean(rewards[:5])))
        if each.distillation is not None:
            assert max((step.parts or {})["teacher"] for step in found.steps) < 1e-6
    assert changed[0] > 0.1 > 0.05 > changed[1]


@pytest.mark.parametrize(
    ("rule", "answer", "right", "worth"),
    [
        (Equal(), " 42\n", 42, 1),
        (Equal(), "42.", 42, 0),
        (Contains(), "it is 42.", "42 ", 1),
        (Contains(), "4 2", "42", 0),
        (LastNumber(), "6 times 7 is 42.", "so #### 42", 1),
        (LastNumber(), "it is 1,234.50", 1234.5, 1),
        (LastNumber(), "42, or 43", 42, 0),
        (LastNumber(), "5 - -3", "-3", 1),
        (LastNumber(), "none", 42, 0),
        (LastNumber(), "1,2", "2", 1),
        (Boxed(), r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}", 1),
        (Boxed(), r"\boxed{1} or \boxed{2.0}", r"hence \boxed{2}", 1),
        (Boxed(), r"\boxed{1} and \boxed{2", "1", 1),
        (Boxed(), "2", "2", 0),
        (Matches(pattern=r"^<think>.*</think>\s*\S"), "<think>\nhm\n</think> 42", "", 1),
        (Matches(pattern=r"^<think>.*</think>\s*\S"), "42", "", 0),
    ],
)
def test_rules_know_the_right_answer(rule: RewardRule, answer: str, right: object, worth: float) -> None:
    assert rule.of(answer, {"answer": right}) == worth


def test_a_rule_that_fails_is_named() -> None:
    class Broken(RewardRule):
        def of(self, answer: str, line: Any) -> float:
            return line["none"]

    class Endless(RewardRule):
        def of(self, answer: str, line: Any) -> float:
            return math.nan

    for rule, says in (
        (Broken(), r"the reward Broken failed on .*: KeyError: 'none'"),
        (Endless(), "Endless is nan of"),
    ):
        with pytest.raises(RunFailed, match=says):
            train(fitting(), recipe(way(rewards=(rule,))), data(), options=HOW)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dropout": DropoutSpec(residual=0.1)}, "GRPO learns from what the model says without dropout"),
        ({"label_smoothing": 0.1}, "GRPO has no label_smoothing"),
        ({"distillation": Distillation(teacher="x", temperature=2.0)}, "draws at temperature 1"),
        (
            {"seq_len": 12},
            r"sums.jsonl, line \d+: \d+ tokens and an answer of 6 are more than the 12 of a row; make rows",
        ),
        (
            {"batch_tokens": 40},
            r"line \d+: 4 answers to it take up to \d+ tokens, and a batch holds 40; make the batch",
        ),
        ({"batch_tokens": 10**6, "tokens": 10**6}, "less than one batch of 1,000,000"),
        ({"objective": DPO()}, r"DPO reads preferences .*, and what is given is prompts"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises((UsageError, TextError), match=says):
        train(fitting(), recipe(way()).but(**changes), data(), options=HOW)


def test_architectures_that_write_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="it has an encoder"):
        objective_of(GRPO(), encoder_decoder())
    with pytest.raises(UsageError, match="Everything"):
        objective_of(GRPO(), decoder(Everything()))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"answer": 1}', "line 2: there is no 'prompt' among 'answer'"),
        ('{"prompt": ""}', "line 2: prompt = '' asks nothing"),
        ('{"prompt": 3}', "line 2: prompt = 3 asks nothing"),
        ('{"prompt": [{"role": "user"}]}', "line 2: message 1 of prompt"),
    ],
)
def test_files_are_read_line_by_line(line: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text('{"prompt": "1+1=", "answer": 2, "more": [1]}\n')
    (row,) = read_prompts(file).rows
    assert row == Exchange("1+1=", (), 1, (), {"answer": 2, "more": [1]})
    other = read_prompts(file).fingerprint
    file.write_text(file.read_text().replace("2,", "3,"))
    assert read_prompts(file).fingerprint != other
    file.write_text(file.read_text() + line)
    with pytest.raises(TextError, match=says.replace("[", r"\[")):
        read_prompts(file)


def test_a_line_without_what_it_is_judged_by_is_named() -> None:
    facts = {"answer": "two", "blank": " ", "right": True}
    corpus = ExchangeCorpus((Exchange("1+1=", (), 7, facts=facts),), "asked.jsonl")
    for rule, says in (
        (LastNumber(), "no number in 'answer'"),
        (Equal(field="solution"), "no text or number 'solution'"),
        (Equal(field="right"), "no text or number 'right'"),
        (Contains(field="blank"), "nothing but blanks in 'blank', which any answer has"),
    ):
        with pytest.raises(
            TextError, match=f"asked.jsonl, line 7: {rule.kind} judges answers by it, and it has {says}"
        ):
            PromptData(corpus, None, tokenizer()).encoded(recipe(way(rewards=(rule,))))


def test_recipes_carry_them() -> None:
    for kind in FORMULAS:
        said = recipe(way(kind, rewards=(LastNumber(weight=0.5), Matches(pattern="a")), stop=("\nQ:", "#")))
        assert loads(dumps(said)) == said
        assert said.objective.highest == 1.5  # type: ignore[attr-defined]
    with pytest.raises(SpecError, match=r"GRPO.stop = .* must be a text of 1 to 200 characters"):
        way(stop=("",))
    assert rewards_of(["boxed", "Evens", Equal(field="b")]) == (Boxed(), Evens(), Equal(field="b"))
    with pytest.raises(UsageError, match=r"there is no reward 'boxd' \(did you mean 'boxed'\?\)"):
        rewards_of(["boxd"])


def test_commands_train_and_judge(tmp_path: Path) -> None:
    """What `evaluate` says of a run is what the run said of the same prompts."""
    sums = [{"prompt": f"{a}+{b}=", "answer": a + b} for a in range(5) for b in range(4)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, sums)))
    af.save(writer(), tmp_path / "base", tokenizer=tokenizer())
    asked = ["--data", tmp_path / "sums.jsonl"]
    said = [*asked, "--reward", "last-number", "--max-new-tokens", "4", "--objective", "grpo"]
    sizes = [
        "--group",
        "4",
        "--updates",
        "2",
        "--tokens",
        "2k",
        "--batch-tokens",
        "400",
        "--seq-len",
        "16",
        "--validation",
        "0.2",
    ]
    base, out = tmp_path / "base", tmp_path / "out"
    learnt = answer("train", base, "--init", base, *said, *sizes, "--out", out)
    assert learnt["objective"] == "GRPO"
    shown = succeeded(run("train", base, "--init", base, *said, *sizes, "--out", out)).stdout
    judged = answer("evaluate", out, *asked, "--held-out", "0.2")
    assert judged["reward"] == learnt["validation"]["reward"] == pytest.approx(1 - learnt["validation"]["loss"])
    assert judged["loss"] == learnt["validation"]["loss"]
    assert judged["prompts"] == 4
    each = judged["answers"]
    assert sum(one["reward"] for one in each) / 4 == pytest.approx(judged["reward"])
    assert [one["prompt"] for one in each] == [sums[one["line"] - 1]["prompt"] for one in each]
    *_, last = (out / "metrics.jsonl").read_text().splitlines()
    assert json.loads(last)["answers"] == each
    for one in each:
        assert f"line {one['line']}: {one['prompt']!r} → {one['text']!r}, worth {one['reward']:g}" in shown
    told = succeeded(run("evaluate", base, *said, "--stop", "1", "--stop", "2")).stdout.splitlines()
    assert "20 prompts" in told[0]
    assert len(told) == 5
    assert not any(set("12") & set(line.partition("→")[2].partition(", worth")[0]) for line in told[1:])
    refused(run("evaluate", base, *asked, "--reward", "equal"), "take --objective grpo, or leave them out")
    refused(run("evaluate", base, *asked, "--objective", "grpo", "--reward", "equl"), "did you mean 'equal'")
    refused(run("inspect", out, *asked), "GRPO judges what a model writes itself")
    refused(run("train", base, *asked, "--group", "4", "--out", tmp_path / "other"), "has a field 'group'")
