"""BitNet b1.58 2B4T: norms before every output map, squared ReLUs behind a gate; here its float weights (arXiv:2504.12285).

The released model rounds weights to three values and activations to eight bits as it runs: a way to run it, not its shape.
"""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.layers import AttentionSpec, GatedFeedForwardSpec, ReLU2, RMSNormSpec
from anyformer.spec import ModelSpec


def bitnet(*sizes: int) -> ModelSpec:
    """LLaMA with tied tables, a norm before the output map of attention and of feed-forwards, ReLU² (section 2)."""
    norm = RMSNormSpec(eps=1e-5)
    model = llama(*sizes, vocab_size=128_256, eps=1e-5, theta=5e5, tied=True, context=4096)
    model = changed(model, AttentionSpec, norm=norm)
    return changed(model, GatedFeedForwardSpec, norm=norm, activation=ReLU2())


BITNET = Origin("bitnet", "llama3", 2025, "arXiv:2504.12285, section 2").lineage(
    "norms before output maps, squared ReLU, weights of three values",
    Preset("bitnet-b1.58-2b4t", bitnet(30, 2560, 20, 6912, 5), "2.4B", alias="bitnet"),
    sizes="Ma et al. 2025, arXiv:2504.12285, and the released configuration",
    tokenizer="byte-level BPE (LLaMA 3's), 128,256",
)
