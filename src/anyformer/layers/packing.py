"""Which weights of a model are held in few bits, and in how many bytes: from its specification alone."""

from __future__ import annotations

from typing import Literal, get_args

from anyformer.errors import UsageError, unknown
from anyformer.layers.int4 import Int4
from anyformer.layers.int8 import Int8
from anyformer.layers.nf4 import NF4
from anyformer.layers.packed import PackingScheme
from anyformer.spec import WHOLE_NBYTES, ModelSpec, Place, Weight, tensors

Packing = Literal["int8", "int4", "nf4"]
PACKINGS: tuple[Packing, ...] = get_args(Packing)
PLAIN_NBYTES = 4  # what is not packed is float32, and int64 where it is whole numbers

_INT8 = Int8()
_OF_MAPS: dict[Packing, PackingScheme] = {"int8": _INT8, "int4": Int4(), "nf4": NF4()}


def scheme_of(weight: Weight, packing: Packing) -> PackingScheme | None:
    """How a weight is held: linear maps as asked, where their sizes allow it, tables and heads in 8 bits; None: as it is."""
    if weight.quantises_as is None:
        return None
    asked = _OF_MAPS[packing]
    return asked if weight.quantises_as == "map" and asked.fits(weight.shape) else _INT8


def packed_weights(spec: ModelSpec, packing: Packing) -> dict[str, PackingScheme]:
    """How each weight that is packed is held, by its name in the state dict. Raises UsageError for an unknown packing."""
    if packing not in PACKINGS:
        raise UsageError(unknown("dtype", packing, PACKINGS))
    found = {name: scheme_of(weight, packing) for name, weight in tensors(spec, Place())}
    return {name: scheme for name, scheme in found.items() if scheme is not None}


def packed_nbytes(spec: ModelSpec, packing: Packing) -> int:
    """The bytes of all weights of a model."""
    total = 0
    for _, weight in tensors(spec, Place()):
        scheme = scheme_of(weight, packing)
        each = PLAIN_NBYTES if weight.below is None else WHOLE_NBYTES
        total += each * weight.numel if scheme is None else scheme.nbytes(weight.shape)
    return total
