"""How a run runs: devices, processes, memory, when it is validated and saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from anyformer.spec import Recompute
from anyformer.training.cluster.world import ALONE, World

Peak = Callable[[torch.dtype, torch.device], float]  # measured FLOPs a second of large matrix products


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run runs: nothing here changes what the weights become, beyond rounding and draws of dropout in other parts."""

    device: torch.device | None = None  # None: the best there is
    compiled: bool = False
    micro_tokens: int | None = None  # places computed at once; None: the batch
    recompute: Recompute = "none"  # what a backward pass makes again instead of keeping it
    workers: int = 0  # processes that prepare rows ahead of the step
    validations: int = 8  # on a sample of the validation text on the way, beside one before each checkpoint
    validation_share: float = 0.025  # of the run's tokens: what one of these reads at most
    save_every: int | None = None  # steps; None: at each validation
    save: Literal["now", "async"] = "now"  # checkpoints are written between two steps, or while steps go on
    keep_last: int = 2
    peak: Peak | None = None
    plan: bool = True  # make a trial first, to say how long it will take
    world: World = ALONE  # the processes that share the run (`cluster.joining.joined`)
