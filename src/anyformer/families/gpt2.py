"""GPT-2: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3 and table 2.

GPT-3: Brown et al. 2020, arXiv:2005.14165, section 2.1 and table 2.1.
"""

from __future__ import annotations

from anyformer.families.compose import attend, feed, language_model, layered, repeat, serial, windowed
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import GELU, ByRole, LayerNormSpec, LearnedPositionsSpec, Normal
from anyformer.spec import Length, ModelSpec


def gpt2(n_layers: int, d_model: int, n_heads: int, *, context: int = 1024) -> ModelSpec:
    """Pre-norm LayerNorm, learned positions, biases, tied; what writes to the stream starts at 0.02/√(2 n_layers)."""
    norm = LayerNormSpec(eps=1e-5)
    layer = serial(norm, attend(n_heads, bias=True), feed(4 * d_model, GELU(form="tanh")))
    return language_model(
        50_257,
        d_model,
        repeat(layer, n_layers),
        norm,
        tied=True,
        positions=(LearnedPositionsSpec(n_positions=Length(context)),),
        init=ByRole(output=Normal(depth_power=-0.5)),
        context=context,
    )


PRINTED = "the paper's table 2 prints {}, which its authors later called an error"

GPT2 = Origin("gpt2", "gpt", 2019, "Radford et al. 2019, section 2.3").lineage(
    "norms before each branch and at the end, outputs start smaller with depth, 1,024 tokens",
    Preset("gpt2", gpt2(12, 768, 12), "124M", PRINTED.format("117M")),
    Preset("gpt2-medium", gpt2(24, 1024, 16), "355M", PRINTED.format("345M")),
    Preset("gpt2-large", gpt2(36, 1280, 20), "774M", PRINTED.format("762M")),
    Preset("gpt2-xl", gpt2(48, 1600, 25), "1558M", PRINTED.format("1542M")),
    sizes="Radford et al. 2019, table 2; totals as the authors' repository corrects them",
    tokenizer="byte-level BPE, 50,257",
)

BAND = 256  # the paper gives no width of its bands; GPT-Neo, which follows it, has 256


def gpt3(n_layers: int, d_model: int, n_heads: int) -> ModelSpec:
    """GPT-2 of 2,048 tokens, every second layer seeing a band only ("alternating dense and locally banded")."""
    dense = gpt2(n_layers, d_model, n_heads, context=2048)
    return layered(dense, dense, windowed(dense, BAND))


GPT3 = Origin("gpt3", "gpt2", 2020, "arXiv:2005.14165, section 2.1").lineage(
    "banded attention in every other layer, 2,048 tokens",
    Preset("gpt3-125m", gpt3(12, 768, 12), "125M"),
    Preset("gpt3-350m", gpt3(24, 1024, 16), "350M", "356M, which the paper rounds"),
    Preset("gpt3-760m", gpt3(24, 1536, 16), "760M"),
    Preset(
        "gpt3-1.3b",
        gpt3(24, 2048, 16),
        "1.3B",
        "the table prints 24 heads of 128 features; only 16 of them give d_model 2048 and the total",
    ),
    Preset("gpt3-2.7b", gpt3(32, 2560, 32), "2.7B"),
    Preset("gpt3-6.7b", gpt3(32, 4096, 32), "6.7B"),
    Preset(
        "gpt3-13b",
        gpt3(40, 5120, 40),
        "13.0B",
        "the table prints d_model 5140; 40 heads of 128 features are 5120, and give 12.85B",
    ),
    Preset("gpt3-175b", gpt3(96, 12_288, 96), "175.0B", "174.6B, which the paper rounds", alias="gpt3"),
    sizes="Brown et al. 2020, arXiv:2005.14165, table 2.1; which layers are banded, and how wide, as in GPT-Neo",
    tokenizer="byte-level BPE of GPT-2, 50,257",
    training={
        "source": "Brown et al. 2020, arXiv:2005.14165, table 2.1 and appendix B",
        "batch": "grows from 32k tokens to its full size over the first 4–12B tokens; the recipe has the full "
        "size throughout",
        "precision": "half precision (appendix B names no dtype); the recipe has bf16",
    },
)
