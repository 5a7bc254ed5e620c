"""Law 1: decode(encode(spec)) == spec, unknown keys are refused, and files written before still mean the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from anyformer.errors import SpecError
from anyformer.families import PRESETS, preset
from anyformer.families.compose import changed
from anyformer.layers import GatedFeedForwardSpec
from anyformer.spec import ModelSpec, TableSpec, Vocab, Width, decode, dumps, encode, loads, parameters
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


@pytest.mark.parametrize("kinds", [2, 13, 14, 25, 26])
def test_a_stack_of_many_kinds_of_layers_is_read_again(kinds: int) -> None:
    spec = preset("llama3-8b").spec
    blocks = tuple(changed(spec.stack.blocks[0], GatedFeedForwardSpec, d_ff=Width(64 + i)) for i in range(kinds))
    twice, thrice = (spec.but(stack=spec.stack.but(blocks=blocks * times)) for times in (2, 3))
    assert all(loads(dumps(twice, form)) == twice for form in ("json", "yaml"))
    assert twice.key != thrice.key


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("eps: 1.0e-05", "epps: 1.0e-05", "did you mean 'eps'?"),
        ("kind: RMSNorm", "kind: RMSNrm", "did you mean 'RMSNorm'?"),
        ("d_model: 4096", "d_model: wide", "stack.d_model = 'wide' must be of type int"),
        ("d_model: 4096", "d_model: true", "stack.d_model = True must be of type int"),
        ("n_heads: 32", "n_heads: 7", "must be a multiple of n_kv_heads"),
        ("pattern: a", "pattern: 3z", "blocks.pattern has 'z', which is not written out; give stack.blocks.z"),
        ("anyformer: 1", "anyformer: 99", "version 99"),
        ("anyformer: 1\n", "", "no first key"),
        ("init: ByRole", "init: [", "neither JSON nor YAML"),
        ("d_model: 4096", "", "Stack needs d_model"),
        ("kind: RMSNorm", "kind: [a]", "['a'] is no kind of Map"),
        ("kind: RMSNorm", "kind: {a: b}", "{'a': 'b'} is no kind of Map"),
        ("residual: Add", "residual: {kind: 3}", "stack.residual: 3 is no kind of Residual"),
        ("mask: Causal", "reads: [self]", "reads = ['self'] is none of 'self'"),
        ("mask: Causal", "reads: {a: 1}", "reads = {'a': 1} is none of 'self'"),
        ("pattern: a", 'pattern: "1"', "'1' is no repeat count and letter"),
        ("pattern: a", "pattern: 0b a\n    b: {like: a}", "'0b' is no repeat count and letter"),
        ("pattern: a", "pattern: ²a", "'²a' is no repeat count and letter"),
        ("pattern: a", "pattern: [a]", "is no repeat count and letter"),
        ("pattern: a", "pattern: 999999999a", "makes 10,001 layers; 10,000 is the most"),
        ("pattern: a", "pattern: 9999999999999a", "is no repeat count and letter"),
        ("n: 32", "n: 1000000000", "stack.blocks.n makes 1,000,000,000 layers; 10,000 is the most"),
        ("n: 32", "n: true", "stack.blocks.n = True must be of type int"),
        ("n: 32", "n: 2.0", "stack.blocks.n = 2.0 must be of type int"),
        ("n: 32", "n: 0", "n = 0 layers of the pattern 'a' make no stack; both must be positive"),
        (
            "n: 32",
            "n: 32\n    b: {like: a}",
            "stack.blocks.b is no layer of the pattern 'a'; write it there or leave it out",
        ),
        ("n: 32", "n: 32\n    bb: {like: a}", "stack.blocks.bb is no layer of the pattern 'a'"),
        ("d_ff: 14336", "d_ff: -3072", "GatedFeedForward.d_ff = -3072 must be at least 1"),
        ("d_ff: 14336", "d_ff: 1000000000000000000", "must be at most 268,435,456"),
        ("theta: 500000.0", f"theta: {'9' * 99}", "Rotary.theta = 1e+99 must be at most"),
        ("theta: 500000.0", "theta: -1", "Rotary.theta = -1.0 must be above 0"),
        ("eps: 1.0e-05", "eps: .nan", "RMSNorm.eps = nan must be a finite number"),
        ("anyformer: 1", "anyformer: true", "version True"),
        ("anyformer: 1", "anyformer: 1\n1: 2", "has the key 1"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(old: str, new: str, said: str) -> None:
    text = dumps(preset("llama3-8b").spec)
    assert old in text
    with pytest.raises(SpecError) as error:
        loads(text.replace(old, new, 1), "my.yaml")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_sizes_that_do_not_go_together_are_refused_as_the_file_is_read() -> None:
    """Of several models, only the file's name says whose they are."""
    text = dumps(preset("gpt2").spec)
    with pytest.raises(SpecError, match=r"^my\.yaml: GQA\.n_heads = 7 does not divide d_model = 768"):
        loads(text.replace("n_heads: 12", "n_heads: 7", 1), "my.yaml")


def test_numbers_beyond_floats_are_refused() -> None:
    data = encode(preset("llama3-8b").spec, ModelSpec)
    data["stack"]["norm"] = {"kind": "RMSNorm", "eps": 10**400}
    with pytest.raises(SpecError, match="must be of type float"):
        decode(data)


def test_a_tensor_that_no_number_of_bytes_holds_is_refused() -> None:
    spec = preset("llama3-8b").spec
    wide = spec.but(stack=spec.stack.but(d_model=Width(2**28)))
    with pytest.raises(SpecError, match=r"a table of vocab 4,294,967,296 × d_model 268,435,456 cannot be"):
        parameters(wide.but(heads=(spec.heads[0].but(table=TableSpec(rows=Vocab(2**32))),)))
