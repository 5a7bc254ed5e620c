"""Objectives: functions from a model and some rows to the sum of their losses, with the demands on texts and architectures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar, get_args, get_origin

import numpy as np
import torch
from torch import Tensor

from anyformer.errors import UsageError
from anyformer.layers.context import Dropout, Notes
from anyformer.layers.cross_entropy import NOT_PREDICTED, PLAIN, LossOptions, cross_entropy, distillation
from anyformer.layers.distillation import Taught
from anyformer.layers.execution import sent_to
from anyformer.layers.head import Head
from anyformer.memory import SegmentMemory
from anyformer.model import Output, Transformer
from anyformer.spec import ModelSpec, Workload
from anyformer.text.conversations import words_of
from anyformer.training.data.feed import Rows, TrainingData
from anyformer.training.data.noise import Noise
from anyformer.training.objectives.specification import ObjectiveSpec

if TYPE_CHECKING:
    from anyformer.recipe import Distillation, Recipe
    from anyformer.text import Tokenizer

Forward = Callable[..., Any]  # the model
WORDS = 60  # characters of a prompt, or of its answer, that are shown in a line
S = TypeVar("S", bound=ObjectiveSpec)


class LossPart(NamedTuple):
    """A further prediction beside `Losses.each`: tokens further ahead, say."""

    nats: Tensor  # []: plain cross-entropy, or a figure that stands in for it, summed over labels; has no gradient
    labels: Tensor  # []: how many
    right: Tensor | None = None  # []: of them, those whose label is the likeliest class; None: not counted

    def numbers(self) -> tuple[float, int, int | None]:
        """The three as plain numbers, which waits for the device."""
        return float(self.nats), int(self.labels), None if self.right is None else int(self.right)


class JudgedAnswer(NamedTuple):
    """What a model has answered to a prompt by itself."""

    line: int  # of the prompt, in its file
    prompt: str | Sequence[Mapping[str, Any]]  # a text, or messages
    text: str
    reward: float

    def __str__(self) -> str:
        asked = self.prompt if isinstance(self.prompt, str) else words_of(self.prompt[-1])
        return f"line {self.line}: {_short(asked)} → {_short(self.text)}, worth {self.reward:g}"


class Losses(NamedTuple):
    """The losses of some rows."""

    total: Tensor  # []: what is minimised, summed over labels: has the gradient
    each: Tensor  # shaped as the labels: plain cross-entropy in nats, 0 where nothing is predicted
    notes: Sequence[Notes] = ()  # of the model's mixers
    parts: Mapping[str, LossPart] = {}  # by name; `each` is of the objective's first concern alone
    # shaped as the labels: which of a few each was, where only the pass could tell; else None
    classes: Tensor | None = None
    answers: Sequence[JudgedAnswer] = ()  # of the likeliest tokens, where the model itself has written some


class LossContext(NamedTuple):
    """A way through a model: what is run, whose logits are scored, where, and how. By default as in evaluation."""

    forward: Forward
    head: Head
    device: torch.device
    dropout: Dropout | None = None
    options: LossOptions = PLAIN
    # the same through the auxiliary model, where an objective has one
    auxiliary: LossContext | None = None
    memory: SegmentMemory | None = None  # of the segments before, which these rows see and add to
    teacher: Teacher | None = None


class Teacher(NamedTuple):
    """A trained model whose answers are learnt, and how."""

    model: Transformer
    objective: Objective[Any]  # for its own architecture
    how: Distillation


# The sum, over rows that processes share out, of what a function makes of a pass without gradients; in float64 on the CPU.
Over = Callable[[Iterable[Rows], Callable[[LossContext, Rows], Tensor]], Tensor]


class Auxiliary(NamedTuple):
    """A second model, trained beside the first and left behind. Tensors are named as in the state dicts."""

    spec: ModelSpec
    tied: Mapping[str, str] = {}  # its tensors that are the model's own: by its names, the model's
    disentangled: Mapping[str, str] = {}  # those that the model's stay at a learnt distance from: the same


class Objective(ABC, Generic[S]):
    """One way to learn from rows. As a part's module names its specification, so `class MaskedObjective(Objective[MaskedLM])`."""

    # What is done to rows of text, for rows of so many tokens. Raises TextError for a vocabulary that lacks a token for it,
    # UsageError where it would hide nothing. None: nothing is.
    noise: ClassVar[Callable[[Any, int, Tokenizer], Noise] | None] = None
    trains_ahead: ClassVar[bool] = False  # the modules that predict further tokens learn too

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in cls.__dict__.get("__orig_bases__", ()):
            origin, arguments = get_origin(base), get_args(base)
            if isinstance(origin, type) and issubclass(origin, Objective) and isinstance(arguments[0], type):
                arguments[0].loss = cls

    def __init__(self, said: S, spec: ModelSpec, tokenizer: Tokenizer | None = None) -> None:
        self.said, self.spec, self.tokenizer = said, spec, tokenizer
        # What the model said before the first step, where the losses go by it: `begin` notes it, and a checkpoint holds it.
        self.told: Mapping[str, Tensor] = {}

    @abstractmethod
    def refuses(self) -> str | None:
        """Why the architecture cannot be trained so, and what could; None: it can."""

    @property
    def updates(self) -> int:
        """How many updates of the weights a batch makes."""
        return 1

    @property
    def writes(self) -> bool:
        """Whether rows are `answered` before they are learnt from, token by token, which takes all weights."""
        return type(self).answered is not Objective.answered

    def answered(self, by: LossContext, rows: Rows) -> Rows:
        """Some rows with what the model itself has to say to them; nothing is by default."""
        return rows

    def __call__(self, by: LossContext, rows: Rows) -> Losses:
        """The losses of some rows of a batch; by default of one pass of the model."""
        out = by.forward(**self.asked(rows, by.device, alone=by.memory is None), dropout=by.dropout, cache=by.memory)
        if by.teacher is None:
            return self.losses(by, out, rows)
        with torch.no_grad():
            theirs = by.teacher.model(**by.teacher.objective.asked(rows, by.device))
        return self.distilled(by, out, by.teacher, theirs, rows)

    def asked(self, rows: Rows, device: torch.device, *, alone: bool = True) -> dict[str, Any]:
        """What the one pass over some rows is given, by default `text.Batch`.

        Rows do not stand `alone` where it sees a memory of those before.
        """
        return {**inputs_of(rows, device, alone=alone), "output_logits": False}

    def losses(self, by: LossContext, out: Output, rows: Rows) -> Losses:
        """The losses of what that pass gave: by default of a label for each token; without ever holding all logits."""
        return Losses(
            *cross_entropy(by.head, self.read(by.head, out, rows), tensor(rows.labels), by.options), out.notes
        )

    def read(self, head: Head, out: Output, rows: Rows) -> Tensor:
        """What the head makes its logits of at the place of each label [batch, label, width]."""
        return out.read_by(head)

    def distilled(self, by: LossContext, out: Output, teacher: Teacher, theirs: Output, rows: Rows) -> Losses:
        """The losses beside a teacher, and what that made of the same rows; how far it is away is a part of them."""
        labels, hidden, head = tensor(rows.labels), self.read(by.head, out, rows), teacher.model.head()
        taught = Taught(head, teacher.objective.read(head, theirs, rows), teacher.how.weight, teacher.how.temperature)
        total, each, divergence = distillation(by.head, hidden, labels, taught, by.options)
        return Losses(total, each, out.notes, from_teacher(divergence, labels))

    @property
    def has_teacher(self) -> bool:
        """Whether it can learn from another model's answers: its loss is of labels that a head scores, by one pass."""
        return self.one_pass and type(self).losses is Objective.losses

    @property
    def one_pass(self) -> bool:
        """Whether a batch is one pass of one model, which several processes may each compute a part of."""
        return type(self).__call__ is Objective.__call__

    @property
    def by_place(self) -> bool:
        """Whether its loss is a sum over the places of a row, each of what the model makes of the token there and its label."""
        usual = type(self).losses is Objective.losses and type(self).read is Objective.read
        return self.one_pass and usual

    @classmethod
    def with_head(cls, said: S, spec: ModelSpec, labels: Sequence[str] | None) -> ModelSpec:
        """The architecture with the head that it trains, where it has none: for `labels` a row each, for numbers one."""
        return spec

    def check(self, recipe: Recipe, data: TrainingData) -> None:
        """Raise UsageError for data, or fields of the recipe, that it has no use for."""

    def refuse_of_classes(self, recipe: Recipe) -> None:
        """Raise UsageError for fields of the recipe that change a cross-entropy of classes alone."""
        for name in ("label_smoothing", "z_loss"):
            if value := getattr(recipe, name):
                raise UsageError(f"{self.said.kind} has no {name}, and the recipe says {value:g}; leave it out")

    def begin(self, recipe: Recipe, data: TrainingData, over: Over) -> None:
        """Note what the model says of the data before the first step, in `told`, where the losses go by that."""

    def auxiliary(self) -> Auxiliary | None:
        """The model that is trained beside one that it does not refuse; None: none."""
        return None

    @property
    def judges(self) -> tuple[Path, ...]:
        """Where the models lie that say what the model's own answers are worth."""
        return ()

    def answering_flops(self, forward: float, load: Workload) -> float:
        """The FLOPs of `answered` on the rows of a workload, which a pass reads in so many."""
        return 0.0

    def auxiliary_flops(self, load: Workload) -> float:
        """The FLOPs of training the auxiliary model on the rows of a workload."""
        return 0.0


def from_teacher(divergence: Tensor, labels: Tensor) -> Mapping[str, LossPart]:
    """How far a model is from its teacher, as a part of its losses."""
    return {"teacher": LossPart(divergence, (labels != NOT_PREDICTED).sum())}


def loss_of(kind: type[ObjectiveSpec]) -> type[Objective[Any]]:
    """The objective's class, imported when it is first needed. Raises UsageError for a kind without one."""
    package = __name__.rpartition(".")[0]
    for base in kind.__mro__:
        if base.__module__.rpartition(".")[0] == package and base.__module__ != ObjectiveSpec.__module__:
            import_module(f"{base.__module__}.loss")
    if kind.loss is None:
        raise UsageError(
            f"objective {kind.kind} has no loss; write a class {kind.kind}Objective(Objective[{kind.__name__}])"
        )
    return kind.loss


def objective_of(said: ObjectiveSpec, spec: ModelSpec, tokenizer: Tokenizer | None = None) -> Objective[Any]:
    """The objective for an architecture. Raises UsageError, with the reason, for one that cannot do it.

    One that writes texts spells them by the `tokenizer`.
    """
    chosen = loss_of(type(said))(said, spec, tokenizer)
    reason = chosen.refuses()
    if reason is not None:
        raise UsageError(f"{said.kind} does not go with this architecture: {reason}")
    return chosen


# What is done to rows of text by a recipe, and by whose tokens: in training, or where a model is judged by them.
NoiseRule = Callable[["Recipe", "Tokenizer | None"], Noise | None]


def noise_of(recipe: Recipe, tokenizer: Tokenizer | None) -> Noise | None:
    """The noise of the recipe's objective on rows of text; None: nothing. Raises what `Objective.noise` does."""
    said = recipe.objective
    noise = loss_of(type(said)).noise
    if noise is None:
        return None
    if tokenizer is None:
        raise UsageError(f"{said.kind} needs a tokenizer, to know which tokens are special; give TextData its own")
    return noise(said, recipe.seq_len, tokenizer)


def judging_noise_of(recipe: Recipe, tokenizer: Tokenizer | None) -> Noise | None:
    """The same on rows that a model is judged by; None too where bits a byte mean something, and compare with any other's."""
    return None if recipe.objective.whole else noise_of(recipe, tokenizer)


def with_head_for(spec: ModelSpec, said: ObjectiveSpec, labels: Sequence[str] | None = None) -> ModelSpec:
    """The architecture with the head that an objective trains, a row for each of the data's `labels`, one for numbers.

    As it is where it has that head, or the objective trains those that it has.
    """
    return loss_of(type(said)).with_head(said, spec, labels)


def inputs_of(rows: Rows, device: torch.device, *, alone: bool = True) -> dict[str, Tensor | None]:
    """The model's inputs, each [batch, token]; rows that are one document from end to end need no mask, if they stand `alone`."""
    plain = alone and bool((rows.document == 1).all())
    return {
        "input_ids": on(device, rows.input_ids),
        "attention_mask": None if plain else on(device, rows.document),
        "position_ids": None if plain else on(device, rows.positions),
    }


def _short(text: str) -> str:
    """A text in quotes: of a long one the end, where a prompt asks and an answer concludes."""
    return repr(text if len(text) <= WORDS else "…" + text[-WORDS:])


def on(device: torch.device, array: np.ndarray) -> Tensor:
    """The array as a tensor there."""
    return sent_to(tensor(array), device)


def tensor(array: np.ndarray) -> Tensor:
    """The array as a tensor where it is: so `cross_entropy` takes labels."""
    return torch.from_numpy(np.ascontiguousarray(array))
