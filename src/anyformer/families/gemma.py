"""Gemma 1, 2 and 3, each derived from the one before: arXiv:2403.08295, arXiv:2408.00118, arXiv:2503.19786; and VaultGemma, a
Gemma 2 trained with differential privacy."""

from __future__ import annotations

from anyformer.families.compose import bidirectional, changed, edited, layered, untied, windowed
from anyformer.families.heads import sentence_embedding
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.layers import (
    GELU,
    AttentionSpec,
    GatedFeedForwardSpec,
    GQASpec,
    LinearScaling,
    LinearSpec,
    RMSNormSpec,
    RotarySpec,
    TokensSpec,
)
from anyformer.spec import BranchSpec, HeadSpec, Length, ModelSpec, ScaleSpec, Width

NORM = RMSNormSpec(eps=1e-6, weight_offset=1.0, cast="after")


def gemma(*sizes: int, head_dim: int = 256, vocab_size: int = 256_000, context: int = 8192) -> ModelSpec:
    """LLaMA with GeGLU, embeddings times √d_model that are the head's too, gains around 0 (2403.08295, section 2)."""
    model = llama(*sizes, head_dim=head_dim, vocab_size=vocab_size, tied=True, context=context)
    model = edited(model, RMSNormSpec, lambda _: NORM)
    model = changed(model, GatedFeedForwardSpec, activation=GELU(form="tanh"))
    return changed(model, TokensSpec, scale=ScaleSpec(power=0.5))


def sandwiched(model: ModelSpec, *, head_dim: int, scores_as_of: int | None) -> ModelSpec:
    """The model with a norm after each branch too, and scores divided by the root of another width than head_dim."""
    scale = ScaleSpec(factor=(head_dim / (scores_as_of or head_dim)) ** 0.5, power=-0.5)
    return changed(changed(model, BranchSpec, norm_out=NORM), AttentionSpec, scale=scale)


def gemma2(*sizes: int, head_dim: int = 256, scores_as_of: int | None = None) -> ModelSpec:
    """Gemma with sandwich norms, capped scores and logits, a window in every other layer (2408.00118, section 2)."""
    model = gemma(*sizes, head_dim=head_dim)
    model = sandwiched(model, head_dim=head_dim, scores_as_of=scores_as_of)
    model = changed(changed(model, AttentionSpec, softcap=50.0), HeadSpec, softcap=30.0)
    return layered(model, windowed(model, 4096), model)


def vaultgemma(*sizes: int) -> ModelSpec:
    """Gemma 2 without the norms after branches, for texts of 1,024 tokens (arXiv:2510.15001, from memory)."""
    return changed(gemma2(*sizes), BranchSpec, norm_out=None).but(context=Length(1024))


def gemma3(
    *sizes: int,
    head_dim: int = 256,
    scores_as_of: int | None = None,
    vocab_size: int = 262_208,
    window: int = 1024,
    stretch: float | None = 8.0,
    context: int = 131_072,
) -> ModelSpec:
    """Gemma 2 with QK-norm for the caps, five windows to one full layer and two thetas (2503.19786, section 2).

    `stretch` divides the frequencies of the full layers.
    """
    model = gemma(*sizes, head_dim=head_dim, vocab_size=vocab_size, context=context)
    model = sandwiched(model, head_dim=head_dim, scores_as_of=scores_as_of)
    model = changed(model, GQASpec, norm_query=NORM, norm_key=NORM)
    scaling = None if stretch is None else LinearScaling(factor=stretch)
    full = changed(model, RotarySpec, theta=1e6, scaling=scaling)
    return layered(model, *[windowed(model, window)] * 5, full)


def gemma3_small(*sizes: int) -> ModelSpec:
    """Gemma 3 as its models below 4B are: shorter windows, no stretched frequencies, a context of 32K tokens (table 1)."""
    return gemma3(*sizes, vocab_size=262_144, window=512, stretch=None, context=32_768)


def embeddinggemma(*sizes: int) -> ModelSpec:
    """Gemma 3 with tokens that see both ways, half a window to each side, for vectors of texts (2509.20354, section 2)."""
    model = gemma3(*sizes, vocab_size=262_144, window=256, stretch=None, context=2048)
    width = model.stack.d_model
    layers = (LinearSpec(d_out=Width(4 * width)), LinearSpec(d_out=width))
    return model.but(stack=untied(bidirectional(model.stack)), heads=(sentence_embedding(layers=layers),))


SENTENCEPIECE = "SentencePiece with byte fallback, 256,000"
PADDED = "the paper counts 256,128 rows of the vocabulary, the released files have 256,000"
ROWS = "27.01B: the paper prints 1,416M for the embedding, whose 262,208 released rows are 1,410M"
_1B = gemma3_small(26, 1152, 4, 6912, 1)

GEMMA = Origin("gemma", "llama", 2024, "arXiv:2403.08295, section 2").lineage(
    "GeGLU, embeddings × √d_model, tied tables, heads of 256",
    Preset("gemma-2b", gemma(18, 2048, 8, 16_384, 1), "2.51B", PADDED),
    Preset("gemma-7b", gemma(28, 3072, 16, 24_576, 16), "8.54B", PADDED, alias="gemma"),
    sizes="Gemma Team 2024, arXiv:2403.08295, tables 1 and 2 (totals: embedding and the rest)",
    tokenizer=SENTENCEPIECE,
)
GEMMA2 = Origin("gemma2", "gemma", 2024, "arXiv:2408.00118, section 2").lineage(
    "norms after each branch too, capped scores and logits, windows in every other layer, grouped queries",
    Preset("gemma2-2b", gemma2(26, 2304, 8, 9216, 4), "2.61B"),
    Preset("gemma2-9b", gemma2(42, 3584, 16, 14_336, 8), "9.24B", alias="gemma2"),
    Preset("gemma2-27b", gemma2(46, 4608, 32, 36_864, 16, head_dim=128, scores_as_of=144), "27.23B"),
    sizes="Gemma Team 2024, arXiv:2408.00118, tables 1 and 2 (totals: embedding and the rest)",
    tokenizer=SENTENCEPIECE,
)
GEMMA3 = Origin("gemma3", "gemma2", 2025, "arXiv:2503.19786, section 2").lineage(
    "QK-norm for the caps, five windows to a full layer, two thetas",
    Preset("gemma3-1b", _1B, "1.00B"),
    Preset("gemma3-4b", gemma3(34, 2560, 8, 10_240, 4), "3.88B", alias="gemma3"),
    Preset("gemma3-12b", gemma3(48, 3840, 16, 15_360, 8), "11.77B"),
    Preset("gemma3-27b", gemma3(62, 5376, 32, 21_504, 16, head_dim=128, scores_as_of=168), "27.02B", ROWS),
    sizes="Gemma Team 2025, arXiv:2503.19786, tables 1 and 2, the text model (totals: embedding and the rest)",
    tokenizer="SentencePiece with byte fallback, 262,144",
)
EMBEDDINGGEMMA = Origin("embeddinggemma", "gemma3", 2025, "arXiv:2509.20354, section 2").lineage(
    "tokens see both ways, their mean goes through two layers: a vector of length 1",
    Preset("embeddinggemma-300m", embeddinggemma(24, 768, 3, 1152, 1), "308M", alias="embeddinggemma"),
    family="gemma",
    sizes="Schechter Vera et al. 2025, arXiv:2509.20354, section 2, and the released configuration (from memory)",
    tokenizer="SentencePiece with byte fallback, 262,144",
)
VAULTGEMMA = Origin("vaultgemma", "gemma2", 2025, "arXiv:2510.15001, from memory").lineage(
    "no norms after branches, as many key/value heads as heads, 1,024 tokens",
    Preset("vaultgemma-1b", vaultgemma(26, 1152, 4, 6912), "1.04B", alias="vaultgemma"),
    family="gemma",
    sizes="Google 2025, the released configuration (window and context from memory)",
    tokenizer=SENTENCEPIECE,
)
