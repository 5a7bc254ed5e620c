"""xLSTM-7B: LLaMA's layers with an LSTM of matrices (mLSTM) for attention. Beck et al. 2025, arXiv:2503.13427."""

from __future__ import annotations

from anyformer.families.compose import changed, gated, language_model, repeat, serial
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import MLSTMSpec, RMSNormSpec, SiLU
from anyformer.spec import Count, HeadSpec, ModelSpec, Width


def xlstm(n_layers: int, d_model: int, n_heads: int, d_ff: int) -> ModelSpec:
    """Pre-norm RMSNorm, mLSTM whose keys are half as wide as its values, SwiGLU; capped logits (section 3)."""
    norm = RMSNormSpec(eps=1e-6)
    value_dim = d_model // n_heads
    mixer = MLSTMSpec(n_heads=Count(n_heads), key_dim=Width(value_dim // 2), value_dim=Width(value_dim))
    layer = serial(norm, mixer, gated(d_ff, SiLU()))
    model = language_model(50_304, d_model, repeat(layer, n_layers), norm, tied=False)
    return changed(model, HeadSpec, softcap=30.0)


XLSTM = Origin("xlstm", "llama", 2025, "arXiv:2503.13427, section 3").lineage(
    "an LSTM of matrices with exponential gates (mLSTM) for attention: a state of one size, no positions; logits capped at 30",
    Preset(
        "xlstm-7b",
        xlstm(32, 4096, 8, 10_944),
        "7B",
        "6.87B, which the name rounds",
        alias="xlstm",
    ),
    sizes="Beck et al. 2025, arXiv:2503.13427, section 3, and the released configuration",
    tokenizer="byte-level BPE (GPT-NeoX's), 50,257; the table has 50,304 rows",
)
