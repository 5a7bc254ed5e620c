"""Tensors of which each process has a part (DTensors) beside whole ones. Nothing here is imported until there are parts."""

from __future__ import annotations

from torch import Tensor


def is_part(tensor: Tensor) -> bool:
    """Whether a process has a part of it alone."""
    return hasattr(tensor, "device_mesh")


def here(tensor: Tensor) -> Tensor:
    """What of a tensor this process has, not copied."""
    return tensor.to_local() if is_part(tensor) else tensor  # type: ignore[operator]  # a DTensor


def put(target: Tensor, whole: Tensor) -> None:
    """Copy a tensor, which every process has whole or in the same parts, into one of which each may have a part."""
    target.copy_(part_as(target, whole))


def part_as(target: Tensor, whole: Tensor) -> Tensor:
    """This process's part of a whole tensor, where the target is one; else the tensor as it is."""
    if not is_part(target) or is_part(whole):
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(target, DTensor)
    given = whole.to(target.device).expand(target.shape)
    return distribute_tensor(given, target.device_mesh, target.placements, src_data_rank=None)


def together(tensor: Tensor) -> Tensor:
    """The whole of a tensor, on every process."""
    return tensor.full_tensor() if is_part(tensor) else tensor  # type: ignore[operator]
