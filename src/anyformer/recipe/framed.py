"""Objectives about whole texts, each read as the tokenizer frames it: what opens a text, the text, what closes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from anyformer.recipe.objectives import ObjectiveSpec

PADDED = {"pad_token": "<pad>"}  # transformers finds a row's last token by what is no padding


class FramedTexts(ObjectiveSpec, abstract=True):
    """What the model is to say of a text, not of what comes after it."""

    truncate: bool = False  # cut texts that are longer than a row; they are refused otherwise

    roles: ClassVar[Mapping[str, str]] = PADDED
    whole: ClassVar[bool] = False
