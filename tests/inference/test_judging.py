"""What a model is judged by: as it was trained where the data are of that kind, or what suits it; how long its rows may be."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import anyformer as af
from anyformer.errors import UsageError
from anyformer.inference.evaluation import PreferenceEvaluation
from anyformer.inference.judging import goal_of, judging
from anyformer.inference.opened import Opened
from anyformer.recipe import (
    DPO,
    IPO,
    ORPO,
    CausalLM,
    Classification,
    Contrastive,
    FillInTheMiddle,
    ObjectiveSpec,
    Recipe,
    Seq2Seq,
    SimPO,
    SpanCorruption,
)
from anyformer.text import Tokenizer
from anyformer.training.objectives.denoising import SENTINELS
from anyformer.training.objectives.objective import with_head_for
from anyformer.training.prepare import Sources
from tests.laws.models import randomised

LINE = "the cat sits on the mat"


def tokenizer(*specials: str) -> Tokenizer:
    return Tokenizer.train([LINE] * 5, 270 + len(specials), len(specials)).with_specials(specials, {})


def of_positions(name: str, n_positions: int, words: Tokenizer) -> af.ModelSpec:
    return af.resize(af.shrink(name), vocab_size=words.vocab_size, context=n_positions)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(f"{LINE}\n" * 40)
    return file


def evaluate(spec: af.ModelSpec, data: Path | None, words: Tokenizer, **options: Any) -> Any:
    model = randomised(spec)
    model.labels = ("a", "b")
    return cast("Any", af.evaluate)(model, data, tokenizer=words, **options)


def test_an_encoder_and_a_decoder_is_judged_by_what_its_tokenizer_hides_text_by(text: Path) -> None:
    for specials, objective in ((SENTINELS, "SpanCorruption"), (("<mask>",), "Denoising")):
        words = tokenizer(*specials)
        found = evaluate(of_positions("bart-base", 64, words), text, words)
        assert found.objective == objective
        assert found.seq_len < 64  # what is made of a row is longer
    plain = tokenizer()
    with pytest.raises(UsageError, match=r"its tokenizer has none; give pairs of texts \(--source and --target\)"):
        evaluate(of_positions("bart-base", 64, plain), text, plain)


def test_what_is_judged_as_plain_text_has_rows_as_long_as_the_positions(text: Path) -> None:
    """Whatever training makes of such rows, and with marks or without."""
    learnt = FillInTheMiddle()
    recipe = Recipe(objective=learnt, seq_len=64, batch_tokens=64)
    for words in (tokenizer(*learnt.specials), tokenizer()):
        found = Opened(af.build(of_positions("gpt2", 64, words)), words, recipe)
        assert judging(found, learnt, Sources(text)).seq_len == 64


def test_rows_beyond_the_context_are_said_to_be_and_none_is_longer_than_the_text(text: Path) -> None:
    words = tokenizer()
    spec = of_positions("llama2-7b", 16, words)
    long, short = (evaluate(spec, text, words, seq_len=n) for n in (10**6, 16))
    assert long.seq_len == long.tokens + 1 > 16
    assert f"rows of {long.seq_len}, beyond the 16 tokens that the model is published for)" in str(long)
    assert "rows of 16)" in str(short)
    assert "context" not in long.as_json()


def test_rows_whose_texts_go_beyond_the_positions_are_refused(text: Path, tmp_path: Path) -> None:
    words, masked = tokenizer(), tokenizer("<mask>")
    bert = of_positions("bert-base", 16, words)
    with pytest.raises(
        UsageError, match="43 tokens go beyond the model's 32 learned positions; use --seq-len 24 or less"
    ):
        evaluate(of_positions("bart-base", 32, masked), text, masked, seq_len=32)
    (tmp_path / "labelled.jsonl").write_text(f'{{"text": "{LINE} {LINE} {LINE} {LINE}", "label": "a"}}\n' * 4)
    sorted_ = with_head_for(bert, Classification(), ("a", "b"))
    with pytest.raises(
        UsageError, match="20 tokens go beyond the model's 16 learned positions; use --seq-len 16 or less"
    ):
        evaluate(sorted_, tmp_path / "labelled.jsonl", words, seq_len=20, truncate=True)
    (long := tmp_path / "long.txt").write_text(f"{LINE} {LINE} {LINE} {LINE}\n" * 40)
    sides = {"source": long, "target": long}
    with pytest.raises(UsageError, match="go beyond the model's 16 learned positions; use --seq-len 16 or less"):
        evaluate(with_head_for(bert, Contrastive()), None, words, seq_len=20, truncate=True, **sides)


def test_pairs_beyond_the_positions_are_to_be_left_out_since_their_rows_have_no_length(text: Path) -> None:
    words, sides = tokenizer(), {"source": text, "target": text}
    with pytest.raises(UsageError, match="go beyond the model's 4 learned positions; leave longer ones out"):
        evaluate(of_positions("bart-base", 4, words), None, words, **sides)
    wide = of_positions("bart-base", 64, words)
    with pytest.raises(UsageError, match="--seq-len 8: rows of Seq2Seq are as long as their pairs; leave it out"):
        evaluate(wide, None, words, seq_len=8, **sides)
    assert evaluate(wide, None, words, **sides).seq_len == len(words.encode(LINE)) + 1


TEXT, PAIRS = Sources(Path("a.txt")), Sources(source=Path("a.txt"), target=Path("b.txt"))


def run(name: str, learnt: ObjectiveSpec, *specials: str) -> Opened:
    tokenizer = Tokenizer.train(["a text"], 257).with_specials(specials)
    spec = with_head_for(af.resize(af.shrink(af.preset(name)), vocab_size=tokenizer.vocab_size), learnt)
    return Opened(af.build(spec), tokenizer, Recipe(objective=learnt))


@pytest.mark.parametrize(
    ("name", "learnt", "given", "says"),
    [
        ("bert-base", Contrastive(), TEXT, "this run learnt by Contrastive, from pairs; give --source and --target"),
        ("t5-small", Seq2Seq(), TEXT, "this run learnt by Seq2Seq, from pairs; give --source and --target"),
        ("llama2", CausalLM(), PAIRS, "this run learnt by CausalLM, not from pairs; give --data"),
        (
            "llama2",
            DPO(),
            TEXT,
            r"beside the model that it began with \(DPO\).*; say what to judge .*: --objective simpo",
        ),
        ("llama2", IPO(), TEXT, r"beside the model that it began with \(IPO\)"),
    ],
)
def test_a_run_says_what_it_learnt_from(name: str, learnt: ObjectiveSpec, given: Sources, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        goal_of(run(name, learnt), given)


def test_a_run_is_judged_otherwise_where_that_can_be() -> None:
    specials = tuple(f"<extra_id_{i}>" for i in range(100))
    assert goal_of(run("t5-small", Seq2Seq(), *specials), TEXT) == SpanCorruption()
    assert goal_of(run("t5-small", SpanCorruption(), *specials), PAIRS) == Seq2Seq()
    assert goal_of(run("llama2", DPO()), TEXT, "sft").kind == "SFT"
    assert goal_of(run("llama2", ORPO(weight=0.2)), TEXT, "orpo") == ORPO(weight=0.2)


@pytest.mark.parametrize("learnt", [SimPO(), ORPO()], ids=lambda each: each.kind)
def test_preferences_without_another_model_are_judged_by_what_the_model_says(
    tmp_path: Path, learnt: SimPO | ORPO
) -> None:
    asked, answers = "a text", [(" of ten", " of twenty"), (" a", " a text"), (" text", " a text a text")]
    file = tmp_path / "preferences.jsonl"
    file.write_text("".join(json.dumps({"prompt": asked, "chosen": a, "rejected": b}) + "\n" for a, b in answers))
    found = run("llama2", learnt)
    model, tokenizer = found.model, found.tokenizer
    end = tokenizer.end_of_text
    assert end is not None

    def nats(answer: str) -> tuple[float, int]:
        """Of an answer's tokens and of the one that ends a text, which opens one too; and how many these are."""
        before, behind = [end, *tokenizer.encode(asked)], [*tokenizer.encode(answer), end]
        ids = torch.tensor([*before, *behind])
        with torch.no_grad():
            logs = model(ids[None]).logits[0].double().log_softmax(-1)
        return -float(logs[len(before) - 1 : -1].gather(1, ids[len(before) :, None]).sum()), len(behind)

    def reward(answer: str) -> float:
        mean = -nats(answer)[0] / nats(answer)[1]
        return learnt.beta * mean if isinstance(learnt, SimPO) else mean - math.log(1 - math.exp(mean))

    margins, chosen = [reward(a) - reward(b) for a, b in answers], [nats(a) for a, _ in answers]
    judged = af.evaluate(model, file, tokenizer=tokenizer, objective=learnt.kind.lower())
    assert isinstance(judged, PreferenceEvaluation)
    assert judged.pairs == 3
    assert judged.accuracy == sum(margin > 0 for margin in margins) / 3
    assert judged.margin == pytest.approx(sum(margins) / 3, rel=1e-3)
    assert judged.loss == pytest.approx(sum(math.log1p(math.exp(-margin)) for margin in margins) / 3, rel=1e-4)
    assert judged.chosen_loss == pytest.approx(sum(each for each, _ in chosen) / sum(n for _, n in chosen), rel=1e-5)
