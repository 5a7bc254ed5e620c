"""Relative positions by profiles of distance that each query mixes: Inkling (Thinking Machines 2026, transformers' class)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.linear import Linear, LinearSpec
from anyformer.layers.part import Part
from anyformer.layers.scores import Content, ScoreSpec
from anyformer.layers.tokens import Tokens
from anyformer.spec import Cost, Place, Placed, Weight, Width, Window, Workload


class DistanceProfilesSpec(ScoreSpec):
    """r · B[distance] for the keys less than `extent` back, and nothing for others: r is `width` numbers that a head makes of
    what its query is made of, and B one table for all heads. It is not scaled as q · k is; what queries grow by, it grows by."""

    heads_apart = True
    reads_content = True
    width: Width
    extent: Window

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"weight": Weight((self.width, self.extent), ("features", "distance"), "table")}

    def parts(self, place: Place) -> Mapping[str, Placed]:
        states = LinearSpec(d_out=Width(place.shape[0] * self.width), axes=("heads", "d_model"))
        return {"states": (states, place.at(place.d_model))}

    def cost(self, place: Place, workload: Workload) -> Cost:
        """The map to states, and their products with the table."""
        each = 2 * place.shape[0] * self.width * workload.tokens
        return Cost({"projections": each * place.d_model, "distances": each * self.extent})


class DistanceProfiles(Part[DistanceProfilesSpec]):
    states: Linear
    weight: Tensor

    def forward(self, content: Content, query: Tokens, key: Tokens) -> Tensor:
        """Scores [batch, heads, query, key]."""
        assert content.x is not None
        states = self.states(content.x).unflatten(-1, (self.place.shape[0], -1)).transpose(1, 2)
        every = states @ self.weight  # [batch, heads, query, distance]
        every = every if content.growth is None else every * content.growth.to(every.dtype)
        distance, beyond = query.position - key.position, self.spec.extent
        wanted = torch.where(distance < 0, beyond, distance.clamp(max=beyond))
        return F.pad(every, (0, 1)).gather(-1, wanted.expand(*every.shape[:-1], -1))
