"""Local and global attention: a second set of heads for marked tokens. Beltagy et al. 2020, arXiv:2004.05150, section 3.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from anyformer.errors import SpecError
from anyformer.layers.context import ForwardContext
from anyformer.layers.linear import LinearSpec
from anyformer.layers.mask import Mask
from anyformer.layers.projection import Projection, ProjectionSpec
from anyformer.layers.tokens import Tokens
from anyformer.spec import Count, HeadMap, Place, Placed, Sizes, Width, Workload

Unsaid = Literal["none", "first"]  # what counts as marked where a pass marks nothing: no token, or each text's first


class LocalAndGlobalSpec(ProjectionSpec):
    """Two sets of heads side by side, even ones local and odd ones global, each with its queries, keys and values.

    Their results are summed: a mask of `Heads(masks=(local, global))` lets one set answer a token, and the other gives 0.
    """

    n_heads: Count  # of each set

    def sizes(self, place: Place) -> tuple[int, int, int]:
        if self.n_heads < 1 or place.d_model % self.n_heads:
            raise SpecError(f"LocalAndGlobal.n_heads = {self.n_heads} does not divide d_model = {place.d_model}")
        width = place.d_model // self.n_heads
        return 2 * self.n_heads, width, width

    def parts(self, place: Place) -> Mapping[str, Placed]:
        width, source = Width(place.d_model), place.at(place.d_source)
        q, k, v = (LinearSpec(d_out=width, bias=True, role=role) for role in ("query", "matrix", "inner"))
        into = {"q": (q, place), "k": (k, source), "v": (v, source)}
        of_global = {f"{name}_global": placed for name, placed in into.items()}
        return {**into, **of_global, "o": (LinearSpec(bias=True, role="output"), place)}

    def heads(self, place: Place) -> tuple[HeadMap, ...]:
        """Of both sets, which begin as one (Beltagy et al. 2020, section 5)."""
        each = self.n_heads, self.sizes(place)[1]
        of_queries = (HeadMap("query", f"q{of_set}", *each) for of_set in ("", "_global"))
        of_keys = (HeadMap("key", f"k{of_set}", *each) for of_set in ("", "_global"))
        of_values = (HeadMap("value", f"v{of_set}", *each) for of_set in ("", "_global"))
        return *of_queries, *of_keys, *of_values, HeadMap("output", "o", *each)

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        n_heads, width, _ = self.sizes(place)
        return {"key": (n_heads, width), "value": (n_heads, width)}

    def n_mapped(self, name: str, workload: Workload) -> int:
        return super().n_mapped(name.removesuffix("_global"), workload)

    def resized(self, to: Sizes) -> LocalAndGlobalSpec:
        return to.fields(self, n_heads=to.heads(self.n_heads, self.n_heads, None)[0])


class LocalAndGlobal(Projection[LocalAndGlobalSpec]):
    def query(self, x: Tensor, context: ForwardContext) -> Tensor:
        """Queries [batch, heads of both sets, query, head_dim] of x [batch, query, d_model]."""
        return self._sets("q", x)

    def store(self, source: Tensor, context: ForwardContext) -> Mapping[str, Tensor]:
        """Keys and values [batch, heads of both sets, token, head_dim] of [batch, token, d_source]."""
        return {"key": self._sets("k", source), "value": self._sets("v", source)}

    def output(self, y: Tensor, context: ForwardContext) -> Tensor:
        """[batch, query, d_model] of y [batch, heads of both sets, query, head_dim]."""
        return super().output(y.unflatten(1, (self.spec.n_heads, 2)).sum(2), context)

    def _sets(self, name: str, x: Tensor) -> Tensor:
        """[batch, heads, token, head_dim], the local and the global set taking turns."""
        each = [self.get_submodule(one)(x).unflatten(-1, (self.spec.n_heads, -1)) for one in (name, f"{name}_global")]
        return torch.stack(each, 3).flatten(2, 3).transpose(1, 2)


class MarkedKeys(Mask):
    """Every token sees those that are marked."""

    unsaid: Unsaid = "none"

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return _marked(key, self.unsaid) & (query.position >= 0)


class MarkedQueries(Mask):
    """Marked tokens see everything."""

    unsaid: Unsaid = "none"

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return _marked(query, self.unsaid) & (key.position >= 0)


def _marked(tokens: Tokens, unsaid: Unsaid) -> Tensor:
    return tokens.position == 0 if tokens.mark is None and unsaid == "first" else tokens.marked
