"""The shape that every Transformer shares: stacks of blocks of sublayers of branches, between an embedding and heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self

from anyformer.errors import SpecError
from anyformer.spec.cost import Cost, Load
from anyformer.spec.part import Length, PartSpec, Placed, Site, Spec, Vocab, Weight, Width

if TYPE_CHECKING:
    from anyformer.spec.sizes import Sizes


class MapSpec(PartSpec, abstract=True):
    """A map of each token's vector by itself: a norm, a gain, a shift, a linear map, an activation.

    Its module is called with x, and with the pass's `Now` too where the map `reads_tokens` (batch norm: which are padding).
    """

    reads_tokens: ClassVar[bool] = False

    def width_out(self, site: Site) -> int:
        """Return the width of what comes out, given the place of what goes in."""
        return site.shape[-1]


class TermSpec(PartSpec, abstract=True):
    """A summand of the embedding: tokens, positions, segments."""


class MixerSpec(PartSpec, abstract=True):
    """What a branch does between its norms: attention, a feed-forward, experts, a convolution."""

    def cache_shapes(self, site: Site) -> Mapping[str, tuple[int, ...]] | None:
        """Return what decoding keeps of each token, by name; the token axis comes before the last. None: nothing."""
        return None

    def reach(self) -> int | None:
        """Return how many of the last tokens decoding can ever see again; None: all of them."""
        return None

    def keeps_memory(self) -> bool:
        """Return whether what it keeps is made of the encoder's output, once, and not of new tokens."""
        return False


class ResidualSpec(PartSpec, abstract=True):
    """How branches write to the stream: open, read, write, close."""

    def width(self, d_model: int) -> int:
        """Return the width of what the final norm and the heads see."""
        return d_model


class InitSpec(Spec, abstract=True):
    """How weights start, by role; applied by layers.init."""


class ScaleSpec(Spec):
    """A constant that may follow from a width: factor · width^power."""

    factor: float = 1.0
    power: float = 0.0

    def value(self, width: int) -> float:
        """Return the number at this width."""
        return self.factor * width**self.power


class TableSpec(PartSpec):
    """Rows of vectors: looked up by an embedding, multiplied by a head; one `shared` name ties them."""

    rows: Vocab
    width: Width | None = None  # of a row; None: the width of the place

    def weights(self, site: Site) -> Mapping[str, Weight | None]:
        return {"weight": Weight((self.rows, self.width or site.shape[-1]), ("vocab", "d_model"), role="table")}


class EmbeddingSpec(PartSpec):
    """The sum of the terms, then the norm, then the projection to d_model."""

    terms: tuple[TermSpec, ...]
    width: Width | None = None  # of the sum (ALBERT, ELECTRA); None: d_model
    norm: MapSpec | None = None
    projection: MapSpec | None = None
    masked: bool = False  # padding is multiplied by zero (DeBERTa)

    def __post_init__(self) -> None:
        if (self.width is None) != (self.projection is None):
            raise self.refusal("projection", "and width go together: a narrow embedding is projected to d_model")

    def parts(self, site: Site) -> Mapping[str, Placed]:
        narrow = site.at(self.width or site.d_model)
        return {
            "terms": [(term, narrow) for term in self.terms],
            "norm": self.norm and (self.norm, narrow),
            "projection": self.projection and (self.projection, narrow),
        }


class HeadSpec(PartSpec):
    """Logits: transform each token, multiply by the table, add the bias, scale, cap."""

    name: str = "lm"
    transform: tuple[MapSpec, ...] = ()
    table: TableSpec
    bias: bool = False
    scale: ScaleSpec | None = None  # of d_model; multiplies the logits (T5: d_model^-0.5)
    softcap: float | None = None  # cap · tanh(logits / cap)

    def weights(self, site: Site) -> Mapping[str, Weight | None]:
        return {"bias": Weight((self.table.rows,), ("vocab",), role="bias", fill=0.0) if self.bias else None}

    def parts(self, site: Site) -> Mapping[str, Placed]:
        places: list[tuple[PartSpec, Site]] = []
        for step in self.transform:
            places.append((step, site))
            site = site.at(step.width_out(site))
        return {"transform": places, "table": (self.table, site)}

    def cost(self, site: Site, load: Load) -> Cost:
        table = dict(self.parts(site))["table"]
        assert isinstance(table, tuple)
        rows, width = self.table.rows, table[1].shape[-1]
        return (super().cost(site, load) + Cost({"logits": 2 * rows * width * load.tokens})).named("logits")


class BranchSpec(PartSpec):
    """norm_out(mixer(norm_in(x)))."""

    mixer: MixerSpec
    norm_in: MapSpec | None = None
    norm_out: MapSpec | None = None


class SublayerSpec(PartSpec):
    """Branches side by side on one reading of the stream: one is serial, two are a parallel block."""

    branches: tuple[BranchSpec, ...]
    norm_in: MapSpec | None = None  # of what all branches read: pre-norm
    norm_sum: MapSpec | None = None  # of the stream after writing: post-norm


class BlockSpec(PartSpec):
    """One layer: an encoder's has two sublayers, the 2017 decoder's three."""

    sublayers: tuple[SublayerSpec, ...]


class StackSpec(PartSpec):
    """Embedding, blocks, final norm."""

    d_model: Width
    embedding: EmbeddingSpec
    blocks: tuple[BlockSpec, ...]
    residual: ResidualSpec
    norm: MapSpec | None = None

    def __post_init__(self) -> None:
        if not self.blocks:
            raise SpecError("Stack.blocks is empty; a stack has at least one block")

    def parts(self, site: Site) -> Mapping[str, Placed]:
        stream = Site(self.d_model, (self.d_model,), site.d_source, site.modules)
        return {
            "embedding": (self.embedding, stream),
            "blocks": [(block, stream) for block in self.blocks],
            "residual": (self.residual, stream),
            "norm": self.norm and (self.norm, stream.at(self.residual.width(self.d_model))),
        }

    def resized(self, to: Sizes) -> Self:
        return super(StackSpec, self.but(blocks=to.layers(self.blocks))).resized(to)


class ModelSpec(PartSpec):
    """A whole architecture: a decoder or an encoder (its masks decide), or both with cross-attention."""

    stack: StackSpec
    heads: tuple[HeadSpec, ...] = ()
    encoder: StackSpec | None = None
    init: InitSpec
    context: Length | None = None  # tokens it is published for; longer is not refused unless a part must
    version: ClassVar[int] = 1  # of the language

    def __post_init__(self) -> None:
        names = [head.name for head in self.heads]
        if len(set(names)) < len(names):
            raise SpecError(f"Model.heads are called {', '.join(names)}; give each a name of its own")

    @property
    def vocab_size(self) -> int:
        """Rows of the first token table: the ids that the model takes."""
        tables = (value for value in self.stack.embedding.nested() if isinstance(value, TableSpec))
        return next((table.rows for table in tables), 0)

    @property
    def n_layers(self) -> int:
        """Blocks of the main stack."""
        return len(self.stack.blocks)

    def parts(self, site: Site) -> Mapping[str, Placed]:
        d_source = self.encoder.d_model if self.encoder else 0
        place = Site(d_source=d_source, modules=site.modules)
        width = self.stack.residual.width(self.stack.d_model)
        heads: list[tuple[PartSpec, Site]] = [
            (h, Site(self.stack.d_model, (width,), d_source, site.modules)) for h in self.heads
        ]
        return {
            "encoder": self.encoder and (self.encoder, place),
            "stack": (self.stack, place),
            "heads": heads,
        }

    def cost(self, site: Site, load: Load) -> Cost:
        """Return the FLOPs of one pass; the encoder runs over `load.memory` tokens, the heads over all new ones."""
        total = Cost()
        for name, placed in self.parts(site).items():
            reads = Load(load.batch, load.memory, causal_exact=load.causal_exact) if name == "encoder" else load
            for part, place in placed if isinstance(placed, list) else [placed] if placed else []:
                total += part.cost(place, reads)
        return total
