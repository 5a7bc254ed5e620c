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
from anyformer.layers.by_segment import BySegmentSpec
from anyformer.layers.capacity import CapacityFactor, CapacitySpec, FixedCapacity
from anyformer.layers.convolution import ConvolutionSpec
from anyformer.layers.disentangled import ContentToPositionSpec, PositionToContentSpec, RelativeTableSpec
from anyformer.layers.embedding import (
    FactorisedPositionsSpec,
    LearnedPositionsSpec,
    SegmentsSpec,
    SinusoidSpec,
    TokensSpec,
)
from anyformer.layers.experts import ExpertsSpec
from anyformer.layers.feed_forward import ExpertSpec, FeedForwardSpec, GatedFeedForwardSpec
from anyformer.layers.global_blocks import FirstBlockAgainSpec, GlobalBlocks
from anyformer.layers.gqa import GQASpec, Projection, ProjectionSpec
from anyformer.layers.head import Head
from anyformer.layers.init import ByRole, DistributionSpec, Normal, Xavier
from anyformer.layers.linear import ChainSpec, GainSpec, LinearSpec, ShiftSpec
from anyformer.layers.local_global import LocalAndGlobalSpec, MarkedKeys, MarkedQueries
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
from anyformer.layers.pool import FirstTokenSpec, LastTokenSpec, MeanTokensSpec, UnitLengthSpec
from anyformer.layers.relative import RelativeSinusoidSpec, ShawKeysSpec, ShawValuesSpec
from anyformer.layers.residual import AddByDepthSpec, AddSpec, ReversibleSpec
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
from anyformer.layers.tokens import Dropout, ForwardContext, Notes, Store, Tokens
from anyformer.layers.two_streams import BlanksSpec, TwoStreams

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
    "FirstBlockAgainSpec",
    "FixedCapacity",
    "CapacitySpec",
    "CapacityFactor",
    "ELU",
    "GELU",
    "SELU",
    "ALiBiSpec",
    "ActivationSpec",
    "AddByDepthSpec",
    "AddSpec",
    "And",
    "AttentionSpec",
    "BlanksSpec",
    "ByRole",
    "BySegmentSpec",
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
    "GlobalBlocks",
    "Head",
    "Heads",
    "Identity",
    "LayerNormSpec",
    "LearnedPositionsSpec",
    "LinearScaling",
    "LinearSpec",
    "Llama3Scaling",
    "LocalAndGlobalSpec",
    "LocalAndVertical",
    "MarkedKeys",
    "MarkedQueries",
    "LongRoPE",
    "MLASpec",
    "Mask",
    "Normal",
    "NormSpec",
    "Not",
    "Notes",
    "ForwardContext",
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
    "TwoStreams",
    "Tokens",
    "Xavier",
    "YaRN",
    "ContentToPositionSpec",
    "ConvolutionSpec",
    "PositionToContentSpec",
    "RelativeTableSpec",
    "FirstTokenSpec",
    "LastTokenSpec",
    "MeanTokensSpec",
    "UnitLengthSpec",
]
