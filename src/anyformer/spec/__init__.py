"""The specification language: an architecture is a value, and all else is derived from it. No torch here."""

# `X as X`: offered from here, as PEP 484 marks it.
from anyformer.spec.architecture import Architecture as Architecture, HasSpec as HasSpec, is_path as is_path
from anyformer.spec.architecture import label as label, no_preset as no_preset
from anyformer.spec.architecture import specification as specification, split_variant as split_variant
from anyformer.spec.codec import decode as decode, decode_file as decode_file, dumps as dumps, encode as encode
from anyformer.spec.codec import loads as loads, read as read
from anyformer.spec.cost import Cost as Cost, Recompute as Recompute, Workload as Workload
from anyformer.spec.count import WHOLE_NBYTES as WHOLE_NBYTES
from anyformer.spec.count import Parameters as Parameters, parameters as parameters
from anyformer.spec.count import parameters_by_part as parameters_by_part, parameters_met as parameters_met
from anyformer.spec.difference import first_difference as first_difference, short as short
from anyformer.spec.head import HeadLayersSpec as HeadLayersSpec, HeadSpec as HeadSpec, PoolSpec as PoolSpec
from anyformer.spec.head import TableSpec as TableSpec, UnembeddingSpec as UnembeddingSpec
from anyformer.spec.kinds import ConnectionSpec as ConnectionSpec, InitSpec as InitSpec
from anyformer.spec.kinds import HeadMap as HeadMap, KeptBeside as KeptBeside
from anyformer.spec.kinds import Kept as Kept, MapSpec as MapSpec, MixerSpec as MixerSpec, ResidualSpec as ResidualSpec
from anyformer.spec.kinds import ScaleSpec as ScaleSpec, TermSpec as TermSpec, in_turn as in_turn
from anyformer.spec.model import (
    AheadSpec as AheadSpec,
    KeptCall as KeptCall,
    ModelSpec as ModelSpec,
    cached_calls as cached_calls,
    kept_calls as kept_calls,
)
from anyformer.spec.part import Caveat as Caveat, PartSpec as PartSpec, Place as Place, Placed as Placed
from anyformer.spec.part import Spec as Spec, Weight as Weight, inside as inside, nesting as nesting, tensors as tensors
from anyformer.spec.part import usual as usual
from anyformer.spec.ranges import AtLeastOne as AtLeastOne, Count as Count, Exponent as Exponent, Few as Few
from anyformer.spec.ranges import Layers as Layers, Length as Length, NotNegative as NotNegative
from anyformer.spec.ranges import Passage as Passage, Positive as Positive, Range as Range
from anyformer.spec.ranges import Rate as Rate, Share as Share, SomeShare as SomeShare, TrueShare as TrueShare
from anyformer.spec.ranges import Vocab as Vocab, Whole as Whole, Width as Width, Window as Window
from anyformer.spec.sizes import Sizes as Sizes
from anyformer.spec.structure import BlockSpec as BlockSpec, BranchSpec as BranchSpec, EmbeddingSpec as EmbeddingSpec
from anyformer.spec.structure import branches_of as branches_of, check_lent as check_lent
from anyformer.spec.structure import check_residual as check_residual
from anyformer.spec.structure import StackSpec as StackSpec, SublayerSpec as SublayerSpec, period as period
