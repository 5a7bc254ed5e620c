"""Models that are not public: what is known of them is shown, and building or costing them is refused in one line."""

import pytest

import anyformer as af
from anyformer.errors import SpecError
from anyformer.families import PRESETS, UNDISCLOSED
from tests.cli.running import answer, run, succeeded

every_one = pytest.mark.parametrize("name", UNDISCLOSED)


def test_both_of_the_tables_are_there() -> None:
    assert {"gpt-4", "anthropic-lm-2021"} == set(UNDISCLOSED)
    assert not set(UNDISCLOSED) & set(PRESETS)


@every_one
def test_show_says_what_is_public_and_what_is_not(name: str) -> None:
    words = " ".join(succeeded(run("show", name)).output.split())
    assert UNDISCLOSED[name].missing.split(",")[0] in words
    assert UNDISCLOSED[name].public[0].split(",")[0] in words
    assert answer("show", name)["public"] == [*UNDISCLOSED[name].public]


@every_one
def test_building_and_costing_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(SpecError, match=f"^{name} cannot be built or costed: its authors have not published"):
        af.preset(name)
    with pytest.raises(SpecError) as refused:
        af.load_spec(name)
    assert "\n" not in str(refused.value)


def test_presets_lists_them_apart() -> None:
    listed = run("presets").output
    before, after = listed.split("Not public", 1)
    for name in UNDISCLOSED:
        assert name in after
        assert name not in before.split()
    told = answer("presets")
    assert [model["name"] for model in told["undisclosed"]] == [*UNDISCLOSED]
    assert not {model["name"] for model in told["presets"]} & set(UNDISCLOSED)
