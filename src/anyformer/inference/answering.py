"""How many questions of a task a model answers right, by how likely it finds each choice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from anyformer.amounts import counted
from anyformer.inference.likelihood import Likelihood, log_likelihoods, pair_of
from anyformer.inference.opened import TrainedModel, at_least_one, opened
from anyformer.layers.packing import Packing
from anyformer.notebook import ShowsItself
from anyformer.recipe import Precision
from anyformer.text import Tokenizer
from anyformer.text.tasks import Question, Task, read_task
from anyformer.training.run.evaluation import perplexity_of

VERSION = 1
SHARES = ("accuracy", "normalised_accuracy", "acc", "acc_norm")  # figures that are shown as percentages


@dataclass(frozen=True)
class TaskFigures:
    """What came of one task."""

    task: str
    kind: str
    examples: int
    figures: Mapping[str, float]
    standard_errors: Mapping[str, float | None]  # of the same names; None: not known
    chance: float | None = None  # the accuracy of a blind guess
    cut: int = 0  # questions that were too long for the model, and lost their beginning

    def __str__(self) -> str:
        said = []
        for name, value in self.figures.items():
            error = self.standard_errors.get(name)
            scale, unit = (100, " %") if name in SHARES else (1, "")
            spread = "" if error is None else f" ± {scale * error:.1f}" if unit else f" ± {error:.3g}"
            said.append(
                f"{name.replace('_', ' ')} {scale * value:.1f}{spread}{unit}" if unit else f"{name} {value:.4g}{spread}"
            )
        chance = "" if self.chance is None else f"; by chance {self.chance:.1%}".replace("%", " %")
        cut = f", {self.cut:,} cut" if self.cut else ""
        return f"{self.task} ({self.kind}, {counted(self.examples, 'question')}{cut}): {', '.join(said)}{chance}"


@dataclass(frozen=True)
class TaskEvaluation(ShowsItself):
    """Tasks, each with its figures."""

    tasks: tuple[TaskFigures, ...]

    def as_json(self) -> dict[str, Any]:
        told = [asdict(task) for task in self.tasks]
        for task in told:
            task["figures"] = {name: v if math.isfinite(v) else None for name, v in task["figures"].items()}
        return {"version": VERSION, "tasks": told}

    def __str__(self) -> str:
        return "\n".join(map(str, self.tasks))


def evaluate_task(
    model: TrainedModel,
    file: str | Path,
    *,
    seq_len: int | None = None,
    tokenizer: Tokenizer | str | Path | None = None,
    precision: Precision = "float32",
    dtype: torch.dtype | Packing | None = None,
    device: str | None = None,
) -> TaskEvaluation:
    """How many questions of a file (`text.tasks.read_task`) a model answers right; the options are those of `evaluate`.

    A choice is taken that the model finds likeliest: all of it (accuracy), or by character (normalised accuracy). A text is
    completed right where each token of the answer is the likeliest. The standard error is that of a mean of independent
    questions. Raises TextError, and InputError for a model that predicts no next token.
    """
    task = read_task(file)
    at_least_one("--seq-len", seq_len)
    found = opened(model, tokenizer, device=device, dtype=dtype)
    each = [question.follows(choice) for question in task.questions for choice in question.choices]
    pairs = [pair_of(found.model, found.tokenizer, *texts) for texts in each]
    said = iter(log_likelihoods(found.model, found.tokenizer, pairs, seq_len, precision))
    answers = [(question, [next(said) for _ in question.choices]) for question in task.questions]
    return TaskEvaluation((figures_of(task, answers),))


def figures_of(task: Task, answers: Sequence[tuple[Question, Sequence[Likelihood]]]) -> TaskFigures:
    """The figures of a task, given how likely each choice of each question was found."""
    figures: dict[str, float] = {}
    errors: dict[str, float | None] = {}
    if task.kind == "completion":
        right = {"accuracy": [choices[0].greedy for _, choices in answers]}
        nats = -sum(choices[0].log for _, choices in answers) / len(answers)
        figures["perplexity"] = perplexity_of(nats)  # of an answer
        errors["perplexity"] = None
    else:
        right = {
            "accuracy": [_likeliest([each.log for each in said]) == q.answer for q, said in answers],
            "normalised_accuracy": [
                _likeliest([each.log / len(text) for each, text in zip(said, q.choices, strict=True)]) == q.answer
                for q, said in answers
            ],
        }
    for name, each in right.items():
        n, mean = len(each), sum(each) / len(each)
        figures[name] = mean
        errors[name] = math.sqrt(mean * (1 - mean) / (n - 1)) if n > 1 else None
    cut = sum(any(each.cut for each in said) for _, said in answers)
    return TaskFigures(
        Path(task.where).name.partition(".")[0], task.kind, len(answers), figures, errors, task.chance, cut
    )


def _likeliest(values: Sequence[float]) -> int:
    """The number of the largest value, the first of equal ones."""
    return max(range(len(values)), key=lambda i: values[i])
