"""What papers derive about memory and intensity for one layer of a plain Transformer, to hold our counts against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Split = Literal["none", "tensor", "tensor and sequence"]


def korthikanti(
    seq_len: int,
    batch: int,
    d_model: int,
    n_heads: int,
    *,
    devices: int = 1,
    split: Split = "none",
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


def korthikanti_parts(seq_len: int, batch: int, d_model: int, n_heads: int) -> Mapping[str, int]:
    """The same by part, on one device: 11sbh + 5as²b of attention, 19sbh of the MLP, 4sbh of layer norms."""
    sbh = seq_len * batch * d_model
    return {"attention": 11 * sbh + 5 * n_heads * seq_len**2 * batch, "feed-forward": 19 * sbh, "norms": 4 * sbh}


def shazeer_training(batch: int, seq_len: int, d_model: int, n_heads: int) -> float:
    """Operations per number moved of attention over whole sequences: 1 / (1/d + hn/d² + 1/bn). arXiv:1911.02150."""
    return 1 / (1 / d_model + n_heads * seq_len / d_model**2 + 1 / (batch * seq_len))


def shazeer_decoding(batch: int, seq_len: int, d_model: int, n_heads: int, n_kv_heads: int) -> float:
    """The same of decoding token by token: 1 / (n·g/(d·h) + 1/b), multi-query with its queries' 1/d. Sections 2.4, 3."""
    keys = seq_len * n_kv_heads / (d_model * n_heads)
    return 1 / (keys + 1 / batch + (1 / d_model if n_kv_heads < n_heads else 0))


def ivanov_words(batch: int, seq_len: int, d_model: int, n_heads: int) -> int:
    """The numbers that unfused multi-head attention reads and writes in a forward pass. arXiv:2007.00072, figure 1.

    Products of q, k, v together; their bias; scores; scaling, softmax and dropout, one read and three writes; values;
    the product with the output's matrix; its bias.
    """
    x, weights, scores = batch * seq_len * d_model, d_model**2, batch * n_heads * seq_len**2
    products, bias = x + 3 * weights + 3 * x, 3 * x + 3 * d_model + 3 * x
    attention = (2 * x + scores) + (scores + 3 * scores) + (scores + x + x)
    return products + bias + attention + (x + weights + x) + (x + d_model + x)
