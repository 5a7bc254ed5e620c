"""GPT-Neo: Black et al. 2021, "GPT-Neo: Large Scale Autoregressive Language Modeling with Mesh-Tensorflow"."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.families.compose import changed, windowed, with_layers
from anyformer.families.gpt2 import gpt2
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import AttentionSpec, ByRole, GQASpec
from anyformer.spec import ModelSpec, ScaleSpec


def gpt_neo(*, windows: Sequence[int | None], d_model: int, n_heads: int) -> ModelSpec:
    """GPT-2 without the scale of scores and the biases of queries, keys and values; a window, or None, a layer."""
    model = changed(gpt2(1, d_model, n_heads, context=2048), AttentionSpec, scale=ScaleSpec()).but(init=ByRole())
    model = changed(model, GQASpec, bias_query=False, bias_key=False, bias_value=False)
    kinds = {size: (windowed(model, size) if size else model).stack.blocks[0] for size in windows}
    return with_layers(model, (kinds[size] for size in windows))


GPT_NEO = Origin("gpt-neo", "gpt3", 2021, "the repository gpt-neo, from memory").lineage(
    "scores not scaled, no biases of queries, keys and values",
    Preset("gpt-neo-125m", gpt_neo(windows=(None, 256) * 6, d_model=768, n_heads=12), "125M"),
    Preset("gpt-neo-1.3b", gpt_neo(windows=(None, 256) * 12, d_model=2048, n_heads=16), "1.3B"),
    Preset("gpt-neo-2.7b", gpt_neo(windows=(None, 256) * 16, d_model=2560, n_heads=20), "2.7B", alias="gpt-neo"),
    family="gpt_neo",
    sizes="Black et al. 2021, the repository gpt-neo and the released config.json (from memory)",
    tokenizer="byte-level BPE of GPT-2, 50,257",
)
