"""The parts: each idea is one file, its specification, its maths, its cost and its paper."""

# `X as X`: offered from here, as PEP 484 marks it.
from anyformer.layers.activation import ActivationSpec as ActivationSpec, ELU as ELU, GELU as GELU, Identity as Identity
from anyformer.layers.activation import ReLU as ReLU, ReLU2 as ReLU2, SELU as SELU, SiLU as SiLU, Sigmoid as Sigmoid
from anyformer.layers.activation import Softplus as Softplus, Swish as Swish, Tanh as Tanh, XIELU as XIELU
from anyformer.layers.altup import AltUpSpec as AltUpSpec, StreamsSpec as StreamsSpec
from anyformer.layers.aside import AsideSpec as AsideSpec
from anyformer.layers.attention import AttentionSpec as AttentionSpec
from anyformer.layers.batch_norm import BatchNormSpec as BatchNormSpec
from anyformer.layers.block import Stack as Stack
from anyformer.layers.block_indexer import BlockIndexerSpec as BlockIndexerSpec
from anyformer.layers.bottleneck import BottleneckSpec as BottleneckSpec
from anyformer.layers.causal_convolution import CausalConvolutionSpec as CausalConvolutionSpec
from anyformer.layers.channel_mix import ChannelMixSpec as ChannelMixSpec
from anyformer.layers.compression import CompressorSpec as CompressorSpec
from anyformer.layers.contacts import ContactsSpec as ContactsSpec
from anyformer.layers.convolution import ConvolutionSpec as ConvolutionSpec
from anyformer.layers.convolved_heads import ConvolvedHeadsSpec as ConvolvedHeadsSpec
from anyformer.layers.disentangled import ContentToPositionSpec as ContentToPositionSpec
from anyformer.layers.disentangled import PositionToContentSpec as PositionToContentSpec
from anyformer.layers.disentangled import RelativeTableSpec as RelativeTableSpec
from anyformer.layers.embedding import AxialPositionsSpec as AxialPositionsSpec
from anyformer.layers.embedding import FactorisedPositionsSpec as FactorisedPositionsSpec
from anyformer.layers.embedding import GroupsSpec as GroupsSpec, LanguagesSpec as LanguagesSpec
from anyformer.layers.embedding import LearnedPositionsSpec as LearnedPositionsSpec, SegmentsSpec as SegmentsSpec
from anyformer.layers.embedding import SinusoidSpec as SinusoidSpec, TokensSpec as TokensSpec
from anyformer.layers.engram import EngramSpec as EngramSpec
from anyformer.layers.experts import ExpertsSpec as ExpertsSpec
from anyformer.layers.feed_forward import ExpertSpec as ExpertSpec, FeedForwardSpec as FeedForwardSpec
from anyformer.layers.feed_forward import GatedFeedForwardSpec as GatedFeedForwardSpec
from anyformer.layers.fourier import FourierSpec as FourierSpec
from anyformer.layers.grouped_linear import GroupedLinearSpec as GroupedLinearSpec
from anyformer.layers.gated_delta_net import GatedDeltaNetSpec as GatedDeltaNetSpec
from anyformer.layers.gated_residual import GatedResidualSpec as GatedResidualSpec
from anyformer.layers.gated_residual import GatedStreamsSpec as GatedStreamsSpec
from anyformer.layers.differential import DifferentialSpec as DifferentialSpec
from anyformer.layers.distance_profiles import DistanceProfilesSpec as DistanceProfilesSpec
from anyformer.layers.gated_norm import GatedRMSNormSpec as GatedRMSNormSpec
from anyformer.layers.global_blocks import FirstBlockAgainSpec as FirstBlockAgainSpec, GlobalBlocks as GlobalBlocks
from anyformer.layers.gqa import GQASpec as GQASpec
from anyformer.layers.gru import GRUSpec as GRUSpec
from anyformer.layers.head import Head as Head
from anyformer.layers.hyper_connections import HyperConnectionSpec as HyperConnectionSpec
from anyformer.layers.hyper_connections import HyperStreamsSpec as HyperStreamsSpec
from anyformer.layers.indexer import IndexerSpec as IndexerSpec
from anyformer.layers.init import ByRole as ByRole, DistributionSpec as DistributionSpec, Normal as Normal
from anyformer.layers.init import MuP as MuP, Xavier as Xavier
from anyformer.layers.laurel import LaurelSpec as LaurelSpec
from anyformer.layers.lightning_attention import LightningAttentionSpec as LightningAttentionSpec
from anyformer.layers.linear import ChainSpec as ChainSpec, GainSpec as GainSpec, LinearSpec as LinearSpec
from anyformer.layers.linear import FactorSpec as FactorSpec, ShiftSpec as ShiftSpec
from anyformer.layers.lsh import LSHAttentionSpec as LSHAttentionSpec
from anyformer.layers.local_global import LocalAndGlobalSpec as LocalAndGlobalSpec, MarkedKeys as MarkedKeys
from anyformer.layers.local_global import MarkedQueries as MarkedQueries
from anyformer.layers.lstm import LSTMSpec as LSTMSpec
from anyformer.layers.mlstm import MLSTMSpec as MLSTMSpec
from anyformer.layers.nystrom import NystromAttentionSpec as NystromAttentionSpec
from anyformer.layers.shared_kv import SharedKVSpec as SharedKVSpec
from anyformer.layers.shortened import ShortenedSpec as ShortenedSpec
from anyformer.layers.span_convolution import SpanConvolutionSpec as SpanConvolutionSpec
from anyformer.layers.ssd import SSDSpec as SSDSpec
from anyformer.layers.transient_global import TransientGlobalSpec as TransientGlobalSpec
from anyformer.layers.value_convolution import ValueConvolutionSpec as ValueConvolutionSpec
from anyformer.layers.local_and_vertical import LocalAndVertical as LocalAndVertical
from anyformer.layers.mask import (
    AdjacentBlocks as AdjacentBlocks,
    And as And,
    BlockEnds as BlockEnds,
    Causal as Causal,
    Everything as Everything,
)
from anyformer.layers.mask import Heads as Heads, Mask as Mask, Not as Not
from anyformer.layers.mask import Or as Or, Prefix as Prefix, SameBlock as SameBlock, SlidingWindow as SlidingWindow
from anyformer.layers.mask import LookAhead as LookAhead
from anyformer.layers.mask import Strided as Strided, SymmetricWindow as SymmetricWindow
from anyformer.layers.mla import MLASpec as MLASpec
from anyformer.layers.moa import MoASpec as MoASpec
from anyformer.layers.moe import CapacityFactor as CapacityFactor, CapacitySpec as CapacitySpec
from anyformer.layers.moe import FixedCapacity as FixedCapacity, MoESpec as MoESpec
from anyformer.layers.norm import LayerNormSpec as LayerNormSpec, NormSpec as NormSpec, RMSNormSpec as RMSNormSpec
from anyformer.layers.output_gate import OutputGateSpec as OutputGateSpec
from anyformer.layers.part import Part as Part
from anyformer.layers.projection import Projection as Projection, ProjectionSpec as ProjectionSpec
from anyformer.layers.per_layer_embedding import PerLayerEmbeddingSpec as PerLayerEmbeddingSpec
from anyformer.layers.pool import FirstTokenSpec as FirstTokenSpec, LastTokenSpec as LastTokenSpec
from anyformer.layers.pool import MeanTokensSpec as MeanTokensSpec, UnitLengthSpec as UnitLengthSpec
from anyformer.layers.query_scale import LogN as LogN, LogSteps as LogSteps, QueryScaleSpec as QueryScaleSpec
from anyformer.layers.query_scale import SSMaxSpec as SSMaxSpec
from anyformer.layers.recurrence import Recurrent as Recurrent, RecurrentSpec as RecurrentSpec, Steps as Steps
from anyformer.layers.relative import RelativeSinusoidSpec as RelativeSinusoidSpec, ShawKeysSpec as ShawKeysSpec
from anyformer.layers.relative import ShawValuesSpec as ShawValuesSpec
from anyformer.layers.residual import AddByDepthSpec as AddByDepthSpec, AddSpec as AddSpec
from anyformer.layers.reversible import ReversibleSpec as ReversibleSpec
from anyformer.layers.rg_lru import RGLRUSpec as RGLRUSpec
from anyformer.layers.rope_scaling import DynamicNTK as DynamicNTK, LinearScaling as LinearScaling
from anyformer.layers.rope_scaling import Llama3Scaling as Llama3Scaling, LongRoPE as LongRoPE
from anyformer.layers.rope_scaling import ProportionalRoPE as ProportionalRoPE
from anyformer.layers.rope_scaling import RotaryScalingSpec as RotaryScalingSpec, ScalingByLength as ScalingByLength
from anyformer.layers.rope_scaling import YaRN as YaRN
from anyformer.layers.rotary import LearnedFrequenciesSpec as LearnedFrequenciesSpec, RotarySpec as RotarySpec
from anyformer.layers.router import Router as Router, RouterSpec as RouterSpec
from anyformer.layers.router_stream import RouterStreamSpec as RouterStreamSpec
from anyformer.layers.s6 import S6Spec as S6Spec
from anyformer.layers.scores import ALiBiSpec as ALiBiSpec, BySegmentSpec as BySegmentSpec, Content as Content
from anyformer.layers.scores import RelativeBucketsSpec as RelativeBucketsSpec, ScoreSpec as ScoreSpec
from anyformer.layers.scores import ValueSpec as ValueSpec
from anyformer.layers.short_convolution import ResidualConvolutionSpec as ResidualConvolutionSpec
from anyformer.layers.short_convolution import ShortConvolutionSpec as ShortConvolutionSpec
from anyformer.layers.token_dropout import TokenDropoutSpec as TokenDropoutSpec
from anyformer.layers.token_shift import TokenShiftSpec as TokenShiftSpec
from anyformer.layers.context import (
    Dropout as Dropout,
    ForwardContext as ForwardContext,
    Notes as Notes,
    Store as Store,
)
from anyformer.layers.tokens import Tokens as Tokens
from anyformer.layers.two_streams import BlanksSpec as BlanksSpec, TwoStreams as TwoStreams
from anyformer.layers.wkv import WKVSpec as WKVSpec
