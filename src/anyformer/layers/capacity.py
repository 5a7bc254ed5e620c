"""How many tokens an expert takes: those beyond pass it by. Lepikhin et al. 2020, arXiv:2006.16668; arXiv:2101.03961."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anyformer.spec import Sizes, Spec, Window


class CapacitySpec(Spec, abstract=True):
    """Places that an expert has for the tokens of one sequence."""

    def places(self, n_tokens: int, n_experts: int, top_k: int) -> int:
        """How many tokens of a sequence of `n_tokens` an expert takes."""
        raise TypeError(f"{self.kind} does not say how many places there are")


class CapacityFactor(CapacitySpec):
    """factor · top_k · tokens / experts, rounded up: 1 is exactly enough for an even load (Switch, section 2.2)."""

    factor: float

    def __post_init__(self) -> None:
        if not self.factor > 0 or not math.isfinite(self.factor):
            raise self.refusal("factor", "must be above 0; leave the capacity out so that no token is dropped")

    def places(self, n_tokens: int, n_experts: int, top_k: int) -> int:
        return math.ceil(self.factor * top_k * n_tokens / n_experts)


class FixedCapacity(CapacitySpec):
    """A number of tokens, whatever the length (the released Switch models)."""

    tokens: int

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise self.refusal("tokens", "must be at least 1; leave the capacity out so that no token is dropped")

    def places(self, n_tokens: int, n_experts: int, top_k: int) -> int:
        return self.tokens

    def resized(self, to: Sizes) -> FixedCapacity:
        """A number of tokens, as a window's is: it stays small enough to matter."""
        return self.but(tokens=to.field(Window, self.tokens))


def admitted(chosen: Tensor, n_experts: int, places: int, real: Tensor) -> Tensor:
    """Which choices [batch, token, top_k] get a place: first come first served, so that nothing depends on later tokens.

    Of one token the better choice comes first. Padding (`real` [batch, token] is False) takes no place.
    """
    wanted = torch.nn.functional.one_hot(chosen, n_experts) * real[..., None, None]
    queue = wanted.flatten(1, 2).cumsum(1).view_as(wanted)
    return queue.gather(-1, chosen[..., None])[..., 0] <= places
