"""Cells of the field's tables that published versions print otherwise, and why ours differ."""

from __future__ import annotations

from typing import NamedTuple


class Misprint(NamedTuple):
    """One cell: what other tables print there, and what the paper says."""

    lineage: str  # of families.tree
    column: str  # of descriptions.history
    printed: str
    reason: str


_GOPHER = "arXiv:2112.11446, section 3.1, starts from GPT-2 and names two changes"
MISPRINTS: tuple[Misprint, ...] = (
    Misprint("gopher", "activation", "ReLU", f"{_GOPHER}, neither of them the activation: GPT-2's GELU stays"),
    Misprint(
        "gopher",
        "positions",
        "relative, as T5's",
        f"{_GOPHER}: one is the relative positions of Transformer-XL, not T5's",
    ),
    Misprint("chinchilla", "activation", "ReLU", "arXiv:2203.15556, section 4.1, keeps Gopher's architecture: GELU"),
    Misprint(
        "chinchilla",
        "positions",
        "relative, as T5's",
        "arXiv:2203.15556, section 4.1, keeps Gopher's architecture: Transformer-XL's positions",
    ),
    Misprint(
        "palm", "norm", "RMSNorm", "arXiv:2204.02311, section 2, speaks of layer norms, and has no biases in them"
    ),
    Misprint(
        "gpt-oss",
        "activation",
        "SwiGLU",
        "arXiv:2508.10925, section 2, calls its gate x·σ(1.702 x) a swish; the same function is the quick form of GELU",
    ),
    Misprint("olmo", "norm", "RMSNorm", "arXiv:2402.00838, section 2.1: layer norms without weights or biases"),
    Misprint("olmo-0424", "norm", "RMSNorm", "the releases of 2024 keep OLMo's layer norms without weights or biases"),
    Misprint(
        "bloom",
        "branches",
        "parallel",
        "arXiv:2211.05100, figure 5, and the released code take attention and feed-forward in turn",
    ),
    Misprint(
        "phi3-small",
        "activation",
        "SwiGLU",
        "arXiv:2404.14219, section 2, has GeGLU; SwiGLU is that of Phi-3 mini and medium",
    ),
    Misprint(
        "phi3-small",
        "norm",
        "RMSNorm",
        "the released code of Phi-3 small (from memory) has layer norms with biases; RMSNorm is that of mini and medium",
    ),
)
