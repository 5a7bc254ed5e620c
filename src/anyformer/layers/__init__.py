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
from anyformer.layers.block import Stack
from anyformer.layers.embedding import LearnedPositionsSpec, SegmentsSpec, SinusoidSpec, TokensSpec
from anyformer.layers.feed_forward import FeedForwardSpec, GatedFeedForwardSpec
from anyformer.layers.gqa import GQASpec, Projection, ProjectionSpec
from anyformer.layers.head import Head
from anyformer.layers.init import ByRole, DistributionSpec, Normal, Xavier
from anyformer.layers.linear import ChainSpec, GainSpec, LinearSpec, ShiftSpec
from anyformer.layers.mask import And, Causal, Everything, Heads, Mask, Not, Or, Prefix, SlidingWindow, SymmetricWindow
from anyformer.layers.norm import LayerNormSpec, NormSpec, RMSNormSpec
from anyformer.layers.part import Part
from anyformer.layers.residual import AddSpec, ReversibleSpec
from anyformer.layers.rotary import LinearScaling, Llama3Scaling, RotaryScalingSpec, RotarySpec
from anyformer.layers.scores import ALiBiSpec, Content, RelativeBucketsSpec, ScoreSpec
from anyformer.layers.tokens import Dropout, Notes, Now, Store, Tokens

__all__ = [
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
    "ReversibleSpec",
    "RotaryScalingSpec",
    "RotarySpec",
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
]
