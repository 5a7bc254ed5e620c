"""A run: planned, trained step by step, validated, stopped by signals, shown as it goes."""

from anyformer.training.checkpoint.job import Job
from anyformer.training.run.loop import Run, TrainingResult, train
from anyformer.training.run.options import Peak, RunOptions

__all__ = ["Job", "Peak", "Run", "RunOptions", "TrainingResult", "train"]
