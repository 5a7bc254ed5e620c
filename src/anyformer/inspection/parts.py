"""Neurons and experts, layer by layer: how much each matters, of `importance`, which has them by tensors."""

from __future__ import annotations

from anyformer.inspection.results import PartsFigures
from anyformer.inspection.sites import Sites
from anyformer.spec import ModelSpec
from anyformer.surgery import Anatomy, Importance

# By the axis of what writes them. Where there are both, neurons of one number are in every expert, and no parts by themselves.
PARTS = {"experts": "experts", "d_ff": "neurons"}


def of_parts(spec: ModelSpec, sites: Sites, importance: Importance) -> tuple[PartsFigures, ...]:
    """The neurons or experts of each map that writes to a stream, in the order of a pass; of a shared map those of the first."""
    left, tensors, found = dict(importance), Anatomy(spec).tensors, []
    for site in sites.branches:
        for path, (name, _) in tensors.items():
            axes = left.pop(name, {}) if path.startswith(f"{site.path}.") else {}
            if (axis := next((each for each in PARTS if each in axes), None)) is not None:
                found.append(PartsFigures(site.stack, site.layer, site.kind, PARTS[axis], axes[axis]))
    return tuple(found)
