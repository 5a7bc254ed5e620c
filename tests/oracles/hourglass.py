"""Hourglass in plain torch, one text at a time: layers of Transformer-XL's attention, those in the middle on blocks of tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from tests.oracles.decoders import attend, gelu_tanh, layer_norm, linear, split

EPS = 1e-6  # of Trax's norms


def hourglass(w: Mapping[str, Tensor], ids: Tensor, *, before: int, inside: int, behind: int, every: int) -> Tensor:
    """Logits [token, vocab] of a text by weights named as the model has them, for so many layers."""
    x = w["stack.embedding.terms.0.table.weight"][ids]
    for i in range(before):
        x = layer(w, f"stack.blocks.{i}", x)
    x = layer_norm(w, f"stack.blocks.{before - 1}.sublayers.1.norm_sum", x, EPS)
    middle = f"stack.blocks.{before}.sublayers.0"
    x = x + layer_norm(w, f"{middle}.norm_out", on_blocks(w, f"{middle}.branches.0.mixer", x, inside, every), EPS)
    for i in range(before + 1, before + 1 + behind):
        x = layer(w, f"stack.blocks.{i}", x)
    return linear(w, "heads.0.table", layer_norm(w, "stack.norm", x, EPS)) + w["heads.0.bias"]


def on_blocks(w: Mapping[str, Tensor], path: str, x: Tensor, n_layers: int, every: int) -> Tensor:
    """What each token reads of the last whole block that it has seen [token, width]; zeros before the first."""
    n_blocks = len(x) // every
    read = [torch.zeros_like(x[0])] * len(x)
    if n_blocks:
        each = [x[every * b : every * (b + 1)] for b in range(n_blocks)]
        mapped = f"{path}.pool.weight" in w  # else their mean, and the same to each token
        z = linear(w, f"{path}.pool", torch.stack([b.flatten() for b in each])) if mapped else sum_of(each) / every
        for i in range(n_layers):
            z = layer(w, f"{path}.blocks.{i}", z)
        z = layer_norm(w, f"{path}.norm", z, EPS)
        z = linear(w, f"{path}.spread", z) if mapped else torch.cat([z] * every, 1)
        width = x.shape[1]
        for t in range(every - 1, len(x)):
            block, place = divmod(t + 1, every)
            read[t] = z[block - 1, place * width : (place + 1) * width]
    return torch.stack(read)


def sum_of(blocks: list[Tensor]) -> Tensor:
    """Add up the tokens of each block [block, width]."""
    return torch.stack([sum(block[1:], block[0]) for block in blocks])


def layer(w: Mapping[str, Tensor], path: str, x: Tensor) -> Tensor:
    """Attention to the past by content and distance (Dai et al. 2019, section 3.3), then a feed-forward, a norm before each."""
    d, at = x.shape[1], f"{path}.sublayers.0.branches.0.mixer"
    n = layer_norm(w, f"{path}.sublayers.0.norm_in", x, EPS)
    u, p = w[f"{at}.scores.0.bias_key"], w[f"{at}.scores.0.bias_position"]
    q, k, v = (split(linear(w, f"{at}.projection.{name}", n), len(u)) for name in "qkv")
    angles = [t * 10_000.0 ** (-torch.arange(0, d, 2, dtype=torch.float32) / d) for t in range(len(x))]
    places = [split((w[f"{at}.scores.0.r"] @ torch.cat((a.sin(), a.cos())))[None], len(u))[:, 0] for a in angles]

    def score(h: int, a: int, b: int) -> Tensor:
        return ((q[h, a] + u[h]) @ k[h, b] + (q[h, a] + p[h]) @ places[a - b][h]) / math.sqrt(q.shape[-1])

    x = x + linear(w, f"{at}.projection.o", attend(q, k, v, score, lambda h, a, b: b <= a))
    feed = f"{path}.sublayers.1"
    up = linear(w, f"{feed}.branches.0.mixer.up", layer_norm(w, f"{feed}.norm_in", x, EPS))
    return x + linear(w, f"{feed}.branches.0.mixer.down", gelu_tanh(up))
