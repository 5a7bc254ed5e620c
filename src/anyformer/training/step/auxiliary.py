"""A second model that is trained beside the first and left behind afterwards: a generator, say, whose words it judges."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from anyformer.model import Transformer, build
from anyformer.training.objectives.objective import Auxiliary


def built_beside(model: Transformer, auxiliary: Auxiliary, seed: int) -> Transformer:
    """The auxiliary model on the model's device, its weights drawn from the seed but not as the model's are.

    Tied tensors are the model's very parameters. Disentangled ones start as the model's, so that the distance starts at 0.
    """
    device = next(model.parameters()).device
    beside = build(auxiliary.spec, int(np.random.SeedSequence((seed, 1)).generate_state(1)[0]), device=device)
    for name, of_model in auxiliary.tied.items():
        owner, _, last = name.rpartition(".")
        setattr(beside.get_submodule(owner), last, model.get_parameter(of_model))
    with torch.no_grad():
        for name, of_model in auxiliary.disentangled.items():
            beside.get_parameter(name).copy_(model.get_parameter(of_model))
    return beside


@dataclass
class DisentangledSharing:
    """Keeps tensors of the model at a distance from the auxiliary model's that only the model's gradient changes.

    E_D = sg(E_G) + E_Δ: arXiv:2111.09543, section 3.2. What the model holds is the sum, so its gradient is that of E_Δ, and a
    step of the optimiser on it is the step of E_Δ, whose moments depend on gradients alone (tables don't decay). What is
    missing then is the step that E_G made.
    """

    pairs: list[tuple[nn.Parameter, nn.Parameter]]  # (the auxiliary model's, the model's)
    _before: list[torch.Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, auxiliary: Auxiliary, beside: Transformer, model: Transformer) -> DisentangledSharing:
        return cls([(beside.get_parameter(a), model.get_parameter(b)) for a, b in auxiliary.disentangled.items()])

    def hold(self) -> None:
        """Remember where the auxiliary model's tensors are before a step."""
        self._before = [theirs.detach().clone() for theirs, _ in self.pairs]

    @torch.no_grad()
    def follow(self) -> None:
        """Move the model's tensors by as much as the auxiliary model's have moved since `hold`."""
        for (theirs, ours), before in zip(self.pairs, self._before, strict=True):
            ours += theirs - before
        self._before = []
