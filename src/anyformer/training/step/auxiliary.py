"""A second model that is trained beside the first and left behind afterwards: a generator, say, whose words it judges."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from anyformer.model import Transformer, build
from anyformer.training.cluster.world import World
from anyformer.training.objectives.objective import Auxiliary

Pairs = list[tuple[nn.Parameter, nn.Parameter]]  # (the auxiliary model's, the model's)


def built_beside(model: Transformer, auxiliary: Auxiliary, seed: int, world: World) -> tuple[Transformer, Pairs]:
    """The auxiliary model on the model's device, its weights drawn from the seed but not as the model's are.

    Tied tensors are the model's very parameters. Disentangled ones, which are given too, start as the model's, so that the
    distance starts at 0.
    """
    device = next(model.parameters()).device
    own_seed = int(np.random.SeedSequence((seed, 1)).generate_state(1)[0])
    if world.sharded:
        from anyformer.training.cluster.sharding import built

        beside = built(auxiliary.spec, own_seed, device, world)
    else:
        beside = build(auxiliary.spec, own_seed, device=device)
    for name, of_model in auxiliary.tied.items():
        owner, _, last = name.rpartition(".")
        setattr(beside.get_submodule(owner), last, model.get_parameter(of_model))
    pairs = [(beside.get_parameter(a), model.get_parameter(b)) for a, b in auxiliary.disentangled.items()]
    with torch.no_grad():
        for theirs, ours in pairs:
            theirs.copy_(ours)
    return beside, pairs


@contextmanager
def kept_at_a_distance(pairs: Pairs) -> Iterator[None]:
    """A step of the optimiser, after which tensors of the model stand as far from the auxiliary model's as its own gradient says.

    E_D = sg(E_G) + E_Δ: arXiv:2111.09543, section 3.2. What the model holds is the sum, so its gradient is that of E_Δ, and a
    step of the optimiser on it is the step of E_Δ, whose moments depend on gradients alone (tables don't decay). What is
    missing then is the step that E_G made.
    """
    before = [theirs.detach().clone() for theirs, _ in pairs]
    yield
    with torch.no_grad():
        for (theirs, ours), was in zip(pairs, before, strict=True):
            ours += theirs - was
