"""Permutation language modelling: tokens from those before them in a random order. Yang et al. 2019 (XLNet), arXiv:1906.08237."""

from __future__ import annotations

from typing import ClassVar

from anyformer.spec import AtLeastOne, TrueShare
from anyformer.training.objectives.specification import ObjectiveSpec


class PermutedLM(ObjectiveSpec):
    """Tokens from those before them in a random order, which stand on both sides. XLNet: arXiv:1906.08237, section 2."""

    share: TrueShare = 1 / 6  # of a document, the last of its order, is to be predicted: 1 / K of section 2.3
    mean_length: AtLeastOne = 3.0  # of the runs of neighbours that are, tokens

    whole: ClassVar[bool] = False

    @property
    def predicted_share(self) -> float:
        return self.share / (1 + self.share)  # what is predicted stands there twice, as itself and as a blank
