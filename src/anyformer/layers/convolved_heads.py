"""Compressed convolutional attention: queries and keys are convolved over time. Figliolia et al. 2025, arXiv:2510.04476.

Queries, keys and values are as narrow as all heads are, and attention takes place there. Each channel of queries and keys is
convolved by itself, then those of a head with each other; what went in, a query's and its key's, is added again; of the values
the second half is of the token before.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from anyformer.layers.causal_convolution import CausalConvolution, CausalConvolutionSpec
from anyformer.layers.context import ForwardContext, Store
from anyformer.layers.part import Part
from anyformer.layers.recurrence import steps_of
from anyformer.spec import Cost, Few, PartSpec, Place, Placed, Weight, Workload


class ConvolvedHeadsSpec(PartSpec):
    """Queries q and keys k: both convolved twice, plus (q + k) / 2 of each query, for a key its queries' mean of that.

    Its place's shape is (heads of queries and of keys, head_dim).
    """

    each: Few = 2  # tokens of the convolution of each channel, its own among them
    heads: Few = 2  # of that of the channels of a head

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        n_heads, head_dim = place.shape
        return {"shift": Weight((n_heads * head_dim,), ("channels",), "bias", fill=0.0)}

    def parts(self, place: Place) -> Mapping[str, Placed]:
        n_heads, head_dim = place.shape
        return {
            "each": (CausalConvolutionSpec(size=self.each), place.at(n_heads * head_dim)),
            "heads": (CausalConvolutionSpec(size=self.heads, bias=True, over="head"), place),
        }

    def state_shapes(self, place: Place, kv_width: int) -> Mapping[str, tuple[int, ...]]:
        """What a row leaves to its later tokens."""
        n_heads, head_dim = place.shape
        width = n_heads * head_dim
        return {"each": (self.each - 1, width), "heads": (self.heads - 1, width), "value": (1, kv_width // 2)}

    def cost(self, place: Place, workload: Workload) -> Cost:
        """The products within heads; what is multiplied one by one is no FLOP."""
        n_heads, head_dim = place.shape
        return Cost({"projections": 2 * self.heads * n_heads * head_dim**2 * workload.tokens})


class ConvolvedHeads(Part[ConvolvedHeadsSpec]):
    each: CausalConvolution
    heads: CausalConvolution
    shift: Tensor

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, context: ForwardContext, store: Store
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(q, k, v) of those, each [batch, token, its heads side by side]."""
        n_heads, head_dim = self.place.shape
        steps, state = steps_of(context, store), store.state
        before = state or {}
        mixed = steps.taken(torch.cat((q, k), -1))
        mixed, of_each = self.each(mixed, steps, before.get("each"))
        mixed, of_heads = self.heads(mixed, steps, before.get("heads"))
        # The shift is of what the second convolution reads, before a document too, and so one for all tokens.
        within = self.heads.weight.sum(-1).unflatten(0, (n_heads, -1)) * self.shift.view(n_heads, 1, -1)
        mixed = steps.given(mixed + within.sum(-1).flatten())
        now, earlier = v.chunk(2, -1)
        late, of_value = steps.preceding(steps.taken(earlier), before.get("value"))
        if state is not None:
            store.keep({"each": of_each, "heads": of_heads, "value": of_value})
        query, key = (x.unflatten(-1, (-1, head_dim)) for x in (q, k))
        own = (query.unflatten(-2, (key.shape[-2], -1)) + key[..., None, :]) / 2
        own = torch.cat((own.flatten(-3), own.mean(-2).flatten(-2)), -1)
        q, k = (mixed + own).split((q.shape[-1], k.shape[-1]), -1)
        return q, k, torch.cat((now, steps.given(late)), -1)
