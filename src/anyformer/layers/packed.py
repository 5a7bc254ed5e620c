"""Weights held in few bits: fewer bytes lie in memory, and fewer are read for each token. They stay what they are.

In training, what stands beside them learns: an adapter (QLoRA, Dettmers et al. 2023, arXiv:2305.14314, section 3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from anyformer.errors import KernelError
from anyformer.layers.execution import autocast_dtype
from anyformer.layers.grouped import spans
from anyformer.layers.held import REFUSED, HeldWeight
from anyformer.layers.reordered import ReorderedBlocks

WORKSPACE = 1 << 18  # numbers in float32 at once, where a matrix is worked on in pieces: what a processor keeps near
aten = torch.ops.aten

Held = tuple[Tensor, Tensor]  # numbers and their scales; leading dimensions are the weight's


def pieces(n: int, size: int) -> list[slice]:
    """N rows of so many numbers each, as many at a time as the workspace has room for."""
    step = max(1, WORKSPACE // size)
    return [slice(first, first + step) for first in range(0, n, step)]


def products_in_pieces(x: Tensor, n: int, rows: Callable[[slice], Tensor]) -> Tensor:
    """The products [row of x, n] of x [row, d_in] with n `rows` [some, d_in]."""
    out = x.new_empty(len(x), n)
    for here in pieces(n, x.shape[1]):
        torch.mm(x, rows(here).to(x.dtype).t(), out=out[:, here])
    return out


class PackingScheme(ABC):
    """How matrices are held in few bits, and what is made of them."""

    bits: int
    axis_of_rows: int  # of the scales, from their last
    on_cpu_alone: bool  # not on a device of another kind
    by_name: ClassVar[dict[str, type[PackingScheme]]] = {}

    def __init_subclass__(cls) -> None:
        cls.by_name[cls.__name__] = cls

    @abstractmethod
    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether matrices […, d_out, d_in] of such a shape can be held so."""

    @abstractmethod
    def nbytes(self, shape: tuple[int, ...]) -> int:
        """The bytes that hold matrices […, d_out, d_in]."""

    @abstractmethod
    def pack(self, matrix: Tensor) -> Held:
        """What is nearest to one matrix [d_out, d_in] in float32."""

    @abstractmethod
    def unpack(self, held: Held) -> Tensor:
        """The numbers […, d_out, d_in] that are held, in float32."""

    @abstractmethod
    def products(self, x: Tensor, held: Held) -> Tensor:
        """The products [n, d_out] of vectors x [n, d_in] with the rows of one matrix."""

    @abstractmethod
    def rows(self, ids: Tensor, held: Held) -> Tensor:
        """The rows [*ids, d_in] of one matrix, in float32."""

    def refuse_elsewhere(self, device: torch.device) -> None:
        """Raise KernelError for a device that has no products of such matrices."""
        if self.on_cpu_alone and device.type != "cpu":
            raise KernelError(
                f"weights in {self.bits} bits are for a CPU, not for {device}; take --device cpu, --dtype nf4 or bfloat16"
            )

    def in_blocks(self, held: Held) -> ReorderedBlocks | None:
        """One matrix whose products this processor makes faster so; None: it lies as it is multiplied fastest."""
        return None


class PackedWeight(HeldWeight):
    """Matrices […, d_out, d_in], in float32 as all see them, made of `held` by a scheme.

    Raises KernelError where they would be written to or get a gradient, or go where they have no products.
    """

    refusal = REFUSED
    scheme: PackingScheme
    numbers: Tensor
    scales: Tensor

    @staticmethod
    def __new__(cls: type[PackedWeight], scheme: PackingScheme, shape: tuple[int, ...], held: Held) -> PackedWeight:
        packed = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32, device=held[0].device)
        packed.scheme, (packed.numbers, packed.scales) = scheme, held
        return packed

    @property
    def held(self) -> Held:
        return self.numbers, self.scales

    def __tensor_flatten__(self) -> tuple[list[str], tuple[type[PackingScheme], tuple[int, ...]]]:
        """What a compiler sees instead."""
        return ["numbers", "scales"], (type(self.scheme), tuple(self.shape))

    @staticmethod
    def __tensor_unflatten__(
        held: Mapping[str, Tensor], made: tuple[type[PackingScheme], tuple[int, ...]], size: Any, stride: Any
    ) -> PackedWeight:
        return PackedWeight(made[0](), made[1], (held["numbers"], held["scales"]))

    def _stable_hash_for_caching(self) -> str:
        return repr(self.__tensor_flatten__())

    @classmethod
    def of(cls, weight: Tensor, scheme: PackingScheme) -> PackedWeight:
        """The nearest of a scheme to a weight […, d_out, d_in], one matrix after the other."""
        scheme.refuse_elsewhere(weight.device)
        shape = tuple(weight.shape)
        matrices = weight.detach().reshape(-1, *shape[-2:])
        numbers, scales = map(torch.stack, zip(*(scheme.pack(matrix.float()) for matrix in matrices), strict=True))
        lead = shape[:-2]
        return cls(scheme, shape, (numbers.view(*lead, *numbers.shape[1:]), scales.view(*lead, *scales.shape[1:])))

    @property
    def nbytes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The bytes that are really held."""
        return sum(each.nbytes for each in self.held)

    @property
    def rounded(self) -> bool:
        return True

    def lies_in(self, whole: Tensor) -> bool:
        return isinstance(whole, PackedWeight) and _storage(self.numbers) == _storage(whole.numbers)

    def plain(self) -> Tensor:
        return self.scheme.unpack(self.held)

    def linear(self, input: Tensor, bias: Tensor | None = None) -> Tensor:
        x = input.to(autocast_dtype(input) or input.dtype)
        learns = torch.is_grad_enabled() and x.requires_grad
        rows = x.reshape(-1, x.shape[-1])
        y: Tensor = _Product.apply(rows, *self.held, self.scheme) if learns else self.scheme.products(rows, self.held)
        y = y.view(*x.shape[:-1], self.shape[0])
        return y if bias is None else y + bias.to(y.dtype) if learns else y.add_(bias)

    def rows(self, ids: Tensor) -> Tensor:
        return self.scheme.rows(ids, self.held)

    def share_memory_(self) -> Self:
        """Let other processes that get it read the same memory."""
        for each in self.held:
            each.share_memory_()
        return self

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"PackedWeight({tuple(self.shape)}, {self.scheme.bits} bits, {self.nbytes:,} bytes)"

    @classmethod
    def done(cls, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
        first: Any = args[0]
        if func is aten.cat.default and first and not args[1:] and len({_kind(each) for each in first}) == 1:
            return first[0]._joined(first)
        if isinstance(first, PackedWeight):
            if func._schema.is_mutable:
                raise KernelError(REFUSED)
            if func in (aten.detach.default, aten.alias.default):
                return cls(first.scheme, tuple(first.shape), first.held)
            if func is aten.clone.default:
                return cls(first.scheme, tuple(first.shape), (first.held[0].clone(), first.held[1].clone()))
            if func is aten._to_copy.default:
                return first._moved(**given)
            if func in (aten.select.int, aten.index_select.default) and args[1] == 0 and first.dim() > 2:
                numbers, scales = (func(each, *args[1:]) for each in first.held)
                several = (len(numbers),) if func is aten.index_select.default else ()
                return cls(first.scheme, (*several, *first.shape[1:]), (numbers, scales))
            if func is aten.split_with_sizes.default and first.dim() == 2 and not args[2:]:
                return first._split(*args[1:])
        if func is torch.ops.anyformer.grouped_products.default:
            rows, matrices, *rest = args
            return matrices._grouped(rows, *rest, **given)
        if func is torch.ops.anyformer.grouped_products_.default:
            onto, rows, matrices, behind, *turned = args
            onto.add_(matrices._grouped(rows, behind, None, *turned, **given))
            return None
        return func(*tree_map_only(PackedWeight, cls.plain, args), **tree_map_only(PackedWeight, cls.plain, given))

    def _grouped(self, rows: Tensor, behind: Tensor, biases: Tensor | None = None, turned: bool = False) -> Tensor:
        """`grouped.products` of rows with these matrices."""
        width = self.shape[2 if turned else 1]
        return products_in_few_bits(rows, *self.held, behind, biases, turned, type(self.scheme).__name__, width)

    def _joined(self, several: Sequence[PackedWeight]) -> PackedWeight:
        """Matrices of one scheme and width, one below the other."""
        numbers, scales = zip(*(each.held for each in several), strict=True)
        held = torch.cat(numbers), torch.cat(scales, self.scheme.axis_of_rows)
        return type(self)(self.scheme, (sum(map(len, several)), self.shape[1]), held)

    def _split(self, sizes: Sequence[int]) -> list[PackedWeight]:
        """So many rows of a matrix each: views, as all that is held is."""
        parts = zip(self.numbers.split(sizes), self.scales.split(sizes, self.scheme.axis_of_rows), strict=True)
        return [type(self)(self.scheme, (len(held[0]), self.shape[1]), held) for held in parts]

    def _moved(self, device: Any = None, dtype: torch.dtype | None = None, **_: Any) -> PackedWeight:
        """The same, where it may go. Raises KernelError."""
        if device is not None:
            self.scheme.refuse_elsewhere(torch.device(device))
        if dtype not in (None, torch.float32):
            raise KernelError(f"weights in {self.scheme.bits} bits cannot become {dtype}; load the model anew")
        return type(self)(self.scheme, tuple(self.shape), (self.numbers.to(device), self.scales.to(device)))


def _kind(weight: Any) -> object:
    """What weights share that can be joined to one."""
    return (type(weight.scheme), weight.shape[1]) if isinstance(weight, PackedWeight) and weight.dim() == 2 else weight


def _storage(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


class _Product(torch.autograd.Function):
    """Products with a matrix that is held, which is unpacked again for the gradient: nothing of its size is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, numbers: Tensor, scales: Tensor, scheme: PackingScheme) -> Tensor:
        """[n, d_out] of x [n, d_in]."""
        ctx.scheme = scheme
        ctx.save_for_backward(numbers, scales)
        return scheme.products(x, (numbers, scales))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Of x alone, by the numbers that are held."""
        numbers, scales = ctx.saved_tensors
        return grad @ ctx.scheme.unpack((numbers, scales)).to(grad.dtype), None, None, None


@torch.library.custom_op("anyformer::grouped_products_in_few_bits", mutates_args=())
def products_in_few_bits(
    rows: Tensor,
    numbers: Tensor,
    scales: Tensor,
    behind: Tensor,
    biases: Tensor | None,
    turned: bool,
    scheme: str,
    width: int,
) -> Tensor:
    """`grouped.products` [row, width] with packed matrices [group, …], each unpacked by itself where it is `turned`."""
    made, out = PackingScheme.by_name[scheme](), rows.new_zeros(len(rows), width)
    for group, first, last in spans(behind):
        held, here = (numbers[group], scales[group]), rows[first:last]
        out[first:last] = here @ made.unpack(held).to(here.dtype) if turned else made.products(here, held)
        if biases is not None:
            out[first:last] += biases[group]
    return out


@products_in_few_bits.register_fake
def _(rows: Tensor, *given: Any) -> Tensor:
    return rows.new_empty(rows.shape[0], given[-1])
