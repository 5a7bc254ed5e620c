"""The specification language: an architecture is a value, and all else is derived from it. No torch here."""

from anyformer.spec.cached import cached_calls
from anyformer.spec.codec import decode, dumps, encode, loads, read
from anyformer.spec.cost import Cost, Load
from anyformer.spec.count import Parameters, parameters
from anyformer.spec.described import Architecture, Described, specification
from anyformer.spec.difference import first_difference, short
from anyformer.spec.part import (
    Caveat,
    Count,
    Length,
    PartSpec,
    Placed,
    Site,
    Spec,
    Vocab,
    Weight,
    Width,
    Window,
    inside,
    tensors,
)
from anyformer.spec.paths import is_path, label
from anyformer.spec.sizes import Sizes
from anyformer.spec.structure import (
    BlockSpec,
    BranchSpec,
    EmbeddingSpec,
    HeadSpec,
    InitSpec,
    MapSpec,
    MixerSpec,
    ModelSpec,
    ResidualSpec,
    ScaleSpec,
    StackSpec,
    SublayerSpec,
    TableSpec,
    TermSpec,
)

__all__ = [
    "Architecture",
    "BlockSpec",
    "BranchSpec",
    "Caveat",
    "Cost",
    "Count",
    "Described",
    "EmbeddingSpec",
    "HeadSpec",
    "InitSpec",
    "Length",
    "Load",
    "MapSpec",
    "MixerSpec",
    "ModelSpec",
    "Parameters",
    "PartSpec",
    "Placed",
    "ResidualSpec",
    "ScaleSpec",
    "Site",
    "Sizes",
    "Spec",
    "StackSpec",
    "SublayerSpec",
    "TableSpec",
    "TermSpec",
    "Vocab",
    "Weight",
    "Width",
    "Window",
    "cached_calls",
    "decode",
    "dumps",
    "encode",
    "first_difference",
    "inside",
    "is_path",
    "label",
    "loads",
    "parameters",
    "read",
    "short",
    "specification",
    "tensors",
]
