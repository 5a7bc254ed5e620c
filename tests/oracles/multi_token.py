"""Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, equations 21 to 25), written out for one document at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


def normed(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Divide a vector by the root of the mean of its squares."""
    return x / (x.pow(2).mean() + eps).sqrt() * gain


def rotated(x: Tensor, position: int) -> Tensor:
    """Turn the pairs (i, i + width/2)."""
    half = len(x) // 2
    turned = torch.empty_like(x)
    for i in range(half):
        angle = position * 10_000.0 ** (-i / half)
        c, s = math.cos(angle), math.sin(angle)
        turned[i], turned[i + half] = x[i] * c - x[i + half] * s, x[i] * s + x[i + half] * c
    return turned


def layer(w: Weights, name: str, stream: list[Tensor], n_heads: int, eps: float) -> list[Tensor]:
    """Run one layer of LLaMA's whose heads share one key and value, over the tokens of a document."""
    attention, feed = f"{name}.sublayers.0", f"{name}.sublayers.1"
    p = f"{attention}.branches.0.mixer.projection"
    read = [normed(x, w[f"{attention}.norm_in.weight"], eps) for x in stream]
    keys = [rotated(w[f"{p}.k.weight"] @ x, i) for i, x in enumerate(read)]
    values = [w[f"{p}.v.weight"] @ x for x in read]
    out = []
    for i, x in enumerate(read):
        heads = []
        for query in (w[f"{p}.q.weight"] @ x).chunk(n_heads):
            q = rotated(query, i)
            share = torch.stack([q @ key / math.sqrt(len(q)) for key in keys[: i + 1]]).softmax(0)
            heads.append(sum(a * value for a, value in zip(share, values[: i + 1], strict=True)))
        y = stream[i] + w[f"{p}.o.weight"] @ torch.cat(heads)
        n, m = normed(y, w[f"{feed}.norm_in.weight"], eps), f"{feed}.branches.0.mixer"
        gate = w[f"{m}.gate.weight"] @ n
        out.append(y + w[f"{m}.down.weight"] @ (gate * gate.sigmoid() * (w[f"{m}.up.weight"] @ n)))
    return out


def losses(
    w: Weights, tokens: list[int], *, n_layers: int, n_ahead: int, n_heads: int = 2, eps: float = 1e-5
) -> list[list[Tensor]]:
    """Return -log P of each token that is predicted, nearest first: of the next, of the one after it …

    All of `tokens` but the last are read, all but the first are predicted.
    """
    table, read = w["shared.tokens.weight"], tokens[:-1]
    stream = [table[t] for t in read]
    for i in range(n_layers):
        stream = layer(w, f"stack.blocks.{i}", stream, n_heads, eps)
    hidden = [normed(x, w["stack.norm.weight"], eps) for x in stream]

    def nats(vectors: list[Tensor], wanted: list[int]) -> list[Tensor]:
        return [-(table @ v).log_softmax(0)[t] for v, t in zip(vectors, wanted, strict=True)]

    found = [nats(hidden, tokens[1:])]
    for k in range(1, n_ahead + 1):
        module, joined = f"ahead.{k - 1}", []
        for i in range(len(read) - k):
            h = normed(hidden[i], w[f"{module}.norm_hidden.weight"], eps)
            e = normed(table[read[i + k]], w[f"{module}.norm_token.weight"], eps)
            matrix = torch.cat((w[f"{module}.hidden.weight"], w[f"{module}.token.weight"]), 1)
            joined.append(matrix @ torch.cat((h, e)))
        hidden = layer(w, f"{module}.block", joined, n_heads, eps)
        found.append(nats([normed(x, w[f"{module}.norm.weight"], eps) for x in hidden], tokens[k + 1 :]))
    return found
