"""Pairs of runs of text beside masked words: rows against the text, losses against transformers, runs."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anyformer.families import preset
from anyformer.families.bert import bert, pretraining
from anyformer.model import build
from anyformer.recipe import NextSentence, SentenceOrder, SentencePairs
from anyformer.resizing import resize, shrink
from anyformer.spec import ModelSpec
from anyformer.text import NOT_PREDICTED, EncodedCorpus
from anyformer.training.checkpoint.metrics import read_metrics
from anyformer.training.data.text import TextData
from anyformer.training.objectives.objective import LossContext, objective_of, with_head_for
from anyformer.training.objectives.sentences import PAIRED
from anyformer.training.objectives.sentences.noise import SentenceRows
from anyformer.training.run import RunOptions, train
from anyformer.training.run.evaluation import evaluate
from anyformer.training.step import Trainer
from tests.laws.parity import pair
from tests.laws.tolerance import FLOAT32, gradient_distance
from tests.training.crashing import hexadecimal, resumed
from tests.training.noisy import encoded, plain_tokenizer, sentences
from tests.training.test_objectives import CPU, sharpened
from tests.training.test_objectives_noise import by_kind, recipe

BOTH = (NextSentence(), SentenceOrder())
both = pytest.mark.parametrize("objective", BOTH, ids=by_kind)
TOKENIZER = plain_tokenizer().with_specials((), PAIRED)
CLS, SEP, END = (TOKENIZER.encode(spelled, specials=True)[0] for spelled in ("[CLS]", "[SEP]", "<|endoftext|>"))
WORDS = np.setdiff1d(np.arange(TOKENIZER.vocab_size), list(TOKENIZER.special_ids))
BERT = resize(pretraining(bert(n_layers=1, d_model=16, n_heads=2, context=64)), vocab_size=TOKENIZER.vocab_size)


def corpus(lengths: list[int], seed: int = 0, among: Sequence[int] = WORDS.tolist()) -> EncodedCorpus:
    """Documents of tokens drawn at random, so that where a run of them stands can hardly be mistaken."""
    rng = np.random.default_rng(seed)
    documents = [np.concatenate([[END], rng.choice(among, n), [END]]).astype(np.uint16) for n in lengths]
    offsets = np.cumsum([0, *map(len, documents)])
    return EncodedCorpus(np.concatenate(documents), offsets, np.array(lengths), TOKENIZER.vocab_size, f"{lengths}")


def data(texts: int = 60) -> TextData:
    made = encoded(sentences(texts, 1), TOKENIZER), encoded(sentences(8, 2), TOKENIZER)
    return TextData(*made, TOKENIZER)


def fitting(objective: SentencePairs) -> ModelSpec:
    return with_head_for(BERT, objective)


def runs(rows: SentenceRows, i: int) -> tuple[np.ndarray, np.ndarray]:
    """The two runs of a row as they were before anything was hidden, its special tokens checked."""
    real = rows.document[i] == 1
    n = int(real.sum())
    assert real[:n].all()
    ids = np.where(rows.labels[i] == NOT_PREDICTED, rows.input_ids[i], rows.labels[i])[:n]
    special = np.flatnonzero(np.isin(ids, [CLS, SEP, END]))
    assert ids[special].tolist() == [CLS, SEP, SEP]
    assert special[0] == 0
    assert special[2] == n - 1
    assert (rows.labels[i][special] == NOT_PREDICTED).all()
    assert rows.positions[i].tolist() == [*range(n), *[0] * (len(real) - n)]
    assert rows.token_types[i].tolist() == [int(special[1] < j < n) for j in range(len(real))]
    assert (rows.input_ids[i][n:] == 0).all()
    return ids[1 : special[1]], ids[special[1] + 1 : -1]


def stands_in(run: np.ndarray, text: np.ndarray) -> bool:
    return any((text[at : at + len(run)] == run).all() for at in range(len(text) - len(run) + 1))


@both
@given(
    lengths=st.lists(st.integers(0, 90), min_size=2, max_size=8),
    room=st.integers(5, 40),
    negatives=st.floats(0.05, 0.95),
    short=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 100),
)
@settings(max_examples=40, deadline=None)
def test_rows_are_runs_of_the_text(
    objective: SentencePairs, lengths: list[int], room: int, negatives: float, short: float, seed: int
) -> None:
    lengths = [3, 20, *lengths]
    text = corpus(lengths, seed)
    said = objective.but(negatives=negatives, short=short, rate=0.3)
    options = recipe(said, seq_len=room, batch_tokens=room, tokens=room, seed=seed)
    feed = TextData(text, text, TOKENIZER).feed(options)
    for _ in range(8):
        rows = next(feed)
        assert {field.shape for field in rows[:6]} == {(1, room)}
        a, b = runs(rows, 0)
        assert min(len(a), len(b)) > 0
        n = len(a)
        sources = rows.source[0]
        assert (sources[[0, n + 1]] == -1).all()
        assert (sources[n + len(b) + 2 :] == -1).all()
        (first,) = set(sources[1 : n + 1].tolist())
        (second,) = set(sources[n + 2 : n + 2 + len(b)].tolist())
        texts = [text.document(i)[1:-1] for i in (first, second)]
        assert stands_in(a, texts[0])
        assert stands_in(b, texts[1])
        apart = bool(rows.apart[0, 0])
        if isinstance(said, NextSentence):
            assert (first != second) == apart
            assert apart or stands_in(np.concatenate([a, b]), texts[0])
        else:
            assert first == second
            assert stands_in(np.concatenate([b, a] if apart else [a, b]), texts[0])
        hidden = int((rows.labels != NOT_PREDICTED).sum())
        assert hidden >= 1
        if not said.whole_words:
            assert hidden == max(1, round(0.3 * (n + len(b))))
        assert rows.labels_a_row.tolist() == [[hidden]]


@both
def test_shares_are_those_that_are_asked_for(objective: SentencePairs) -> None:
    """Over some thousand rows: the negatives, and the pairs that are shorter than their passage."""
    n, room = 2000, 28
    plain = [token for token in WORDS.tolist() if not (TOKENIZER.spelling(token) or "").endswith((".", "!", "?", "Ċ"))]
    text = corpus([(room - 3) * 16] * 50, among=plain)  # no sentence ends: every passage is as long as there is room
    said = objective.but(negatives=0.3, short=0.2)
    feed = TextData(text, text, TOKENIZER).feed(recipe(said, seq_len=room, batch_tokens=room * 100, tokens=room * n))
    batches = [next(feed) for _ in range(n // 100)]
    apart, lengths = (
        np.concatenate(x) for x in ([rows.apart[:, 0] for rows in batches], [rows.document.sum(1) for rows in batches])
    )
    assert apart.mean() == pytest.approx(0.3, abs=5 * math.sqrt(0.3 * 0.7 / n))
    # A length drawn from 2 to that of the passage is that of the passage once in a while; a run from elsewhere may end early.
    shorter, expected = (lengths[apart == 0] < room).mean(), 0.2 * (1 - 1 / (room - 4))
    assert shorter == pytest.approx(expected, abs=5 * math.sqrt(0.2 * 0.8 / (0.7 * n)))


@both
def test_rows_follow_from_seed_step_and_row(objective: SentencePairs) -> None:
    options = recipe(objective)
    straight, again = data().feed(options), data().feed(options)
    batches = [next(straight) for _ in range(14)]  # further than an epoch
    again.skip(2)
    later = data().feed(options)
    later.restore(dict(again.state()))
    for expected in batches[2:]:
        for one, other in zip(next(later), expected, strict=True):
            np.testing.assert_array_equal(one, other)
    other = next(data().feed(options.but(seed=1)))
    assert (other.input_ids != batches[0].input_ids).any()
    assert max(int(rows.document.sum(1).max()) for rows in batches) <= data().longest(BERT, options, options.seq_len)
    validation = data().validation(options)
    assert validation is not None
    by_four, by_one = (
        [np.concatenate(field) for field in zip(*(rows[:7] for rows, _ in validation.batches(size)), strict=True)]
        for size in (200, 1)
    )
    for one, another in zip(by_four, by_one, strict=True):
        np.testing.assert_array_equal(one, another)


@pytest.mark.parametrize(("name", "objective"), [("bert-base", BOTH[0]), ("albert-base", BOTH[1])])
def test_the_loss_is_that_of_the_class_of_transformers(name: str, objective: SentencePairs) -> None:
    """BertForPreTraining and AlbertForPreTraining: same weights, same rows, both labels; forward and backward."""
    spec = resize(shrink(preset(name).spec), vocab_size=TOKENIZER.vocab_size)
    models, room = pair(spec), 32
    rows = next(data().feed(recipe(objective, seq_len=room, batch_tokens=room * 6)))
    assert 0 < rows.apart.sum() < len(rows.apart)
    label = {"bert-base": "next_sentence_label", "albert-base": "sentence_order_label"}[name]
    expected = models.theirs(
        torch.from_numpy(rows.input_ids),
        attention_mask=torch.from_numpy(rows.document),
        token_type_ids=torch.from_numpy(rows.token_types),
        labels=torch.from_numpy(rows.labels),
        **{label: torch.from_numpy(rows.apart[:, 0])},
    )
    expected.loss.backward()
    losses = objective_of(objective, spec)(LossContext(models.ours, models.ours.head(), CPU), rows)
    loss = losses.total / int((rows.labels != NOT_PREDICTED).sum())
    loss.backward()
    torch.testing.assert_close(loss, expected.loss, rtol=FLOAT32, atol=0)
    assert gradient_distance(models.our_gradients(), models.gradients()) < FLOAT32
    scores = next(v for k, v in expected.items() if k in ("seq_relationship_logits", "sop_logits"))
    part = losses.parts[objective.said]
    right = (scores.argmax(1).numpy() == rows.apart[:, 0]).sum()
    assert part.right is not None
    assert (int(part.labels), int(part.right)) == (len(rows.apart), right)
    alone = torch.nn.functional.cross_entropy(scores, torch.from_numpy(rows.apart[:, 0]), reduction="sum")
    torch.testing.assert_close(part.nats, alone.detach(), rtol=1e-5, atol=1e-6)


@both
def test_micro_batches_add_up(objective: SentencePairs) -> None:
    spec, options = fitting(objective), recipe(objective)
    batch = next(data().feed(options))
    found = []
    for micro_tokens in (None, 2 * options.seq_len, 1):
        trainer = Trainer(build(spec), options, objective_of(objective, spec), micro_tokens=micro_tokens)
        step = trainer.step(1, batch)
        trainer.gradients(1, batch)
        found.append((step.loss, step.parts, [p.grad for p in trainer.parameters if p.grad is not None]))
    for loss, parts, grads in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-6)
        assert parts == pytest.approx(found[0][1], rel=1e-5)
        torch.testing.assert_close(grads, found[0][2], rtol=1e-4, atol=1e-6)


@both
def test_a_run_that_crashed_goes_on_bit_for_bit(objective: SentencePairs, tmp_path: Path) -> None:
    options, spec, given = (
        RunOptions(device=CPU, save_every=2, validations=2, plan=False),
        fitting(objective),
        recipe(objective),
    )
    straight = train(spec, given, data(), options=options, out=tmp_path / "straight")
    again = resumed(5, spec, given, data(), out=tmp_path / "run", options=options)
    assert hexadecimal(again) == hexadecimal(straight)
    assert [step.parts for step in again.steps] == [step.parts for step in straight.steps]
    steps = read_metrics(tmp_path / "run").steps
    assert steps[0].parts is not None
    assert steps[0].parts[objective.said] == pytest.approx(math.log(2), abs=0.2)  # what knowing nothing costs


@both
def test_evaluation_tells_how_many_pairs_are_right(objective: SentencePairs) -> None:
    spec, options = fitting(objective), recipe(objective)
    model, validation = sharpened(spec), data().validation(options)
    assert validation is not None
    found = evaluate(model, objective_of(objective, spec), validation, batch_tokens=100)  # type: ignore[arg-type]
    right, nats, n = 0, 0.0, 0
    for rows, _ in validation.batches(1):  # row by row
        given = {"attention_mask": rows.document, "token_type_ids": rows.token_types}
        with torch.no_grad():
            out = model(torch.from_numpy(rows.input_ids), **{k: torch.from_numpy(v) for k, v in given.items()})
        logs = out.outputs[objective.head][0].log_softmax(0)
        right, nats, n = right + int(logs.argmax() == rows.apart[0, 0]), nats - float(logs[rows.apart[0, 0]]), n + 1
    part = found.parts[objective.said]
    assert part == pytest.approx((nats / n, n, right / n), rel=1e-4)
    assert n > 4


def test_an_order_that_is_plain_is_learnt() -> None:
    """Documents of a sentence of one letter, then one of another: which came first is plain to see."""
    text = encoded([f"{'a' * n}. {'b' * n}." for n in range(5, 12)] * 8, TOKENIZER)
    options = recipe(SentenceOrder(short=0.0), seq_len=32, batch_tokens=32 * 8)
    model, feed = build(fitting(SentenceOrder())), TextData(text, text, TOKENIZER).feed(options)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)  # as they start, so small a model takes long to tell letters by types
    options = options.but(optimizer=options.optimizer.but(lr=1e-2))
    trainer = Trainer(model, options, objective_of(options.objective, model.spec))
    losses = [(trainer.step(step, next(feed)).parts or {})["sentence order"] for step in range(1, 141)]
    assert np.mean(losses[:5]) == pytest.approx(math.log(2), abs=0.3)
    assert np.mean(losses[-10:]) < 0.1


def test_a_model_of_one_type_is_given_none() -> None:
    one = resize(
        pretraining(bert(n_layers=1, d_model=16, n_heads=2, context=64, n_segments=1)), vocab_size=TOKENIZER.vocab_size
    )
    none = resize(
        pretraining(bert(n_layers=1, d_model=16, n_heads=2, context=64, n_segments=0)), vocab_size=TOKENIZER.vocab_size
    )
    rows = next(data().feed(recipe(NextSentence())))
    for spec in (one, none):
        given: list[Any] = []
        model = build(spec)
        model.register_forward_pre_hook(lambda _, args, kwargs, given=given: given.append(kwargs), with_kwargs=True)
        objective_of(NextSentence(), spec)(LossContext(model, model.head(), CPU), rows)
        assert given[0].get("token_type_ids") is None
