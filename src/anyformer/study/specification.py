"""A study as data: models, sizes, budgets, learning rates, seeds, and what is claimed of them before anything has run."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from anyformer.disk import plain
from anyformer.errors import UsageError, did_you_mean
from anyformer.recipe import Recipe
from anyformer.spec import Positive, Spec, Whole, decode_file
from anyformer.spec.ranges import TrueShare

HEADER = "study"  # the file's first key; its value is the version of the language
DELTA = 0.01  # nats a token within which two losses are called the same
SD = 0.006  # nats a token: of paired differences, where a study has not measured its own


class ModelEntry(Spec):
    """A model of a study: an architecture, with what it has of its own in place of the study's."""

    name: str
    architecture: str  # a name with changes or without, or a file beside the study's
    recipe: Recipe | None = None
    rates: tuple[Positive, ...] = ()
    times: Positive = 1.0  # its parameters, in those of the study's sizes: of experts, of layers that share weights


class ClaimSpec(Spec, abstract=True):
    """A claim of one model against another, at the study's largest size and budget."""

    says: str
    model: str
    than: str


class LowerLoss(ClaimSpec):
    """The loss of `model` is lower than that of `than`."""


class SameLoss(ClaimSpec):
    """The losses differ by no more than `within` nats a token."""

    within: Positive = DELTA


class LessCompute(ClaimSpec):
    """To the same loss, `than` takes at least `times` the FLOPs that `model` takes."""

    times: Positive = 1.0


class StudySpec(Spec):
    """Models × sizes × budgets × seeds, each with the learning rate that did best on a split and a seed that are not reported."""

    title: str
    models: tuple[ModelEntry, ...]
    claims: tuple[ClaimSpec, ...] = ()
    data: str = "stdlib"  # a file or a folder, beside the study's or anywhere, or stdlib
    select: TrueShare = 0.02  # share of the text by which rates are chosen
    report: TrueShare = 0.02  # share of the text that is reported
    vocab_size: Whole = 4096
    sizes: tuple[Whole, ...] = (1_000_000,)  # parameters
    count: Literal["total", "non_embedding"] = "total"
    tokens: tuple[Whole, ...] = (2_000_000,)  # budgets, each with a schedule of its own
    rates: tuple[Positive, ...] = ()  # of which each model gets the best; none, or one: no choice
    rate_tokens: Whole | None = None  # budget of the runs that choose, at the first size; None: the first budget
    seeds: Whole = 3  # of each reported run: 1, 2, 3 …; seed 0 chooses rates
    recipe: Recipe = Recipe()
    sd: Positive = SD  # of paired differences, by which the least detectable difference is foreseen
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        for name in names:
            self.require("models", names.count(name) == 1, f"has two called {name!r}; name each once")
        for claim in self.claims:
            for name in (claim.model, claim.than):
                if name not in names:
                    raise self.refusal(
                        "claims", f"speaks of {name!r}, no model of the study{did_you_mean(name, names)}"
                    )
            self.require("claims", claim.model != claim.than, "compares a model with itself; name two")
        self.require("sizes", bool(self.sizes), "is empty; give a number of parameters")
        self.require("tokens", bool(self.tokens), "is empty; give a budget")

    def recipe_of(self, model: ModelEntry, tokens: int) -> Recipe:
        """The recipe of a model for a budget, before its learning rate is chosen."""
        return (model.recipe or self.recipe).but(tokens=max(tokens, (model.recipe or self.recipe).batch_tokens))

    def rates_of(self, model: ModelEntry) -> tuple[float, ...]:
        """The learning rates among which one is chosen, in order; none or one: no choice."""
        return tuple(sorted(model.rates or self.rates))


def read_study(path: str | Path) -> StudySpec:
    """The study in a .yaml, .yml or .json file; texts and architectures that lie beside it are found there.

    Raises SpecError for what is no study, UsageError for an objective that reads no plain text.
    """
    file = Path(path)
    spec: StudySpec = decode_file(plain.read(file, "study"), str(file), HEADER, StudySpec, "study")
    for model in spec.models:
        objective = (model.recipe or spec.recipe).objective
        if objective.reads != "text" or not objective.whole:
            raise UsageError(
                f"{file}: a study is of language models; {objective.kind} of {model.name!r} does not score a text"
            )
    near = file.parent
    beside = (near / spec.data).exists() and spec.data != "stdlib"
    models = tuple(
        model.but(architecture=str(near / model.architecture)) if (near / model.architecture).is_file() else model
        for model in spec.models
    )
    return spec.but(data=str(near / spec.data) if beside else spec.data, models=models)
