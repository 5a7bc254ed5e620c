"""anyformer's command in one of several processes that share one card; torchrun starts it.

NCCL takes a card a process, so that several of one card add up over gloo, which takes tensors of a GPU too, but sends none
from one process to another (a pipeline's). A process alone is on NCCL.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from anyformer.__main__ import main

if __name__ == "__main__":
    set_device, join = torch.cuda.set_device, dist.init_process_group

    def over_gloo(_: str, *, timeout: timedelta, **how: Any) -> None:
        join("gloo", timeout=timeout, **how)

    if int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group = over_gloo
        if torch.cuda.is_available():
            torch.cuda.set_device = lambda _: set_device(0)
    sys.exit(main())
