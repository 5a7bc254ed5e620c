"""How a model is trained, as data: objective, batch, optimiser, schedule, dropout, routers, precision."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from anyformer.recipe.distillation import Distillation
from anyformer.recipe.lora import LoRA
from anyformer.recipe.mixture import Mixture
from anyformer.recipe.optimizer import AdamW, OptimizerSpec
from anyformer.recipe.schedule import CosineDecay, PieceSpec, Warmup, factor_at, lengths
from anyformer.spec import NotNegative, Positive, Rate, Spec, Whole
from anyformer.training.objectives.causal import CausalLM
from anyformer.training.objectives.specification import ObjectiveSpec

Precision = Literal["float32", "bf16"]


class RouterLossSpec(Spec, abstract=True):
    """A loss of the routers, added `weight` times to the mean cross-entropy; `training.step.routing` has the function of each.

    f_i is the share of tokens that choose expert i, P_i the mean of its probability over tokens; padding counts for nothing.
    """

    weight: Positive


class LoadBalance(RouterLossSpec):
    """n_experts · Σ f_i P_i: Fedus et al. 2021, arXiv:2101.03961, equation 4; Σ f_i = top_k.

    Over each layer by itself, the layers' losses added up (Switch), or over the tokens of all layers together (Mixtral's
    code in transformers).
    """

    over: Literal["layer", "layers"] = "layers"


class SequenceBalance(RouterLossSpec):
    """n_experts / top_k · Σ f_i P_i within each sequence, the mean over sequences, layers added up.

    DeepSeek-V3: arXiv:2412.19437, equations 17 to 20; a sequence is a row of the batch.
    """


class RouterZLoss(RouterLossSpec):
    """log² Σ exp logits, the mean over tokens of all layers: Zoph et al. 2022, arXiv:2202.08906, equation 5."""


class RouterTraining(Spec):
    """The training of routers; nothing of it concerns models without experts."""

    losses: tuple[RouterLossSpec, ...] = ()
    # by which corrections of the choice move after each step, against the load (DeepSeek-V3)
    correction_speed: NotNegative = 0.0
    jitter: Rate = 0.0  # what a router sees is multiplied by numbers from 1 - jitter to 1 + jitter (Switch)

    def __post_init__(self) -> None:
        kinds = [loss.kind for loss in self.losses]
        self.require("losses", len(set(kinds)) == len(kinds), f"are {', '.join(kinds)}; give each kind once")


class DropoutSpec(Spec):
    """Rates of dropout: of the embedding, of attention's weights, of what each branch writes, inside feed-forwards.

    `activation` is also that between an LSTM's layers, one mask for all tokens; `recurrent` that of matrices that map a state
    (Merity et al. 2017, arXiv:1708.02182, sections 2 and 4.2).
    """

    embedding: Rate = 0.0
    attention: Rate = 0.0
    residual: Rate = 0.0
    activation: Rate = 0.0
    recurrent: Rate = 0.0


class Recipe(Spec):
    """A run of ceil(tokens / batch_tokens) steps.

    The defaults suit models of 1 to 50 M parameters on one machine. Tokens are places in the batch, padding included.
    """

    # The words beside a type are the field's help, which commands show: a field is an option by being one.
    objective: Annotated[ObjectiveSpec, "What to learn from the text."] = CausalLM()
    tokens: Annotated[Whole, "Train on so many tokens in all."] = 10_000_000
    # for pairs, at most so many on either side
    batch_tokens: Annotated[Whole, "Tokens an optimiser step."] = 4096
    # pairs have rows of their own lengths
    seq_len: Annotated[Whole, "Tokens a row."] = 256
    memory: Annotated[
        Whole | None, "Rows go on, and see so many tokens before them, as Transformer-XL's segments do."
    ] = None
    mixture: Mixture | None = None  # of texts; None: the one text that is named where the run is started
    optimizer: Annotated[OptimizerSpec, "The rule of a step, at the recipe's rates."] = AdamW()
    schedule: tuple[PieceSpec, ...] = (Warmup(share=0.05), CosineDecay(to=0.1))
    clip: Annotated[Positive | None, "Largest norm of all gradients together, or none."] = 1.0
    dropout: DropoutSpec = DropoutSpec()
    label_smoothing: Annotated[Rate, "Share of the probability that is spread over all tokens."] = 0.0
    # PaLM: Chowdhery et al. 2022, arXiv:2204.02311, section 5
    z_loss: Annotated[NotNegative, "Weight of log² Z, added to the loss."] = 0.0
    router: RouterTraining = RouterTraining()
    lora: LoRA | None = None  # of given weights; None: all weights are trained
    distillation: Distillation | None = None  # of a trained model; None: the objective alone is learnt
    # weights, gradients and optimiser state are float32 in both
    precision: Annotated[Precision, "Of matrix products."] = "float32"
    seed: Annotated[int, "Of the weights, the order of the text and dropout."] = 0
    version: ClassVar[int] = 1  # of the language of recipes

    def __post_init__(self) -> None:
        if self.objective.reads == "text" and self.batch_tokens % self.seq_len:
            near = max(1, round(self.batch_tokens / self.seq_len)) * self.seq_len
            raise self.refusal("batch_tokens", f"must be a multiple of seq_len = {self.seq_len}, such as {near}")
        if self.mixture is not None:
            if self.objective.reads != "text":
                raise self.refusal(
                    "mixture", f"is of plain texts, and {self.objective.kind} reads {self.objective.reads}"
                )
            self.require("mixture", self.memory is None, "has no rows that go on, which memory needs; give one text")
        if self.lora is not None and self.router.correction_speed:
            raise self.refusal("router", "moves the corrections of given weights, which an adapter leaves as they are")
        if self.distillation is not None:
            self.require("memory", self.memory is None, "is not for runs with a teacher, who keeps none; leave it out")
            for name in ("label_smoothing", "z_loss"):
                wasted = self.distillation.weight == 1 and getattr(self, name)
                self.require(name, not wasted, "changes nothing where distillation.weight is 1; leave it out")
        self.require("schedule", bool(self.schedule), "is empty; [Constant] keeps the learning rate as it is")

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole run."""
        return -(-self.tokens // self.batch_tokens)

    @property
    def batch_rows(self) -> int:
        """Rows of seq_len tokens in a batch."""
        return self.batch_tokens // self.seq_len

    def learning_rates(self, d_model: int) -> LearningRates:
        """The learning rate by step. Raises SpecError for a schedule that doesn't fit the run."""
        return LearningRates(self, d_model)


class LearningRates:
    """The learning rate at each step of a run, counted from 1: a pure function, so that nothing needs to be saved."""

    def __init__(self, recipe: Recipe, d_model: int) -> None:
        self.peak = recipe.optimizer.peak(d_model)
        self.pieces = recipe.schedule
        self.lengths = lengths(recipe.schedule, recipe.steps, recipe.batch_tokens)

    def __call__(self, step: int) -> float:
        return self.peak * factor_at(step, self.pieces, self.lengths)
