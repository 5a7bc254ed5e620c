"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from anyformer.model import Transformer
from anyformer.training.checkpoint.metrics import StepMetrics, ValidationMetrics
from anyformer.training.run.evaluation import Evaluation


@dataclass(frozen=True)
class TrainingResult:
    """The model, metrics and best checkpoint of a run."""

    model: Transformer
    steps: tuple[StepMetrics, ...]
    validations: tuple[ValidationMetrics, ...]
    evaluation: Evaluation | None  # of the whole validation text, after the last step
    flops_per_token: float
    n_params: int
    best: Path | None = None  # the checkpoint that did best on (the same sample of) the validation text

    @property
    def unigram_loss(self) -> float | None:
        """Of the whole validation text, a label, guessed by the frequency of the training labels alone, or by their mean."""
        return next((each.unigram_loss for each in reversed(self.validations) if each.whole), None)

    @property
    def tokens(self) -> int:
        """Predicted in training."""
        return self.steps[-1].tokens if self.steps else 0

    @property
    def seconds(self) -> float:
        """Spent training, without validation and saving."""
        return self.steps[-1].seconds if self.steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Over the whole run."""
        return self.tokens / self.seconds if self.seconds else 0.0
