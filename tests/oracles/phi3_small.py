"""Phi-3-small token by token and head by head, from its published description; slow on purpose, and of nothing of ours.

Abdin et al. 2024, arXiv:2404.14219, section 2; constants of the released config.
"""

import math

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def logits(
    ids: list[int],
    w: Weights,
    *,
    n_layers: int,
    n_heads: int,
    n_kv_heads: int,
    block_size: int = 64,
    near: int = 16,
    stride: int = 8,
) -> Tensor:
    """Return logits [token, vocab]; every second layer, from the second on, is dense."""
    x = torch.stack([10.0 * w["tokens"][i] for i in ids])
    for layer in range(n_layers):
        at = {name.split(".", 1)[1]: value for name, value in w.items() if name.startswith(f"{layer}.")}
        dense = (layer + 1) % 2 == 0
        sight = None if dense else (block_size, near, stride)
        x = x + attention(_layer_norm(x, at["norm1.weight"], at["norm1.bias"]), at, n_heads, n_kv_heads, sight)
        x = x + gegelu(_layer_norm(x, at["norm2.weight"], at["norm2.bias"]), at)
    return _layer_norm(x, w["norm.weight"], w["norm.bias"]) @ w["tokens"].T / 8


def attention(x: Tensor, w: Weights, n_heads: int, n_kv_heads: int, sight: tuple[int, int, int] | None) -> Tensor:
    """Return attention's output [token, d_model], one query of one head at a time."""
    q, k, v = (x @ w[f"{n}.weight"].T + w[f"{n}.bias"] for n in "qkv")
    width, n = q.shape[1] // n_heads, x.shape[0]
    out = torch.zeros_like(q)
    for head in range(n_heads):
        group = head // (n_heads // n_kv_heads)
        mine, theirs = slice(head * width, (head + 1) * width), slice(group * width, (group + 1) * width)
        keys = torch.stack([_rotated(k[j, theirs], j) for j in range(n)])
        for i in range(n):
            seen = [j for j in range(i + 1) if sight is None or _sees(i, j, head, *sight)]
            scores = keys[seen] @ _rotated(q[i, mine], i) / width
            out[i, mine] = scores.softmax(0) @ v[seen, theirs]
    return out @ w["o.weight"].T + w["o.bias"]


def _sees(i: int, j: int, head: int, block_size: int, near: int, stride: int) -> bool:
    query_block, key_block = i // block_size, j // block_size
    return query_block - key_block < near or (key_block + head + 1) % stride == 0


def _rotated(x: Tensor, position: int) -> Tensor:
    half = x.shape[0] // 2
    angles = [position / 1e6 ** (i / half) for i in range(half)]
    c, s = (x.new_tensor([turn(angle) for angle in angles]) for turn in (math.cos, math.sin))
    first, second = x[:half], x[half:]
    return torch.cat((first * c - second * s, second * c + first * s))


def gegelu(x: Tensor, w: Weights) -> Tensor:
    """Return the feed-forward's output: quick-gelu(gate) · (linear + 1), both limited to 20."""
    gate = (x @ w["gate.weight"].T + w["gate.bias"]).clamp(max=20.0)
    linear = (x @ w["up.weight"].T + w["up.bias"]).clamp(-20.0, 20.0)
    return (gate * torch.sigmoid(1.702 * gate) * (linear + 1)) @ w["down.weight"].T + w["down.bias"]


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias
