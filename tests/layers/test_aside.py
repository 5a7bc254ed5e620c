"""A layer that computes something aside: what it refuses as it is made."""

from __future__ import annotations

import pytest

from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.layers import AsideSpec, GainSpec
from anyformer.resizing import shrink

LAYER = shrink(preset("llama3-8b").spec).stack.blocks[0]


def test_one_sublayer_at_least_reads_what_lies_aside() -> None:
    with pytest.raises(SpecError, match=r"Block.connection = Aside leaves none of 2 sublayers to read"):
        LAYER.but(connection=AsideSpec())


def test_there_is_no_way_around_what_lies_aside() -> None:
    """A skip of it would be learned by nobody."""
    first, second = LAYER.sublayers
    scaled = GainSpec(over="features")
    LAYER.but(sublayers=(first, second.but(skip=scaled)), connection=AsideSpec(n=1))
    with pytest.raises(
        SpecError, match=r"Block.connection = Aside has no way around the first 1 sublayers that a skip"
    ):
        LAYER.but(sublayers=(first.but(skip=scaled), second), connection=AsideSpec(n=1))
