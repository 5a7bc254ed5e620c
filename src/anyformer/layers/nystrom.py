"""Attention through landmarks, means of a text's stretches: Xiong et al. 2021, arXiv:2102.03902 (Nyströmformer), section 3.

Of queries q, keys k, values v and their landmarks q', k' it is softmax(q k'ᵀ) softmax(q' k'ᵀ)⁺ softmax(q' kᵀ) v, linear in the
length of a text. The inverse in the middle is approached by an iteration (Razavi et al. 2014).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from anyformer.layers.context import ForwardContext, Notes, Store
from anyformer.layers.execution import as_given, exact, exact_dtype, numberless, recorded
from anyformer.layers.gqa import GQASpec
from anyformer.layers.part import Part
from anyformer.layers.tokens import Tokens, flagged_first
from anyformer.layers.value_convolution import ValueConvolution, ValueConvolutionSpec
from anyformer.spec import Cost, Count, Few, MixerSpec, Place, Placed, ScaleSpec, Workload


class NystromAttentionSpec(MixerSpec):
    """Every token sees all of its text through `n_landmarks`, of stretches as long as each other or longer by a token.

    A text has no more of them than tokens. For encoders. No weights are dropped, as in the authors' code.
    """

    counted_as: ClassVar[str | None] = "attention"

    projection: GQASpec
    n_landmarks: Count = Count(64)
    iterations: Few = 6
    convolution: ValueConvolutionSpec | None = ValueConvolutionSpec()  # of the values, added to what attention gives
    scale: ScaleSpec = ScaleSpec(power=-0.5)  # of the width of a query

    def __post_init__(self) -> None:
        own = self.projection
        if own.kv_heads != own.n_heads or own.rotary or own.of_one:
            raise self.refusal(
                "projection", "is one whose keys have means; take GQA with as many heads of keys, without rotary"
            )

    def _place(self, place: Place) -> Place:
        return replace(place, d_source=place.d_model)

    def parts(self, place: Place) -> Mapping[str, Placed]:
        n_heads, _, value_width = self.projection.sizes(self._place(place))
        convolved = self.convolution and (self.convolution, place.at(n_heads, value_width))
        return {"projection": (self.projection, self._place(place)), "convolution": convolved}

    def shows_later(self) -> bool:
        return True

    def together(self) -> str | None:
        return "makes landmarks of all tokens of a row"

    def cost(self, place: Place, workload: Workload) -> Cost:
        """The maps, the products of tokens with landmarks and those of the iteration; means and convolution are no FLOP."""
        inner_place, n = self._place(place), workload.query
        n_heads, width, value_width = self.projection.sizes(inner_place)
        m, times = min(self.n_landmarks, n), n_heads * workload.batch
        scores = 2 * width * (2 * n * m + m * m) * times
        values = 2 * value_width * (2 * n * m + m * m) * times
        terms = {"scores": scores, "values": values, "inverse": self.iterations * 8 * m**3 * times}
        each = replace(workload, memory=n)
        return self.projection.cost(inner_place, each) + Cost(terms)


class Landmarks(NamedTuple):
    """The landmarks of a pass, and which tokens each is the mean of."""

    of: Tensor  # [batch or 1, token], the landmark of each token; their number: none
    size: Tensor  # [batch or 1, landmark], how many tokens those are, at least 1
    # whether two are of one text: a token and a landmark [batch, 1, token, landmark], two landmarks; None: all are
    near: Tensor | None
    among: Tensor | None

    @property
    def n(self) -> int:
        return self.size.shape[1]


def landmarks(tokens: Tokens, most: int) -> Landmarks:
    """At most so many of each document. A graph cannot ask how many a row has, and makes room for one a token."""
    n = tokens.n
    if tokens.document is None:
        m = min(n, most)
        of = torch.arange(n, device=tokens.position.device)[None] * m // n
        return Landmarks(of, of.new_zeros(1, m).scatter_add(1, of, torch.ones_like(of)), None, None)
    document = tokens.document
    order = document.argsort(dim=1, stable=True)
    grouped = document.gather(1, order)
    first, behind = (torch.searchsorted(grouped, document.contiguous(), right=right) for right in (False, True))
    rank, length = order.argsort(1) - first, behind - first
    m = length.clamp(max=most)
    own = rank * m // length
    begins = (own != (rank - 1) * m // length) & (document > 0)
    room = n if recorded() else min(n, most) if numberless(begins) else max(1, int(begins.sum(1).max()))
    at = flagged_first(begins)[:, :room]
    text, number = (document * begins).gather(1, at), own.gather(1, at)
    near = (document[:, :, None] == text[:, None]) & (text > 0)[:, None]
    same = near & (own[:, :, None] == number[:, None])
    of = torch.where(same.any(-1), same.to(torch.int8).argmax(-1), room)
    among = (text[:, :, None] == text[:, None]) & (text > 0)[:, None]
    return Landmarks(of, same.sum(1).clamp(min=1), near[:, None], among[:, None])


class NystromAttention(Part[NystromAttentionSpec]):
    projection: Any
    convolution: ValueConvolution | None

    def forward(self, x: Tensor, context: ForwardContext, store: Store) -> tuple[Tensor, Notes]:
        """[batch, token, d_model] of x of that shape; no notes."""
        p, tokens = self.projection, context.tokens
        q, stored = p.project(p.narrow(x), x, context, store)
        k, v = stored["key"], stored["value"]
        y = self.attended(q * self.spec.scale.value(q.shape[-1]), k, v, self._landmarks(context))
        y = y if self.convolution is None else y + self.convolution(v, tokens.document)
        return p.output(y, context), {}

    def prepare(self, x: Tensor, context: ForwardContext) -> None:
        self._landmarks(context)

    def _landmarks(self, context: ForwardContext) -> Landmarks:
        most = self.spec.n_landmarks
        return context.once(f"{most} landmarks", lambda: landmarks(context.tokens, most))

    def attended(self, q: Tensor, k: Tensor, v: Tensor, to: Landmarks) -> Tensor:
        """Values [batch, heads, token, width] of q, k and v of that shape."""
        of_q, of_k = means(q, to), means(k, to)
        seen = None if to.near is None else to.near.mT
        middle = weights(of_q, of_k, to.among)
        inverse = pseudo_inverse(middle, to.among, self.spec.iterations)
        through = inverse.to(v.dtype) @ (weights(of_q, k, seen).to(v.dtype) @ v)
        return weights(q, of_k, to.near).to(v.dtype) @ through


def means(x: Tensor, to: Landmarks) -> Tensor:
    """Of tokens x [batch, heads, token, width], for each landmark."""
    sums = x.new_zeros(*x.shape[:2], to.n + 1, x.shape[-1], dtype=exact_dtype(x))
    sums = sums.scatter_add(2, to.of[:, None, :, None].expand(x.shape), exact(x))[:, :, : to.n]
    return (sums / to.size[:, None, :, None]).to(x.dtype)


def weights(q: Tensor, k: Tensor, seen: Tensor | None) -> Tensor:
    """The softmax over keys [batch, heads, query, key], in float32 at least; a row that sees none is 0."""
    scores = exact(q @ k.mT)
    if seen is None:
        return scores.softmax(-1)
    return scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(~seen, 0.0)


def pseudo_inverse(a: Tensor, same: Tensor | None, iterations: int) -> Tensor:
    """About the inverse of each matrix a [batch, heads, n, n], whose rows sum to 1 or are 0; `same` [batch, 1, n, n] as it.

    It begins with the transpose over the largest sum of a column of a text, in any of its heads.
    """
    with as_given(a):
        of_columns = a.sum(-2).amax(1)
        if same is None:
            largest = of_columns.amax(-1)[:, None]
        else:
            largest = of_columns[:, None].masked_fill(~same[:, 0], 0.0).amax(-1)
        z = a.mT / largest.clamp(min=1.0)[:, None, :, None]
        one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        for _ in range(iterations):
            az = a @ z
            z = 0.25 * z @ (13 * one - az @ (15 * one - az @ (7 * one - az)))
    return z
