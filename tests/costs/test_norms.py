"""What is a norm is known by what it derives from, never by what it is called: by cards, diagrams and diffs alike."""

from __future__ import annotations

from collections.abc import Mapping

from anyformer.descriptions import card, diagram, side_by_side
from anyformer.families import preset
from anyformer.families.compose import repeat
from anyformer.layers import NormSpec
from anyformer.spec import MapSpec, ModelSpec, Place, Weight


class OfThePeakSpec(NormSpec):
    """x divided by its largest number, times a weight."""

    eps: float = 1e-3

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"weight": Weight(place.shape, ("d_model",), "gain", fill=1.0)}


class NormalNoiseSpec(MapSpec):
    """x and noise that is normally distributed: no norm."""

    scale: float = 0.1


def with_norm(norm: MapSpec) -> ModelSpec:
    """Return LLaMA 2 with this where its norms are."""
    stack = preset("llama2-7b").spec.stack
    (layer,) = {id(block): block for block in stack.blocks}.values()
    layer = layer.but(sublayers=tuple(sublayer.but(norm_in=norm) for sublayer in layer.sublayers))
    blocks = repeat(layer, len(stack.blocks))
    return preset("llama2-7b").spec.but(stack=stack.but(blocks=blocks, norm=norm))


def drawn_as(spec: ModelSpec, name: str) -> set[str]:
    return {box.kind for box in diagram(spec).boxes if name in " ".join(box.lines)}


def test_a_users_own_norm_is_one_whatever_it_is_called() -> None:
    spec = with_norm(OfThePeakSpec())
    said = {row.key: row.words for row in card(spec).rows}
    assert said["norm"] == "OfThePeak"
    assert said["norm_eps"] == "0.001"
    assert said["norm_placement"] == "pre-norm"
    assert "branch_maps" not in said
    rows = {row.part: row for row in side_by_side(spec, preset("llama2-7b").spec).rows}
    assert rows["norm"].values[0].startswith("OfThePeak")
    assert not rows["norm placement"].differs
    assert drawn_as(spec, "OfThePeak") == {"norm"}


def test_what_is_only_called_so_is_none() -> None:
    spec = with_norm(NormalNoiseSpec())
    said = {row.key: row.words for row in card(spec).rows}
    assert "norm" not in said
    assert said["norm_placement"] == "no norm"
    assert said["branch_maps"] == "NormalNoise before a branch"
    assert drawn_as(spec, "NormalNoise") == {"map"}
