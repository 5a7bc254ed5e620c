"""The training step: gradients of a batch in micro-batches, clipping, the optimiser's update."""

from anyformer.training.step.trainer import StepResult, Trainer

__all__ = ["StepResult", "Trainer"]
