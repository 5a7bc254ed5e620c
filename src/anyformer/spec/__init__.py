"""The specification language: an architecture is a value, and all else is derived from it. No torch here."""

# `X as X`: offered from here, as PEP 484 marks it.
from anyformer.spec.architecture import Architecture as Architecture, HasSpec as HasSpec, is_path as is_path
from anyformer.spec.architecture import label as label, read_names_with as read_names_with
from anyformer.spec.architecture import specification as specification, split_variant as split_variant
from anyformer.spec.codec import decode as decode, dumps as dumps, encode as encode, loads as loads, read as read
from anyformer.spec.cost import Cost as Cost, Recompute as Recompute, Workload as Workload
from anyformer.spec.count import Parameters as Parameters, parameters as parameters
from anyformer.spec.count import parameters_by_part as parameters_by_part, parameters_met as parameters_met
from anyformer.spec.difference import first_difference as first_difference, short as short
from anyformer.spec.head import HeadLayersSpec as HeadLayersSpec, HeadSpec as HeadSpec, PoolSpec as PoolSpec
from anyformer.spec.head import TableSpec as TableSpec
from anyformer.spec.kinds import InitSpec as InitSpec, MapSpec as MapSpec, MixerSpec as MixerSpec
from anyformer.spec.kinds import ResidualSpec as ResidualSpec, ScaleSpec as ScaleSpec, TermSpec as TermSpec
from anyformer.spec.model import AheadSpec as AheadSpec, ModelSpec as ModelSpec, cached_calls as cached_calls
from anyformer.spec.part import Caveat as Caveat, Count as Count, Length as Length, PartSpec as PartSpec, Place as Place
from anyformer.spec.part import Placed as Placed, Spec as Spec, Vocab as Vocab, Weight as Weight, Width as Width
from anyformer.spec.part import Window as Window, inside as inside, tensors as tensors
from anyformer.spec.sizes import Sizes as Sizes
from anyformer.spec.structure import BlockSpec as BlockSpec, BranchSpec as BranchSpec, EmbeddingSpec as EmbeddingSpec
from anyformer.spec.structure import StackSpec as StackSpec, SublayerSpec as SublayerSpec
