"""Questions answered by likelihood: against one pass for each choice, without padding or batches."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.errors import InputError
from anyformer.inference.answering import TaskEvaluation, figures_of
from anyformer.inference.likelihood import Likelihood, ScoredText, log_likelihoods, pair_of
from anyformer.model import Transformer
from anyformer.text import Tokenizer
from anyformer.text.tasks import Question, Task
from tests.cli.running import answer, refused, run, succeeded
from tests.laws.models import randomised

TEXTS = [
    f"the {a} sat on the {b} and saw a {a}." for a in ("cat", "dog", "hen") for b in ("mat", "hill", "roof", "tree")
]
ROWS = [
    {"question": f"the {a} sat on the", "choices": ["mat", "hill", "roof and saw", "tree"], "answer": i % 4}
    for i, a in enumerate(("cat", "dog", "hen", "mat of the cat", "dog and the hen", "saw", "hill"))
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS * 4, 280)


def model_of(name: str, tokenizer: Tokenizer) -> Transformer:
    return randomised(af.resize(af.shrink(af.preset(name).spec), vocab_size=tokenizer.vocab_size), 3)


def alone(model: Transformer, before: list[int], after: list[int], start: int | None = None) -> tuple[float, bool]:
    """The likelihood of what follows, token by token, in as many passes."""
    log, greedy = 0.0, True
    written = [] if start is None else [start]
    for token in after:
        with torch.no_grad():
            if start is None:
                logits = model(torch.tensor([before + written])).logits[0, -1].double()
            else:
                logits = model(torch.tensor([before]), decoder_input_ids=torch.tensor([written])).logits[0, -1].double()
        log += float(logits[token] - logits.logsumexp(-1))
        greedy &= int(logits.argmax()) == token
        written.append(token)
    return log, greedy


# Windows, gaps of a state, multi-token modules, positions by bias; a head with a soft-cap; two stacks.
@pytest.mark.parametrize(
    "name", ["gpt2", "gemma2-2b", "mamba2-130m", "t5-small", "qwen3-next-80b-a3b", "mistral-7b-v0.1"]
)
def test_likelihoods_are_those_of_each_alone(name: str, tokenizer: Tokenizer) -> None:
    model = model_of(name, tokenizer)
    texts = [(str(row["question"]), f" {choice}") for row in ROWS for choice in row["choices"]]  # type: ignore[attr-defined]
    pairs = [pair_of(model, tokenizer, *each) for each in (*texts, ("the", " cat sat on the mat and saw"))]
    start = tokenizer.start_of_answer if model.encoder is not None else None
    # What is likeliest is not left to chance: one answer is the model's own.
    own = af.generate(model, tokenizer, "the cat sat", max_new_tokens=3) if start is None else ""
    pairs += [pair_of(model, tokenizer, "the cat sat", own)] if own else []
    expected = [alone(model, *pair, start) for pair in pairs]
    found = log_likelihoods(model, tokenizer, pairs)
    assert [each.log for each in found] == pytest.approx([log for log, _ in expected], abs=1e-3)
    assert [each.greedy for each in found] == [greedy for _, greedy in expected]
    assert {each.cut for each in found} == {0}


def test_what_answers_have_in_common_is_read_once(tokenizer: Tokenizer) -> None:
    """Of two questions, one with two answers of several tokens; what stands alone is one pass as ever."""
    model, read = model_of("llama2-7b", tokenizer), list[tuple[int, ...]]()
    model.stack.register_forward_pre_hook(lambda _, given: read.append(tuple(given[0].shape)))
    pairs = [
        ScoredText([5, 6, 7, 8], [9, 3, 2]),
        ScoredText([1, 2], [3]),
        ScoredText([5, 6, 7, 8], [4, 4]),
        ScoredText([1, 2], [9]),
        ScoredText([7], [7, 7]),
    ]
    found = log_likelihoods(model, tokenizer, pairs)
    assert sorted(read) == [(1, 2), (2, 4), (4, 2)]
    for each, pair in zip(found, pairs, strict=True):
        assert (each.log, each.greedy) == pytest.approx(alone(model, *pair), abs=1e-3)


def test_what_does_not_fit_is_left_out_from_the_front(tokenizer: Tokenizer) -> None:
    model = model_of("gpt2", tokenizer)
    before, after = tokenizer.encode("the cat sat on the mat and saw a"), tokenizer.encode(" cat.")
    (found,) = log_likelihoods(model, tokenizer, [ScoredText(before, after)], seq_len=8)
    kept = before[-(9 - len(after)) :]
    assert (found.log, found.greedy) == pytest.approx(alone(model, kept, after), abs=1e-3)
    assert found.cut == len(before) - len(kept)
    long = tokenizer.encode(" on the mat")
    with pytest.raises(
        InputError, match=r"follows, ' on the mat' …, is \d tokens long, beyond the 2 of a pass; shorten it"
    ):
        log_likelihoods(model, tokenizer, [ScoredText(before, long)], seq_len=2)


def test_nothing_before_is_what_opens_a_text(tokenizer: Tokenizer) -> None:
    model = model_of("gpt2", tokenizer)
    begin = tokenizer.begin_of_text
    assert begin is not None
    assert pair_of(model, tokenizer, "", "the cat") == ScoredText([begin], tokenizer.encode("the cat"))
    words = tokenizer.encode("the cat sat")
    assert pair_of(model, tokenizer, "the cat", " sat") == ScoredText([begin, *words[:-1]], words[-1:])


def test_a_model_that_sees_what_it_would_predict_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="take a decoder"):
        log_likelihoods(model_of("bert-base", tokenizer), tokenizer, [ScoredText([1], [2])])


def test_figures_by_hand() -> None:
    """Of (-4, -3) the second is likelier, of (-4/8, -3/2) by character the first."""
    question = Question("", ("eight---", "22"), 0, 1)
    told = [Likelihood(-4.0, False, 0), Likelihood(-3.0, False, 2)]
    other = question._replace(answer=1)
    task = Task((question, other, other), "multiple choice", "some/where/words.jsonl")
    found = figures_of(task, [(each, told) for each in task.questions])
    assert (found.task, found.examples, found.chance, found.cut) == ("words", 3, 0.5, 3)
    assert found.figures == pytest.approx({"accuracy": 2 / 3, "normalised_accuracy": 1 / 3})
    error = statistics.stdev([0, 1, 1]) / math.sqrt(3)
    assert found.standard_errors == pytest.approx({"accuracy": error, "normalised_accuracy": error})
    whole = Task((Question("", ("a",), 0, 1),) * 2, "completion", "x.jsonl")
    said = [[Likelihood(-1.0, True, 0)], [Likelihood(-3.0, False, 0)]]
    assert figures_of(whole, list(zip(whole.questions, said, strict=True))).figures == pytest.approx(
        {"accuracy": 0.5, "perplexity": math.e**2}
    )
    told = figures_of(whole, [(each, [Likelihood(-740.0, False, 0)]) for each in whole.questions])
    assert told.figures["perplexity"] == math.inf
    assert "perplexity inf" in str(told)
    assert TaskEvaluation((told,)).as_json()["tasks"][0]["figures"] == {"perplexity": None, "accuracy": 0.0}


def test_the_command(tmp_path: Path, tokenizer: Tokenizer) -> None:
    model = model_of("gpt2", tokenizer)
    af.save(model, tmp_path / "m", tokenizer)
    file = tmp_path / "sat.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    (told,) = answer("evaluate", tmp_path / "m", "--tasks", file, "--device", "cpu")["tasks"]
    rows: list[dict[str, Any]] = ROWS  # type: ignore[assignment]
    begin = [tokenizer.encode("<|endoftext|>", specials=True)[0]]  # as every text begins that it was trained on
    each = [
        [
            alone(model, begin + tokenizer.encode(row["question"]), tokenizer.encode(f" {choice}"))[0]
            for choice in row["choices"]
        ]
        for row in rows
    ]
    right = [logs.index(max(logs)) == row["answer"] for logs, row in zip(each, rows, strict=True)]
    normed = [
        [log / len(c) for log, c in zip(logs, row["choices"], strict=True)]
        for logs, row in zip(each, rows, strict=True)
    ]
    assert told["figures"]["accuracy"] == pytest.approx(sum(right) / 7)
    assert told["figures"]["normalised_accuracy"] == pytest.approx(
        sum(logs.index(max(logs)) == row["answer"] for logs, row in zip(normed, rows, strict=True)) / 7
    )
    assert (told["task"], told["kind"], told["examples"], told["chance"]) == ("sat", "multiple choice", 7, 0.25)
    shown = succeeded(run("evaluate", tmp_path / "m", "--tasks", file, "--device", "cpu")).stdout
    assert shown.startswith("sat (multiple choice, 7 questions): accuracy ")
    assert shown.endswith("; by chance 25.0 %\n")
    refused(
        run("evaluate", tmp_path / "m", "--tasks", file, "--data", file, "--bleu"),
        "--tasks asks questions, and --data, --bleu is for texts",
    )
    (tmp_path / "bad.jsonl").write_text('{"question": 1, "answer": "x"}', encoding="utf-8")
    refused(run("evaluate", tmp_path / "m", "--tasks", tmp_path / "bad.jsonl"), "bad.jsonl, line 1: question = 1")
