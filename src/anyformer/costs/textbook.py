"""What a paper derives about the memory of one layer of a plain Transformer, to hold our counts against."""

from __future__ import annotations

from typing import Literal


def korthikanti(
    seq_len: int,
    batch: int,
    d_model: int,
    n_heads: int,
    *,
    devices: int = 1,
    split: Literal["none", "tensor", "tensor and sequence"] = "none",
    recompute: Literal["none", "selective", "full"] = "none",
) -> float:
    """Bytes of one layer's activations on each device: s·b·h(34 + 5as/h) and its kin. arXiv:2205.05198, section 4.

    It assumes 16-bit activations, d_ff = 4h, multi-head attention, GELU and dropout after both branches. `split`: over
    `devices` by tensor parallelism, with sequence parallelism or not. Full recomputation keeps the layer's input alone.
    """
    sbh, scores, t = seq_len * batch * d_model, 5 * n_heads * seq_len / d_model, devices if split != "none" else 1
    if recompute == "full":
        return 2 * sbh
    scores = 0.0 if recompute == "selective" else scores
    if split == "tensor":
        return sbh * (10 + 24 / t + scores / t)
    return sbh / t * (34 + scores)
