"""Recipes known by name: the default for small models, and published ones, each with its source.

Batches printed as 0.5M, 1M, 2M tokens are powers of two of rows; a batch that grows in the paper has its last size here.
What a paper does not say is in the presets' lineages (`training`), beside what a recipe has no field for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.errors import SpecError, did_you_mean
from anyformer.recipe.optimizer import Adafactor, Adam, AdamW, OptimizerSpec
from anyformer.recipe.recipe import DropoutSpec, Recipe, RouterTraining, SequenceBalance
from anyformer.recipe.schedule import Constant, CosineDecay, InverseSqrtDecay, LinearDecay, PieceSpec, Warmup
from anyformer.spec import ScaleSpec
from anyformer.training.objectives.denoising import SpanCorruption
from anyformer.training.objectives.seq2seq import Seq2Seq

SMALL = Recipe()

QUICK = Recipe(tokens=800_000, seq_len=128, batch_tokens=512, schedule=(Warmup(share=0.2), CosineDecay(to=0.02)))
"""For comparing models of a few million parameters within minutes: many small steps, and a warm-up as long as post-norm
models need (Xiong et al. 2020, arXiv:2002.04745, section 3)."""

TRANSFORMER_2017 = Recipe(
    objective=Seq2Seq(),
    tokens=100_000 * 25_000,
    batch_tokens=25_000,
    # d_model^-0.5 · min(step^-0.5, step · 4000^-1.5) has its peak at step 4000.
    optimizer=Adam(lr=ScaleSpec(factor=4000**-0.5, power=-0.5), beta1=0.9, beta2=0.98, eps=1e-9),
    schedule=(Warmup(steps=4000), InverseSqrtDecay()),
    clip=None,
    dropout=DropoutSpec(embedding=0.1, residual=0.1),
    label_smoothing=0.1,
)
"""Vaswani et al. 2017, arXiv:1706.03762, section 5, the base model: 100,000 steps of about 25,000 source and 25,000
target tokens; dropout on what sub-layers write and on the sums of embeddings and positions (section 5.4)."""

B = 1_000_000_000
T = 1_000 * B
ROW = 2048  # tokens of a row, where nothing else is said
WARMUP = 375_000_000  # tokens: GPT-3's, and those of OPT and BLOOM after it
STEPS = 2000  # of warm-up in LLaMA 1 and 2, OLMo 1B and DeepSeek


def _recipe(
    tokens: int, rows: int, optimizer: OptimizerSpec, *schedule: PieceSpec, seq_len: int = ROW, **fields: Any
) -> Recipe:
    """A recipe in bf16, of batches of so many rows. What is left at its default, betas and decay too, is the paper's."""
    return Recipe(
        tokens=tokens,
        seq_len=seq_len,
        batch_tokens=rows * seq_len,
        optimizer=optimizer,
        schedule=schedule,
        precision="bf16",
        **fields,
    )


_T5 = _recipe(
    1_000_000 * 2048 * 512,
    2048,
    Adafactor(lr=1e-2),
    Constant(steps=10_000),
    InverseSqrtDecay(),
    seq_len=512,
    objective=SpanCorruption(),
    clip=None,
    dropout=DropoutSpec(embedding=0.1, attention=0.1, residual=0.1, activation=0.1),
)
"""Raffel et al. 2019, arXiv:1910.10683, sections 3.1.2 and 3.7: the rate is 1/√max(step, 10,000)."""


def _gpt3(lr: float, rows: int) -> Recipe:
    """Brown et al. 2020, arXiv:2005.14165, table 2.1 and appendix B."""
    # A tenth of the peak is reached after 260B tokens, warm-up included; training goes on at that.
    decay = CosineDecay(to=0.1, tokens=260 * B - WARMUP)
    return _recipe(300 * B, rows, AdamW(lr=lr), Warmup(tokens=WARMUP), decay, Constant())


def _opt(lr: float, rows: int, warmup: Warmup | None = None) -> Recipe:
    """Zhang et al. 2022, arXiv:2205.01068, section 2.2 and table 1; only the 175B counts its warm-up in steps."""
    dropout = DropoutSpec(attention=0.1, residual=0.1)
    return _recipe(300 * B, rows, AdamW(lr=lr), warmup or Warmup(tokens=WARMUP), LinearDecay(to=0.1), dropout=dropout)


def _neox(lr: float, rows: int, steps: int) -> Recipe:
    """Black et al. 2022, arXiv:2204.06745, appendix B; Biderman et al. 2023, arXiv:2304.01373, appendix (from memory)."""
    return _recipe(steps * rows * ROW, rows, AdamW(lr=lr, weight_decay=0.01), Warmup(share=0.01), CosineDecay(to=0.1))


def _bloom(lr: float, rows: int, tokens: int, least: float) -> Recipe:
    """Le Scao et al. 2022, arXiv:2211.05100, table 3 (from memory): a cosine over 410B tokens, stopped before its end."""
    decay = CosineDecay(to=least / lr, tokens=410 * B - WARMUP)
    return _recipe(tokens, rows, AdamW(lr=lr), Warmup(tokens=WARMUP), decay)


def _gopher(lr: float, rows: int, clip: float) -> Recipe:
    """Rae et al. 2021, arXiv:2112.11446, section 3.2 and table 1."""
    adam = Adam(lr=lr, beta1=0.9, beta2=0.999)
    return _recipe(300 * B, rows, adam, Warmup(start=1e-7 / lr, steps=1500), CosineDecay(to=0.1), clip=clip)


_CHINCHILLA = _recipe(1400 * B, 1536, AdamW(lr=1e-4, beta2=0.999), Warmup(steps=1500), CosineDecay(to=0.1))
"""Hoffmann et al. 2022, arXiv:2203.15556, table 4."""


def _llama(lr: float, tokens: int, seq_len: int = ROW, eps: float = 1e-8) -> Recipe:
    """Touvron et al. 2023, arXiv:2302.13971, section 2.3 and table 2; arXiv:2307.09288, section 2.2 and table 1."""
    rows = 4 * 2**20 // seq_len
    return _recipe(tokens, rows, AdamW(lr=lr, eps=eps), Warmup(steps=STEPS), CosineDecay(to=0.1), seq_len=seq_len)


_LLAMA_3_405B = _recipe(
    15_600 * B, 2048, AdamW(lr=8e-5, eps=1e-5), Warmup(steps=8000), CosineDecay(to=8e-7 / 8e-5), seq_len=8192
)
"""Grattafiori et al. 2024, arXiv:2407.21783, section 3.4.1."""


def _olmo(lr: float, tokens: int, rows: int, warmup: int) -> Recipe:
    """Groeneveld et al. 2024, arXiv:2402.00838, section 3.2 and table 5 (from memory): a straight line to a tenth."""
    return _recipe(tokens, rows, AdamW(lr=lr, eps=1e-5), Warmup(steps=warmup), LinearDecay(to=0.1))


# Warm-up and cosine together take the first 2,000B tokens; 5e-5 is an eighth of the peak.
OLMO_1B_0724 = _recipe(
    2050 * B,
    512,
    AdamW(lr=4e-4, eps=1e-5),
    Warmup(steps=STEPS),
    CosineDecay(to=5e-5 / 4e-4),
    LinearDecay(to=0.0, tokens=50 * B),
    seq_len=4096,
)
"""AI2 2024, OLMo 1B July 2024 (allenai/OLMo-1B-0724-hf, model card and training configuration; Groeneveld et al. 2024,
arXiv:2402.00838, section 3). Gradients are reduced and the optimiser's state is kept in float32, as here always."""


def _deepseek(lr: float, tokens: int, rows: int, first: float, least: float, balance: float = 0.0) -> Recipe:
    """The peak until `first` of the tokens, then √0.1 of it, for their last tenth `least` of it.

    DeepSeek-AI 2024, arXiv:2401.02954, section 2.3 and table 2; arXiv:2405.04434, section 3.1.2.
    """
    schedule = (
        Warmup(steps=STEPS),
        Constant(tokens=round(first * tokens) - STEPS * rows * 4096),
        LinearDecay(to=0.316, steps=1),
        Constant(tokens=round((0.9 - first) * tokens)),
        LinearDecay(to=least, steps=1),
        Constant(),
    )
    router = RouterTraining(losses=(SequenceBalance(weight=balance),) if balance else ())
    return _recipe(tokens, rows, AdamW(lr=lr), *schedule, seq_len=4096, router=router)


_DEEPSEEK_V3 = _recipe(
    14_800 * B,
    15_360,
    AdamW(lr=2.2e-4),
    Warmup(steps=STEPS),
    Constant(tokens=10 * T - STEPS * 15_360 * 4096),
    CosineDecay(to=0.1, tokens=4300 * B),
    Constant(tokens=333 * B),
    LinearDecay(to=7.3e-6 / 2.2e-4, steps=1),
    Constant(),  # the last 167B tokens
    seq_len=4096,
    router=RouterTraining(losses=(SequenceBalance(weight=1e-4),), correction_speed=1e-3),
)
"""DeepSeek-AI 2024, arXiv:2412.19437, section 4.2."""

RECIPES: Mapping[str, Recipe] = {
    "small": SMALL,
    "quick": QUICK,
    "transformer-2017": TRANSFORMER_2017,
    "olmo-1b-0724": OLMO_1B_0724,
    **dict.fromkeys(("t5-small", "t5-base", "t5-large", "t5-3b", "t5-11b"), _T5),
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
    "deepseek-7b": _deepseek(4.2e-4, 2 * T, 2304, 0.8, 0.1),
    "deepseek-67b": _deepseek(3.2e-4, 2 * T, 4608, 0.8, 0.1),
    "deepseek-v2-lite": _deepseek(4.2e-4, 5700 * B, 4608, 0.8, 0.316**2, 1e-3),
    "deepseek-v2": _deepseek(2.4e-4, 8100 * B, 9216, 0.6, 0.316**2, 3e-3),
    "deepseek-v3": _DEEPSEEK_V3,
}
"""The default ones, and those of presets, by the preset's name."""


def named(name: str) -> Recipe:
    """The recipe of that name. Raises SpecError with the nearest name."""
    if name not in RECIPES:
        raise SpecError(
            f"there is no recipe {name!r}{did_you_mean(name, RECIPES)}; there are {', '.join(list(RECIPES)[:4])} and those "
            "of presets, such as gpt3-175b: `anyformer show NAME` has a preset's, if it is published"
        )
    return RECIPES[name]
