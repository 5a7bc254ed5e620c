"""Which presets transformers has a class for, and what the others are held against."""

from __future__ import annotations

from pathlib import Path

from anyformer.families import PRESETS, Preset
from anyformer.layers import NystromAttentionSpec
from tests.laws.models import SHRUNK

HERE = Path(__file__).parent

# Families without a class in transformers: the test that holds them against another implementation.
ELSEWHERE = {
    "phi3_small": "test_parity_phi3_small.py",
    "transformer": "test_parity_2017.py",
    "sparse_transformer": "test_parity_elsewhere.py",
    "lstm": "test_parity_recurrent.py",
    "gru": "test_parity_recurrent.py",
    "awd-lstm": "test_parity_recurrent.py",
    "reformer": "../layers/test_lsh.py",  # its class goes back in training only, through rows that fill its positions
    "gpt3": "test_parity_elsewhere.py",
    "gopher": "test_parity_elsewhere.py",
    "hourglass": "test_parity_hourglass.py",
    "lamda": "test_parity_elsewhere.py",
    "palm": "test_parity_elsewhere.py",
    "mpnet": "test_parity_encoders.py",  # its class has one number of buckets, whatever the size of the model
}


LANDMARKS = "test_parity_nystromformer.py"  # the class takes texts of one length, a multiple of the landmarks

# The classes pass over what predicts further tokens; the rest of such a model is another preset, and compared.
AHEAD = "../training/test_multi_token.py"

DECODED = "test_parity_deberta_decoder.py"  # no class has DeBERTa's enhanced mask decoder


def elsewhere(preset: Preset) -> str | None:
    """Return the file, from here, that holds a preset against another implementation; None: transformers does."""
    if any(head.layers is not None for head in preset.spec.heads):
        return DECODED
    if any(preset.spec.nested(NystromAttentionSpec)):
        return LANDMARKS
    return AHEAD if preset.spec.ahead else ELSEWHERE.get(preset.family)


COMPARED = {names: spec for names, spec in SHRUNK.items() if elsewhere(PRESETS[names.split(" = ")[0]]) is None}
"""Each distinct shrunk preset that is held against transformers; the others are held against what `elsewhere` names."""
FULL_SIZED = tuple(name for name, preset in PRESETS.items() if elsewhere(preset) is None)
