"""A run: planned, trained step by step, validated, stopped by signals, shown as it goes."""

from anyformer.training.run.loop import Peak, RunOptions, TrainingResult, plan_run, train

__all__ = ["Peak", "RunOptions", "TrainingResult", "plan_run", "train"]
