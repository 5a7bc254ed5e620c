"""Nyströmformer: attention through landmarks, and a convolution of values beside it. Xiong et al. 2021, arXiv:2102.03902."""

from __future__ import annotations

from functools import partial

from anyformer.families.bert import bert
from anyformer.families.compose import changed, edited
from anyformer.families.heads import with_masked_words
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    GELU,
    AttentionSpec,
    FeedForwardSpec,
    GQASpec,
    LearnedPositionsSpec,
    NystromAttentionSpec,
    ValueConvolutionSpec,
)
from anyformer.spec import Count, ModelSpec, Window

GELU_TANH = GELU(form="tanh")


def nystromformer(
    n_layers: int,
    d_model: int,
    n_heads: int,
    *,
    landmarks: int | None,
    size: int,
    context: int,
    n_segments: int = 2,
    vocab_size: int = 30_000,
) -> ModelSpec:
    """BERT without heads, whose values are convolved over `size` tokens; without landmarks it attends to all keys.

    Positions begin with row 2, as RoBERTa's.
    """
    model = bert(n_layers, d_model, n_heads, vocab_size=vocab_size, n_segments=n_segments, eps=1e-5, context=context)
    model = changed(model, LearnedPositionsSpec, offset=2)
    model = changed(model, FeedForwardSpec, activation=GELU_TANH)
    model = changed(model, AttentionSpec, convolution=ValueConvolutionSpec(size=Window(size)))
    return model if landmarks is None else through_landmarks(model, landmarks)


def through_landmarks(model: ModelSpec, n: int) -> ModelSpec:
    """The model whose attention is through n landmarks of a text."""

    def approached(own: AttentionSpec) -> NystromAttentionSpec:
        assert isinstance(own.projection, GQASpec)
        return NystromAttentionSpec(projection=own.projection, n_landmarks=Count(n), convolution=own.convolution)

    return edited(model, AttentionSpec, approached)


base = partial(nystromformer, 12, 768, 12)
masked = partial(with_masked_words, activation=GELU_TANH)

NYSTROMFORMER = Origin("nystromformer", "bert", 2021, "arXiv:2102.03902, section 3").lineage(
    "landmarks, means of a text's stretches, stand for its queries and keys; values are convolved over their neighbours",
    Preset("nystromformer-512", masked(base(landmarks=None, size=65, context=510)), alias="nystromformer"),
    Preset("nystromformer-4096", masked(base(landmarks=512, size=65, context=4096, n_segments=1, vocab_size=50_265))),
    known="nystromformer-512",
    sizes="Xiong et al. 2021, arXiv:2102.03902, and the authors' nystrom-4096/config.json; the first as in the defaults of "
    "transformers' configuration, which have as many landmarks as tokens and so attend to all",
    tokenizer="SentencePiece, 30,000; the longer one's byte-level BPE, 50,265",
)
