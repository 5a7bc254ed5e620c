"""What is taken off the logits of tokens that a text has already, before one is chosen.

Repetition: Keskar et al. 2019 (CTRL), arXiv:1909.05858, section 4.1. Presence and frequency: as OpenAI's interface has them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.errors import InputError
from anyformer.generation.sampling import Sampling


class Penalties:
    """The tokens that rows hold [row, vocab], and what that takes off their next logits; idle where these stay as they are."""

    def __init__(self, how: Sampling, ids: Tensor, mask: Tensor | None, vocab_size: int) -> None:
        """`ids` [row, token] are the prompts, where `mask` of that shape is not 0; those beyond the vocabulary are never written.

        Raises InputError for a bias of no token.
        """
        if wrong := [token for token, _ in how.bias if not 0 <= token < vocab_size]:
            raise InputError(f"bias: there is no token {wrong[0]}; this model has those from 0 to {vocab_size - 1}")
        self.how = how
        changes = (how.repetition_penalty, how.presence_penalty, how.frequency_penalty, how.bias)
        self.idle = changes == (1.0, 0.0, 0.0, ())
        if self.idle:
            return
        self.biased = ids.new_tensor([token for token, _ in how.bias])
        self.bias = torch.tensor([more for _, more in how.bias], dtype=torch.float64, device=ids.device)
        counted = (ids < vocab_size) if mask is None else (mask > 0) & (ids < vocab_size)
        self.written = ids.new_zeros(len(ids), vocab_size)  # how often each token is behind the prompt
        self.prompt = self.written.scatter_add(1, ids.clamp(max=vocab_size - 1), counted.to(ids.dtype)) > 0

    def add(self, ids: Tensor | Sequence[Sequence[int]]) -> None:
        """Count tokens that rows have chosen [row, token]."""
        if not self.idle:
            new = torch.as_tensor(ids, device=self.written.device)
            self.written.scatter_add_(1, new, torch.ones_like(new))

    def select(self, rows: list[int]) -> None:
        """Keep these rows, in this order."""
        if not self.idle:
            self.written, self.prompt = self.written[rows], self.prompt[rows]

    def applied(self, logits: Tensor, guesses: Sequence[int] = ()) -> Tensor:
        """Logits [row, vocab], float64 if changed; of one row and guesses [1 + guess, vocab]: behind none, behind the first …"""
        if self.idle:
            return logits
        how, written = self.how, self.written
        if guesses:
            each = F.one_hot(torch.tensor(guesses, device=written.device), written.shape[1])
            written = written + F.pad(each.cumsum(0), (0, 0, 1, 0))
        logits = logits.double()
        if how.repetition_penalty != 1:
            lower = torch.where(logits > 0, logits / how.repetition_penalty, logits * how.repetition_penalty)
            logits = torch.where(self.prompt | (written > 0), lower, logits)
        logits = logits - how.presence_penalty * (written > 0) - how.frequency_penalty * written
        return logits.index_add_(1, self.biased, self.bias.expand(len(logits), -1))
