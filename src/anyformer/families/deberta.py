"""DeBERTa v1, v2 and v3: what a token says and where it stands meet in separate scores. arXiv:2006.03654, arXiv:2111.09543.

For pretraining the head for masked words has an enhanced mask decoder (section 3.2), which no class of transformers computes:
the last layer once more, twice in a row, from where it began itself, with absolute positions added to what asks.
"""

from __future__ import annotations

from anyformer.families.bert import ADAM, BYTES, LINEAR, bert
from anyformer.families.compose import block, changed, post_norm, with_layers
from anyformer.families.heads import masked_words, with_masked_words
from anyformer.families.lineage import Facts, Origin, Preset
from anyformer.layers import (
    GELU,
    ActivationSpec,
    AttentionSpec,
    ContentToPositionSpec,
    ConvolutionSpec,
    GQASpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    LinearSpec,
    PositionToContentSpec,
    RelativeTableSpec,
)
from anyformer.spec import BlockSpec, Count, EmbeddingSpec, HeadLayersSpec, Length, ModelSpec, ScaleSpec

NORM = LayerNormSpec(eps=1e-7)
THREE = ScaleSpec(factor=3**-0.5, power=-0.5)  # three summands of equal weight (equation 4)


def deberta(*sizes: int, vocab_size: int = 50_265) -> ModelSpec:
    """DeBERTa v1 without heads: keys have no bias, distances have projections of their own in every layer (3.1)."""
    model = bert(*sizes, vocab_size=vocab_size, n_segments=0, eps=1e-7)
    table = RelativeTableSpec(farthest=Length(512), shared="distances")
    scores = (
        ContentToPositionSpec(table=table, projection=LinearSpec()),
        PositionToContentSpec(table=table, projection=LinearSpec(bias=True)),
    )
    model = changed(changed(model, AttentionSpec, scores=scores, scale=THREE), GQASpec, bias_key=False)
    return changed(model, EmbeddingSpec, terms=model.stack.embedding.terms[:1], masked=True)


def deberta_v2(*sizes: int) -> ModelSpec:
    """v1 with buckets of distances, normed and projected as tokens are, and biases everywhere (appendix A.5)."""
    model = deberta(*sizes, vocab_size=128_100)
    table = RelativeTableSpec(farthest=Length(512), n_buckets=Count(256), norm=NORM, shared="distances")
    scores = (ContentToPositionSpec(table=table), PositionToContentSpec(table=table))
    return changed(changed(model, AttentionSpec, scores=scores), GQASpec, bias_key=True)


def convolved(model: ModelSpec, size: int = 3, activation: ActivationSpec | None = None) -> ModelSpec:
    """The model with a convolution of the embedding's output beside its first layer."""
    first, *others = model.stack.blocks
    mixer = ConvolutionSpec(size=size, activation=activation or GELU())
    first = first.but(sublayers=(*first.sublayers, post_norm(NORM, mixer)))
    return with_layers(model, (first, *others))


def with_decoder(model: ModelSpec) -> ModelSpec:
    """The model with the head for masked words that it is pretrained with: two passes of its last layer.

    They begin with what the last layer but one gives and absolute positions, and read the former; all their weights but the
    positions' are the last layer's, whose own pass, which nothing but the kept encoder needs, the head does not read.
    """
    *others, last = model.stack.blocks
    last = _shared(last)
    decoder = changed(last, AttentionSpec, reads="input")
    positions = LearnedPositionsSpec(n_positions=model.context or Length(512))
    layers = HeadLayersSpec(blocks=(decoder, decoder), terms=(positions,), before=1)
    model = with_layers(model, (*others, last))
    return model.but(heads=(masked_words(model).but(layers=layers),))


def _shared(layer: BlockSpec) -> BlockSpec:
    """The layer with a name for each of its parts that has weights; attention is named by what is inside it."""
    attention, feed = layer.mixers
    assert isinstance(attention, AttentionSpec)
    scores = (changed(score, LinearSpec, shared=f"last_score_{i}") for i, score in enumerate(attention.scores))
    projection = attention.projection.but(shared="last_attention")
    named = (attention.but(projection=projection, scores=tuple(scores)), feed.but(shared="last_mixer_1"))
    return block(*(post_norm(NORM.but(shared=f"last_norm_{i}"), mixer) for i, mixer in enumerate(named)))


EMD = (
    "He et al. 2020, arXiv:2006.03654, section 3.2: n = 2; what the decoder begins with as released (microsoft/DeBERTa)"
)
GENERATOR = (
    "He et al. 2021, arXiv:2111.09543, section 3.1: as wide as the discriminator, half as deep (sizes from memory)"
)
SPM = "SentencePiece, 128,100"

_BASE = deberta(12, 768, 12)
_LARGE = deberta(24, 1024, 16)
_XLARGE = deberta(48, 1024, 16)
_V2_XLARGE = convolved(deberta_v2(24, 1536, 24))
_V2_XXLARGE = convolved(deberta_v2(48, 1536, 24))
_V3_BASE = deberta_v2(12, 768, 12)
_V3_LARGE = deberta_v2(24, 1024, 16)
_V3_BASE_GENERATOR = deberta_v2(6, 768, 12)
_V3_LARGE_GENERATOR = deberta_v2(12, 1024, 16)
_HEADED = "{} with the head for masked words, which the figure leaves out"

OBJECTIVE = "masked words, 15 % of the tokens in runs of up to three, predicted by the enhanced mask decoder"
CORPUS = "160 GB of text"
TRAINING = {
    "source": "He et al. 2020, arXiv:2006.03654, section 3.2, appendix A.3 (from memory)",
    "objective": OBJECTIVE,
    "optimiser": ADAM.format("0.999"),
    "schedule": LINEAR.format("10,000", "2e-4"),
    "batch": "2,048 sequences of 512 tokens, 1,000,000 steps",
    "corpus": "78 GB of text",
}


def _training_v3(size: str, rate: str) -> Facts:
    return {
        "source": "He et al. 2021, arXiv:2111.09543, sections 3 and 5.1 (from memory)",
        "objective": "replaced words; the generator's gradient alone moves the table that both read, the discriminator adds to "
        "it",
        "generator": f"as wide, half as deep: the preset deberta-v3-{size}-generator",
        "batch": "8,192 sequences of 512 tokens, 500,000 steps",
        "corpus": CORPUS,
        "schedule": LINEAR.format("10,000", rate),
    }


OF_BASE, OF_LARGE = _training_v3("base", "6e-4"), _training_v3("large", "3e-4")

DEBERTA = Origin("deberta", "roberta", 2020, "arXiv:2006.03654, section 3").lineage(
    "content and distance apart in the scores, no segments",
    Preset("deberta-base", with_masked_words(_BASE), "139M", training=TRAINING, alias="deberta"),
    Preset("deberta-large", with_masked_words(_LARGE), "406M", training=TRAINING),
    Preset("deberta-xlarge", with_masked_words(_XLARGE), "759M"),
    Preset("deberta-base-emd", with_decoder(_BASE), source=EMD, training=TRAINING),
    Preset("deberta-large-emd", with_decoder(_LARGE), source=EMD, training=TRAINING),
    known="deberta-large",
    sizes="He et al. 2020, arXiv:2006.03654, tables 1 and 2",
    tokenizer=BYTES,
)
DEBERTA_V2 = Origin("deberta-v2", "deberta", 2021, "arXiv:2006.03654, section 5 and the release of v2").lineage(
    "logarithmic buckets, distances through the content's projections, a convolution, 128,000 tokens",
    Preset("deberta-v2-xlarge", with_masked_words(_V2_XLARGE), "885M", _HEADED.format("887.1M"), alias="deberta-v2"),
    Preset("deberta-v2-xxlarge", with_masked_words(_V2_XXLARGE), "1.56B", _HEADED.format("1.567B")),
    Preset("deberta-v2-xlarge-emd", with_decoder(_V2_XLARGE), source=EMD),
    Preset("deberta-v2-xxlarge-emd", with_decoder(_V2_XXLARGE), source=EMD),
    known="deberta-v2-xxlarge",
    family="deberta",
    sizes="He et al. 2020, arXiv:2006.03654, section 5.3; sizes as released",
    tokenizer=SPM,
    training={
        "source": "He et al. 2020, arXiv:2006.03654, section 5.3 and appendix A (from memory)",
        "objective": OBJECTIVE,
        "corpus": CORPUS,
    },
)
DEBERTA_V3 = Origin("deberta-v3", "deberta-v2", 2021, "arXiv:2111.09543, section 3").lineage(
    "trained as ELECTRA is, no convolution",
    Preset("deberta-v3-base-generator", with_decoder(_V3_BASE_GENERATOR), source=GENERATOR, training=OF_BASE),
    Preset("deberta-v3-large-generator", with_decoder(_V3_LARGE_GENERATOR), source=GENERATOR, training=OF_LARGE),
    Preset(
        "deberta-v3-base",
        with_masked_words(_V3_BASE),
        "184M",
        _HEADED.format("184.6M"),
        training=OF_BASE,
        alias="deberta-v3",
    ),
    Preset(
        "deberta-v3-large",
        with_masked_words(_V3_LARGE),
        "434M",
        f"{_HEADED.format('435.2M')}; 434.0M without",
        training=OF_LARGE,
    ),
    family="deberta",
    sizes="He et al. 2021, arXiv:2111.09543, section 5; electra.replaced() is the head it was trained with",
    tokenizer=SPM,
)
