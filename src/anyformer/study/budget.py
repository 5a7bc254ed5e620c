"""A comparison's budget of time: the tokens of each run, so that all runs together take so many minutes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from anyformer.amounts import counted
from anyformer.disk.atomic import create_directories, replace_file
from anyformer.disk.foreign import read_json
from anyformer.disk.seal import seal
from anyformer.errors import UsageError
from anyformer.study.compare import ComparisonTask
from anyformer.training.data.feed import TrainingData
from anyformer.training.prepare import Say
from anyformer.training.run import RunOptions
from anyformer.training.run.budget import seconds_a_step, tokens_in

FILE = "budget.json"


def in_time(
    minutes: float, question: ComparisonTask, data: TrainingData, out: Path, options: RunOptions, say: Say
) -> ComparisonTask:
    """The question with the tokens for which there is time; those found before in `out` for the same question, if there are.

    Raises UsageError for less than a step.
    """
    asked = {
        "minutes": minutes,
        "architectures": {name: spec.key for name, spec in question.architectures.items()},
        "recipe": question.recipe.key,
        "runs": [question.seeds, list(question.learning_rates), question.equal],
        "data": data.fingerprint,
    }
    file = out / FILE
    known = read_json(file, UsageError) if file.is_file() else None
    if isinstance(known, dict) and known.get("asked") == asked and isinstance(known.get("tokens"), int):
        tokens = known["tokens"]
    else:
        runs = max(1, len(question.learning_rates)) + question.seeds - 1
        recipe, total = question.recipe, 0.0
        for name in question.architectures:
            job = question.job(name, None, 0, data)
            total += runs * seconds_a_step(job, options) * job.recipe.steps / recipe.steps
        tokens = tokens_in(minutes, total, recipe)
        create_directories(out)
        replace_file(file, seal({"asked": asked, "tokens": tokens}))
    found = replace(question, recipe=question.recipe.but(tokens=tokens))
    say(f"{minutes:g} min: {counted(found.recipe.steps, 'step')} a run, {tokens:,} tokens, as timed here")
    return found
