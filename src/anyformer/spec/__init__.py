"""The specification language: an architecture is a value, and all else is derived from it. No torch here."""

from anyformer.spec.cached import cached_calls
from anyformer.spec.codec import decode, dumps, encode, loads, read
from anyformer.spec.cost import Cost, Recompute, Workload
from anyformer.spec.count import Parameters, parameters, parameters_by_part, parameters_met
from anyformer.spec.difference import first_difference, short
from anyformer.spec.has_spec import Architecture, HasSpec, read_names_with, specification
from anyformer.spec.head import HeadLayersSpec, HeadSpec, PoolSpec, TableSpec
from anyformer.spec.kinds import InitSpec, MapSpec, MixerSpec, ResidualSpec, ScaleSpec, TermSpec
from anyformer.spec.model import AheadSpec, ModelSpec
from anyformer.spec.part import (
    Caveat,
    Count,
    Length,
    PartSpec,
    Place,
    Placed,
    Spec,
    Vocab,
    Weight,
    Width,
    Window,
    inside,
    tensors,
)
from anyformer.spec.paths import is_path, label, split_variant
from anyformer.spec.sizes import Sizes
from anyformer.spec.structure import BlockSpec, BranchSpec, EmbeddingSpec, StackSpec, SublayerSpec

__all__ = [
    "AheadSpec",
    "Architecture",
    "BlockSpec",
    "BranchSpec",
    "Caveat",
    "Cost",
    "Count",
    "HasSpec",
    "EmbeddingSpec",
    "HeadLayersSpec",
    "HeadSpec",
    "InitSpec",
    "Length",
    "Workload",
    "MapSpec",
    "MixerSpec",
    "ModelSpec",
    "Parameters",
    "PartSpec",
    "Placed",
    "Recompute",
    "PoolSpec",
    "ResidualSpec",
    "ScaleSpec",
    "Place",
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
    "parameters_by_part",
    "parameters_met",
    "read",
    "short",
    "read_names_with",
    "specification",
    "split_variant",
    "tensors",
]
