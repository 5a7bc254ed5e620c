"""BERT and RoBERTa with norms before their branches and one at the end.

Megatron's BERT (Shoeybi et al. 2019, arXiv:1909.08053), XLM-R XL (Goyal et al. 2021, arXiv:2105.00572), efficient MLM (Wettig
et al. 2022, arXiv:2202.08005).
"""

from __future__ import annotations

from anyformer.families.bert import BYTES, bert, roberta, xlm_roberta
from anyformer.families.compose import changed, layered, serial
from anyformer.families.heads import with_masked_words
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import LayerNormSpec
from anyformer.spec import EmbeddingSpec, ModelSpec


def norm_first(model: ModelSpec, eps: float, *, of_embedding: bool) -> ModelSpec:
    """The post-norm model with a norm before each branch and at the end, and with that of its embedding or without."""
    norm = LayerNormSpec(eps=eps)
    model = layered(model, serial(norm, *model.stack.blocks[0].mixers))
    model = model.but(stack=model.stack.but(norm=norm))
    return model if of_embedding else changed(model, EmbeddingSpec, norm=None)


def megatron_bert(*sizes: int) -> ModelSpec:
    """BERT without heads, pre-norm, its embedding without a norm (section 5.3)."""
    model = bert(*sizes, vocab_size=29_056)
    return norm_first(model, 1e-12, of_embedding=False)


def xlm_roberta_xl(*sizes: int) -> ModelSpec:
    """XLM-R without heads, pre-norm, its embedding without a norm."""
    model = xlm_roberta(*sizes, vocab_size=250_880)
    return norm_first(model, 1e-5, of_embedding=False)


def prenorm_roberta(*sizes: int) -> ModelSpec:
    """RoBERTa without heads, pre-norm, its embedding with a norm."""
    return norm_first(roberta(*sizes), 1e-5, of_embedding=True)


MEGATRON_BERT = Origin("megatron-bert", "bert", 2019, "arXiv:1909.08053, section 5.3").lineage(
    "norms before each branch and at the end, none of the embedding",
    Preset(
        "megatron-bert-345m",
        with_masked_words(megatron_bert(24, 1024, 16)),
        "345M",
        "333.7M with the cased vocabulary and the head for masked words; the name rounds or counts more",
        alias="megatron-bert",
    ),
    family="bert",
    sizes="Shoeybi et al. 2019, arXiv:1909.08053, section 5.3 (from memory); sizes as released",
    tokenizer="WordPiece, 28,996, padded to 29,056",
)
XLM_ROBERTA_XL = Origin("xlm-roberta-xl", "xlm-roberta", 2021, "arXiv:2105.00572, section 2").lineage(
    "norms before each branch and at the end, none of the embedding; deeper and wider",
    Preset("xlm-roberta-xl", with_masked_words(xlm_roberta_xl(36, 2560, 32)), "3.5B"),
    Preset("xlm-roberta-xxl", with_masked_words(xlm_roberta_xl(48, 4096, 32)), "10.7B"),
    known="xlm-roberta-xl",
    family="bert",
    sizes="Goyal et al. 2021, arXiv:2105.00572, section 2 (XXL from memory); the vocabulary as released",
    tokenizer="SentencePiece, 250,002, padded to 250,880",
)
EFFICIENT_MLM = Origin("efficient-mlm", "roberta", 2022, "arXiv:2202.08005, section 2").lineage(
    "norms before each branch and at the end; two tokens of five masked",
    Preset("efficient-mlm-m0.40", with_masked_words(prenorm_roberta(24, 1024, 16)), alias="efficient-mlm"),
    family="bert",
    sizes="Wettig et al. 2022, arXiv:2202.08005, table 6; sizes as released (from memory)",
    tokenizer=BYTES,
)
