"""A study as data: models, sizes, budgets, learning rates, seeds, and what is claimed of them before anything has run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from anyformer.amounts import count
from anyformer.disk import plain
from anyformer.errors import UsageError, among
from anyformer.recipe import Recipe
from anyformer.resizing import Counted
from anyformer.spec import Positive, Spec, Whole, decode_file
from anyformer.spec.ranges import NotNegative, TrueShare
from anyformer.variants.rows import ROWS

HEADER = "study"  # the file's first key; its value is the version of the language
DELTA = 0.01  # nats a token within which two losses are called the same
UNREPORTED = 1000  # seeds above it, and 0, choose rates
SD = 0.006  # nats a token: of paired differences, where a study has not measured its own


class ModelEntry(Spec):
    """A model of a study: an architecture, with what it has of its own in place of the study's."""

    name: str
    architecture: str  # a name with changes or without, or a file beside the study's
    recipe: Recipe | None = None  # whole; in a file what it does not name is the study's
    rates: tuple[Positive, ...] = ()
    times: Positive = 1.0  # its parameters, in those of the study's sizes: of experts, of layers that share weights


class ClaimSpec(Spec, abstract=True):
    """A claim, of the study's largest size and budget."""

    says: str
    about: str | None = None  # what of an architecture, as a row of variants: norm, positions …; None: all of it

    @property
    def names(self) -> tuple[str, ...]:
        """The models that it speaks of."""
        raise TypeError(f"{self.kind} does not say what it speaks of")


class PairSpec(ClaimSpec, abstract=True):
    """A claim of one model against another."""

    model: str
    than: str

    @property
    def names(self) -> tuple[str, ...]:
        return self.model, self.than


class LossPairSpec(PairSpec, abstract=True):
    """A claim of two losses on the reported text, by rows as in training, or by windows of a length."""

    length: Whole | None = None  # tokens of `model`'s windows, one of the study's `lengths`; None: rows as in training
    than_length: Whole | None = None  # of `than`'s windows; None: as `length`
    last: Whole | None = None  # so many tokens at the end of each chunk alone; None: all

    @property
    def readings(self) -> tuple[Whole | None, Whole | None]:
        """The lengths of the windows of `model` and of `than`."""
        return self.length, self.than_length or self.length


class LowerLoss(LossPairSpec):
    """The loss of `model` is lower than that of `than`."""


class SameLoss(LossPairSpec):
    """The losses differ by no more than `within` nats a token."""

    within: Positive = DELTA


class LessCompute(PairSpec):
    """To the same loss, `than` takes at least `times` the FLOPs that `model` takes."""

    times: Positive = 1.0


class LessSensitive(PairSpec):
    """Over the study's rates, losses lie less above their least: the mean of min(loss, ln vocabulary) less the best one.

    Wortsman et al. 2023, arXiv:2309.14322, section 2.2. By the runs that choose rates: give the study several `rate_seeds`.
    """


class PublishedLoss(Spec):
    """What a paper reports of what a model of the study stands for."""

    model: str
    loss: Positive


class SameOrder(ClaimSpec):
    """The models' losses are in the order of published ones (Spearman's ρ), with and without those of extreme losses."""

    published: tuple[PublishedLoss, ...]
    extremes: tuple[str, ...] = ()  # whose order is no news: left out of the second ρ

    def __post_init__(self) -> None:
        names = [each.model for each in self.published]
        for name in names:
            self.require("published", names.count(name) == 1, f"has two losses of {name!r}; give one")
        left = len(self.published) - len(self.extremes)
        self.require("published", left > 3, f"leaves {left} losses besides extremes; give four or more to order")

    @property
    def names(self) -> tuple[str, ...]:
        return *(each.model for each in self.published), *self.extremes


class StudySpec(Spec):
    """Models × sizes × budgets × seeds, each model at each size with the rate that did best on text and seeds not reported."""

    title: str
    models: tuple[ModelEntry, ...]
    claims: tuple[ClaimSpec, ...] = ()
    data: str = "stdlib"  # a file or a folder, beside the study's or anywhere, or stdlib
    select: TrueShare = 0.02  # share of the text by which rates are chosen
    report: TrueShare = 0.02  # share of the text that is reported
    vocab_size: Whole = 4096
    sizes: tuple[Whole, ...] = (1_000_000,)  # parameters, of those that `count` says
    count: Counted = "total"
    tokens: tuple[Whole, ...] = (2_000_000,)  # budgets, each with a schedule of its own
    rates: tuple[Positive, ...] = ()  # of which each model gets the best; none, or one: no choice
    rate_tokens: Whole | None = None  # budget of the runs that choose; None: the first budget
    lengths: tuple[Whole, ...] = ()  # of windows by which the reported text is read too; each divides the longest
    rate_seeds: Whole = 1  # by whose mean a rate is chosen: 0, 1001, 1002 …
    rate_tie: NotNegative = 0.0  # nats: of rates whose losses lie within so much of the least, the lowest is chosen
    rate_between: bool = False  # the bottom of a parabola through the best and its neighbours is chosen
    seeds: Whole = 3  # of each reported run: 1, 2, 3 …
    recipe: Recipe = Recipe()
    sd: Positive = SD  # of paired differences, by which the least detectable difference is foreseen
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        for name in names:
            self.require("models", names.count(name) == 1, f"has two called {name!r}; name each once")
        for claim in self.claims:
            if claim.about is not None and claim.about not in ROWS:
                raise self.refusal("claims", f"are about {claim.about!r}, no row of variants{among(claim.about, ROWS)}")
            for name in claim.names:
                if name not in names:
                    raise self.refusal(
                        "claims", f"has one, {claim.says!r}, of {name!r}, no model of the study{among(name, names)}"
                    )
            if isinstance(claim, PairSpec):
                self._check_pair(claim)
        longest = max(self.lengths, default=1)
        for length in self.lengths:
            self.require("lengths", length > 1, "has windows of 1 token, of which none is predicted; give 2 or more")
            self.require("lengths", longest % length == 0, f"has {length}, which does not divide {longest}")
        self.require(
            "rate_between",
            not (self.rate_between and self.rate_tie),
            "chooses another rate than rate_tie; give one of the two",
        )
        self.require(
            "seeds", self.seeds <= UNREPORTED, f"are more than {UNREPORTED:,}, beyond which seeds choose rates"
        )
        for name, given in (("sizes", self.sizes), ("tokens", self.tokens)):
            self.require(name, bool(given), "is empty; give one number at least")
            self.require(name, len(set(given)) == len(given), "has one twice; give each once")
        for model in self.models:
            batch = (model.recipe or self.recipe).batch_tokens
            for name, least in (("tokens", min(self.tokens)), ("rate_tokens", self.rate_tokens)):
                few = f"has {least}, less than a batch of {model.name!r}, {batch} tokens; give that at least"
                self.require(name, least is None or least >= batch, few)

    def _check_pair(self, claim: PairSpec) -> None:
        lengths = claim.readings if isinstance(claim, LossPairSpec) else (None, None)
        same = claim.model == claim.than and lengths[0] == lengths[1]
        self.require("claims", not same, "compares a model with itself; name two, or two lengths")
        if isinstance(claim, LessSensitive):
            for model in self.models:
                few = model.name in claim.names and len(self.rates_of(model)) < 2
                said = f"has one, {claim.says!r}, of sensitivity to rates, and {model.name!r} has no two; give it two or more"
                self.require("claims", not few, said)
        if not isinstance(claim, LossPairSpec):
            return
        read = ", ".join(map(str, self.lengths)) or "none"
        for length in lengths:
            known = length is None or length in self.lengths
            self.require("claims", known, f"speaks of windows of {length} tokens; the study's lengths are {read}")
        if claim.last is not None:
            shortest = min((length for length in lengths if length is not None), default=None)
            self.require("claims", shortest is not None, "counts the last tokens of windows and names no length")
            self.require(
                "claims",
                shortest is None or claim.last < shortest,
                f"counts the last {claim.last} of {shortest} tokens",
            )

    def sized(self, size: int) -> str:
        """One of its sizes in words: "1.00M parameters", or "1.00M parameters beside the tables"."""
        return f"{count(size)} parameters{' beside the tables' if self.count == 'non_embedding' else ''}"

    def recipe_of(self, model: ModelEntry, tokens: int) -> Recipe:
        """The recipe of a model for a budget, before its learning rate is chosen."""
        return (model.recipe or self.recipe).but(tokens=tokens)

    @property
    def choosing(self) -> tuple[int, ...]:
        """The seeds that choose rates."""
        return (0, *range(UNREPORTED + 1, UNREPORTED + self.rate_seeds))

    def rates_of(self, model: ModelEntry) -> tuple[float, ...]:
        """The learning rates among which one is chosen, in order; none or one: no choice."""
        return tuple(sorted(model.rates or self.rates))


def read_study(path: str | Path) -> StudySpec:
    """The study in a .yaml, .yml or .json file; texts and architectures that lie beside it are found there.

    Raises SpecError for what is no study, UsageError for an objective that reads no plain text.
    """
    file = Path(path)
    spec: StudySpec = decode_file(_with_whole_recipes(plain.read(file, "study")), str(file), HEADER, StudySpec, "study")
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


def _with_whole_recipes(data: Any) -> Any:
    """A file's data, with what a model's recipe does not name from the study's; what is no study is left as it is."""
    match data:
        case {"recipe": dict(recipe), "models": list(models)}:
            return data | {"models": [_with_whole_recipe(model, recipe) for model in models]}
    return data


def _with_whole_recipe(model: Any, recipe: dict[str, Any]) -> Any:
    match model:
        case {"recipe": dict(own)}:
            return model | {"recipe": recipe | own}
    return model
