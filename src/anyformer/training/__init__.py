"""Training: objectives, optimiser, the step, runs that stop and go on, evaluation."""
