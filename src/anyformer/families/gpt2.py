"""GPT-2: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3 and table 2."""

from __future__ import annotations

from anyformer.families.compose import attend, block, feed, language_model, pre_norm, repeat
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import GELU, ByRole, LayerNormSpec, LearnedPositionsSpec, Normal
from anyformer.spec import Length, ModelSpec


def gpt2(n_layers: int, d_model: int, n_heads: int, *, vocab_size: int = 50_257, context: int = 1024) -> ModelSpec:
    """Pre-norm LayerNorm, learned positions, biases, tied; what writes to the stream starts at 0.02/√(2 n_layers)."""
    norm = LayerNormSpec(eps=1e-5)
    layer = block(pre_norm(norm, attend(n_heads, bias=True)), pre_norm(norm, feed(4 * d_model, GELU(form="tanh"))))
    return language_model(
        vocab_size,
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
