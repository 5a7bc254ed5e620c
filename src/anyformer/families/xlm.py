"""XLM (Lample & Conneau 2019, arXiv:1901.07291) and FlauBERT (Le et al. 2019, arXiv:1912.05372)."""

from __future__ import annotations

from anyformer.families.compose import attend, changed, feed, language_model, post_norm, pre_norm, repeat, serial
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    GELU,
    ByRole,
    Causal,
    Everything,
    LanguagesSpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    Normal,
)
from anyformer.spec import Count, HeadSpec, Length, ModelSpec

TABLES = 2048**-0.5  # the deviation that tables start with, whatever the width


def xlm(
    n_layers: int,
    d_model: int,
    n_heads: int,
    *,
    vocab_size: int,
    n_languages: int = 0,
    causal: bool = False,
    norm_first: bool = False,
    eps: float = 1e-12,
) -> ModelSpec:
    """A stack with a norm of its embedding, whose head is the embedding's table and a bias, for hidden tokens or the next one.

    Of some languages, each has a vector. Without norms behind the branches (`norm_first`) there is none at the end.
    """
    norm = LayerNormSpec(eps=eps)
    attention = attend(n_heads, bias=True, mask=Causal() if causal else Everything())
    layer = serial(norm, attention, feed(4 * d_model, GELU()), placed=pre_norm if norm_first else post_norm)
    languages = (LanguagesSpec(n_languages=Count(n_languages)),) if n_languages else ()
    model = language_model(
        vocab_size,
        d_model,
        repeat(layer, n_layers),
        None,
        tied=True,
        positions=(LearnedPositionsSpec(n_positions=Length(512)), *languages),
        embedding_norm=norm,
        head_bias=True,
        init=ByRole(table=Normal(scale=TABLES)),
        context=512,
    )
    return model if causal else changed(model, HeadSpec, name="mlm")


def flaubert_base(vocab_size: int) -> ModelSpec:
    """As large as BERT's."""
    return xlm(12, 768, 12, vocab_size=vocab_size)


XLM = Origin("xlm", "bert", 2019, "arXiv:1901.07291, sections 3 and 4").lineage(
    "several languages, each with a vector, in one vocabulary; hidden tokens or the next one, no pooler, no segments",
    Preset("xlm-mlm-en-2048", xlm(12, 2048, 16, vocab_size=30_145)),
    Preset(
        "xlm-clm-enfr-1024",
        xlm(6, 1024, 8, vocab_size=64_139, n_languages=2, causal=True),
    ),
    Preset(
        "xlm-mlm-xnli15-1024",
        xlm(12, 1024, 8, vocab_size=95_000, n_languages=15),
        "250M",
        "249.1M, which Conneau et al. 2019, arXiv:1911.02116, table 7, round",
        alias="xlm",
    ),
    Preset(
        "xlm-mlm-100-1280",
        xlm(16, 1280, 16, vocab_size=200_000),
        "570M",
        "571.7M, which Conneau et al. 2019, arXiv:1911.02116, table 7, cut; its languages have no vectors",
    ),
    known="xlm-mlm-xnli15-1024",
    sizes="Lample & Conneau 2019, arXiv:1901.07291, section 5; sizes and vocabularies as released (from memory)",
    tokenizer="BPE of words split by Moses' rules, of all languages",
)
FLAUBERT = Origin("flaubert", "xlm", 2019, "arXiv:1912.05372, section 3").lineage(
    "one language, French; the large one has norms before its branches",
    Preset("flaubert-small-cased", xlm(6, 512, 8, vocab_size=68_729), "54M"),
    Preset("flaubert-base-uncased", flaubert_base(67_542), "137M"),
    Preset("flaubert-base-cased", flaubert_base(68_729), "138M", alias="flaubert"),
    Preset(
        "flaubert-large-cased",
        xlm(24, 1024, 16, vocab_size=68_729, norm_first=True, eps=1e-6),
        "373M",
    ),
    known="flaubert-base-cased",
    family="xlm",
    sizes="Le et al. 2019, arXiv:1912.05372, and the released models' cards and configurations",
    tokenizer="BPE of words split by Moses' rules, 50,000 merges",
)
