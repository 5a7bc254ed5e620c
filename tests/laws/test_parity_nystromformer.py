"""Law 6 for Nyströmformer with landmarks, whose class takes rows of one length, and one start of the inverse for a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from anyformer.errors import CheckpointError
from anyformer.families import FAMILIES, preset
from anyformer.families.compose import changed
from anyformer.families.hf.mapping import spec_of
from anyformer.families.hf.nystromformer import HEADS
from anyformer.hub import load, save
from anyformer.layers import AttentionSpec, NystromAttentionSpec, ValueConvolutionSpec
from anyformer.resizing import shrink
from anyformer.spec import Count, Length, ModelSpec, Window
from tests.laws.inputs import Inputs
from tests.laws.parity import InDouble, differences, pair, rounding, single
from tests.laws.tolerance import FLOAT32, VISIBLE, close, distance
from tests.laws.weights import filled, telling

SPEC = shrink(preset("nystromformer-4096").spec)
LENGTH, MANY = 64, 16
SETTINGS = {"model_type": "nystromformer", **FAMILIES["nystromformer"].to_config(preset("nystromformer-4096").spec)}


def rows(n: int = LENGTH) -> Inputs:
    """Return two rows of n tokens, of which theirs is given one after the other."""
    ids = torch.randint(3, SPEC.vocab_size, (2, n), generator=torch.Generator().manual_seed(0))
    return Inputs(ids, torch.ones_like(ids).bool()).row_by_row()


def with_landmarks(n: int, length: int = LENGTH, **fields: Any) -> ModelSpec:
    spec = changed(SPEC, NystromAttentionSpec, n_landmarks=Count(n), **fields)
    return spec.but(context=Length(length))


def test_the_shrunk_model_has_several_tokens_a_landmark() -> None:
    (found,) = {each.n_landmarks for each in SPEC.nested(NystromAttentionSpec)}
    assert (found, SPEC.context) == (MANY, LENGTH)


@pytest.mark.parametrize("n", [1, 2, 8, MANY, 32])
def test_logits_hidden_states_and_gradients_are_those_of_transformers(n: int) -> None:
    spec = with_landmarks(n)
    found = differences(pair(spec), rows())
    assert found.largest < single(spec)


@pytest.mark.parametrize("n", [8, MANY])
def test_in_float64_nothing_is_left_but_rounding(n: int) -> None:
    spec = with_landmarks(n)
    with InDouble():
        both = pair(spec)
        both.ours.double()
        both.theirs.double()
        found = differences(both, rows())
    assert found.largest < rounding(spec)


@pytest.mark.parametrize(
    ("part", "fields"),
    [
        (NystromAttentionSpec, {"iterations": 5}),
        (NystromAttentionSpec, {"n_landmarks": Count(MANY // 2)}),
        (ValueConvolutionSpec, {"size": Window(3)}),
        (NystromAttentionSpec, {"convolution": None}),
    ],
)
def test_a_distinguishing_field_is_seen(part: Any, fields: dict[str, Any]) -> None:
    other, weights, given = changed(SPEC, part, **fields), telling(SPEC), rows()
    mine = {
        name: weight for name, weight in weights.items() if fields.get("convolution", ...) or "convolution" not in name
    }
    if part is ValueConvolutionSpec:
        mine = {name: w[:, 1:-1] if "convolution" in name else w for name, w in mine.items()}
    with torch.no_grad():
        before, after = (given.run(filled(spec, w)).logits for spec, w in ((SPEC, weights), (other, mine)))
    assert distance(after, before) > VISIBLE * FLOAT32


@pytest.mark.parametrize("architecture", HEADS.classes)
def test_every_class_goes_both_ways(architecture: str, tmp_path: Any) -> None:
    bare = SPEC.but(heads=())
    spec = bare.but(heads=tuple(HEADS.headings[head].make(bare, 4) for head in HEADS.classes[architecture]))
    model, ids = filled(spec, telling(spec)), rows().input_ids[:1]
    assert save(model, tmp_path / "ours").form == "hf"
    theirs, report = getattr(transformers, architecture).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    theirs.save_pretrained(tmp_path / "theirs")
    back, _ = load(tmp_path / "theirs")
    assert back.spec.but(init=spec.init) == spec
    with torch.no_grad():
        close(model(ids).last_hidden_state, theirs.base_model(ids).last_hidden_state)
        for head, answer in model(ids).outputs.items():
            close(back(ids).outputs[head], answer)


def test_as_many_landmarks_as_tokens_is_attention_to_all() -> None:
    """Whatever the length of a text: what the released files say."""
    _, spec = spec_of(FAMILIES, {**SETTINGS, "num_landmarks": 64, "segment_means_seq_len": 64}, "config.json")
    assert not any(spec.nested(NystromAttentionSpec))
    assert all(each.convolution for each in spec.nested(AttentionSpec))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"segment_means_seq_len": 1000}, "segment_means_seq_len = 1000 is the length of every text"),
        ({"segment_means_seq_len": 8192}, "segment_means_seq_len = 8192 .* fit max_position_embeddings"),
        ({"inv_coeff_init_option": True}, "inv_coeff_init_option = True"),  # which their class cannot be made with
        ({"conv_kernel_size": 64}, "ValueConvolution.size = 64 must be odd"),
    ],
)
def test_settings_that_are_not_computed_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        spec_of(FAMILIES, SETTINGS | change, "config.json")
