"""Law 2: declared parameters are those that are built; they equal the published total, or an erratum says why not."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings

from anyformer.families import PRESETS, Preset
from anyformer.model import build
from anyformer.spec import ModelSpec, Place, parameters, tensors
from tests.laws.combinations import decoders
from tests.laws.models import every_preset
from tools.catalogue import DATA, catalogue

UNITS = {"M": 10**6, "B": 10**9}
# Counted by hand from the papers' tables, or published to the digit: Radford et al.'s checkpoints, Meta's model cards.
EXACT = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "gemma-2b": 1_981_884_416 + 256_000 * 2048,  # the paper's table 2, the vocabulary as released
    "gemma-7b": 7_751_248_896 + 256_000 * 3072,
    "t5-small": 60_506_624,
    "t5-large": 737_668_096,
    "t5-v1.1-small": 76_961_152,
    "t5-v1.1-base": 247_577_856,
    "t5-v1.1-large": 783_150_080,
    "t5-v1.1-xl": 2_849_757_184,
    "t5-v1.1-xxl": 11_135_332_352,
    "phi4-mini": 3_836_021_760,
}


@every_preset
def test_declared_is_built(spec: ModelSpec) -> None:
    declared = {path: weight.shape for path, weight in tensors(spec, Place())}
    assert {path: tuple(value.shape) for path, value in build(spec, device="meta").named_parameters()} == declared


@given(spec=decoders())
@settings(max_examples=40, deadline=None)
def test_declared_is_built_for_combinations(spec: ModelSpec) -> None:
    built = {path: tuple(value.shape) for path, value in build(spec, device="meta").state_dict().items()}
    assert built == {path: weight.shape for path, weight in tensors(spec, Place())}


@pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))
def test_published_total(preset: Preset) -> None:
    total = parameters(preset.spec).total
    if preset.name in EXACT:
        assert total == EXACT[preset.name]
    if preset.published is None:
        return
    digits = re.fullmatch(r"(\d+)(?:\.(\d+))?([MB])", preset.published)
    assert digits, preset.published
    shown = f"{total / UNITS[digits[3]]:.{len(digits[2] or '')}f}{digits[3]}"
    assert shown == preset.published or preset.erratum, (
        f"{preset.name} has {shown}, {preset.published} is published: say why"
    )


def test_catalogue_is_up_to_date() -> None:
    assert json.loads(DATA.read_text(encoding="utf-8")) == catalogue(), "run `make catalogue`"
