"""A small tokenizer, trained once, and the material of other people where it is there."""

from pathlib import Path

import pytest
from hypothesis import settings

from anyformer.text import Tokenizer
from tests.text.samples import TEXTS

# Tests share the machine with others: how long one example takes says nothing.
settings.register_profile("anyformer", deadline=None)
settings.load_profile("anyformer")

MATERIAL = Path(__file__).parents[3] / "shared" / "material"


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS, vocab_size=600)


@pytest.fixture
def material() -> Path:
    if not MATERIAL.is_dir():
        pytest.skip("no ../shared/material beside the repository")
    return MATERIAL
