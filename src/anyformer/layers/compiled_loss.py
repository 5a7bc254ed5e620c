"""The cross-entropy of a chunk between its two products, as one kernel that a compiler writes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from anyformer.layers.block import keep_graphs


def between_products(
    products: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    nothing: Tensor,
    weights: Tensor | None,
    dtype: torch.dtype,
    scale: float,
    softcap: float | None,
    smoothing: float,
    z_loss: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(the sum of a chunk's losses, the plain loss of each row, the gradient of `products`), written for a compiler.

    It reads the products [row, vocab] twice and writes their gradient, where PyTorch's operators pass over them eight times.
    `nothing` [row, 1] says of which rows nothing is predicted.
    """
    logits = products.to(dtype)
    logits = (logits if bias is None else logits + bias) * scale
    capped = None if softcap is None else torch.tanh(logits / softcap)
    if softcap is not None and capped is not None:
        logits = softcap * capped
    silent = nothing[:, 0]
    index = labels.masked_fill(silent, 0)[:, None]
    norm = logits.logsumexp(1)
    nats = (norm - logits.gather(1, index)[:, 0]).masked_fill(silent, 0.0)
    loss = nats if not smoothing else (1 - smoothing) * nats + smoothing * (norm - logits.mean(1))
    loss = loss + z_loss * norm.square()
    total = (loss if weights is None else loss * weights).masked_fill(silent, 0.0).sum()
    vocab = logits.shape[1]
    is_label = torch.arange(vocab, device=index.device) == index
    grad = (logits - norm[:, None]).exp() * (1 + 2 * z_loss * norm)[:, None]
    grad = grad - smoothing / vocab - torch.where(is_label, 1 - smoothing, 0.0)
    if capped is not None:
        grad = grad * (1 - capped.square())
    if weights is not None:
        grad = grad * weights[:, None]
    return total, nats, (grad * scale).to(products.dtype)


@cache
def compiled(backend: str) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    keep_graphs()
    return torch.compile(between_products, backend=backend)
