"""What enters the stream: tokens, positions (learned; sinusoids, Vaswani et al. 2017, section 3.5), segments and languages,
summed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce
from operator import add
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.errors import InputError
from anyformer.layers.context import ForwardContext
from anyformer.layers.convolution import neighbours
from anyformer.layers.execution import constant, numberless, recorded
from anyformer.layers.part import Part
from anyformer.layers.ranks import SplitRows
from anyformer.layers.token_dropout import TokenDropoutSpec
from anyformer.layers.tokens import Tokens
from anyformer.spec import (
    Count,
    EmbeddingSpec,
    Few,
    Length,
    MapSpec,
    Place,
    Placed,
    Positive,
    ScaleSpec,
    Spec,
    TableSpec,
    TermSpec,
    Weight,
    Whole,
    Width,
)


class Table(Part[TableSpec], nn.Embedding):
    """Rows of vectors, PyTorch's embedding to whoever looks for one."""

    weight: Any
    split: SplitRows | None = None  # of a table of which other processes have the other rows

    def __init__(self, spec: TableSpec, place: Place) -> None:
        super().__init__(spec, place)
        self.num_embeddings, self.embedding_dim = self.weight.shape
        self.padding_idx = self.max_norm = None
        self.norm_type, self.scale_grad_by_freq, self.sparse = 2.0, False, False

    @property
    def rows(self) -> int:
        """How many ids there are, in all processes that have some of them."""
        return self.spec.rows if self.split is None else self.split.total

    def forward(self, input: Tensor) -> Tensor:
        """The rows of ids [batch, token] as [batch, token, width]. Raises InputError for an id without a row (on a CPU)."""
        if input.dtype not in (torch.int64, torch.int32):
            raise InputError(f"token ids are {input.dtype}; give whole numbers, as torch.int64 or torch.int32")
        try:
            return F.embedding(input, self.weight) if self.split is None else self.split.lookup(input, self.weight)
        except IndexError:
            wrong = input[(input < 0) | (input >= self.rows)]
            raise InputError(
                f"there is no token {int(wrong[0])}; this table has those from 0 to {self.rows - 1}"
            ) from None


class TokensSpec(TermSpec):
    """A vector for each token id, scaled, then projected where its width is not the sum's (OPT-350M)."""

    table: TableSpec
    scale: ScaleSpec | None = None  # of the width of a row: √d_model is power 0.5
    projection: MapSpec | None = None
    dropout: TokenDropoutSpec | None = None  # of masked tokens, and how the others make up for them (ESM)
    # tokens whose vectors lie side by side before the projection, its own in the middle (MobileBERT: 3, for encoders)
    span: Few = 1

    def __post_init__(self) -> None:
        self.require("span", self.span % 2 == 1, "must be odd: as many tokens before as after")
        self.require("span", self.span == 1 or self.projection is not None, "is projected; give a projection")

    def shows_later(self) -> bool:
        """As `MixerSpec.shows_later`."""
        return self.span > 1

    def together(self) -> str | None:
        """As `MixerSpec.together`."""
        return "puts neighbouring tokens side by side, which lie in two stretches" if self.span > 1 else None

    def parts(self, place: Place) -> Mapping[str, Placed]:
        narrow = place.at(self.table.width or place.shape[-1])
        wide = narrow.at(self.span * narrow.shape[-1])
        fits = self.projection is None or self.projection.width_out(wide) == place.shape[-1]
        self.require("projection", fits, f"must give vectors of {place.shape[-1]} features, as all that is summed has")
        return {"table": (self.table, narrow), "projection": self.projection and (self.projection, wide)}


class TokenEmbedding(Part[TokensSpec]):
    table: Table
    projection: nn.Module | None

    def forward(self, ids: Tensor, tokens: Tokens) -> Tensor:
        """Vectors [batch, token, width] of `ids` [batch, token]."""
        return looked_up(ids, tokens, self.spec, self.table, self.projection)


def looked_up(ids: Tensor, tokens: Tokens, spec: TokensSpec, table: Table, projection: nn.Module | None) -> Tensor:
    """The vectors of tokens [batch, token, width], dropped, scaled and projected as the specification says."""
    x = table(ids)
    if spec.dropout is not None:
        x = x * spec.dropout.factors(ids, tokens, x.dtype)
    if spec.scale is not None:
        x = x * spec.scale.value(x.shape[-1])
    if spec.span > 1:
        x = torch.cat(neighbours(x, spec.span, tokens.document), -1)
    return x if projection is None else projection(x)


class LearnedPositionsSpec(TermSpec):
    """A vector for each position; some models waste the first `offset` rows (BART, OPT: 2).

    `padding` is the id of tokens that have no position, seen or not: they take the row before the first, and the tokens after
    them are counted as if they were not there (RoBERTa).
    """

    n_positions: Length
    offset: int = 0
    padding: int | None = None

    def __post_init__(self) -> None:
        if self.padding is not None:
            self.require(
                "padding", self.padding >= 0 and self.offset > 0, "must be an id, and offset must leave it a row"
            )

    def positions(self) -> int:
        return self.n_positions

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        shape = (self.n_positions + self.offset, place.shape[-1])
        return {"weight": Weight(shape, ("position", "d_model"), "table")}


def learned_positions(spec: Spec) -> int | None:
    """How many positions everything in a specification has vectors for; None: none are learned."""
    return min((n for term in spec.nested(TermSpec) if (n := term.positions()) is not None), default=None)


class LearnedPositions(Part[LearnedPositionsSpec]):
    weight: Tensor

    def forward(self, ids: Tensor, tokens: Tokens) -> Tensor:
        """Vectors [batch or 1, token, width] of the tokens' positions. Raises InputError beyond the last."""
        position = _positions(ids, tokens, self.spec.padding)
        end = _end(tokens, position)
        if end > self.spec.n_positions:
            raise InputError(
                f"a sequence of {end} tokens goes beyond the {self.spec.n_positions} learned positions of this model; "
                "cut it, or resize n_positions"
            )
        return F.embedding(position + self.spec.offset, self.weight)


def _end(tokens: Tokens, position: Tensor) -> int:
    """One more than the last position; 0 where numbers are not known yet."""
    if tokens.span is not None:
        return tokens.span[1]
    if recorded() or numberless(position) or not position.numel():
        return 0
    return int(position.amax()) + 1


def _positions(ids: Tensor, tokens: Tokens, padding: int | None) -> Tensor:
    """Positions [batch or 1, token] of which padding that is seen takes none: its own are -1."""
    if padding is None:
        return tokens.position
    blank = ids == padding if tokens.document is None else (ids == padding) & (tokens.document > 0)
    before = blank.cumsum(1) - blank.long()
    at_start = torch.where(tokens.position == 0, before, 0).cummax(1).values  # of the token's document
    return torch.where(blank, -1, tokens.position - before + at_start)


class FactorisedPositionsSpec(TermSpec):
    """A vector for each digit of a position: row and column, or row, column and channel (Sparse Transformer, section 5.1).

    `shape` is how many of each there are, the last changing fastest; their vectors are summed.
    """

    shape: tuple[Whole, ...]

    def positions(self) -> int:
        return math.prod(self.shape)

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        axes = ("position", "d_model")
        return {f"weight_{i}": Weight((n, place.shape[-1]), axes, "table") for i, n in enumerate(self.shape)}


class FactorisedPositions(Part[FactorisedPositionsSpec]):
    def forward(self, ids: Tensor, tokens: Tokens) -> Tensor:
        """Vectors [batch or 1, token, width] of the tokens' positions. Raises InputError beyond the last."""
        digits = digits_of(tokens, self.spec.shape)
        return reduce(add, (F.embedding(at, getattr(self, f"weight_{i}")) for i, at in enumerate(digits)))


def digits_of(tokens: Tokens, shape: tuple[int, ...]) -> list[Tensor]:
    """Positions as numbers of so many values a digit, each [batch or 1, token], the last changing fastest. Raises InputError."""
    left, digits = tokens.position, []
    end = _end(tokens, tokens.position)
    if end > math.prod(shape):
        raise InputError(f"a sequence of {end} tokens goes beyond the {math.prod(shape)} positions of shape {shape}")
    for size in reversed(shape):
        digits.insert(0, left % size)
        left = left // size
    return digits


class AxialPositionsSpec(TermSpec):
    """A vector for each digit of a position, as `FactorisedPositions` has, but side by side: Reformer.

    `shape` is how many of each there are, the last changing fastest; `widths` are those of their vectors, whose sum is the
    embedding's width but for the last, which has the rest.
    """

    shape: tuple[Whole, ...]
    widths: tuple[Width, ...]  # of all digits but the last

    def __post_init__(self) -> None:
        self.require(
            "widths", len(self.widths) + 1 == len(self.shape), "is one fewer than shape: the last has the rest"
        )

    def positions(self) -> int:
        return math.prod(self.shape)

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        axes = ("position", "d_model")
        widths = (*self.widths, place.shape[-1] - sum(self.widths))
        return {
            f"weight_{i}": Weight((n, width), axes, "table")
            for i, (n, width) in enumerate(zip(self.shape, widths, strict=True))
        }


class AxialPositions(Part[AxialPositionsSpec]):
    def forward(self, ids: Tensor, tokens: Tokens) -> Tensor:
        """Vectors [batch or 1, token, width] of the tokens' positions. Raises InputError beyond the last."""
        digits = digits_of(tokens, self.spec.shape)
        return torch.cat([F.embedding(at, getattr(self, f"weight_{i}")) for i, at in enumerate(digits)], -1)


class SinusoidSpec(TermSpec):
    """sin and cos of position · base^(-2i/d), interleaved as in the paper or all sines then all cosines (tensor2tensor)."""

    base: Positive = 10000.0
    layout: Literal["interleaved", "concatenated"] = "interleaved"
    frequencies: Literal["d", "half-1"] = "d"  # exponents -2i/d (the paper), or -i/(d/2 - 1) (tensor2tensor, fairseq)
    start: int = 0  # the first token's position

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        """None. Raises SpecError as `angles`."""
        self.angles(place.shape[-1])
        return {}

    def angles(self, width: int) -> list[float]:
        """The frequency of each pair, in radians a token. Raises SpecError where "half-1" has no exponent for the only pair."""
        some = self.frequencies == "d" or width >= 4
        self.require("frequencies", some, f"has no exponent for the one pair of a width of {width}; take d")
        steps = width / 2 if self.frequencies == "d" else width // 2 - 1
        return [self.base ** -(i / steps) for i in range((width + 1) // 2)]


class Sinusoid(Part[SinusoidSpec]):
    def forward(self, ids: Tensor, tokens: Tokens) -> Tensor:
        """Vectors [batch or 1, token, width] of the tokens' positions."""
        width = self.place.shape[-1]
        frequencies = constant(self.spec.angles(width), ids)
        angles = (tokens.position + self.spec.start).float()[..., None] * frequencies
        pairs = (angles.sin(), angles.cos())
        both = torch.stack(pairs, -1).flatten(-2) if self.spec.layout == "interleaved" else torch.cat(pairs, -1)
        return both[..., :width]


class GroupsSpec(TermSpec, abstract=True):
    """A vector for each group of tokens, of those that the caller tells apart."""

    called: ClassVar[str]

    @property
    def n(self) -> int:
        """How many groups there are."""
        return getattr(self, f"n_{self.called}")


class SegmentsSpec(GroupsSpec):
    """A vector for each token_type_id (BERT); without ids all are of type 0."""

    called = "segments"
    n_segments: Count = Count(2)

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"weight": Weight((self.n_segments, place.shape[-1]), ("segment", "d_model"), "table")}


def n_segments(spec: Spec) -> int:
    """How many kinds of text a specification tells apart by their token_type_ids; 0: it has none."""
    return max((value.n_segments for value in spec.nested(SegmentsSpec)), default=0)


class Segments(Part[SegmentsSpec]):
    weight: Tensor

    def forward(self, ids: Tensor, tokens: Tokens) -> Tensor:
        """Vectors [batch, token, width] of the tokens' segments. Raises InputError for a segment without one."""
        return self.weight[0] if tokens.segment is None else _of_groups(tokens.segment, self.weight, "segment")


class LanguagesSpec(GroupsSpec):
    """A vector for each language: XLM, Lample & Conneau 2019, arXiv:1901.07291, figure 1.

    Tokens of which no language is said, by `facts={"language": ids}`, have none added.
    """

    called = "languages"
    n_languages: Count

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"weight": Weight((self.n_languages, place.shape[-1]), ("language", "d_model"), "table", plain=False)}


class Languages(Part[LanguagesSpec]):
    weight: Tensor

    def forward(self, ids: Tensor, tokens: Tokens) -> Tensor:
        """Vectors [batch, token, width] of the tokens' languages, or a zero. Raises InputError for a language without one."""
        if tokens.language is None:
            return self.weight.new_zeros(())
        return _of_groups(tokens.language, self.weight, "language")


def _of_groups(groups: Tensor, weight: Tensor, called: str) -> Tensor:
    """The rows of groups [batch or 1, token]. Raises InputError for one without a row (on a CPU)."""
    try:
        return F.embedding(groups, weight)
    except IndexError:
        wrong = groups[(groups < 0) | (groups >= len(weight))]
        raise InputError(
            f"there is no {called} {int(wrong[0])}; this model has those from 0 to {len(weight) - 1}"
        ) from None


class Embedding(Part[EmbeddingSpec]):
    terms: list[nn.Module]
    norm: nn.Module
    projection: nn.Module | None

    def forward(self, ids: Tensor, context: ForwardContext) -> Tensor:
        """[batch, token, d_model] of `ids` [batch, token]."""
        first, *others = self.terms
        x = first(ids, context.tokens)
        for term in others:
            y = term(ids, context.tokens)
            x = x + y.to(x.dtype)
        x = self.norm(x)
        if self.spec.masked and context.tokens.document is not None:
            x = x * (context.tokens.document > 0)[..., None]
        if rate := context.rates.embedding:
            x = F.dropout(x, rate)
        return x if self.projection is None else self.projection(x)
