"""Comparisons and studies of architectures: running them, judging them, reporting them."""
