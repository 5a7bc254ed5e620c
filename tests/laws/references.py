"""Which presets transformers has a class for, and what the others are held against."""

from __future__ import annotations

from pathlib import Path

from anyformer.families import PRESETS
from tests.laws.models import SHRUNK

HERE = Path(__file__).parent

# Families without a class in transformers: the test that holds them against another implementation.
ELSEWHERE = {
    "phi3_small": "test_parity_phi3_small.py",
    "transformer": "test_parity_2017.py",
    "sparse_transformer": "test_parity_elsewhere.py",
    "gpt3": "test_parity_elsewhere.py",
    "gopher": "test_parity_elsewhere.py",
    "lamda": "test_parity_elsewhere.py",
    "palm": "test_parity_elsewhere.py",
}


COMPARED = {names: spec for names, spec in SHRUNK.items() if PRESETS[names.split(" = ")[0]].family not in ELSEWHERE}
"""Each distinct shrunk preset that is held against transformers; the others are in ELSEWHERE."""
FULL_SIZED = tuple(name for name, preset in PRESETS.items() if preset.family not in ELSEWHERE)
