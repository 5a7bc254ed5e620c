"""Where a model stands among the published ones: read from the presets, not typed in."""

from __future__ import annotations

import pytest

from anyformer.descriptions import FieldPosition, check, field_comparison
from anyformer.descriptions.check.field_comparison import RATIOS, WIDTH, survey
from anyformer.families import PRESETS, preset
from anyformer.layers import FeedForwardSpec, GatedFeedForwardSpec
from anyformer.spec import Width
from tests.layers.test_own_parts import model_of_own_parts
from tests.sample import sampled


def place(name: str, key: str) -> FieldPosition:
    return next(found for found in field_comparison(preset(name)) if found.key == key)


# As the papers' tables have them.
KNOWN = {
    ("t5-11b", "d_ff_per_d_model"): 65536 / 1024,
    ("gpt2", "d_ff_per_d_model"): 4.0,
    ("llama2-7b", "gated_d_ff_per_d_model"): 11008 / 4096,
    ("gemma-7b", "gated_d_ff_per_d_model"): 24576 / 3072,
    ("deepseek-v3", "active_d_ff_per_d_model"): (8 + 1) * 2048 / 7168,
    ("mixtral-8x7b", "active_experts_share"): 2 / 8,
    ("t5-11b", "heads_per_d_model"): 128 * 128 / 1024,
    ("gemma-7b", "head_dim"): 256,
    ("llama2-70b", "heads_per_kv_head"): 8,
    ("falcon-7b", "heads_per_kv_head"): 71,
    ("gpt3-175b", "d_model_per_layer"): 12288 / 96,
    ("gemma3-27b", "theta_per_token"): 1e6 / 131072,
}


@pytest.mark.parametrize(("name", "key"), KNOWN)
def test_proportions(name: str, key: str) -> None:
    assert place(name, key).value == pytest.approx(KNOWN[name, key], rel=1e-12)


def test_the_range_is_that_of_the_presets() -> None:
    """Oracle: read straight off the first layer, without what the survey goes by."""
    for key, kind in (("d_ff_per_d_model", FeedForwardSpec), ("gated_d_ff_per_d_model", GatedFeedForwardSpec)):
        published = survey()[key]
        for name, value in published.items():
            stack = PRESETS[name].spec.stack
            first = stack.blocks[0]
            found = [mixer for mixer in first.mixers if type(mixer) is kind]  # a mixture may stand beside it
            widths = {v.d_ff / stack.d_model for v in found or first.nested() if type(v) is kind}
            assert widths in ({value}, set()), name
        assert list(published.values()) == sorted(published.values())


def test_the_one_that_breaks_the_rule_of_four() -> None:
    found = place("gpt2", "d_ff_per_d_model")
    assert next(iter(found.outliers.items())) == ("t5-11b", 64.0)
    assert (found.high, found.usual) == (64.0, (4.0, 4.0))
    assert "gpt2" not in found.outliers
    assert not found.beyond


def test_breakers_lie_beyond_the_fences() -> None:
    """Quartiles 2 and 8: of the logarithms of base 2, 1 and 3, so that the fences are at 2^-2 and 2^6."""
    values = {"a": 0.2, "b": 0.3, "c": 2.0, "d": 2.0, "e": 4.0, "f": 8.0, "g": 8.0, "h": 60.0, "i": 70.0}
    assert FieldPosition("x", "x", "", 4.0, values).outliers == {"a": 0.2, "i": 70.0}
    assert list(FieldPosition("x", "x", "", 4.0, values).outliers) == ["a", "i"], "0.2 is 20 times away from 4, 70 less"
    assert "falcon-7b" in place("gpt2", "heads_per_kv_head").outliers


def test_what_no_published_model_does_is_noted() -> None:
    model = preset("gpt2").spec
    from anyformer.families.compose import changed

    wide = changed(model, FeedForwardSpec, d_ff=Width(100 * 768))
    (text,) = [f.text for f in check(wide) if f.about == "field"]
    assert text.startswith("d_ff / d_model is 100; published models have ")
    assert "to 64" in text
    assert not [f for f in check(model) if f.about == "field"]


def test_the_strip_shows_the_place() -> None:
    lows = FieldPosition("a", "a", "", 1.0, {"x": 1.0, "y": 10.0, "z": 100.0})
    assert lows.strip[0] == "●"
    middle = FieldPosition("a", "a", "", 10.0, {"x": 1.0, "y": 10.0, "z": 100.0})
    assert middle.strip.index("●") in (WIDTH // 2 - 1, WIDTH // 2)
    beyond = FieldPosition("a", "a", "", 1e4, {"x": 1.0, "y": 10.0, "z": 100.0})
    assert beyond.beyond
    assert beyond.strip.endswith("●")
    assert beyond.strip[WIDTH * 3 // 4] == " "
    alone = FieldPosition("a", "a", "", 4.0, {"x": 4.0})
    assert alone.strip.strip() == "●"


@pytest.mark.parametrize("name", sampled([*PRESETS]))
def test_every_preset_stands_somewhere(name: str) -> None:
    places = field_comparison(preset(name))
    assert {"vocab_size", "d_model_per_layer"} <= {found.key for found in places}
    for found in places:
        assert not found.beyond
        assert found.published[name] == found.value
        assert found.low <= found.usual[0] <= found.usual[1] <= found.high
        assert len(found.strip) == WIDTH
        assert found.strip.count("●") == 1


def test_what_a_model_lacks_has_no_place() -> None:
    keys = {found.key for found in field_comparison(preset("gpt2"))}
    assert keys.isdisjoint({"gated_d_ff_per_d_model", "active_experts_share", "theta_per_token"})
    assert len({ratio.key for ratio in RATIOS}) == len(RATIOS)
    assert field_comparison(model_of_own_parts())
