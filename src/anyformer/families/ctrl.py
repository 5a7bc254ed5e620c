"""CTRL: Keskar et al. 2019, arXiv:1909.05858, a decoder whose text begins with what kind of text it is."""

from __future__ import annotations

from anyformer.families.compose import attend, feed, language_model, repeat, serial
from anyformer.families.lineage import Origin, Preset
from anyformer.families.marian import SINUSOIDS
from anyformer.families.transformer import NORM, ROOT
from anyformer.layers import ReLU
from anyformer.spec import ModelSpec


def ctrl(n_layers: int, d_model: int, n_heads: int, d_ff: int) -> ModelSpec:
    """The Transformer's decoder with norms before its branches and a bias of its logits (section 3)."""
    return language_model(
        246_534,
        d_model,
        repeat(serial(NORM, attend(n_heads, bias=True), feed(d_ff, ReLU())), n_layers),
        NORM,
        tied=True,
        positions=(SINUSOIDS,),
        token_scale=ROOT,
        head_bias=True,
        context=256,
    )


CTRL = Origin("ctrl", "transformer-lm", 2019, "arXiv:1909.05858, section 3").lineage(
    "norms before each branch; control codes before the text",
    Preset("ctrl", ctrl(48, 1280, 16, 8192), "1.63B", "1.638B, which the paper cuts"),
    sizes="Keskar et al. 2019, arXiv:1909.05858, section 3.2; sizes as released",
    tokenizer="BPE, 246,534",
)
