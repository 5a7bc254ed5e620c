"""A small model that ties a table to a head, and steps that draw from every generator."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from anyformer.training.checkpoint.checkpoints import Checkpoints


class Tied(nn.Module):
    """A table and a head that are one tensor, a buffer, and a layer."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.table = nn.Embedding(11, width)
        self.layer = nn.Linear(width, width)
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))


def trained(steps: int, seed: int = 0, width: int = 6) -> tuple[Tied, torch.optim.AdamW]:
    torch.manual_seed(seed)
    model = Tied(width)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    groups = [{"params": matrices}, {"params": [model.layer.bias], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.9))
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def step(model: Tied, optimizer: torch.optim.Optimizer) -> float:
    """Draw from every generator, and learn."""
    scale = random.random() + float(np.random.random())
    ids = torch.randint(0, 11, (4,))
    loss = scale * model.head(torch.tanh(model.layer(model.table(ids)))).logsumexp(-1).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    model.seen += 1  # type: ignore[operator]
    return float(loss.detach())


def save(checkpoints: Checkpoints, *content: Any) -> Path:
    return checkpoints.write(checkpoints.content(*content))


def saved(checkpoints: Checkpoints, *steps: int) -> tuple[Tied, torch.optim.AdamW]:
    model, optimizer = trained(2)
    for number in steps:
        save(checkpoints, number, model, optimizer, {"number": number})
    return model, optimizer
