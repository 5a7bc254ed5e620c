"""GPT-NeoX-20B (Black et al. 2022, arXiv:2204.06745) and Pythia (Biderman et al. 2023, arXiv:2304.01373)."""

from __future__ import annotations

from anyformer.families.compose import block, language_model, parallel, pre_norm, repeat, with_biases
from anyformer.families.preset import Preset
from anyformer.layers import (
    GELU,
    ActivationSpec,
    AttentionSpec,
    Causal,
    FeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    RotarySpec,
)
from anyformer.spec import Count, ModelSpec, Width


def gpt_neox(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    vocab_size: int,
    d_ff: int | None = None,
    activation: ActivationSpec | None = None,
    serial: bool = False,
    tied: bool = False,
    bias: bool = True,
    eps: float = 1e-5,
    rotary: RotarySpec | None = None,
    context: int = 2048,
) -> ModelSpec:
    """Return x + attention(norm(x)) + feed-forward(norm'(x)), a quarter of each head rotating (arXiv:2204.06745, 2.1)."""
    norm = LayerNormSpec(eps=eps)
    heads = with_biases(GQASpec(n_heads=Count(n_heads), rotary=rotary or RotarySpec(fraction=0.25)), bias, bias)
    attention = AttentionSpec(projection=heads, mask=Causal())
    feed = FeedForwardSpec(d_ff=Width(d_ff or 4 * d_model), activation=activation or GELU())
    layer = block(pre_norm(norm, attention), pre_norm(norm, feed)) if serial else block(parallel(norm, attention, feed))
    # The papers start matrices at √(2/5d) and outputs at 2/(n_layers √d); the released files say 0.02, as is used here.
    return language_model(
        vocab_size=vocab_size,
        d_model=d_model,
        blocks=repeat(layer, n_layers),
        norm=norm,
        tied=tied,
        context=context,
    )


def _pythia(
    name: str, published: str, n_layers: int, d_model: int, n_heads: int, vocab_size: int = 50_304, total: str = ""
) -> Preset:
    return Preset(
        name,
        "gpt_neox",
        gpt_neox(n_layers=n_layers, d_model=d_model, n_heads=n_heads, vocab_size=vocab_size),
        "Biderman et al. 2023, arXiv:2304.01373, table 1 (from memory; rows of the vocabulary as released)",
        published,
        f"{total}, which the name rounds" if total else None,
        BPE,
    )


BPE = "byte-level BPE trained on the Pile, 50,257 and spaces"

PRESETS = (
    Preset(
        "gpt-neox-20b",
        "gpt_neox",
        gpt_neox(n_layers=44, d_model=6144, n_heads=64, vocab_size=50_432, activation=GELU(form="tanh")),
        "Black et al. 2022, arXiv:2204.06745, section 2 and table 1 (vocabulary padded to 50,432)",
        "20B",
        "20.55B, which the paper cuts to the name",
        BPE,
    ),
    _pythia("pythia-70m", "70M", 6, 512, 8),
    _pythia("pythia-160m", "160M", 12, 768, 12, total="162M"),
    _pythia("pythia-410m", "410M", 24, 1024, 16, total="405M"),
    _pythia("pythia-1b", "1.0B", 16, 2048, 8),
    _pythia("pythia-1.4b", "1.4B", 24, 2048, 16),
    _pythia("pythia-2.8b", "2.8B", 32, 2560, 32),
    _pythia("pythia-6.9b", "6.9B", 32, 4096, 32, 50_432),
    _pythia("pythia-12b", "12B", 36, 5120, 40, 50_688),
)
