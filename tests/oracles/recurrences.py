"""Recurrences as plain loops over tokens, for one row and one head at a time; nothing of ours is imported."""

from __future__ import annotations

import torch
from torch import Tensor


def decayed_sum(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """(y [token, value_dim], state [key_dim, value_dim]) of q, k [token, key_dim], v [token, value_dim], decay [token]."""
    outs = []
    for t in range(len(q)):
        state = state * decay[t].exp() + torch.outer(k[t], v[t])
        outs.append(q[t] @ state)
    return torch.stack(outs), state


def written_anew(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, rate: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """(y [token, value_dim], state [key_dim, value_dim]): the value that the state has for a key is moved to v by `rate`.

    `decay` is [token], or [token, key_dim] of each feature of keys.
    """
    outs = []
    for t in range(len(q)):
        state = state * decay[t].exp().view(-1, 1)
        state = state + torch.outer(k[t], rate[t] * (v[t] - k[t] @ state))
        outs.append(q[t] @ state)
    return torch.stack(outs), state


def mlstm(
    q: Tensor, k: Tensor, v: Tensor, write: Tensor, forget: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(h [token, value_dim], C, n, m) as Beck et al. 2024 write it, from nothing; write and forget [token] before their gates."""
    c, n, m = q.new_zeros(q.shape[1], v.shape[1]), q.new_zeros(q.shape[1]), q.new_zeros(())
    outs = []
    for t in range(len(q)):
        left = torch.nn.functional.logsigmoid(forget[t]) + m
        m = torch.maximum(left, write[t])
        old, new = (left - m).exp(), (write[t] - m).exp()
        c, n = old * c + new * torch.outer(k[t], v[t]), old * n + new * k[t]
        query = q[t] / q.shape[1] ** 0.5
        outs.append(query @ c / (torch.maximum((query @ n).abs(), (-m).exp()) + eps))
    return torch.stack(outs), c, n, m


def selective(x: Tensor, step: Tensor, rate: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """(y [token], state [state_dim]) of one channel: x, step [token], rate [state_dim], b, c [token, state_dim]."""
    outs = []
    for t in range(len(x)):
        state = (step[t] * rate).exp() * state + step[t] * b[t] * x[t]
        outs.append(c[t] @ state)
    return torch.stack(outs), state


def causal_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Y [token, channels] of x of that shape and weight [channels, size]."""
    out = torch.zeros_like(x)
    for t in range(len(x)):
        for m in range(weight.shape[1]):
            back = weight.shape[1] - 1 - m
            if t - back >= 0:
                out[t] += weight[:, m] * x[t - back]
    return out if bias is None else out + bias


def weighed_mean(k: Tensor, v: Tensor, rate: Tensor, bonus: Tensor) -> Tensor:
    """Y [token, channels] of k and v of that shape: each token's sums over all before it and its own, by their formula."""
    outs = []
    for t in range(len(k)):
        ago = torch.arange(t - 1, -1, -1, dtype=k.dtype)[:, None]
        weights = torch.cat((k[:t] - ago * rate, (k[t] + bonus)[None])).softmax(0)
        outs.append((weights * v[: t + 1]).sum(0))
    return torch.stack(outs)
