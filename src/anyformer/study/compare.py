"""Comparison: architectures × learning rates × seeds, on the same data in the same order; what has run is not run again."""

from __future__ import annotations

import gc
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from anyformer.disk.atomic import replace_file
from anyformer.disk.run_layout import CHECKPOINTS
from anyformer.disk.seal import FORMAT, latest, read_seal, seal
from anyformer.errors import AnyformerError, DiskFailed, RunFailed, UsageError, among
from anyformer.generation import Sampling, generate_text
from anyformer.hub import load
from anyformer.inference.figures import right_labels
from anyformer.layers.embedding import learned_positions
from anyformer.model import Transformer
from anyformer.recipe import Labelled, Recipe, ReplacedTokens
from anyformer.resizing import Counted, resize
from anyformer.spec import ModelSpec, encode, label, parameters
from anyformer.study.encoding import decode as decode_result
from anyformer.study.encoding import encode as encode_result
from anyformer.study.results import ACCURACY, BITS, LOSS, LossPoint, RunResult, Score, Trial, Tuning
from anyformer.study.windows import window_losses
from anyformer.text.prompts import encode_prompt
from anyformer.training.data.feed import TrainingData
from anyformer.training.data.text import TextData
from anyformer.training.objectives.labelled.data import LabelledData
from anyformer.training.run import Job, RunOptions, TrainingResult, train
from anyformer.training.run.checks import SOURCES, check_run
from anyformer.training.run.plan import flops_per_token
from anyformer.training.run.progress import Watcher
from anyformer.training.run.signals import Stopped
from anyformer.training.run.teaching import rows_for
from anyformer.training.step.state import fingerprint_at

EARLY = 0.25  # of the steps: where the early loss is read
EARLY_WORDS = "validation loss, on a fixed sample, after a quarter of the steps"
CURVE_POINTS = 400  # at most, of a training curve
SAMPLE_TOKENS = 120
LONGEST_NAME = 100  # bytes of an architecture's name in its runs' directories: a disk takes 255 of all

Equal = Literal["tokens", "flops"]  # what the runs have as much of
EQUAL = get_args(Equal)
Watch = Callable[[str], Watcher]  # a view for a run, by its title


@dataclass(frozen=True, kw_only=True)
class ComparisonTask:
    """What is compared: each architecture with each seed, by one recipe but for the learning rate."""

    architectures: Mapping[str, ModelSpec]
    recipe: Recipe
    seeds: int = 1
    learning_rates: tuple[float, ...] = ()  # the best of these is taken for each architecture; none: the recipe's
    equal: Equal = "tokens"
    prompt: str | None = ""  # None: no samples
    lengths: tuple[int, ...] = ()  # of windows by which the text to validate on is read too

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise UsageError(f"--seeds {self.seeds}: at least one seed is needed")
        if not self.architectures:
            raise UsageError("there is nothing to compare; name at least one architecture")
        if self.equal not in EQUAL:
            raise UsageError(f"runs are not made equal in {self.equal!r}{among(self.equal, EQUAL)}")

    @property
    def score(self) -> Score:
        """What is judged by: what the objective's labels allow."""
        if self.recipe.objective.whole:
            return BITS
        said = self.recipe.objective
        return ACCURACY if isinstance(said, Labelled) and said.labels != "numbers" else LOSS

    def recipe_of(self, name: str, learning_rate: float | None, seed: int, data: TrainingData) -> Recipe:
        """The recipe of one run; at equal FLOPs, the first architecture's tokens set the budget."""
        recipe = self.recipe.but(seed=self.recipe.seed + seed)
        if learning_rate is not None:
            recipe = recipe.but(optimizer=recipe.optimizer.but(lr=learning_rate))
        if self.equal == "flops":
            first = next(iter(self.architectures.values()))
            ratio = self.flops(first, data) / self.flops(self.architectures[name], data)
            recipe = recipe.but(tokens=max(recipe.batch_tokens, round(recipe.tokens * ratio)))
        return recipe

    def job(self, name: str, learning_rate: float | None, seed: int, data: TrainingData) -> Job:
        """What one run is asked to do, wherever it is kept."""
        return Job(self.architectures[name], self.recipe_of(name, learning_rate, seed, data), data, name=name)

    def flops(self, spec: ModelSpec, data: TrainingData) -> float:
        """The FLOPs of training on one token, or label."""
        return flops_per_token(spec, data.load(self.recipe)) / data.predicted_share(self.recipe)


def run_all(
    question: ComparisonTask, data: TrainingData, out: Path, options: RunOptions, watch: Watch
) -> tuple[tuple[RunResult, ...], tuple[Tuning, ...]]:
    """All runs, each below `out`: those at the chosen learning rates, and what was tried to choose them.

    A run that fails is a result with a `failure`, and the others go on. Raises what stops all of them: bad input, a disk that
    cannot be written, a signal.
    """
    check(question, data)
    runs: list[RunResult] = []
    tuning: list[Tuning] = []

    def run(name: str, rate: float | None, seed: int) -> RunResult:
        return run_one(question, question.job(name, rate, seed, data), seed, out / "runs", options, watch)

    for name in question.architectures:
        rates = question.learning_rates or (None,)
        trials = {rate: run(name, rate, 0) for rate in rates}
        chosen, best = min(trials.items(), key=lambda trial: rank(trial[1], question.score))
        if len(rates) > 1:
            tried = tuple(
                Trial(
                    learning_rate=r.learning_rate,
                    validation_loss=r.validation_loss,
                    score=r.scored(ACCURACY) if question.score == ACCURACY else None,
                )
                for r in trials.values()
            )
            tuning.append(Tuning(architecture=name, trials=tried, chosen=best.learning_rate))
        runs += [best, *(run(name, chosen, seed) for seed in range(1, question.seeds))]
    return tuple(runs), tuple(tuning)


def refuse_incomparable(recipe: Recipe) -> None:
    """Raise UsageError for a recipe by which architectures cannot be compared."""
    if recipe.lora is not None:
        raise UsageError(
            "architectures are compared from nothing, and an adapter is put on given weights; leave out lora"
        )
    objective, why = recipe.objective, None
    if objective.reads not in ("text", "labelled"):
        why = f"it reads {SOURCES[objective.reads]}, and a comparison one text, or labelled text"
    elif isinstance(objective, ReplacedTokens):
        why = "each architecture would train a generator of its own, so that no two losses would be of one task"
    if why is not None:
        raise UsageError(f"architectures cannot be compared by {objective.kind}: {why}")


def at_size(spec: ModelSpec, n_params: int, count: Counted, recipe: Recipe, data: TrainingData) -> ModelSpec:
    """An architecture of about so many parameters, with the rows and the context of a recipe on some data.

    That is the recipe's rows, and longer where what is made of them is: what was hidden in a text stands between sentinels.
    """
    context = max(recipe.seq_len, data.longest(spec, recipe, recipe.seq_len))
    return resize(spec, n_params=n_params, vocab_size=rows_for(recipe, data), context=context, count=count)


def check(question: ComparisonTask, data: TrainingData) -> None:
    """Raise, before anything is trained or written, what would stop any of the runs or its sample."""
    refuse_incomparable(question.recipe)
    for name, spec in question.architectures.items():
        for rate in question.learning_rates or (None,):
            try:
                check_run(spec, question.recipe_of(name, rate, 0, data), data)
            except AnyformerError as error:
                raise type(error)(f"{name}: {error}") from None
    data.feed(question.recipe)
    if data.tokenizer is None or question.score != BITS or question.prompt is None:
        return
    n_tokens = len(encode_prompt(data.tokenizer, question.prompt))
    for name, spec in question.architectures.items():
        limit = learned_positions(spec.stack)
        if limit is not None and n_tokens >= limit:
            raise UsageError(
                f"--prompt has {n_tokens} tokens, which leaves no room among the {limit} learned positions of {name}; "
                "give a shorter one"
            )


def rank(run: RunResult, score: Score) -> tuple[float, float]:
    """What is the least for the best run: the score, then the loss."""
    loss, value = run.validation_loss, run.scored(score)
    if loss is None or loss != loss or value is None:
        return float("inf"), float("inf")
    return -value if score.higher else value, loss


def identity(job: Job, seed: int) -> str:
    """What no run of another architecture, recipe or data is called, whatever its model is."""
    recipe, read = job.recipe, [job.data.fingerprint]
    if recipe.distillation is not None:
        read.append(fingerprint_at(recipe.distillation.path))
    what = json.dumps([encode(job.spec), encode(recipe), *read], sort_keys=True)
    lr = recipe.optimizer.peak(job.spec.stack.d_model)
    return f"lr{lr:g}-seed{seed}-{hashlib.sha256(what.encode()).hexdigest()[:8]}"


def directory_of(runs: Path, name: str, identity: str) -> Path:
    """Where among `runs` the run of an identity lies, or shall: a model that is called otherwise may have made it."""
    safe = re.sub(r"[^\w.=+() -]", "_", name).encode()[:LONGEST_NAME].decode(errors="ignore")
    return next(runs.glob(f"[!.]*-{identity}"), runs / f"{safe}-{identity}")


def run_one(question: ComparisonTask, job: Job, seed: int, runs: Path, options: RunOptions, watch: Watch) -> RunResult:
    """One run among `runs`, or what is kept of it. One that fails has a `failure`; raises what would stop all of them."""
    spec, recipe, data, name = job.spec, job.recipe, job.data, job.name or ""
    lr = recipe.optimizer.peak(spec.stack.d_model)
    directory = directory_of(runs, name, identity(job, seed))
    file = directory / "result.json"
    if file.is_file():
        latest(directory / CHECKPOINTS)  # refuses a run with a file that is another
        known = replace(
            kept(file, "; delete it: the run is then looked at anew, and not trained again"), architecture=name
        )
        sampled = data.tokenizer is None or question.score != BITS or question.prompt in (None, known.prompt)
        if sampled and question.lengths in ((), known.lengths):
            return known
        model, _ = load(directory, device=options.device)
        read = known if sampled else _sampled(known, model, data, question.prompt or "")
        return keep(_windowed(read, model, data, question.lengths), file)
    title = name + (f", lr {lr:g}" if len(question.learning_rates) > 1 else "") + (f", seed {seed}" if seed else "")
    count = parameters(spec)
    bare = RunResult(
        architecture=name, seed=seed, learning_rate=lr, n_params=count.total, n_params_embedding=count.embedding,
        flops_per_token=question.flops(spec, data), tokens_seen=0, tokens_per_second=0.0, seconds=0.0,
        failure="did not start",
    )  # fmt: skip
    try:
        result = train(spec, recipe, data, out=directory, options=options, watcher=watch(title), name=name)
    except Stopped:
        raise
    except AnyformerError as error:
        if error.exit_status != 1 or isinstance(error, DiskFailed):
            raise
        return replace(bare, failure=" ".join(str(error).split()))
    finally:
        gc.collect()
    finished = _finished(bare, result)
    if question.score == BITS and question.prompt is not None:
        finished = _sampled(finished, result.model, data, question.prompt)
    elif isinstance(data, LabelledData):
        finished = replace(finished, right=right_labels(result.model, data, recipe))
    return keep(_windowed(finished, result.model, data, question.lengths), file)


def kept(file: Path, remedy: str) -> RunResult:
    """What `keep` wrote. Raises CheckpointError, which ends in the remedy, where it is damaged."""
    held = read_seal(file, remedy)
    return decode_result(RunResult, held.get("result", held), str(file))


def keep(run: RunResult, file: Path) -> RunResult:
    """Write a result; return it. Raises RunFailed where the disk does not take it."""
    content = seal({"format": FORMAT, "result": encode_result(run)})
    try:
        replace_file(file, content)
    except OSError as error:
        raise RunFailed(
            f"cannot write {file}, which needs {len(content):,} bytes: {error.strerror or error}; the run's last checkpoint "
            "is good; make room, then start again"
        ) from None
    return run


def _finished(bare: RunResult, result: TrainingResult) -> RunResult:
    assert result.evaluation is not None
    every = -(-len(result.steps) // CURVE_POINTS)
    looks = [LossPoint(v.step, v.tokens, v.flops, v.seconds, v.validation_loss) for v in result.validations]
    last = result.steps[-1].step
    early = next((look.loss for look in looks[:-1] if look.step >= EARLY * last - 1), None)
    return replace(
        bare,
        flops_per_token=result.flops_per_token,
        tokens_seen=result.tokens,
        tokens_per_second=result.tokens_per_second,
        seconds=result.seconds,
        curve=tuple(LossPoint(s.step, s.tokens, s.flops, s.seconds, s.loss) for s in result.steps[::every]),
        validation=tuple(looks),
        early_loss=early,
        documents=result.evaluation.documents,
        failure=None,
    )


def _sampled(run: RunResult, model: Transformer, data: TrainingData, prompt: str) -> RunResult:
    """The run with a sample that continues this prompt."""
    if data.tokenizer is None:
        return run
    room = model.spec.context or SAMPLE_TOKENS + 32
    new = min(SAMPLE_TOKENS, max(1, room - len(data.tokenizer.encode(prompt)) - 2))
    text = generate_text(model, data.tokenizer, [prompt], max_new_tokens=new, sampling=Sampling(0.8, top_p=0.95))
    return replace(run, sample=prompt + text[0].text, prompt=prompt)


def _windowed(run: RunResult, model: Transformer, data: TrainingData, lengths: tuple[int, ...]) -> RunResult:
    """The run with its losses in windows of these lengths."""
    if not lengths or not isinstance(data, TextData) or data.held_out is None:
        return run
    return replace(run, lengths=lengths, windows=window_losses(model, data.held_out, lengths))


def first_words(data: TrainingData) -> str:
    """How the validation text begins, up to three words: what samples continue where nothing else is asked for."""
    if not isinstance(data, TextData) or data.tokenizer is None:
        return ""
    text = data.tokenizer.decode((data.held_out or data.train).tokens[:SAMPLE_TOKENS].tolist())
    found = re.search(r"\w\S*( \S+){0,2}", text.replace("\ufffd", " "))
    return found[0] if found else ""


def named(names: Sequence[str], specs: Sequence[ModelSpec]) -> dict[str, ModelSpec]:
    """The architectures by name; two of one name are numbered."""
    out: dict[str, ModelSpec] = {}
    for name, spec in zip(names, specs, strict=True):
        short = numbered = label(name)
        n = 2
        while numbered in out:
            numbered, n = f"{short} ({n})", n + 1
        out[numbered] = spec
    return out
