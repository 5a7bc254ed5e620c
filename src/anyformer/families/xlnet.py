"""XLNet: every order of the text, by two streams of content and queries. Yang et al. 2019, arXiv:1906.08237."""

from __future__ import annotations

from anyformer.families.compose import attend, changed, feed, language_model, post_norm, repeat, serial
from anyformer.families.heads import words_of_table
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import GELU, BlanksSpec, BySegmentSpec, LayerNormSpec, RelativeSinusoidSpec, TwoStreams
from anyformer.spec import EmbeddingSpec, HeadSpec, ModelSpec, TableSpec


def xlnet(n_layers: int, d_model: int, n_heads: int) -> ModelSpec:
    """The model without heads (section 2): Transformer-XL's distances, either way, and segments in the scores."""
    scores = (RelativeSinusoidSpec(bidirectional=True), BySegmentSpec())
    attention = attend(n_heads, mask=TwoStreams(), scores=scores)
    layer = serial(LayerNormSpec(eps=1e-12), attention, feed(4 * d_model, GELU()), placed=post_norm)
    model = language_model(32_000, d_model, repeat(layer, n_layers), None, tied=True, context=512).but(heads=())
    (table,) = model.stack.embedding.nested(TableSpec)
    return changed(model, EmbeddingSpec, terms=(BlanksSpec(table=table),))


def permuted_words(model: ModelSpec) -> HeadSpec:
    """The head that predicts words: the embedding's table, and a bias."""
    return words_of_table(model).but(name="plm")


def trained(*sizes: int) -> ModelSpec:
    """The model with the head that it is trained with."""
    model = xlnet(*sizes)
    return model.but(heads=(permuted_words(model),))


TRAINING = {
    "source": "Yang et al. 2019, arXiv:1906.08237, section 3.1 and appendix A.4 (from memory)",
    "objective": "words in a random order, the last sixth of it (K = 6)",
    "optimiser": "Adam, eps 1e-6, decay 0.01, dropout 0.1",
}

XLNET = Origin("xlnet", "bert", 2019, "arXiv:1906.08237, section 2").lineage(
    "words predicted in any order by a second stream, Transformer-XL's distances, segments in the scores",
    Preset(
        "xlnet-base",
        trained(12, 768, 12),
        "117M",
        training={**TRAINING, "corpus": "BookCorpus and Wikipedia"},
        alias="xlnet",
    ),
    Preset(
        "xlnet-large",
        trained(24, 1024, 16),
        "360M",
        training={
            **TRAINING,
            "schedule": "linear over 40,000 steps to 4e-4, then linear to 0",
            "batch": "8,192 sequences of 512 tokens, 500,000 steps",
            "corpus": "32.9B pieces of words",
        },
    ),
    sizes="Yang et al. 2019, arXiv:1906.08237, appendix A.4; totals of the released checkpoints",
    tokenizer="SentencePiece unigram, 32,000",
)
