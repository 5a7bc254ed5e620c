"""What a student learns of its teacher: the divergence of both's probabilities, at a temperature.

Hinton et al. 2015, arXiv:1503.02531, section 2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.layers.execution import exact
from anyformer.layers.head import Head


class TeacherAnswers(NamedTuple):
    """A teacher's, and how they are followed."""

    logits: Tensor  # [row, vocab]
    weight: float
    temperature: float

    def mixed(self, loss: Tensor, divergence: Tensor) -> Tensor:
        """The loss of each row [row], of that of its label and its divergence."""
        return (1 - self.weight) * loss + self.weight * self.temperature**2 * divergence

    def divergence(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """KL(teacher ‖ student) [row] of softmax(logits / T), and the logarithms [row, vocab] of the student's and the teacher's.

        `logits` [row, vocab] may have something added to a row.
        """
        ours, theirs = ((each / self.temperature).log_softmax(-1) for each in (logits, self.logits))
        return (theirs.exp() * (theirs - ours)).sum(-1), ours, theirs

    def slope(self, ours: Tensor, theirs: Tensor) -> Tensor:
        """What `mixed` gets from the divergence for its gradient by logits, of logarithms, which are used up."""
        return ours.exp_().sub_(theirs.exp_()).mul_(self.weight * self.temperature)


class Taught(NamedTuple):
    """What a teacher makes of the tokens that a student reads, and how the student follows it."""

    head: Head
    hidden: Tensor  # [row, width of the teacher], or [batch, token, width]: what its head reads
    weight: float
    temperature: float

    def at(self, rows: Tensor | slice) -> Taught:
        """That of some rows."""
        return self._replace(hidden=self.hidden[rows])

    def answers(self) -> TeacherAnswers:
        """Its logits, in float32 at least."""
        with torch.no_grad():
            return TeacherAnswers(exact(self.head(self.hidden)), self.weight, self.temperature)
