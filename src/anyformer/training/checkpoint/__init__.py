"""A run on disk: its directory, metrics, checkpoints; and where it goes on from."""
