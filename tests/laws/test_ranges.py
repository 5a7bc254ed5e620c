"""Every field of every specification and recipe is bounded by its type; what is beyond is refused where the value is made."""

import dataclasses
import math
from typing import Annotated, Any, get_args, get_type_hints

import pytest

import anyformer.recipe
from anyformer.errors import SpecError
from anyformer.families import PRESETS
from anyformer.recipe import AdamW, Recipe, Warmup
from anyformer.spec import Count, MapSpec, Positive, Rate, Spec, Width, ranges

KINDS = {name: kind for name, kind in Spec.kinds.items() if kind.__module__.startswith("anyformer.")}
UNBOUNDED: dict[str, str] = {}  # "Kind.field": why any number will do


def scalars(hint: Any) -> set[Any]:
    """The numbers, texts and lists that a type is made of."""
    plain = getattr(hint, "__supertype__", hint)
    if plain in (int, float, str):
        return {plain}
    return set().union(*map(scalars, getattr(hint, "__args__", ())))


FIELDS = [
    (f"{name}.{field}", hint)
    for name, kind in KINDS.items()
    for field, hint in get_type_hints(kind, include_extras=True).items()
    if field in kind.types()
]
NUMBERS = [(name, hint) for name, hint in FIELDS if scalars(hint) & {int, float} and name not in UNBOUNDED]


def as_field(hint: Any, value: Any) -> Any:
    """The value, in a tuple where the field holds several."""
    return (value,) if "tuple" in str(hint) else value


@pytest.mark.parametrize(("name", "hint"), NUMBERS, ids=[name for name, _ in NUMBERS])
def test_every_number_has_a_range(name: str, hint: Any) -> None:
    refuse = ranges.refuse(hint)
    for value in (math.nan, math.inf, -math.inf, 10**400, 1e31, -1e31, True, "1", [1]):
        assert refuse(as_field(hint, value)), f"{name} takes {value!r}"
    if int in scalars(hint):
        for value in (-1, 2**53 + 1 if name != "Recipe.seed" else 2**63, 1.5, 1.0):
            assert refuse(as_field(hint, value)), f"{name} takes {value!r}"


def test_every_text_is_short_and_prints() -> None:
    texts = [(name, hint) for name, hint in FIELDS if str in scalars(hint)]
    assert len(texts) > 50
    for name, hint in texts:
        for value in ("", "x" * 201, "a\x1b[31m", "a\nb"):
            taken = value == "a\nb" and ranges.Passage in get_args(hint)
            assert (ranges.refuse(hint)(as_field(hint, value)) is None) == taken, f"{name}: {value!r}"


def test_what_is_refused_is_so_where_it_is_made() -> None:
    value = AdamW()
    for change, said in (
        ({"lr": math.nan}, "AdamW.lr = nan must be a finite number"),
        ({"lr": -1.0}, "AdamW.lr = -1.0 must be above 0"),
        ({"lr": 1e-40}, "AdamW.lr = 1e-40 must be at least 1e-30"),
        ({"beta1": 1.0}, "AdamW.beta1 = 1.0 must be at least 0 and below 1"),
        ({"beta2": "x"}, "AdamW.beta2 = 'x' must be a number"),
    ):
        with pytest.raises(SpecError, match=said):
            value.but(**change)
    with pytest.raises(SpecError, match=r"Warmup\.steps = 0 must be at least 1, or null"):
        Warmup(steps=0)


def test_a_list_without_a_default_is_not_empty() -> None:
    model = PRESETS["gpt2"].spec
    sublayer = model.stack.blocks[0].sublayers[0]
    for part, name in (
        (sublayer, "branches"),
        (model.stack.blocks[0], "sublayers"),
        (model.stack, "blocks"),
        (model.stack.embedding, "terms"),
    ):
        with pytest.raises(SpecError, match=rf"{part.kind}\.{name} = \(\) is empty"):
            part.but(**{name: ()})


def test_a_new_field_is_bounded_by_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Spec, "kinds", dict(Spec.kinds))

    class Mine(MapSpec):
        size: Width
        n: Annotated[Count, ranges.Range(2, 4)] = Count(2)
        much: Positive | None = None
        rates: tuple[Rate, ...] = ()
        plain: float = 0.0

        def __post_init__(self) -> None:
            assert self.size > 0  # comes after the ranges

    made = Mine(size=Width(3))
    assert made.but(much=None, rates=(0.5,)).rates == (0.5,)
    for change in ({"size": 0}, {"n": 5}, {"much": 0.0}, {"rates": (0.5, 1.0)}, {"rates": 0.5}, {"plain": 1e31}):
        with pytest.raises(SpecError, match=rf"Mine\.{next(iter(change))} = .* must be"):
            made.but(**change)


def test_depth_and_breadth_are_bounded() -> None:
    model = PRESETS["gpt2"].spec
    stack, block = model.stack, model.stack.blocks[0]
    with pytest.raises(SpecError, match="must be a list of at most 10,000"):
        stack.but(blocks=(block,) * 10_001)
    with pytest.raises(SpecError, match="must be a list of at most 256"):
        block.but(sublayers=block.sublayers[:1] * 257)
    with pytest.raises(SpecError, match="must be a tuple of at most 256"):
        block.but(sublayers=[*block.sublayers])
    wide = block.but(sublayers=block.sublayers[:1] * 256)
    with pytest.raises(SpecError, match=r"values, .* of them different"):
        stack.but(blocks=(wide,) * 10_000)


def test_published_recipes_and_presets_are_in_range() -> None:
    assert anyformer.recipe.RECIPES
    assert all(preset.spec == dataclasses.replace(preset.spec) for preset in PRESETS.values())
    assert Recipe().seed == 0
