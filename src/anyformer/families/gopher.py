"""Gopher (Rae et al. 2021, arXiv:2112.11446, table 1) and Chinchilla (Hoffmann et al. 2022, arXiv:2203.15556, table 4)."""

from __future__ import annotations

from anyformer.families.compose import attend, feed, language_model, repeat, serial
from anyformer.families.lineage import Misprint, Origin, Preset
from anyformer.layers import GELU, RelativeSinusoidSpec, RMSNormSpec
from anyformer.spec import ModelSpec


def gopher(n_layers: int, d_model: int, n_heads: int) -> ModelSpec:
    """GPT-2 with RMSNorm, and relative positions for learned ones (section 3.1)."""
    norm, attention = RMSNormSpec(), attend(n_heads, bias=True, scores=(RelativeSinusoidSpec(),))
    layer = serial(norm, attention, feed(4 * d_model, GELU(form="tanh")))
    return language_model(32_000, d_model, repeat(layer, n_layers), norm, tied=True, context=2048)


ASSUMED = "biases, the form of GELU, eps and the tied table are not published and are those of GPT-2"
ERRATUM = "tables that give it ReLU and T5's positions are wrong: the paper has RMSNorm and Transformer-XL's positions"
STARTS = "arXiv:2112.11446, section 3.1, starts from GPT-2 and names two changes"
KEEPS = "arXiv:2203.15556, section 4.1, keeps Gopher's architecture"
RELATIVE = "relative, as T5's"
TRAINING = {
    "source": "Rae et al. 2021, arXiv:2112.11446, section 3.2 and table 1",
    "precision": "bfloat16 parameters and activations",
    "betas, eps": "not said; Adam's own in the recipe",
}
GROWN = {"batch": "3M tokens, doubled to 6M on the way; the recipe has 6M throughout"}

GOPHER = Origin("gopher", "gpt2", 2021, "arXiv:2112.11446, section 3.1").lineage(
    "RMSNorm, Transformer-XL's relative positions, SentencePiece",
    Preset("gopher-44m", gopher(8, 512, 16), "44M", ERRATUM),
    Preset("gopher-117m", gopher(12, 768, 12), "117M", ERRATUM),
    Preset("gopher-417m", gopher(12, 1536, 12), "417M", ERRATUM),
    Preset("gopher-1.4b", gopher(24, 2048, 16), "1.4B", ERRATUM),
    Preset("gopher-7.1b", gopher(32, 4096, 32), "7.1B", ERRATUM),
    Preset("gopher-280b", gopher(80, 16_384, 128), "280B", ERRATUM, training=TRAINING | GROWN, alias="gopher"),
    sizes=f"Rae et al. 2021, arXiv:2112.11446, table 1; {ASSUMED}",
    tokenizer="SentencePiece BPE with byte fallback, 32,000",
    training=TRAINING,
    misprints=(
        Misprint("activation", "ReLU", f"{STARTS}, neither of them the activation: GPT-2's GELU stays"),
        Misprint("positions", RELATIVE, f"{STARTS}: one is the relative positions of Transformer-XL, not T5's"),
    ),
)
CHINCHILLA = Origin("chinchilla", "gopher", 2022, "arXiv:2203.15556, section 4.1").lineage(
    "a quarter of the size on four times the tokens",
    Preset("chinchilla-70b", gopher(80, 8192, 64), "70B", ERRATUM, alias="chinchilla"),
    family="gopher",
    sizes=f"Hoffmann et al. 2022, arXiv:2203.15556, table 4; {ASSUMED}",
    tokenizer="SentencePiece BPE, 32,000, without NFKC",
    training={
        "source": "Hoffmann et al. 2022, arXiv:2203.15556, table 4 and section 4.1",
        "batch": "1.5M tokens, doubled to 3M midway; the recipe has 3M throughout",
        "optimiser state": "a float32 copy of the weights beside bfloat16 ones",
        "betas, eps, decay, warm-up, clipping": "not said; AdamW's own, Gopher's warm-up and 1.0 in the recipe",
    },
    misprints=(
        Misprint("activation", "ReLU", f"{KEEPS}: GELU"),
        Misprint("positions", RELATIVE, f"{KEEPS}: Transformer-XL's positions"),
    ),
)
