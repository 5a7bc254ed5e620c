"""DeBERTa with its enhanced mask decoder (arXiv:2006.03654, equations 2 to 4 and section 3.2), pair by pair, one text at a time.

What the decoder begins with is that of the released code (microsoft/DeBERTa): the state before the last layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


@dataclass
class Sizes:
    """What the weights don't say."""

    n_layers: int
    n_heads: int
    farthest: int
    buckets: int | None  # to a side; None: a row for each distance, and projections of rows of their own (v1)
    before: int = 1  # the decoder begins so many layers before the last
    passes: int = 2


def layer_norm(x: Tensor, w: Weights, name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-7).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def affine(x: Tensor, w: Weights, name: str) -> Tensor:
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def row_of(distance: int, size: Sizes) -> int:
    """Return the row of the table for a distance from query to key, positive to what comes before."""
    if size.buckets is None:
        side, at = size.farthest, distance
    else:
        side, middle = size.buckets, size.buckets // 2
        at = distance
        if abs(distance) > middle:
            part = math.log(abs(distance) / middle) / math.log((size.farthest - 1) / middle)
            at = int(math.copysign(middle + math.ceil(part * (middle - 1)), distance))
    return min(max(at + side, 0), 2 * side - 1)


def attend(asking: Tensor, read: Tensor, w: Weights, place: str, projection: str, own: str, size: Sizes) -> Tensor:
    """Return what each token of `asking` gathers from the tokens of `read`."""
    table, n = w["shared.distances.weight"], len(read)
    if size.buckets is not None:
        table = layer_norm(table, w, "shared.distances.norm")
    q, k, v = (affine(x, w, f"{projection}.{name}") for x, name in ((asking, "q"), (read, "k"), (read, "v")))
    to_position = affine(table, w, own.format(0) if size.buckets is None else f"{projection}.k")
    to_content = affine(table, w, own.format(1) if size.buckets is None else f"{projection}.q")
    rows = torch.tensor([[row_of(i - j, size) for j in range(n)] for i in range(n)])
    width, out = q.shape[1] // size.n_heads, []
    for h in range(size.n_heads):
        head = slice(h * width, (h + 1) * width)
        scores = q[:, head] @ k[:, head].T
        scores = scores + (q[:, None, head] * to_position[rows][:, :, head]).sum(-1)
        scores = scores + (k[None, :, head] * to_content[rows][:, :, head]).sum(-1)
        shares = (scores / math.sqrt(3 * width)).exp()
        out.append(shares / shares.sum(1, keepdim=True) @ v[:, head])
    return affine(torch.cat(out, 1), w, f"{projection}.o")


def layer(asking: Tensor, read: Tensor, w: Weights, i: int, size: Sizes) -> Tensor:
    """Run the i-th layer; those of the last one's parts that it shares are called by their own names."""
    place, last = f"stack.blocks.{i}.sublayers", i == size.n_layers - 1
    inside = f"{place}.0.branches.0.mixer"
    projection, own = ("shared.last_attention", "shared.last_score_{}") if last else (f"{inside}.projection", "")
    own = own or f"{inside}.scores.{{}}.projection"
    norms = [f"shared.last_norm_{j}" if last else f"{place}.{j}.norm_sum" for j in range(2)]
    feed = "shared.last_mixer_1" if last else f"{place}.1.branches.0.mixer"
    x = layer_norm(asking + attend(asking, read, w, place, projection, own, size), w, norms[0])
    return layer_norm(x + affine(gelu(affine(x, w, f"{feed}.up")), w, f"{feed}.down"), w, norms[1])


def convolved(x: Tensor, embedded: Tensor, w: Weights) -> Tensor:
    """Add what the first layer has beside it: the embedding's output and its two neighbours, through one matrix each."""
    place, around = "stack.blocks.0.sublayers.2", torch.zeros_like(x)
    kernel = w[f"{place}.branches.0.mixer.weight"]
    for shift in (-1, 0, 1):
        for i in range(len(x)):
            if 0 <= i + shift < len(x):
                around = around.index_add(0, torch.tensor([i]), (kernel[:, :, shift + 1] @ embedded[i + shift])[None])
    return layer_norm(x + gelu(around + w[f"{place}.branches.0.mixer.bias"]), w, f"{place}.norm_sum")


def masked_words(w: Weights, ids: Tensor, size: Sizes) -> Tensor:
    """Return the logits [token, vocab] of one text."""
    x = embedded = layer_norm(w["shared.tokens.weight"][ids], w, "stack.embedding.norm")
    for i in range(size.n_layers - size.before):
        x = layer(x, x, w, i, size)
        if i == 0 and "stack.blocks.0.sublayers.2.norm_sum.weight" in w:
            x = convolved(x, embedded, w)
    asking = x + w["heads.0.layers.terms.0.weight"][: len(ids)]
    for _ in range(size.passes):
        asking = layer(asking, x, w, size.n_layers - 1, size)
    y = layer_norm(gelu(affine(asking, w, "heads.0.transform.0")), w, "heads.0.transform.2")
    return y @ w["shared.tokens.weight"].T + w["heads.0.bias"]
