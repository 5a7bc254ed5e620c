"""The data of a run: batches without end to train on, rows to validate on."""
