"""ALiBi instead of positions: BLOOM (Le Scao et al. 2022, arXiv:2211.05100), MPT (MosaicML 2023)."""

from __future__ import annotations

from anyformer.families.compose import attend, feed, language_model, repeat, serial
from anyformer.families.lineage import Misprint, Origin, Preset
from anyformer.layers import GELU, ALiBiSpec, LayerNormSpec
from anyformer.spec import ModelSpec


def bloom(n_layers: int, d_model: int, n_heads: int) -> ModelSpec:
    """ALiBi instead of positions, a norm after the embedding, sublayers in turn (section 3.2 and figure 5)."""
    norm, attention = LayerNormSpec(eps=1e-5), attend(n_heads, bias=True, scores=(ALiBiSpec(),))
    blocks = repeat(serial(norm, attention, feed(4 * d_model, GELU(form="tanh"))), n_layers)
    return language_model(250_880, d_model, blocks, norm, tied=True, embedding_norm=norm, context=2048)


def mpt(n_layers: int, d_model: int, n_heads: int, *, context: int = 2048) -> ModelSpec:
    """GPT-3's layers with ALiBi instead of positions and no biases, those of norms among them (the release, from memory)."""
    norm, attention = LayerNormSpec(eps=1e-5, bias=False), attend(n_heads, scores=(ALiBiSpec(),))
    blocks = repeat(serial(norm, attention, feed(4 * d_model, GELU(), bias=False)), n_layers)
    return language_model(50_432, d_model, blocks, norm, tied=True, context=context)


TURN = "tables that call its branches parallel are wrong: the paper's figure 5 and the released code take them in turn"
TRAINING = {
    "source": "Le Scao et al. 2022, arXiv:2211.05100, table 3 and section 3.3 (from memory)",
    "precision": "bfloat16 mixed",
    "gradient reduction": "float32",
    "optimiser state": "float32, ZeRO stage 1",
}

BLOOM = Origin("bloom", "gpt3", 2022, "arXiv:2211.05100, section 3.2").lineage(
    "ALiBi, a norm after the embedding, 250,680 tokens",
    Preset("bloom-560m", bloom(24, 1024, 16), "559M", TURN),
    Preset("bloom-1b1", bloom(24, 1536, 16), "1065M", TURN),
    Preset("bloom-1b7", bloom(24, 2048, 16), "1722M", TURN),
    Preset("bloom-3b", bloom(30, 2560, 32), "3003M", TURN),
    Preset("bloom-7b1", bloom(30, 4096, 32), "7069M", TURN, training=TRAINING, alias="bloom"),
    Preset("bloom-176b", bloom(70, 14_336, 112), "176247M", TURN, training=TRAINING),
    sizes="Le Scao et al. 2022, arXiv:2211.05100, table 3 (from memory)",
    tokenizer="byte-level BPE, 250,680, padded to 250,880",
    misprints=(
        Misprint(
            "branches",
            "parallel",
            "arXiv:2211.05100, figure 5, and the released code take attention and feed-forward in turn",
        ),
    ),
)
MPT = Origin("mpt", "gpt3", 2023, "the releases of MPT-7B and MPT-30B, May and June 2023, from memory").lineage(
    "ALiBi, no biases",
    Preset("mpt-7b", mpt(32, 4096, 32), "6.7B", "6.65B, which the release rounds up", alias="mpt"),
    Preset("mpt-30b", mpt(48, 7168, 64, context=8192), "30B", "29.96B"),
    sizes="MosaicML 2023, the released configurations (from memory)",
    tokenizer="byte-level BPE (GPT-NeoX's), 50,277 padded to 50,432",
)
