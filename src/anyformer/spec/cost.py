"""What a part costs: FLOPs by named term, added up along the tree of parts. One multiply-add is two FLOPs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What a backward pass makes again instead of keeping it: nothing, attention, or whole layers.
Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class Workload:
    """What one forward pass is given: `query` new tokens a sequence, after `past` cached ones."""

    batch: int = 1
    query: int = 1
    past: int = 0
    memory: int = 0  # tokens of the encoder that cross-attention reads
    causal_exact: bool = True  # count the pairs that a mask shows; False: every pair, the full-attention convention
    own: bool = True  # what is asked of is attention to the text itself; False: to the encoder's

    @property
    def tokens(self) -> int:
        """New tokens in the batch."""
        return self.batch * self.query


class Cost(dict[str, int]):
    """FLOPs by term; costs add up."""

    def __add__(self, other: Cost) -> Cost:
        return Cost({term: self.get(term, 0) + other.get(term, 0) for term in self | other})

    def named(self, term: str) -> Cost:
        """The whole under one name."""
        return Cost({term: self.flops}) if self else self

    @property
    def flops(self) -> int:
        """The sum over all terms."""
        return sum(self.values())
