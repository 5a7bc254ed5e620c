"""Training as one call: an architecture, text and a recipe, each named or given; a model, its figures and its run come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import torch

from anyformer.amounts import counted
from anyformer.disk.run_layout import CHECKPOINTS, is_run
from anyformer.disk.seal import latest
from anyformer.errors import CheckpointError, UsageError
from anyformer.hub import load
from anyformer.inference.embedding import retrieve
from anyformer.inference.figures import figures, in_words
from anyformer.model import Transformer
from anyformer.notebook import ShowsItself
from anyformer.recipe import Contrastive, Mixture, Recipe, dumps, of_run
from anyformer.spec import Architecture, label, specification
from anyformer.text import Tokenizer
from anyformer.training.checkpoint.directory import was_given_weights
from anyformer.training.chosen_recipe import recipe_for
from anyformer.training.cluster.world import World
from anyformer.training.data.feed import TrainingData
from anyformer.training.objectives.answers import MARGIN
from anyformer.training.objectives.contrastive.data import ContrastData
from anyformer.training.objectives.labelled.data import LabelledData
from anyformer.training.objectives.labelled.loss import LabelledObjective
from anyformer.training.objectives.objective import objective_of, with_head_for
from anyformer.training.objectives.rewarded import REWARD
from anyformer.training.prepare import (
    EXCHANGES,
    Say,
    Sources,
    held_out_of,
    read_data,
    resized,
    sources_of,
    to_stderr,
    with_head,
)
from anyformer.training.run import Job, Run, RunOptions, TrainingResult
from anyformer.training.run.budget import refuse_both, seconds_a_step, tokens_in
from anyformer.training.run.callbacks import WithCallbacks
from anyformer.training.run.loggers import loggers
from anyformer.training.run.plan import RunPlan
from anyformer.training.run.progress import Watcher, live_view
from anyformer.training.run.teaching import rows_for
from anyformer.training.step.device import choose_device

VERSION = 1


@dataclass(frozen=True)
class Trained(ShowsItself):
    """What training left: the run's result, the recipe it followed, and how good the model is at what it learned."""

    result: TrainingResult
    recipe: Recipe
    tokenizer: Tokenizer | None
    out: Path | None
    # Of labelled text and of pairs: figures of the validation part by name (`inference.figures`).
    figures: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def model(self) -> Transformer:
        """The trained model, after the last step."""
        return self.result.model

    @property
    def perplexity(self) -> float | None:
        """Of the validation text: e to the loss; None without one, and where that is no cross-entropy of tokens or labels."""
        evaluation, objective = self.result.evaluation, self.recipe.objective
        if evaluation is None or not objective.in_nats or objective.predicts == "pair":
            return None
        return evaluation.perplexity

    def as_json(self) -> dict[str, Any]:
        result, evaluation, objective = self.result, self.result.evaluation, self.recipe.objective
        return {
            "version": VERSION,
            "out": self.out and str(self.out),
            "objective": objective.kind,
            "n_params": result.n_params,
            "steps": result.steps[-1].step if result.steps else 0,
            "tokens": result.tokens,
            "seconds": result.seconds,
            "tokens_per_second": result.tokens_per_second,
            "flops_per_token": result.flops_per_token,
            "loss": result.steps[-1].loss if result.steps else None,
            "validation": evaluation
            and {
                "loss": evaluation.loss,
                "perplexity": self.perplexity,
                "bits_per_byte": evaluation.bits_per_byte if objective.whole else None,
                "unigram_loss": result.unigram_loss,
                **self.figures,
            },
            "best": result.best and str(result.best),
        }

    def __str__(self) -> str:
        result, evaluation, objective = self.result, self.result.evaluation, self.recipe.objective
        said = [f"{counted(result.tokens, objective.predicts)} predicted in {result.seconds:,.0f} s"]
        if evaluation is not None:
            parts = [f"{evaluation.loss:.4f} {objective.unit}"]
            if self.figures:
                parts.append(in_words(self.figures))
            elif self.perplexity is not None:
                parts.append(f"perplexity {self.perplexity:.2f}")
            if objective.whole:
                parts.append(f"{evaluation.bits_per_byte:.4f} bits a byte")
            if result.unigram_loss:  # of 0 there are no shares
                below = 1 - evaluation.loss / result.unigram_loss
                side = "below" if below >= 0 else "above"
                parts.append(f"{abs(below):.0%} {side} {objective.guess} ({result.unigram_loss:.4f})")
            said.append("validation " + ", ".join(parts))
        said += [f"saved in {self.out}"] if self.out else []
        said += [f"best on the validation text: {result.best}"] if result.best else []
        return "\n".join(["; ".join(said), *map(str, [] if evaluation is None else evaluation.sample)])


@dataclass(frozen=True)
class Training(Job):
    """A job that is ready: what could be known to be wrong with its text, recipe and architecture is not."""

    _: KW_ONLY
    options: RunOptions
    watcher: Watcher
    notice: str | None  # of a head that the architecture got
    say: Say

    def plan(self) -> RunPlan:
        """What the run would take; nothing is written."""
        return self._begun().foreseen()

    def run(self) -> Trained:
        """The run, from its start or from where it stopped. Raises RunFailed, and Stopped at a signal."""
        result = self._begun().go(self.watcher)
        found = _figures(result, self.data, self.recipe, self.out, self.options.world)
        return Trained(result, self.recipe, self.data.tokenizer, self.out, found)

    def _begun(self) -> Run:
        """The run that is not refused; what is worth knowing of it is said only then."""
        found = Run(self, self.options)
        if self.notice:
            self.say(self.notice)
        return found


def prepare_training(
    architecture: Architecture,
    data: str | Path | Sequence[str | Path] | Mixture | None = None,
    *,
    source: str | Path | None = None,
    target: str | Path | None = None,
    validation: float = 0.05,
    validation_data: str | Path | None = None,
    validation_source: str | Path | None = None,
    validation_target: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    init: str | Path | None = None,
    n_params: float | None = None,
    vocab_size: int | None = None,
    tokenizer: Tokenizer | str | Path | None = None,
    chat_template: str | Path | None = None,
    truncate: bool = False,
    recipe: str | Path | Recipe = "small",
    lr: float | None = None,
    minutes: float | None = None,
    device: str | None = None,
    options: RunOptions | None = None,
    watcher: Watcher | None = None,
    callbacks: Sequence[Watcher] = (),
    log: Sequence[str] = (),
    say: Say = to_stderr,
    **changes: Any,
) -> Training:
    """A run that is ready to be planned or made.

    `data` is a text (a file, a folder, an address, "stdlib", or labelled text), several as "TEXT=WEIGHT", a mixture or its .yaml
    file, by default the mixture of the recipe; `source` and `target` are files of pairs, line by line; a
    share `validation` of them is set aside, unless texts to validate on are named. `recipe` is a name, a file or a recipe;
    `lr` and `changes` are fields of it, such as tokens=2e6 or objective="masked-lm". The architecture is resized to `n_params`
    and to the vocabulary, and gets the head that the objective trains. Without a `tokenizer`, that of the run `out` or of the
    weights `init` is taken, else one is trained; conversations are written by the file `chat_template`, where it is named.
    `truncate` cuts examples that are longer than a row. `resume`
    refuses to start anew. `minutes` is a budget in the place of tokens: as many as steps timed here leave time for, and of a run
    that is gone on with those that it has. `log` names loggers ("tensorboard", "wandb", "mlflow", "csv"), which write below
    `out`, and `callbacks` are watchers beside `watcher`; one that fails is told of, and the run goes on as if it were not there.
    `device` is "cpu", "cuda" …, the best there is by default; `options` say how the run runs.

    Raises an AnyformerError of exit status 2, before anything is written.
    """
    place, weights = (None if each is None else Path(each) for each in (out, init))
    if place is not None:
        latest(place / CHECKPOINTS, only=())  # before its tokenizer, its labels and any text are read
    if resume and (place is None or not is_run(place)):
        missing = f"there is no run in {out}" if out is not None else "no run is named by --out"
        raise CheckpointError(f"--resume: {missing}; leave --resume out to start one")
    if changes.get("mixture") is not None:
        raise UsageError("the mixture of a run is what it reads; give it as data")
    given = sources_of(data, source, target, recipe)
    unseen = (validation_data, validation_source, validation_target)
    own = Sources(*unseen, prefix="validation-") if any(each is not None for each in unseen) else None
    held_out = held_out_of(given.reads, validation, own)
    refuse_both(minutes, changes)
    named = specification(architecture)
    chosen = recipe_for(named, given.reads, recipe, {**changes, "mixture": given.mixture}, lr=lr, truncate=truncate)
    if chosen.objective.reads in EXCHANGES:
        # which says what it cannot train before a file is read
        objective_of(chosen.objective, with_head_for(named, chosen.objective))
    begun = place / "tokenizer" if place is not None and (place / "tokenizer" / "tokenizer.json").is_file() else None
    how = options or RunOptions()
    how.world.agree({"text": f"{given}, {held_out}"})  # before rank 0 alone reads it
    text, _ = how.world.once(
        lambda: read_data(
            chosen,
            given,
            held_out,
            tokenizer=tokenizer or begun,
            chat_template=chat_template,
            vocab_size=vocab_size,
            begun=place,
            init=weights,
            say=say,
        )
    )
    # Given weights, and what is given with its tokenizer, have the rows that they have, be they more than its tokens.
    rows = vocab_size
    as_given = init is not None or tokenizer is not None or (place is not None and was_given_weights(place))
    if rows is None and (n_params is not None or not as_given):
        rows = rows_for(chosen, text)
    sized = resized(named, n_params, rows)
    fitted, notice = with_head(sized, chosen, text)
    how = replace(how, device=choose_device(device) if device or not how.device else how.device, peak=how.peak or _peak)
    title = label(architecture) if isinstance(architecture, str | Path) else None
    job = Job(fitted, chosen, text, place, weights, title)
    if minutes is not None:
        job = _in_time(minutes, job, how, say)
    settings = {"architecture": job.name or "", "recipe": dumps(job.recipe)}
    told = [*loggers(log, place, place.name if place is not None else "", settings), *callbacks]
    view = watcher or live_view()
    shown = WithCallbacks(view, told, say) if told else view
    return Training(**vars(job), options=how, watcher=shown, notice=notice, say=say)


def _in_time(minutes: float, job: Job, options: RunOptions, say: Say) -> Job:
    """The job with the tokens that there is time for, or that the run in its directory was begun with."""
    if job.out is not None and (begun := of_run(job.out)) is not None:
        say(f"{job.out} is a run of {begun.tokens:,} tokens already, whatever --minutes says; give --tokens for more")
        return replace(job, recipe=job.recipe.but(tokens=begun.tokens))
    seconds = seconds_a_step(job, options)
    chosen = job.recipe.but(tokens=tokens_in(minutes, seconds, job.recipe))
    say(f"{minutes:g} min: {counted(chosen.steps, 'step')} of {seconds:,.2g} s as timed here, {chosen.tokens:,} tokens")
    return replace(job, recipe=chosen)


P = ParamSpec("P")


def _made(prepare: Callable[P, Training]) -> Callable[P, Trained]:
    @wraps(prepare, assigned=())
    def train(*args: P.args, **options: P.kwargs) -> Trained:
        """A model trained on text; with `out`, saved there, and gone on with where that holds the same run.

        It takes what `prepare_training` takes and raises what that does; RunFailed on the way, and Stopped at a signal.
        """
        return prepare(*args, **options).run()

    return train


train = _made(prepare_training)


def _peak(dtype: torch.dtype, device: torch.device) -> float:
    """FLOPs a second of large products, measured the first time on a machine and then remembered."""
    from anyformer import measure

    return measure.calibrate(device, (dtype,)).peak(dtype)


def _figures(
    result: TrainingResult, data: TrainingData, recipe: Recipe, out: Path | None, world: World
) -> dict[str, float | None]:
    """How well a trained model labels what it is validated on, finds pairs or tells answers apart; nothing of other data.

    Where processes have some of its layers each, it is as saved in `out` that one of them has it whole.
    """
    model, evaluation = result.model, result.evaluation
    if evaluation is not None and (part := evaluation.parts.get(MARGIN)) is not None:
        return {"accuracy": part.accuracy, "margin": part.loss}
    if evaluation is not None and (part := evaluation.parts.get(REWARD)) is not None:
        return {"accuracy": part.accuracy, "reward": part.loss}
    if isinstance(data, ContrastData) and data.held_out is not None:
        cut = isinstance(recipe.objective, Contrastive) and recipe.objective.truncate
        found = retrieve(model, data.tokenizer, data.held_out.pairs, longest=recipe.seq_len, truncate=cut)
        return {"accuracy": found.accuracy, "mrr": found.mrr}
    if not isinstance(data, LabelledData):
        return {}
    validation, objective = data.validation(recipe), objective_of(recipe.objective, model.spec)
    if validation is None or not isinstance(objective, LabelledObjective):
        return {}
    if model.stack.stage is None:
        return figures(model, objective, validation, recipe.precision)
    if out is None:
        return {}
    device = next(model.parameters()).device
    return world.once(lambda: figures(load(out, device=device)[0], objective, validation, recipe.precision))
