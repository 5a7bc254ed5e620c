"""The parts: each idea is one file, its specification, its maths, its cost and its paper."""

from anyformer.layers.activation import (
    ELU,
    GELU,
    SELU,
    ActivationSpec,
    Identity,
    ReLU,
    ReLU2,
    Sigmoid,
    SiLU,
    Softplus,
    Swish,
    Tanh,
)
from anyformer.layers.attention import AttentionSpec
from anyformer.layers.batch_norm import BatchNormSpec
from anyformer.layers.block import Stack
from anyformer.layers.block_sparse import LocalAndVertical
from anyformer.layers.capacity import CapacityFactor, CapacitySpec, FixedCapacity
from anyformer.layers.embedding import (
    FactorisedPositionsSpec,
    LearnedPositionsSpec,
    SegmentsSpec,
    SinusoidSpec,
    TokensSpec,
)
from anyformer.layers.experts import ExpertsSpec
from anyformer.layers.feed_forward import ExpertSpec, FeedForwardSpec, GatedFeedForwardSpec
from anyformer.layers.gqa import GQASpec, Projection, ProjectionSpec
from anyformer.layers.head import Head
from anyformer.layers.init import ByRole, DistributionSpec, Normal, Xavier
from anyformer.layers.linear import ChainSpec, GainSpec, LinearSpec, ShiftSpec
from anyformer.layers.mask import (
    And,
    BlockEnds,
    Causal,
    Everything,
    Heads,
    Mask,
    Not,
    Or,
    Prefix,
    SameBlock,
    SlidingWindow,
    Strided,
    SymmetricWindow,
)
from anyformer.layers.mla import MLASpec
from anyformer.layers.moe import MoESpec
from anyformer.layers.norm import LayerNormSpec, NormSpec, RMSNormSpec
from anyformer.layers.part import Part
from anyformer.layers.relative import RelativeSinusoidSpec, ShawKeysSpec, ShawValuesSpec
from anyformer.layers.residual import AddSpec, ReversibleSpec
from anyformer.layers.rope_scaling import (
    DynamicNTK,
    LinearScaling,
    Llama3Scaling,
    LongRoPE,
    RotaryScalingSpec,
    ScalingByLength,
    YaRN,
)
from anyformer.layers.rotary import RotarySpec
from anyformer.layers.router import Router, RouterSpec
from anyformer.layers.scores import ALiBiSpec, Content, RelativeBucketsSpec, ScoreSpec, ValueSpec
from anyformer.layers.tokens import Dropout, Notes, Now, Store, Tokens

__all__ = [
    "BatchNormSpec",
    "ShawKeysSpec",
    "ShawValuesSpec",
    "ValueSpec",
    "Strided",
    "SameBlock",
    "BlockEnds",
    "FactorisedPositionsSpec",
    "RouterSpec",
    "Router",
    "MoESpec",
    "ExpertsSpec",
    "ExpertSpec",
    "FixedCapacity",
    "CapacitySpec",
    "CapacityFactor",
    "ELU",
    "GELU",
    "SELU",
    "ALiBiSpec",
    "ActivationSpec",
    "AddSpec",
    "And",
    "AttentionSpec",
    "ByRole",
    "Causal",
    "ChainSpec",
    "Content",
    "DistributionSpec",
    "Dropout",
    "DynamicNTK",
    "Everything",
    "FeedForwardSpec",
    "GQASpec",
    "GainSpec",
    "GatedFeedForwardSpec",
    "Head",
    "Heads",
    "Identity",
    "LayerNormSpec",
    "LearnedPositionsSpec",
    "LinearScaling",
    "LinearSpec",
    "Llama3Scaling",
    "LocalAndVertical",
    "LongRoPE",
    "MLASpec",
    "Mask",
    "Normal",
    "NormSpec",
    "Not",
    "Notes",
    "Now",
    "Or",
    "Part",
    "Prefix",
    "Projection",
    "ProjectionSpec",
    "RMSNormSpec",
    "ReLU",
    "ReLU2",
    "RelativeBucketsSpec",
    "RelativeSinusoidSpec",
    "ReversibleSpec",
    "RotaryScalingSpec",
    "RotarySpec",
    "ScalingByLength",
    "ScoreSpec",
    "SegmentsSpec",
    "ShiftSpec",
    "SiLU",
    "Sigmoid",
    "SinusoidSpec",
    "SlidingWindow",
    "Softplus",
    "Stack",
    "Store",
    "Swish",
    "SymmetricWindow",
    "Tanh",
    "TokensSpec",
    "Tokens",
    "Xavier",
    "YaRN",
]
