"""OPT: Zhang et al. 2022, arXiv:2205.01068; the 350M differs from all others in where its norms and projections are."""

from __future__ import annotations

from anyformer.families.compose import attend, feed, language_model, post_norm, pre_norm, repeat, serial
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import ActivationSpec, LayerNormSpec, LearnedPositionsSpec, ReLU
from anyformer.spec import Length, ModelSpec


def opt(
    n_layers: int,
    d_model: int,
    n_heads: int,
    *,
    vocab_size: int = 50_272,
    table_width: int | None = None,
    norm_first: bool = True,
    final_norm: bool = True,
    activation: ActivationSpec | None = None,
    context: int = 2048,
) -> ModelSpec:
    """GPT-3's shape with ReLU; positions are learned, the first two rows of their table never read."""
    norm, attention, after = LayerNormSpec(), attend(n_heads, bias=True), feed(4 * d_model, activation or ReLU())
    layer = serial(norm, attention, after, placed=pre_norm if norm_first else post_norm)
    # The paper starts matrices at 0.006 and outputs at 0.006 / √(2 n_layers); the released files say 0.02.
    return language_model(
        vocab_size,
        d_model,
        repeat(layer, n_layers),
        norm if norm_first and final_norm else None,
        tied=True,
        positions=(LearnedPositionsSpec(n_positions=Length(context), offset=2),),
        table_width=table_width,
        context=context,
    )


ODD = "post-norm, no final norm, tokens of width 512: so are the released weights, the paper does not say so"

OPT = Origin("opt", "gpt3", 2022, "arXiv:2205.01068, section 2").lineage(
    "ReLU, every layer dense",
    Preset("opt-125m", opt(12, 768, 12), "125M"),
    Preset("opt-350m", opt(24, 1024, 16, table_width=512, norm_first=False), "350M", f"331M; {ODD}"),
    Preset("opt-1.3b", opt(24, 2048, 32), "1.3B"),
    Preset("opt-2.7b", opt(32, 2560, 32), "2.7B"),
    Preset("opt-6.7b", opt(32, 4096, 32), "6.7B", alias="opt"),
    Preset("opt-13b", opt(40, 5120, 40), "13B"),
    Preset("opt-30b", opt(48, 7168, 56), "30B"),
    Preset("opt-66b", opt(64, 9216, 72), "66B"),
    Preset("opt-175b", opt(96, 12_288, 96), "175B"),
    sizes="Zhang et al. 2022, arXiv:2205.01068, table 1; released config.json (from memory)",
    tokenizer="byte-level BPE of GPT-2, 50,272",
    training={
        "source": "Zhang et al. 2022, arXiv:2205.01068, section 2.2 and table 1",
        "precision": "float16 weights with a dynamic loss scale; the recipe has bf16",
        "optimiser state": "float32, sharded",
        "eps": "not said; 1e-8 in the recipe",
        "changes on the way": "the 175B's learning rate and clipping (1.0, later 0.3) were changed by hand where it diverged",
    },
)
