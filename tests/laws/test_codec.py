"""Law 1: decode(encode(spec)) == spec, unknown keys are refused, and files written before still mean the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from anyformer.errors import SpecError
from anyformer.families import PRESETS, preset
from anyformer.spec import ModelSpec, decode, dumps, encode, loads
from tests.laws.combinations import decoders
from tests.laws.models import every_preset

GOLDEN = Path(__file__).parent / "golden"


@every_preset
def test_presets_survive_both_forms(spec: ModelSpec) -> None:
    for form in ("json", "yaml"):
        again = loads(dumps(spec, form))
        assert again == spec
        assert hash(again) == hash(spec)
        assert again.key == spec.key


@given(spec=decoders())
@settings(max_examples=60, deadline=None)
def test_combinations_survive_both_forms(spec: ModelSpec) -> None:
    assert decode(json.loads(json.dumps(encode(spec)))) == spec
    assert loads(dumps(spec)) == spec


@pytest.mark.parametrize("name", PRESETS)
def test_golden_file_still_means_the_preset(name: str) -> None:
    path = GOLDEN / f"{name}.yaml"
    assert path.exists(), f"write it once with `anyformer show {name} --spec yaml`, read it, and commit it"
    assert loads(path.read_text(encoding="utf-8"), path.name) == PRESETS[name].spec


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(PRESETS)


def test_a_file_is_compact() -> None:
    text = dumps(preset("llama3.1-405b").spec)
    assert text.count("GatedFeedForward") == 1
    assert len(text.splitlines()) < 45


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("eps: 1.0e-05", "epps: 1.0e-05", "did you mean 'eps'?"),
        ("kind: RMSNorm", "kind: RMSNrm", "did you mean 'RMSNorm'?"),
        ("d_model: 4096", "d_model: wide", "stack.d_model = 'wide' must be of type int"),
        ("d_model: 4096", "d_model: true", "stack.d_model = True must be of type int"),
        ("n_heads: 32", "n_heads: 7", "must be a multiple of n_kv_heads"),
        ("pattern: a", "pattern: 3z", "'3z' is no repeat count and letter"),
        ("anyformer: 1", "anyformer: 99", "version 99"),
        ("anyformer: 1\n", "", "no first key"),
        ("init: ByRole", "init: [", "neither JSON nor YAML"),
        ("residual: Add", "", "Stack needs residual"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(old: str, new: str, said: str) -> None:
    text = dumps(preset("llama3-8b").spec)
    assert old in text
    with pytest.raises(SpecError) as error:
        loads(text.replace(old, new, 1), "my.yaml")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
