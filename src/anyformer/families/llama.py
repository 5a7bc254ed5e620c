"""LLaMA 1 to 3.2, each derived from the one before: arXiv:2302.13971, arXiv:2307.09288, arXiv:2407.21783."""

from __future__ import annotations

from functools import partial

from anyformer.families.compose import attend, gated, language_model, repeat, serial
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import Llama3Scaling, RMSNormSpec, RotaryScalingSpec, RotarySpec, SiLU
from anyformer.spec import ModelSpec


def llama(
    n_layers: int,
    d_model: int,
    n_heads: int,
    d_ff: int,
    n_kv_heads: int | None = None,
    *,
    head_dim: int | None = None,
    vocab_size: int = 32_000,
    eps: float = 1e-6,
    theta: float = 10_000.0,
    scaling: RotaryScalingSpec | None = None,
    tied: bool = False,
    context: int = 2048,
) -> ModelSpec:
    """Pre-norm RMSNorm, rotary positions, SwiGLU, no biases (arXiv:2302.13971, section 2.2).

    What descends from it and takes `sizes` takes the first five in this order.
    """
    norm = RMSNormSpec(eps=eps)
    attention = attend(n_heads, n_kv_heads, head_dim, rotary=RotarySpec(theta=theta, scaling=scaling))
    layer = serial(norm, attention, gated(d_ff, SiLU()))
    # The papers do not say how weights start; 0.02 is the usual deviation.
    return language_model(vocab_size, d_model, repeat(layer, n_layers), norm, tied=tied, context=context)


# Each generation is the one before with other numbers; grouped queries are a matter of size until LLaMA 3.
llama2 = partial(llama, eps=1e-5, context=4096)
llama3 = partial(llama2, n_kv_heads=8, head_dim=128, vocab_size=128_256, theta=500_000.0, context=8192)
llama31 = partial(llama3, scaling=Llama3Scaling(factor=8.0), context=131_072)
llama32 = partial(llama31, scaling=Llama3Scaling(factor=32.0), tied=True)

LLAMA_3 = "Grattafiori et al. 2024, arXiv:2407.21783, table 3"
SENTENCEPIECE = "SentencePiece BPE with byte fallback, 32,000"
TIKTOKEN = "byte-level BPE (tiktoken), 128,256"
CUT = "{}, which the paper cuts to the name"

LLAMA = Origin("llama", "gpt3", 2023, "arXiv:2302.13971, section 2.2").lineage(
    "RMSNorm, rotary positions, SwiGLU, no biases, every layer dense",
    Preset("llama-7b", llama(32, 4096, 32, 11_008), "6.7B", alias="llama"),
    Preset("llama-13b", llama(40, 5120, 40, 13_824), "13.0B"),
    Preset("llama-33b", llama(60, 6656, 52, 17_920), "32.5B"),
    Preset("llama-65b", llama(80, 8192, 64, 22_016), "65.2B", "65.286B, which the paper truncates"),
    sizes="Touvron et al. 2023, arXiv:2302.13971, table 2",
    tokenizer=SENTENCEPIECE,
    training={
        "source": "Touvron et al. 2023, arXiv:2302.13971, section 2.3 and table 2",
        "batch": "printed as 4M tokens; 4 · 2^20 in the recipe",
        "eps": "not said; 1e-8 in the recipe",
    },
)
LLAMA2 = Origin("llama2", "llama", 2023, "arXiv:2307.09288, section 2.2").lineage(
    "4,096 tokens; grouped queries in the 70B",
    Preset("llama2-7b", llama2(32, 4096, 32, 11_008), "7B", alias="llama2"),
    Preset("llama2-13b", llama2(40, 5120, 40, 13_824), "13B"),
    Preset("llama2-70b", llama2(80, 8192, 64, 28_672, 8), "70B", "68.98B, which the paper rounds to the name"),
    family="llama",
    sizes="Touvron et al. 2023, arXiv:2307.09288, table 1",
    tokenizer=SENTENCEPIECE,
    training={
        "source": "Touvron et al. 2023, arXiv:2307.09288, section 2.2 and table 1",
        "batch": "printed as 4M tokens; 4 · 2^20 in the recipe",
    },
)
LLAMA3 = Origin("llama3", "llama2", 2024, "arXiv:2407.21783, section 3.2").lineage(
    "128,256 tokens, theta 500,000, grouped queries at every size",
    Preset("llama3-8b", llama3(32, 4096, 32, 14_336), "8B", alias="llama3"),
    Preset("llama3-70b", llama3(80, 8192, 64, 28_672), "70B", CUT.format("70.55B")),
    family="llama",
    sizes=LLAMA_3,
    tokenizer=TIKTOKEN,
)
LLAMA3_1 = Origin("llama3.1", "llama3", 2024, "arXiv:2407.21783, section 3.4.2").lineage(
    "frequencies stretched to 131,072 tokens",
    Preset("llama3.1-8b", llama31(32, 4096, 32, 14_336), "8B"),
    Preset("llama3.1-70b", llama31(80, 8192, 64, 28_672), "70B", CUT.format("70.55B")),
    Preset(
        "llama3.1-405b",
        llama31(126, 16_384, 128, 53_248),
        "405B",
        CUT.format("405.85B"),
        training={
            "source": "Grattafiori et al. 2024, arXiv:2407.21783, sections 3.4.1 to 3.4.3",
            "batch": "4M tokens of 4,096, 8M of 8,192 after 252M tokens, 16M after 2.87T; the recipe has 16M "
            "throughout, so it takes fewer than the 1,200,000 steps of the schedule",
            "annealing": "over the last 40M tokens linearly to 0, at 128k of context; before it 800B tokens of longer "
            "contexts",
            "betas, eps, decay, clipping": "not said; LLaMA 2's in the recipe",
            "gradient reduction": "float32 (section 3.3.2)",
        },
    ),
    family="llama",
    sizes=LLAMA_3,
    tokenizer=TIKTOKEN,
)
LLAMA3_2 = Origin("llama3.2", "llama3.1", 2024, "the model card of Llama 3.2").lineage(
    "tied tables, a larger stretch",
    Preset("llama3.2-1b", llama32(16, 2048, 32, 8192, head_dim=64), "1.23B", "1.236B, which the card cuts"),
    Preset("llama3.2-3b", llama32(28, 3072, 24, 8192), "3.21B"),
    family="llama",
    sizes="Meta 2024, Llama 3.2 model card; context extended as in arXiv:2407.21783",
    tokenizer=TIKTOKEN,
)
