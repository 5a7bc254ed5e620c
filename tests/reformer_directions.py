"""transformers' Reformer with directions drawn as ours are: in float32, whatever the dtype of the vectors that are hashed.

It draws others in float64, in which the tests compare; in bfloat16 and float16 the same, where there are a multiple of 16.
"""

from typing import Any

import pytest
import torch
from transformers.models.reformer import modeling_reformer


class _Torch:
    """PyTorch, but for that."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def randn(self, shape: tuple[int, ...], *, dtype: torch.dtype, **options: Any) -> torch.Tensor:
        """Numbers of float32, as the dtype."""
        return torch.randn(shape, dtype=torch.float32, **options).to(dtype)


def draw_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have their class draw so until the test ends."""
    monkeypatch.setattr(modeling_reformer, "torch", _Torch())
