"""Linear maps, and the learned gain and shift of ReZero (Bachlechner et al. 2020, arXiv:2003.04887) and Fixup."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.layers.execution import autocast_dtype, exact, exporting
from anyformer.layers.held import HeldWeight
from anyformer.layers.memory_efficient import MemoryEfficientLinear, norm_of, operands
from anyformer.layers.part import Part, is_plain
from anyformer.spec import Cost, MapSpec, Place, Placed, Positive, Weight, Width, Workload, in_turn


class LinearSpec(MapSpec):
    """y = W x + b."""

    d_out: Width | None = None  # None: d_model
    bias: bool = False
    role: Literal["matrix", "query", "inner", "output"] = "matrix"
    axes: tuple[str, str] = ("d_out", "d_in")
    start: float | None = None  # what all numbers of its matrix start from; None: they are drawn

    def width_out(self, place: Place) -> int:
        return self.d_out or place.d_model

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        d_out = self.width_out(place)
        return {
            "weight": Weight((d_out, place.shape[-1]), self.axes, self.role, self.start, quantises_as="map"),
            "bias": Weight((d_out,), self.axes[:1], "bias", fill=0.0) if self.bias else None,
        }

    def cost(self, place: Place, workload: Workload) -> Cost:
        return Cost({"linear": 2 * self.width_out(place) * place.shape[-1] * workload.tokens})


class Linear(Part[LinearSpec], nn.Linear):
    """A linear map, one of PyTorch's to whoever looks for these: adapters, quantisers, offloading."""

    weight: Any
    bias: Any

    def __init__(self, spec: LinearSpec, place: Place) -> None:
        super().__init__(spec, place)
        self.out_features, self.in_features = self.weight.shape

    def forward(self, input: Tensor) -> Tensor:
        """[…, d_out] of `input` […, d_in]."""
        if self.weight.requires_grad and (norm := norm_of(input)) is not None:  # for whose gradient alone input is kept
            return MemoryEfficientLinear.apply(input, *operands(input, self.weight, self.bias), norm)
        return product(input, self.weight, self.bias)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[…, d_out] of x […, d_in], weight [d_out, d_in] and bias [d_out]: F.linear.

    Of one vector, in a graph that is compiled, as fast as memory gives the rows, where libraries read at half of that, on a CPU
    in bfloat16 at a fifth (`benchmarks/decoding.py`): there a sum along each row, whose loops the compiler writes.
    """
    if not _of_one_vector(x, weight):
        return F.linear(x, weight, bias)
    vector = x.reshape(-1)
    own = _VECTOR_PRODUCTS.get(x.device.type)
    y = row_sums(vector, weight).to(x.dtype) if own is None else own(vector, [weight])
    return (y if bias is None else y + bias).view(*x.shape[:-1], -1)


def side_by_side(x: Tensor, maps: Sequence[Linear], together: Together | None) -> Sequence[Tensor]:
    """What each map makes [batch, token, d_out] of x [batch, token, d_in], by one product where they can be."""
    if together is not None and together.stands_for(*maps):
        return together(x)
    own = _VECTOR_PRODUCTS.get(x.device.type)
    if own is None or not all(_takes_one_vector(x, each) for each in maps):
        return [each(x) for each in maps]
    y = own(x.reshape(-1), [each.weight for each in maps]).view(*x.shape[:-1], -1)
    return y.split_with_sizes([each.out_features for each in maps], -1)


# By the device they are for, where they are loaded: what each of some matrices makes of a vector, one behind the other.
_VECTOR_PRODUCTS = dict[str, Callable[[Tensor, list[Tensor]], Tensor]]()


def load_vector_products() -> None:
    """Have products with one vector computed by our own operator in graphs that are compiled for a GPU from now on."""
    if find_spec("triton") is not None:
        from anyformer.layers.vectors import vector_products

        _VECTOR_PRODUCTS["cuda"] = vector_products


def products_each(x: Tensor, matrices: Tensor, biases: Tensor | None = None) -> Tensor:
    """[n, d_out] of vectors x [n, d_in], each with its own of n matrices [n, d_out, d_in] and biases [n, d_out]."""
    if isinstance(matrices, HeldWeight):
        y = torch.cat([F.linear(x[i : i + 1], matrices[i]) for i in range(len(x))])
    else:
        compiling = torch.compiler.is_compiling()  # or all numbers would be written down in float32
        y = row_sums(x[:, None], matrices).to(x.dtype) if compiling else (matrices @ x[..., None])[..., 0]
    return y if biases is None else y + biases


def row_sums(x: Tensor, matrix: Tensor) -> Tensor:
    """[…, d_out] of vectors x [d_in] or […, 1, d_in] and matrices […, d_out, d_in] of any numbers, in float32 at least."""
    x = exact(x)
    return (matrix.to(x.dtype) * x).sum(-1)


def _of_one_vector(x: Tensor, weight: Tensor) -> bool:
    """Whether a graph is compiled for inference alone, x is one vector, and its and a row's numbers lie as they are read."""
    if not torch.compiler.is_compiling() or torch.is_grad_enabled() or exporting() or autocast_dtype(x) is not None:
        return False
    if x.numel() != x.shape[-1] or isinstance(weight, HeldWeight):
        return False
    if x.device.type in _VECTOR_PRODUCTS:
        return x.is_contiguous() and weight.is_contiguous()
    return x.is_cpu and weight.stride(-1) == 1


def _takes_one_vector(x: Tensor, module: Linear) -> bool:
    return is_plain(module, Linear) and module.bias is None and _of_one_vector(x, module.weight)


class Together:
    """Linear maps of one input as one product: their weights become parts of one tensor, and stay theirs.

    `arranged`: how that lies. For inference alone: in training one wide product is slower than several on CPUs.
    """

    def __init__(self, maps: Sequence[Linear], arranged: Callable[[Tensor], Tensor]) -> None:
        self.sizes = [each.weight.shape[0] for each in maps]
        self.weight = arranged(torch.cat([each.weight.data for each in maps]))
        for each, weight in zip(maps, self.weight.split(self.sizes), strict=True):
            lay(each, weight)
        biases = [each.bias.data for each in maps if each.bias is not None]
        self.bias = torch.cat(biases) if biases else None
        if self.bias is not None:
            for each, bias in zip(maps, self.bias.split(self.sizes), strict=True):
                each.bias.data = bias

    @staticmethod
    def can(maps: Sequence[Linear]) -> bool:
        """Whether the maps are of one input: the same width, dtype, device and way to be held, and a bias for all or none."""
        kinds = {
            (w.shape[1], w.dtype, w.device, type(w), type(getattr(w, "scheme", None))) for w in (m.weight for m in maps)
        }
        return len(kinds) == 1 and len({m.bias is None for m in maps}) == 1

    def stands_for(self, *maps: nn.Module) -> bool:
        """Whether this may be called instead of the maps: no gradients, all plain, their tensors still where they lay."""
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or not all(is_plain(each, Linear) for each in maps):
            return False
        return all(_lies_in(m.weight, self.weight) and _lies_in(m.bias, self.bias) for m in maps)

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """What each map makes [batch, token, d_out] of x [batch, token, d_in]."""
        return F.linear(x, self.weight, self.bias).split_with_sizes(self.sizes, -1)


def lay(module: nn.Module, weight: Tensor) -> None:
    """Let the same numbers, which lie elsewhere, be a module's weight."""
    if isinstance(weight, HeldWeight):
        module.weight = nn.Parameter(weight, requires_grad=False)
    else:
        module.weight.data = weight


def _lies_in(part: Any, whole: Tensor | None) -> bool:
    """Whether a map's weight, or bias, is still a part of the one that several became; None: there was no bias."""
    if part is None or whole is None:
        return part is whole
    if isinstance(part, HeldWeight):
        return part.lies_in(whole)
    return part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


class GainSpec(MapSpec):
    """A learned factor, one for all features, one each or one a head; ReZero's is one number that starts from 0."""

    start: float = 1.0
    # heads: of a place of heads and their width; one: all, as a vector of one number, which processes can share out (Inkling)
    over: Literal["all", "features", "heads", "one"] = "all"
    # what files say, which no gradient moves (Gemma 4: its last layer's has none, a norm comes behind)
    frozen: bool = False

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        shape = {"all": (), "features": place.shape, "heads": (*place.shape[:-1], 1), "one": (1,)}[self.over]
        return {"weight": Weight(shape, ("d_model",) * len(shape), "gain", fill=self.start, trainable=not self.frozen)}


class Gain(Part[GainSpec]):
    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """The product of x [batch, token, width] and the weight, of the shape of x."""
        return x * self.weight


class FactorSpec(MapSpec):
    """A factor that is no parameter: μP's multipliers (Yang et al. 2022, arXiv:2203.03466) of what a branch reads or writes."""

    factor: Positive


class Factor(Part[FactorSpec]):
    def forward(self, x: Tensor) -> Tensor:
        """The product of x [batch, token, width] and the factor."""
        return x * self.spec.factor


class ShiftSpec(MapSpec):
    """A learned summand, one for all features or one each; Fixup's is one number that starts from 0."""

    start: float = 0.0
    over: Literal["all", "features"] = "all"

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        shape = () if self.over == "all" else place.shape
        return {"bias": Weight(shape, ("d_model",) * len(shape), "bias", fill=self.start)}


class Shift(Part[ShiftSpec]):
    bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """The sum of x [batch, token, width] and the bias, of the shape of x."""
        return x + self.bias


class ChainSpec(MapSpec):
    """Maps one after the other: Fixup's gain then shift."""

    maps: tuple[MapSpec, ...]

    def __post_init__(self) -> None:
        if reading := [step.kind for step in self.maps if step.reads_tokens]:
            raise self.refusal("maps", f"hold {reading[0]}, which asks what is padding; let it stand by itself")

    def width_out(self, place: Place) -> int:
        return in_turn(self.maps, place)[1].shape[-1]

    def parts(self, place: Place) -> Mapping[str, Placed]:
        return {"maps": in_turn(self.maps, place)[0]}


def named(spec: LinearSpec, common: str | None, which: str) -> LinearSpec:
    """The map, or with a name the one that all maps of this name and kind are."""
    return spec if common is None else spec.but(shared=f"{common}_{which}")


def shared_width(d_model: int, share: float | None) -> int:
    """Of all heads together, which have a share of d_model, or all of it."""
    return d_model if share is None else round(d_model * share)


def in_proportion(width: int, old: int, new: int, step: int = 4) -> Width:
    """A width that is to `new` as this one is to `old`: the nearest multiple of `step`, which is the least."""
    return Width(max(step, step * round(width * new / old / step)))


def low_rank(rank: Width, d_out: int) -> ChainSpec:
    """W = B A of so many dimensions between (Hu et al. 2021, arXiv:2106.09685)."""
    return ChainSpec(maps=(LinearSpec(d_out=rank), LinearSpec(d_out=Width(d_out))))


class Chain(Part[ChainSpec]):
    maps: list[torch.nn.Module]

    def forward(self, x: Tensor) -> Tensor:
        """[batch, token, width of the last] of x [batch, token, width of the first]."""
        for step in self.maps:
            x = step(x)
        return x
