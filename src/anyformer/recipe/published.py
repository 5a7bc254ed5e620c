"""Recipes known by name: the default for small models, and published ones, each with its source."""

from __future__ import annotations

from collections.abc import Mapping

from anyformer.errors import SpecError, did_you_mean
from anyformer.recipe.published_decoders import DECODERS
from anyformer.recipe.recipe import Adam, AdamW, DropoutSpec, Recipe
from anyformer.recipe.schedule import CosineDecay, InverseSqrtDecay, LinearDecay, Warmup
from anyformer.spec import ScaleSpec
from anyformer.training.objectives.seq2seq import Seq2Seq

SMALL = Recipe()

QUICK = Recipe(tokens=800_000, seq_len=128, batch_tokens=512, schedule=(Warmup(share=0.2), CosineDecay(to=0.02)))
"""For comparing models of a few million parameters within minutes: many small steps, and a warm-up as long as post-norm
models need (Xiong et al. 2020, arXiv:2002.04745, section 3)."""

OLMO_1B_0724 = Recipe(
    tokens=2_050_000_000_000,
    seq_len=4096,
    batch_tokens=512 * 4096,
    optimizer=AdamW(lr=4e-4, beta1=0.9, beta2=0.95, eps=1e-5, weight_decay=0.1),
    # Warm-up and cosine together take the first 2,000B tokens; 5e-5 is an eighth of the peak.
    schedule=(Warmup(steps=2000), CosineDecay(to=5e-5 / 4e-4), LinearDecay(to=0.0, tokens=50_000_000_000)),
    clip=1.0,
    precision="bf16",
)
"""AI2 2024, OLMo 1B July 2024 (allenai/OLMo-1B-0724-hf, model card and training configuration; Groeneveld et al. 2024,
arXiv:2402.00838, section 3). Gradients are reduced and the optimiser's state is kept in float32, as here always."""

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

RECIPES: Mapping[str, Recipe] = {
    "small": SMALL,
    "quick": QUICK,
    "transformer-2017": TRANSFORMER_2017,
    "olmo-1b-0724": OLMO_1B_0724,
    **DECODERS,
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
