"""Replaced-token detection: which words of a text a smaller model has put there. Clark et al. 2020, arXiv:2003.10555."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from anyformer.spec import ModelSpec, Positive, Share, SomeShare, TrueShare
from anyformer.training.objectives.specification import MASK, ObjectiveSpec


class ReplacedTokens(ObjectiveSpec):
    """Which tokens are not the text's: a generator, trained beside the model and left behind, fills in hidden ones.

    The loss is the mean of the generator's, over what is hidden, and `weight` times the mean of the model's, over all tokens
    (section 2). The generator is the model at `generator_width` and `generator_depth` times its size, with a head for masked
    words (section 3.2: between 1/4 and 1/2 is best), or one of its own. `embeddings`: "shared" (section 3.2), "disentangled",
    where only the generator's loss moves what both share (DeBERTaV3: arXiv:2111.09543, section 3.2), or "separate".
    """

    rate: TrueShare = 0.15  # of tokens, special ones not counted, are hidden; large: 0.25
    # of these are shown to the generator as the mask, the rest as they are; released code: 0.85
    mask_share: Share = 1.0
    generator_width: SomeShare = 0.25  # base: 1/3
    generator_depth: SomeShare = 1.0  # DeBERTaV3: 0.5, at a width of 1
    generator: ModelSpec | None = None  # given: what the two sizes before do not make
    embeddings: Literal["shared", "disentangled", "separate"] = "shared"
    weight: Positive = 50.0
    temperature: Positive = 1.0  # what the generator's logits are divided by, to draw from

    roles: ClassVar[Mapping[str, str]] = MASK
    whole: ClassVar[bool] = False
