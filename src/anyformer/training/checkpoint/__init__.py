"""What is written of a run: its directory, metrics, checkpoints; and where it goes on from."""
