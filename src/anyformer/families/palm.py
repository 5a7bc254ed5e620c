"""PaLM: Chowdhery et al. 2022, arXiv:2204.02311, section 2 and table 1."""

from __future__ import annotations

from anyformer.families.compose import attend, block, gated, language_model, pre_norm, repeat
from anyformer.families.lineage import Misprint, Origin, Preset
from anyformer.layers import ByRole, LayerNormSpec, Normal, RotarySpec, SiLU
from anyformer.spec import ModelSpec, ScaleSpec


def palm(n_layers: int, d_model: int, n_heads: int) -> ModelSpec:
    """One norm, attention beside a gated feed-forward, one key/value head of 256 features, no bias anywhere."""
    norm = LayerNormSpec(bias=False)
    attention = attend(n_heads, 1, 256, rotary=RotarySpec())
    return language_model(
        256_000,
        d_model,
        repeat(block(pre_norm(norm, attention, gated(4 * d_model, SiLU()))), n_layers),
        norm,
        tied=True,
        logit_scale=ScaleSpec(power=-0.5),
        init=ByRole(table=Normal(scale=1.0), matrix=Normal(scale=1.0, fan_in_power=-0.5)),
        context=2048,
    )


ERRATUM = "tables that give it RMSNorm are wrong: the paper has layer norms, without biases"

PALM = Origin("palm", "gptj", 2022, "arXiv:2204.02311, section 2").lineage(
    "SwiGLU, multi-query attention, no biases, tied tables and scaled logits",
    Preset("palm-8b", palm(32, 4096, 16), "8.63B", ERRATUM),
    Preset("palm-62b", palm(64, 8192, 32), "62.50B", ERRATUM),
    Preset(
        "palm-540b",
        palm(118, 18_432, 48),
        "540.35B",
        f"540.356B; {ERRATUM}",
        training={
            "source": "Chowdhery et al. 2022, arXiv:2204.02311, section 5",
            "optimiser": "Adafactor without factorisation: beta1 0.9, beta2 1 - step^-0.8, decay lr², clipping 1.0; "
            "no dropout",
            "schedule": "1e-2 for 10,000 steps, then 1/√step",
            "batch": "512 sequences of 2,048 tokens, 1,024 from step 50,000, 2,048 from step 115,000 (the 540B), "
            "255,000 steps",
            "z-loss": "1e-4",
            "pretraining tokens": "780B",
        },
        alias="palm",
    ),
    sizes="Chowdhery et al. 2022, arXiv:2204.02311, table 1; the pairs of features that rotate, and eps, are not published",
    tokenizer="SentencePiece, 256,000",
    misprints=(
        Misprint("norm", "RMSNorm", "arXiv:2204.02311, section 2, speaks of layer norms, and has no biases in them"),
    ),
)
