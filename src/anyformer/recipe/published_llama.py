"""Published recipes of LLaMA and of those that descend from it: OLMo, DeepSeek.

A batch that grows in the paper has its last size here. What a paper does not say, and what a recipe has no field for, is in
the presets' lineages (`training`).
"""

from __future__ import annotations

from collections.abc import Mapping

from anyformer.recipe.optimizer import AdamW
from anyformer.recipe.recipe import Recipe
from anyformer.recipe.router import RouterTraining, SequenceBalance
from anyformer.recipe.schedule import Constant, CosineDecay, LinearDecay, PieceSpec, Warmup

B = 1_000_000_000
T = 1_000 * B
STEPS = 2000  # of warm-up in LLaMA 1 and 2, OLMo 1B and DeepSeek


def _llama(lr: float, tokens: int, seq_len: int = 2048, eps: float = 1e-8) -> Recipe:
    """Touvron et al. 2023, arXiv:2302.13971, section 2.3 and table 2; arXiv:2307.09288, section 2.2 and table 1."""
    return Recipe(
        tokens=tokens,
        seq_len=seq_len,
        batch_tokens=4 * 2**20,
        optimizer=AdamW(lr=lr, beta1=0.9, beta2=0.95, eps=eps, weight_decay=0.1),
        schedule=(Warmup(steps=STEPS), CosineDecay(to=0.1)),
        clip=1.0,
        precision="bf16",
    )


_LLAMA_3_405B = Recipe(
    tokens=15_600 * B,
    seq_len=8192,
    batch_tokens=16 * 2**20,
    optimizer=AdamW(lr=8e-5, beta1=0.9, beta2=0.95, eps=1e-5, weight_decay=0.1),
    schedule=(Warmup(steps=8000), CosineDecay(to=8e-7 / 8e-5)),
    clip=1.0,
    precision="bf16",
)
"""Grattafiori et al. 2024, arXiv:2407.21783, section 3.4.1."""


def _olmo(lr: float, tokens: int, rows: int, warmup: int) -> Recipe:
    """Groeneveld et al. 2024, arXiv:2402.00838, section 3.2 and table 5 (from memory): a straight line to a tenth."""
    return Recipe(
        tokens=tokens,
        seq_len=2048,
        batch_tokens=rows * 2048,
        optimizer=AdamW(lr=lr, beta1=0.9, beta2=0.95, eps=1e-5, weight_decay=0.1),
        schedule=(Warmup(steps=warmup), LinearDecay(to=0.1)),
        clip=1.0,
        precision="bf16",
    )


def _stepped(tokens: int, batch_tokens: int, first: float, second: float, least: float) -> tuple[PieceSpec, ...]:
    """The peak until `first` of the tokens, then √0.1 of it, from `second` on `least` of it."""
    warmup = STEPS * batch_tokens
    return (
        Warmup(steps=STEPS),
        Constant(tokens=round(first * tokens) - warmup),
        LinearDecay(to=0.316, steps=1),
        Constant(tokens=round((second - first) * tokens)),
        LinearDecay(to=least, steps=1),
        Constant(),
    )


def _deepseek(
    lr: float, tokens: int, rows: int, first: float, second: float, least: float, balance: float = 0.0
) -> Recipe:
    """DeepSeek-AI 2024, arXiv:2401.02954, section 2.3 and table 2; arXiv:2405.04434, section 3.1.2."""
    losses = (SequenceBalance(weight=balance),) if balance else ()
    return Recipe(
        tokens=tokens,
        seq_len=4096,
        batch_tokens=rows * 4096,
        optimizer=AdamW(lr=lr, beta1=0.9, beta2=0.95, weight_decay=0.1),
        schedule=_stepped(tokens, rows * 4096, first, second, least),
        clip=1.0,
        router=RouterTraining(losses=losses),
        precision="bf16",
    )


_ROWS_V3 = 15_360
_DEEPSEEK_V3 = Recipe(
    tokens=14_800 * B,
    seq_len=4096,
    batch_tokens=_ROWS_V3 * 4096,
    optimizer=AdamW(lr=2.2e-4, beta1=0.9, beta2=0.95, weight_decay=0.1),
    schedule=(
        Warmup(steps=STEPS),
        Constant(tokens=10 * T - STEPS * _ROWS_V3 * 4096),
        CosineDecay(to=0.1, tokens=4300 * B),
        Constant(tokens=333 * B),
        LinearDecay(to=7.3e-6 / 2.2e-4, steps=1),
        Constant(),  # the last 167B tokens
    ),
    clip=1.0,
    router=RouterTraining(losses=(SequenceBalance(weight=1e-4),), correction_speed=1e-3),
    precision="bf16",
)
"""DeepSeek-AI 2024, arXiv:2412.19437, section 4.2."""

LLAMA_RECIPES: Mapping[str, Recipe] = {
    "llama-7b": _llama(3e-4, 1 * T),
    "llama-13b": _llama(3e-4, 1 * T),
    "llama-33b": _llama(1.5e-4, 1400 * B),
    "llama-65b": _llama(1.5e-4, 1400 * B),
    "llama2-7b": _llama(3e-4, 2 * T, 4096, 1e-5),
    "llama2-13b": _llama(3e-4, 2 * T, 4096, 1e-5),
    "llama2-70b": _llama(1.5e-4, 2 * T, 4096, 1e-5),
    "llama3.1-405b": _LLAMA_3_405B,
    "olmo-1b": _olmo(4e-4, 2 * T, 2048, STEPS),
    "olmo-7b": _olmo(3e-4, 2460 * B, 2160, 5000),
    "deepseek-7b": _deepseek(4.2e-4, 2 * T, 2304, 0.8, 0.9, 0.1),
    "deepseek-67b": _deepseek(3.2e-4, 2 * T, 4608, 0.8, 0.9, 0.1),
    "deepseek-v2-lite": _deepseek(4.2e-4, 5700 * B, 4608, 0.8, 0.9, 0.316**2, 1e-3),
    "deepseek-v2": _deepseek(2.4e-4, 8100 * B, 9216, 0.6, 0.9, 0.316**2, 3e-3),
    "deepseek-v3": _DEEPSEEK_V3,
}
