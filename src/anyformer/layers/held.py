"""Weights whose numbers do not lie row by row: held in few bits (`packed.py`), or, for inference, in blocks (`reordered.py`).

What a model is built of stays as it is: such a weight is a tensor that stands where the parameter stood. Its products are made
of what is held; whatever else is done to it is done to the numbers that it stands for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.errors import KernelError

REFUSED = (
    "weights in few bits stay what they are; train an adapter on them, or load the model without --dtype to change it"
)
ANSWERED = (F.linear, F.embedding)  # what a weight in few bits computes itself
SET_DATA: Any = Tensor.data.__set__  # type: ignore[attr-defined]  # what `weight.data = other` calls


def row_by_row(weight: Tensor) -> Tensor:
    """A weight's numbers, however they are held."""
    return weight.plain() if isinstance(weight, HeldWeight) else weight


class HeldWeight(Tensor):
    """In float32 on a CPU, as all see it. Raises KernelError where it would get a gradient, or become another tensor."""

    refusal: ClassVar[str]  # what is told whoever asks for either

    @property
    @abstractmethod
    def rounded(self) -> bool:
        """Whether its numbers are those nearest to what it was made of, not these themselves."""

    @abstractmethod
    def lies_in(self, whole: Tensor) -> bool:
        """Whether it is a part of that, not a copy."""

    @abstractmethod
    def plain(self) -> Tensor:
        """The numbers that it stands for, in float32."""

    @abstractmethod
    def linear(self, input: Tensor, bias: Tensor | None = None) -> Tensor:
        """[…, d_out] of `input` […, d_in], for a matrix [d_out, d_in]."""

    @abstractmethod
    def rows(self, ids: Tensor) -> Tensor:
        """The rows [*ids, d_in] of a matrix."""

    def requires_grad_(self, mode: bool = True) -> Self:
        """Nothing, or KernelError."""
        if mode:
            raise KernelError(self.refusal)
        return self

    def share_memory_(self) -> Self:
        """Nothing but KernelError, where PyTorch would reach for memory that is not there."""
        raise KernelError(self.refusal)

    def become(self, other: Tensor) -> None:
        """Let the numbers be another tensor's, as `weight.data = other` asks, if they can. Raises KernelError."""
        if isinstance(other, HeldWeight) and other.lies_in(self):
            return
        if other.dtype != self.dtype or other.device != self.device or other.shape != self.shape:
            raise KernelError(self.refusal)
        self.copy_(other)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func is F.linear and isinstance(args[1], HeldWeight):
            return args[1].linear(args[0], *args[2:], **given)
        if func is F.embedding and isinstance(args[1], HeldWeight):
            return args[1].rows(args[0])
        if func == SET_DATA and isinstance(args[0], HeldWeight):
            return args[0].become(args[1])
        with torch._C.DisableTorchFunctionSubclass():  # what comes of it is held so only if dispatch says so
            return func(*args, **given)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func.is_view and torch.is_inference_mode_enabled():
            with torch.inference_mode(False):  # a view must be of its tensor's kind, and weights are plain
                return cls.done(func, args, given)
        return cls.done(func, args, given)

    @classmethod
    @abstractmethod
    def done(cls, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
        """What an operator makes of arguments of which some are held so."""
