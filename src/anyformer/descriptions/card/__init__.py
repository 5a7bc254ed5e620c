"""The card of an architecture: the rows by which the field knows it."""
