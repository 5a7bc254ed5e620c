"""The state of every random number generator a step may draw from: Python's, NumPy's, torch's on each device."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor


def random_state() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state for `set_random_state`: tensors, and the rest as JSON."""
    version, words, gauss = random.getstate()
    name, key, place, has_gauss, cached = np.random.get_state()
    tensors = {
        "python": torch.tensor(words, dtype=torch.int64),
        "numpy": torch.from_numpy(np.asarray(key).astype(np.int64)),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tensors |= {f"cuda.{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    if torch.backends.mps.is_available():
        tensors["mps"] = torch.mps.get_rng_state()
    rest = {"python": [version, gauss], "numpy": [str(name), int(place), int(has_gauss), float(cached)]}
    return tensors, rest


def set_random_state(tensors: dict[str, Tensor], rest: dict[str, Any]) -> None:
    """Make all draws go on where `random_state` was taken; states of devices that are not here are passed over."""
    version, gauss = rest["python"]
    random.setstate((version, tuple(tensors["python"].tolist()), gauss))
    name, place, has_gauss, cached = rest["numpy"]
    np.random.set_state((name, tensors["numpy"].numpy().astype(np.uint32), place, has_gauss, cached))
    torch.set_rng_state(tensors["torch"].clone())
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"cuda.{i}" in tensors:
            torch.cuda.set_rng_state(tensors[f"cuda.{i}"].clone(), i)
    if "mps" in tensors and torch.backends.mps.is_available():
        torch.mps.set_rng_state(tensors["mps"].clone())
