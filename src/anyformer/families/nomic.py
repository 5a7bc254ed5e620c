"""Encoders for embeddings that rotate: Nomic Embed (Nussbaum et al. 2024, arXiv:2402.01613), mGTE (2407.19669), which gate, and
jina-embeddings-v3 (2409.10173).
"""

from __future__ import annotations

from typing import Any

from anyformer.families.bert import bert
from anyformer.families.compose import changed, edited, gated
from anyformer.families.heads import with_masked_words
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import GELU, ActivationSpec, FeedForwardSpec, GQASpec, RotarySpec, SiLU
from anyformer.spec import ModelSpec


def gated_bert(activation: ActivationSpec, theta: float, *, bias: bool, **sizes: Any) -> ModelSpec:
    """BERT with rotary positions and a gate in feed-forwards; biases, if any, of attention and of the matrix down."""
    model = changed(
        bert(rotary=RotarySpec(theta=theta), **sizes),
        GQASpec,
        **dict.fromkeys(("bias_query", "bias_key", "bias_value", "bias_output"), bias),
    )
    return edited(model, FeedForwardSpec, lambda feed: gated(feed.d_ff, activation).but(bias_out=bias))


def nomic_bert(**sizes: Any) -> ModelSpec:
    """SwiGLU, no biases (arXiv:2402.01613, section 3.1)."""
    return gated_bert(SiLU(), 1000.0, bias=False, **{"vocab_size": 30_528, "context": 2048, **sizes})


def gte(**sizes: Any) -> ModelSpec:
    """GeGLU, and biases (arXiv:2407.19669, section 2.1)."""
    return gated_bert(
        GELU(), 160_000.0, bias=True, **{"vocab_size": 250_048, "n_segments": 1, "context": 8192, **sizes}
    )


def jina_v3(**sizes: Any) -> ModelSpec:
    """XLM-R whose positions rotate (arXiv:2409.10173, section 3)."""
    usual = {"vocab_size": 250_002, "n_segments": 1, "context": 8194, "eps": 1e-5}
    return bert(rotary=RotarySpec(theta=20_000.0), **{**usual, **sizes})


BASE = {"n_layers": 12, "d_model": 768, "n_heads": 12}

NOMIC = Origin("nomic-bert", "bert", 2024, "arXiv:2402.01613, section 3.1").lineage(
    "rotary positions, SwiGLU, no biases, 2,048 tokens",
    Preset(
        "nomic-embed-text-v1",
        with_masked_words(nomic_bert(**BASE), activation=SiLU()),
        "137M",
        alias="nomic-bert",
    ),
    family="nomic",
    sizes="Nussbaum et al. 2024, arXiv:2402.01613, section 3.1, and the class's own sizes (theta and the head from there)",
    tokenizer="WordPiece, 30,522 padded to 30,528",
)
GTE = Origin("gte", "bert", 2024, "arXiv:2407.19669, section 2.1").lineage(
    "rotary positions, GeGLU, XLM-R's vocabulary, 8,192 tokens",
    Preset(
        "gte-multilingual-base",
        with_masked_words(gte(**BASE)),
        "305M",
        "306.2M with the head for masked words, which the figure leaves out",
        alias="gte",
    ),
    family="nomic",
    sizes="Zhang et al. 2024, arXiv:2407.19669, table 1 (total from memory), sizes and theta of the class",
    tokenizer="SentencePiece (XLM-R's), 250,002 padded to 250,048",
)
JINA = Origin("jina-v3", "xlm-roberta", 2024, "arXiv:2409.10173, section 3").lineage(
    "rotary positions, 8,194 tokens",
    Preset(
        "jina-embeddings-v3",
        with_masked_words(jina_v3(n_layers=24, d_model=1024, n_heads=16)),
        "559M",
        "559.6M, which the paper cuts; of the encoder and the head for masked words, without the adapters of its tasks",
        alias="jina-v3",
    ),
    family="nomic",
    sizes="Sturua et al. 2024, arXiv:2409.10173, table 1 (total from memory), sizes and theta of the class",
    tokenizer="SentencePiece (XLM-R's), 250,002",
)
