"""A run: planned, trained step by step, validated, stopped by signals, shown as it goes."""

from anyformer.training.run.loop import Peak, Run, RunOptions, TrainingResult, train

__all__ = ["Peak", "Run", "RunOptions", "TrainingResult", "train"]
