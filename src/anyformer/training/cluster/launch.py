"""The same command in several processes on this machine, started by torchrun's own agent."""

from __future__ import annotations

import logging
import os
import sys
import uuid
from collections.abc import Sequence

from anyformer.errors import UsageError


def launch(processes: int, arguments: Sequence[str], *, max_restarts: int = 0) -> int:
    """Run Python with these arguments in so many processes, and all again up to `max_restarts` times where one fails.

    Returns the exit status: 0, that of the first process that failed, or 128 plus the signal's number where it was told to
    stop. Raises UsageError where processes cannot be started.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in list(logging.root.manager.loggerDict):  # the processes say in one line what happened
        if name.startswith("torch.distributed"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        run_id=uuid.uuid4().hex,
        max_restarts=max_restarts,
    )
    try:
        elastic_launch(config, sys.executable)(*arguments)
    except ChildFailedError as error:
        status = error.get_first_failure()[1].exitcode
        return status if status > 0 else 1
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    except OSError as error:
        raise UsageError(f"--nproc {processes}: processes cannot be started ({error.strerror or error})") from None
    return 0
