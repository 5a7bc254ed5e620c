"""BERT, RoBERTa, DistilBERT, MiniLM: arXiv:1810.04805, arXiv:1907.11692, arXiv:1910.01108, arXiv:2002.10957.

RoBERTa in other languages: XLM-R (arXiv:1911.02116), CamemBERT (arXiv:1911.03894); taught by itself: data2vec
(arXiv:2202.03555); BERT with wide tables apart: RemBERT (arXiv:2010.12821); as a decoder: arXiv:1907.12461.
"""

from __future__ import annotations

from functools import partial

from anyformer.families.compose import attend, changed, feed, language_model, post_norm, repeat, serial, untied
from anyformer.families.heads import masked_words, row_classes, with_masked_words, words_of_table
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    GELU,
    AttentionSpec,
    Causal,
    Everything,
    FeedForwardSpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    LinearSpec,
    ReLU,
    RotarySpec,
    SegmentsSpec,
)
from anyformer.spec import Count, EmbeddingSpec, HeadSpec, Length, MapSpec, ModelSpec, TableSpec, Vocab, Width


def bert(
    n_layers: int,
    d_model: int,
    n_heads: int,
    *,
    vocab_size: int = 30_522,
    n_segments: int = 2,
    padding: int | None = None,
    width: int | None = None,
    rotary: RotarySpec | None = None,
    context: int = 512,
    eps: float = 1e-12,
) -> ModelSpec:
    """BERT without heads (section 3); without segments the embedding has two terms, of another width it is projected.

    `padding` is an id that no position is counted for, and whose row comes before the first position's; `rotary` positions
    stand in for the learned ones.
    """
    norm = LayerNormSpec(eps=eps)
    attention = attend(n_heads, bias=True, rotary=rotary, mask=Everything())
    layer = serial(norm, attention, feed(4 * d_model, GELU()), placed=post_norm)
    offset = 0 if padding is None else padding + 1
    positions = LearnedPositionsSpec(n_positions=Length(context), offset=offset, padding=padding)
    segments = (SegmentsSpec(n_segments=Count(n_segments)),) if n_segments else ()
    model = language_model(
        vocab_size,
        d_model,
        repeat(layer, n_layers),
        None,
        tied=True,
        positions=(*([positions] if rotary is None else []), *segments),
        embedding_norm=norm,
        context=context,
    ).but(heads=())
    if width in (None, d_model):
        return model
    return changed(model, EmbeddingSpec, width=Width(width), projection=LinearSpec(bias=True))


def pretraining(model: ModelSpec, activation: MapSpec | None = None, second: str = "nsp") -> ModelSpec:
    """The model with what BERT is trained on: masked words, and whether the second sentence follows (section 3.1)."""
    return with_masked_words(model, row_classes(2, second), activation=activation)


def masked_apart(model: ModelSpec, width: int, activation: MapSpec | None = None) -> HeadSpec:
    """A head for masked words with a table of its own, of another width (arXiv:2010.12821, section 4)."""
    head = masked_words(model, activation)
    _, between, norm = head.transform
    layer = LinearSpec(d_out=Width(width), bias=True)
    return head.but(transform=(layer, between, norm), table=TableSpec(rows=Vocab(model.vocab_size)))


def rembert(*sizes: int) -> ModelSpec:
    """BERT whose tables at input and output are not tied, the latter the wider."""
    model = bert(*sizes, vocab_size=250_300, width=256)
    return untied(model).but(heads=(masked_apart(model, 1664),))


def bert_generation(*sizes: int) -> ModelSpec:
    """BERT without segments, whose tokens see those before them alone and are told the next one by their table."""
    model = bert(*sizes, vocab_size=50_358, n_segments=0)
    model = changed(model, AttentionSpec, mask=Causal())
    return model.but(heads=(words_of_table(model),))


# A larger vocabulary, one segment, positions from row 2 on (arXiv:1907.11692, section 4; the rows are fairseq's).
roberta = partial(bert, vocab_size=50_265, n_segments=1, padding=1, eps=1e-5)
xlm_roberta = partial(roberta, vocab_size=250_002)
ernie = partial(bert, vocab_size=18_000, context=513, eps=1e-5)

WORDPIECE, BYTES = "WordPiece, 30,522", "byte-level BPE, 50,265"
LINEAR = "linear over {} steps to {}, then linear to 0"
ADAM = "Adam, betas 0.9 and {}, eps 1e-6, decay 0.01, dropout 0.1"
TRAINING_ROBERTA = {
    "source": "Liu et al. 2019, arXiv:1907.11692, sections 4 and 5, table 9 (from memory)",
    "objective": "15 % of the tokens, of which 80 % masked, 10 % random, 10 % kept, drawn anew each time; no next sentence",
    "optimiser": ADAM.format("0.98"),
    "batch": "8,000 sequences of 512 tokens, 500,000 steps",
    "corpus": "160 GB of text",
}

BERT = Origin("bert", "transformer", 2018, "arXiv:1810.04805, section 3").lineage(
    "the encoder alone, learned positions, segments, GELU, masked words",
    Preset("bert-base", pretraining(bert(12, 768, 12)), "110M", alias="bert"),
    Preset(
        "bert-large",
        pretraining(bert(24, 1024, 16)),
        "340M",
        "336.2M with both heads, 335.1M with the pooler alone; the paper rounds up",
    ),
    sizes="Devlin et al. 2018, arXiv:1810.04805, section 3",
    tokenizer=WORDPIECE,
    training={
        "source": "Devlin et al. 2018, arXiv:1810.04805, appendix A.2",
        "objective": "15 % of the tokens, of which 80 % masked, 10 % random, 10 % kept; and the next sentence",
        "batch": "256 sequences of 512 tokens, 1,000,000 steps; 90 % of the steps at 128 tokens",
        "optimiser": "Adam, betas 0.9 and 0.999, decay 0.01, dropout 0.1",
        "schedule": "linear over 10,000 steps to 1e-4, then linear to 0",
    },
)
ROBERTA = Origin("roberta", "bert", 2019, "arXiv:1907.11692, section 4").lineage(
    "bytes, one segment, no next sentence, trained longer",
    Preset(
        "roberta-base",
        with_masked_words(roberta(12, 768, 12)),
        "125M",
        training={**TRAINING_ROBERTA, "schedule": LINEAR.format("24,000", "6e-4")},
        alias="roberta",
    ),
    Preset(
        "roberta-large",
        with_masked_words(roberta(24, 1024, 16)),
        "355M",
        training={**TRAINING_ROBERTA, "schedule": LINEAR.format("30,000", "4e-4")},
    ),
    family="bert",
    sizes="Liu et al. 2019, arXiv:1907.11692, section 5; sizes as released",
    tokenizer=BYTES,
)
XLM_ROBERTA = Origin("xlm-roberta", "roberta", 2019, "arXiv:1911.02116, section 3").lineage(
    "250,002 tokens of 100 languages",
    Preset(
        "xlm-roberta-base",
        with_masked_words(xlm_roberta(12, 768, 12)),
        "270M",
        "278.3M; the paper rounds",
        alias="xlm-roberta",
    ),
    Preset(
        "xlm-roberta-large",
        with_masked_words(xlm_roberta(24, 1024, 16)),
        "550M",
        "560.1M; the paper rounds",
    ),
    family="bert",
    known="xlm-roberta-base",
    sizes="Conneau et al. 2019, arXiv:1911.02116, section 3 and table 1; the vocabulary as released",
    tokenizer="SentencePiece, 250,002",
)
CAMEMBERT = Origin("camembert", "roberta", 2019, "arXiv:1911.03894, section 4").lineage(
    "32,005 tokens of French",
    Preset(
        "camembert-base",
        with_masked_words(roberta(12, 768, 12, vocab_size=32_005)),
        "110M",
        "110.66M, which the paper cuts",
        alias="camembert",
    ),
    family="bert",
    sizes="Martin et al. 2019, arXiv:1911.03894, section 4; the vocabulary as released",
    tokenizer="SentencePiece, 32,000 and special tokens: 32,005 rows",
)
DATA2VEC = Origin("data2vec-text", "roberta", 2022, "arXiv:2202.03555, section 3").lineage(
    "taught by what a running mean of itself makes of texts in which nothing is hidden",
    Preset(
        "data2vec-text-base",
        with_masked_words(roberta(12, 768, 12)),
        alias="data2vec-text",
        training={
            "source": "Baevski et al. 2022, arXiv:2202.03555, sections 3 and 4 (from memory)",
            "objective": "at hidden tokens the mean of the teacher's top 10 layers, by a smooth L1 loss; no words",
            "batch": "256 sequences of 512 tokens, 1,000,000 updates",
        },
    ),
    family="bert",
    sizes="Baevski et al. 2022, arXiv:2202.03555, section 4.4; sizes as released (from memory)",
    tokenizer=BYTES,
)
ERNIE = Origin("ernie", "bert", 2019, "arXiv:1904.09223, section 3").lineage(
    "whole phrases and names masked; 18,000 tokens of Chinese, ReLU",
    Preset(
        "ernie-1.0-base-zh",
        with_masked_words(changed(ernie(12, 768, 12), FeedForwardSpec, activation=ReLU()), activation=ReLU()),
        alias="ernie",
    ),
    family="bert",
    sizes="Sun et al. 2019, arXiv:1904.09223, section 4; sizes as released (from memory)",
    tokenizer="WordPiece, 18,000",
)
REMBERT = Origin("rembert", "bert", 2020, "arXiv:2010.12821, section 5").lineage(
    "tables at input and output apart, 256 and 1,664 wide; 250,300 tokens",
    Preset("rembert", rembert(32, 1152, 18)),
    family="bert",
    sizes="Chung et al. 2020, arXiv:2010.12821, section 5; sizes of the class, as released",
    tokenizer="SentencePiece, 250,300",
)
BERT_GENERATION = Origin("bert-generation", "bert", 2019, "arXiv:1907.12461, section 2").lineage(
    "begins decoders and encoders of text alike: no segments, 50,358 tokens",
    Preset(
        "bert-generation-large-decoder",
        bert_generation(24, 1024, 16),
        alias="bert-generation",
    ),
    family="bert",
    sizes="Rothe et al. 2019, arXiv:1907.12461, section 2; the vocabulary of the class, as released",
    tokenizer="SentencePiece, 50,358",
)
DISTILBERT = Origin("distilbert", "bert", 2019, "arXiv:1910.01108, section 2").lineage(
    "half of the layers, no segments",
    Preset(
        "distilbert-base",
        with_masked_words(bert(6, 768, 12, n_segments=0)),
        "66M",
        "67.0M with the head; the 66M are the encoder's 66,362,880",
        alias="distilbert",
    ),
    family="bert",
    sizes="Sanh et al. 2019, arXiv:1910.01108, section 2 and table 3",
    tokenizer=WORDPIECE,
    training={
        "source": "Sanh et al. 2019, arXiv:1910.01108, sections 2 and 3 (from memory)",
        "objective": "the teacher's distribution, masked words, and the cosine between hidden states; no next sentence",
        "start": "every second layer of bert-base",
        "batch": "up to 4,000 sequences",
    },
)
MINILM = Origin("minilm", "bert", 2020, "arXiv:2002.10957, section 3").lineage(
    "half as wide, taught by a larger one's attention",
    Preset("minilm-l12-h384", with_masked_words(bert(12, 384, 12)), "33M"),
    Preset(
        "minilm-l6-h384",
        with_masked_words(bert(6, 384, 12)),
        "22M",
        "22.7M with the head; the encoder's 22,565,376 are cut",
        alias="minilm",
    ),
    known="minilm-l12-h384",
    family="bert",
    sizes="Wang et al. 2020, arXiv:2002.10957, table 3 (sizes from memory)",
    tokenizer=WORDPIECE,
    training={
        "source": "Wang et al. 2020, arXiv:2002.10957, sections 3 and 4 (from memory)",
        "objective": "of the teacher's last layer the attention and the products of values, each by Kullback–Leibler "
        "divergence",
        "optimiser": "Adam, betas 0.9 and 0.999, decay 0.01, dropout 0.1",
        "schedule": LINEAR.format("4,000", "5e-4"),
        "batch": "1,024 sequences of up to 512 tokens, 400,000 steps",
    },
)
