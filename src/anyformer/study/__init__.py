"""Comparisons of architectures: running them, judging them, reporting them."""
