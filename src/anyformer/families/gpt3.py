"""GPT-3: Brown et al. 2020, arXiv:2005.14165, section 2.1 and table 2.1."""

from __future__ import annotations

from anyformer.families.compose import changed, layered
from anyformer.families.gpt2 import gpt2
from anyformer.families.preset import Preset
from anyformer.layers import AttentionSpec, Causal, SlidingWindow
from anyformer.spec import ModelSpec, Window

BAND = 256  # the paper gives no width of its bands; GPT-Neo, which follows it, has 256


def gpt3(*, n_layers: int, d_model: int, n_heads: int) -> ModelSpec:
    """GPT-2 of 2,048 tokens, every second layer seeing a band only ("alternating dense and locally banded")."""
    dense = gpt2(n_layers=n_layers, d_model=d_model, n_heads=n_heads, context=2048)
    layer = dense.stack.blocks[0]
    return layered(dense, layer, changed(layer, AttentionSpec, mask=Causal() & SlidingWindow(size=Window(BAND))))


def _preset(name: str, spec: ModelSpec, published: str, erratum: str | None = None) -> Preset:
    source = "Brown et al. 2020, arXiv:2005.14165, table 2.1; which layers are banded, and how wide, as in GPT-Neo"
    return Preset(f"gpt3-{name}", "gpt3", spec, source, published, erratum, "byte-level BPE of GPT-2, 50,257")


PRESETS = (
    _preset("125m", gpt3(n_layers=12, d_model=768, n_heads=12), "125M"),
    _preset("350m", gpt3(n_layers=24, d_model=1024, n_heads=16), "350M", "356M, which the paper rounds"),
    _preset("760m", gpt3(n_layers=24, d_model=1536, n_heads=16), "760M"),
    _preset(
        "1.3b",
        gpt3(n_layers=24, d_model=2048, n_heads=16),
        "1.3B",
        "the table prints 24 heads of 128 features; only 16 of them give d_model 2048 and the total",
    ),
    _preset("2.7b", gpt3(n_layers=32, d_model=2560, n_heads=32), "2.7B"),
    _preset("6.7b", gpt3(n_layers=32, d_model=4096, n_heads=32), "6.7B"),
    _preset(
        "13b",
        gpt3(n_layers=40, d_model=5120, n_heads=40),
        "13.0B",
        "the table prints d_model 5140; 40 heads of 128 features are 5120, and give 12.85B",
    ),
    _preset("175b", gpt3(n_layers=96, d_model=12_288, n_heads=96), "175.0B", "174.6B, which the paper rounds"),
)
