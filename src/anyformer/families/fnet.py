"""FNet: BERT with a Fourier transform for attention. Lee-Thorp et al. 2021, arXiv:2105.03824."""

from __future__ import annotations

from anyformer.families.bert import bert, pretraining
from anyformer.families.compose import changed, edited
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import GELU, AttentionSpec, FeedForwardSpec, FourierSpec, LinearSpec
from anyformer.spec import EmbeddingSpec, ModelSpec, Width


def fnet(n_layers: int, d_model: int) -> ModelSpec:
    """BERT without heads, a transform over tokens and features where it attends; the embedding is projected (section 3.2)."""
    model = bert(n_layers, d_model, 1, vocab_size=32_000, n_segments=4)
    model = edited(model, AttentionSpec, lambda _: FourierSpec())
    model = changed(model, FeedForwardSpec, activation=GELU(form="tanh"))
    return changed(model, EmbeddingSpec, width=Width(d_model), projection=LinearSpec(bias=True))


FNET = Origin("fnet", "bert", 2021, "arXiv:2105.03824, section 3").lineage(
    "a Fourier transform over tokens and features in attention's place, no mask; an embedding that is projected",
    Preset("fnet-base", pretraining(fnet(12, 768), GELU(form="tanh")), "83M", alias="fnet"),
    Preset("fnet-large", pretraining(fnet(24, 1024), GELU(form="tanh")), "238M"),
    sizes="Lee-Thorp et al. 2021, arXiv:2105.03824, section 4.1 and table 1 (totals from memory)",
    tokenizer="SentencePiece, 32,000",
)
