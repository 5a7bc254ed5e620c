"""Decoders that transformers has no class for, written out in plain torch: one text at a time, head by head, key by key."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
Sees = Callable[[int, int, int, int], bool]  # layer, head, query, key


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    """Multiply by a matrix (out, in), and add a bias where there is one."""
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def layer_norm(w: Weights, name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
    """Subtract the mean, divide by the deviation."""
    centred = x - x.mean(-1, keepdim=True)
    y = centred / (centred.pow(2).mean(-1, keepdim=True) + eps).sqrt() * w[f"{name}.weight"]
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def rms_norm(w: Weights, name: str, x: Tensor) -> Tensor:
    """Divide by the root of the mean of squares."""
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * w[f"{name}.weight"]


def gelu_tanh(x: Tensor) -> Tensor:
    """Approximate x Φ(x) by a hyperbolic tangent."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attend(
    q: Tensor, k: Tensor, v: Tensor, score: Callable[[int, int, int], Tensor], sees: Callable[[int, int, int], bool]
) -> Tensor:
    """Return [token, heads · width] for q, k, v [heads, token, width]; a token that sees nothing gets 0."""
    rows = []
    for i in range(q.shape[1]):
        heads = []
        for h in range(q.shape[0]):
            seen = [j for j in range(k.shape[1]) if sees(h, i, j)]
            if not seen:
                heads.append(v.new_zeros(v.shape[-1]))
                continue
            weights = torch.stack([score(h, i, j) for j in seen]).softmax(0)
            heads.append(sum(a * v[h, j] for a, j in zip(weights, seen, strict=True)))
        rows.append(torch.cat(heads))
    return torch.stack(rows)


def products(q: Tensor, k: Tensor) -> Callable[[int, int, int], Tensor]:
    """Return q · k of a head, a query and a key, divided by the root of their width."""
    return lambda h, a, b: q[h, a] @ k[h, b] / math.sqrt(q.shape[-1])


def split(x: Tensor, n_heads: int) -> Tensor:
    """Return [heads, token, width]."""
    return x.reshape(len(x), n_heads, -1).transpose(0, 1)


def gpt(
    w: Weights,
    ids: Tensor,
    *,
    n_layers: int,
    n_heads: int,
    sees: Sees,
    positions: Tensor,
    feed: Callable[[Tensor], Tensor],
) -> Tensor:
    """GPT-2 with a mask for each layer and head."""
    x = w["tokens.weight"][ids] + positions
    for i in range(n_layers):
        n = layer_norm(w, f"{i}.norm0", x)
        q, k, v = (split(linear(w, f"{i}.{name}", n), n_heads) for name in "qkv")
        y = attend(q, k, v, products(q, k), partial(sees, i))
        x = x + linear(w, f"{i}.o", y)
        x = x + linear(w, f"{i}.down", feed(linear(w, f"{i}.up", layer_norm(w, f"{i}.norm1", x))))
    return layer_norm(w, "norm", x) @ w["head.weight"].T


def palm(w: Weights, ids: Tensor, *, n_layers: int, n_heads: int) -> Tensor:
    """Attention and feed-forward beside each other, one key and value for all heads, rotation of (i, i + width/2)."""
    x = w["tokens.weight"][ids]
    for i in range(n_layers):
        n = layer_norm(w, f"{i}.norm0", x)
        q, k, v = split(linear(w, f"{i}.q", n), n_heads), linear(w, f"{i}.k", n), linear(w, f"{i}.v", n)
        half = k.shape[-1] // 2

        def turned(vector: Tensor, position: int, half: int = half) -> Tensor:
            a, b = vector[:half], vector[half:]
            angle = position * 10_000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
            return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()))

        keys = [turned(k[j], j) for j in range(len(ids))]
        queries = [[turned(q[h, a], a) for a in range(len(ids))] for h in range(n_heads)]
        y = attend(
            q,
            k.expand(n_heads, -1, -1),
            v.expand(n_heads, -1, -1),
            products(torch.stack([torch.stack(head) for head in queries]), torch.stack(keys).expand(n_heads, -1, -1)),
            lambda h, a, b: b <= a,
        )
        gate = linear(w, f"{i}.gate", n)
        x = x + linear(w, f"{i}.o", y) + linear(w, f"{i}.down", gate * gate.sigmoid() * linear(w, f"{i}.up", n))
    return layer_norm(w, "norm", x) @ w["head.weight"].T / math.sqrt(x.shape[-1])


def gopher(w: Weights, ids: Tensor, *, n_layers: int, n_heads: int) -> Tensor:
    """GPT-2 with RMSNorm and, for each pair of tokens, the four terms of Transformer-XL (its section 3.3)."""
    x = w["tokens.weight"][ids]
    d = x.shape[-1]

    def sinusoid(distance: int) -> Tensor:
        angles = distance * 10_000.0 ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
        return torch.cat((angles.sin(), angles.cos()))

    for i in range(n_layers):
        n = rms_norm(w, f"{i}.norm0", x)
        q, k, v = (split(linear(w, f"{i}.{name}", n), n_heads) for name in "qkv")
        places = [split((w[f"{i}.r"] @ sinusoid(t))[None], n_heads)[:, 0] for t in range(len(ids))]
        u, p = w[f"{i}.bias_key"], w[f"{i}.bias_position"]

        def score(h: int, a: int, b: int, q=q, k=k, places=places, u=u, p=p) -> Tensor:  # type: ignore[no-untyped-def]
            r = places[a - b][h]
            return (q[h, a] @ k[h, b] + q[h, a] @ r + u[h] @ k[h, b] + p[h] @ r) / math.sqrt(q.shape[-1])

        x = x + linear(w, f"{i}.o", attend(q, k, v, score, lambda h, a, b: b <= a))
        x = x + linear(w, f"{i}.down", gelu_tanh(linear(w, f"{i}.up", rms_norm(w, f"{i}.norm1", x))))
    return rms_norm(w, "norm", x) @ w["head.weight"].T
