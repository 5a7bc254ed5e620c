"""Published recipes of GPT-3 and of those that follow it: OPT, GPT-NeoX, Pythia, BLOOM, Gopher, Chinchilla.

Batches printed as 0.5M, 1M, 2M tokens are powers of two of rows; a batch that grows in the paper has its last size here.
What a paper does not say is in the presets' lineages (`training`), beside what a recipe has no field for.
"""

from __future__ import annotations

from collections.abc import Mapping

from anyformer.recipe.optimizer import Adam, AdamW
from anyformer.recipe.recipe import DropoutSpec, Recipe
from anyformer.recipe.schedule import Constant, CosineDecay, LinearDecay, Warmup

ROW = 2048  # tokens of a row in all of them
B = 1_000_000_000
WARMUP = 375_000_000  # tokens: GPT-3's, and those of OPT and BLOOM after it


def _gpt3(lr: float, rows: int) -> Recipe:
    """Brown et al. 2020, arXiv:2005.14165, table 2.1 and appendix B."""
    return Recipe(
        tokens=300 * B,
        seq_len=ROW,
        batch_tokens=rows * ROW,
        optimizer=AdamW(lr=lr, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1),
        # A tenth of the peak is reached after 260B tokens, warm-up included; training goes on at that.
        schedule=(Warmup(tokens=WARMUP), CosineDecay(to=0.1, tokens=260 * B - WARMUP), Constant()),
        clip=1.0,
        precision="bf16",
    )


def _opt(lr: float, rows: int, warmup: Warmup | None = None) -> Recipe:
    """Zhang et al. 2022, arXiv:2205.01068, section 2.2 and table 1; only the 175B counts its warm-up in steps."""
    return Recipe(
        tokens=300 * B,
        seq_len=ROW,
        batch_tokens=rows * ROW,
        optimizer=AdamW(lr=lr, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1),
        schedule=(warmup or Warmup(tokens=WARMUP), LinearDecay(to=0.1)),
        clip=1.0,
        dropout=DropoutSpec(attention=0.1, residual=0.1),
        precision="bf16",
    )


def _neox(lr: float, rows: int, steps: int) -> Recipe:
    """Black et al. 2022, arXiv:2204.06745, appendix B; Biderman et al. 2023, arXiv:2304.01373, appendix (from memory)."""
    return Recipe(
        tokens=steps * rows * ROW,
        seq_len=ROW,
        batch_tokens=rows * ROW,
        optimizer=AdamW(lr=lr, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.01),
        schedule=(Warmup(share=0.01), CosineDecay(to=0.1)),
        clip=1.0,
        precision="bf16",
    )


def _bloom(lr: float, rows: int, tokens: int, least: float) -> Recipe:
    """Le Scao et al. 2022, arXiv:2211.05100, table 3 (from memory): a cosine over 410B tokens, stopped before its end."""
    return Recipe(
        tokens=tokens,
        seq_len=ROW,
        batch_tokens=rows * ROW,
        optimizer=AdamW(lr=lr, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1),
        schedule=(Warmup(tokens=WARMUP), CosineDecay(to=least / lr, tokens=410 * B - WARMUP)),
        clip=1.0,
        precision="bf16",
    )


def _gopher(lr: float, rows: int, clip: float) -> Recipe:
    """Rae et al. 2021, arXiv:2112.11446, section 3.2 and table 1."""
    return Recipe(
        tokens=300 * B,
        seq_len=ROW,
        batch_tokens=rows * ROW,
        optimizer=Adam(lr=lr, beta1=0.9, beta2=0.999),
        schedule=(Warmup(start=1e-7 / lr, steps=1500), CosineDecay(to=0.1)),
        clip=clip,
        precision="bf16",
    )


_CHINCHILLA = Recipe(
    tokens=1400 * B,
    seq_len=ROW,
    batch_tokens=1536 * ROW,
    optimizer=AdamW(lr=1e-4, beta1=0.9, beta2=0.999),
    schedule=(Warmup(steps=1500), CosineDecay(to=0.1)),
    precision="bf16",
)
"""Hoffmann et al. 2022, arXiv:2203.15556, table 4."""

GPT_RECIPES: Mapping[str, Recipe] = {
    "gpt3-125m": _gpt3(6e-4, 256),
    "gpt3-350m": _gpt3(3e-4, 256),
    "gpt3-760m": _gpt3(2.5e-4, 256),
    "gpt3-1.3b": _gpt3(2e-4, 512),
    "gpt3-2.7b": _gpt3(1.6e-4, 512),
    "gpt3-6.7b": _gpt3(1.2e-4, 1024),
    "gpt3-13b": _gpt3(1e-4, 1024),
    "gpt3-175b": _gpt3(6e-5, 1562),  # 3.2M tokens
    "opt-125m": _opt(6e-4, 256),
    "opt-350m": _opt(3e-4, 256),
    "opt-1.3b": _opt(2e-4, 512),
    "opt-2.7b": _opt(1.6e-4, 512),
    "opt-6.7b": _opt(1.2e-4, 1024),
    "opt-13b": _opt(1e-4, 2048),
    "opt-30b": _opt(1e-4, 2048),
    "opt-66b": _opt(8e-5, 1024),
    "opt-175b": _opt(1.2e-4, 1024, Warmup(steps=2000)),
    "gpt-neox-20b": _neox(9.7e-5, 1538, 150_000),
    "pythia-70m": _neox(1e-3, 1024, 143_000),
    "pythia-160m": _neox(6e-4, 1024, 143_000),
    "pythia-410m": _neox(3e-4, 1024, 143_000),
    "pythia-1b": _neox(3e-4, 1024, 143_000),
    "pythia-1.4b": _neox(2e-4, 1024, 143_000),
    "pythia-2.8b": _neox(1.6e-4, 1024, 143_000),
    "pythia-6.9b": _neox(1.2e-4, 1024, 143_000),
    "pythia-12b": _neox(1.2e-4, 1024, 143_000),
    "bloom-7b1": _bloom(1.2e-4, 512, 341 * B, 1e-5),
    "bloom-176b": _bloom(6e-5, 2048, 366 * B, 6e-6),
    "gopher-44m": _gopher(6e-4, 128, 1.0),
    "gopher-117m": _gopher(6e-4, 128, 1.0),
    "gopher-417m": _gopher(2e-4, 128, 1.0),
    "gopher-1.4b": _gopher(2e-4, 128, 1.0),
    "gopher-7.1b": _gopher(1.2e-4, 1024, 0.25),
    "gopher-280b": _gopher(4e-5, 3072, 0.25),  # 6M tokens
    "chinchilla-70b": _CHINCHILLA,
}
