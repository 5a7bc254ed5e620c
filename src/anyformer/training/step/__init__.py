"""The training step: gradients of a batch in micro-batches, clipping, the optimiser's update."""

from anyformer.training.step.trainer import StepResult, Trainer, split

__all__ = ["StepResult", "Trainer", "split"]
