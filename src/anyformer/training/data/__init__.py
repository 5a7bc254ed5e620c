"""What a run reads: batches without end to train on, rows to validate on."""
