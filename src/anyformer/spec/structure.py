"""The shape that every Transformer shares: stacks of blocks of sublayers of branches, between an embedding and heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self

from anyformer.errors import SpecError
from anyformer.spec.cost import Cost, Load
from anyformer.spec.kinds import InitSpec, MapSpec, MixerSpec, ResidualSpec, ScaleSpec, TermSpec
from anyformer.spec.part import Length, PartSpec, Placed, Site, Vocab, Weight, Width, inside
from anyformer.spec.saved import Tape, Value

if TYPE_CHECKING:
    from anyformer.spec.sizes import Sizes


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

    def trace(self, site: Site, x: Value, tape: Tape) -> Value:
        """Return the sum of the terms for ids x, which a look-up keeps."""
        parts, width = self.parts(site), self.width or site.d_model
        first, *_ = [term.trace(site.at(width), x, tape) for term in self.terms]
        y = tape.run("norm", parts["norm"], tape.value(x.numel * width, first))
        return tape.run("projection", parts["projection"], tape.dropped(y, "embedding"))


class PoolSpec(PartSpec, abstract=True):
    """One vector a row, of its real tokens. Its module is called with (x [batch, token, width], tokens)."""

    needs_all: ClassVar[bool] = True  # of a row's tokens, so that it cannot be asked while a cache holds some


class HeadSpec(PartSpec):
    """An answer for each token, or for each row where a pool says so: pool, transform, multiply by the table, add the
    bias, scale, cap. Without a table the answer is the transformed vector."""

    name: str = "lm"
    pool: PoolSpec | None = None  # None: every token has an answer of its own
    transform: tuple[MapSpec, ...] = ()
    table: TableSpec | None = None
    bias: bool = False
    scale: ScaleSpec | None = None  # of d_model; multiplies the logits (T5: d_model^-0.5)
    softcap: float | None = None  # cap · tanh(logits / cap)

    def __post_init__(self) -> None:
        if self.bias and self.table is None:
            raise self.refusal("bias", "is added to what the table gives, and there is none; leave one or the other")

    @property
    def tied(self) -> str | None:
        """The name under which the table is shared with the embedding; None where it is the head's own."""
        return self.table and self.table.shared

    def weights(self, site: Site) -> Mapping[str, Weight | None]:
        if not self.bias or self.table is None:
            return {"bias": None}
        return {"bias": Weight((self.table.rows,), ("vocab",), role="bias", fill=0.0)}

    def parts(self, site: Site) -> Mapping[str, Placed]:
        places: list[tuple[PartSpec, Site]] = []
        pool = self.pool and (self.pool, site)
        for step in self.transform:
            places.append((step, site))
            site = site.at(step.width_out(site))
        return {"pool": pool, "transform": places, "table": self.table and (self.table, site)}

    def cost(self, site: Site, load: Load) -> Cost:
        load = load if self.pool is None else dataclasses.replace(load, query=1)
        total, table = super().cost(site, load), dict(self.parts(site))["table"]
        if isinstance(table, tuple) and self.table is not None:
            total += Cost({"logits": 2 * self.table.rows * table[1].shape[-1] * load.tokens})
        return total.named("logits")


class BranchSpec(PartSpec):
    """norm_out(mixer(norm_in(x)))."""

    mixer: MixerSpec
    norm_in: MapSpec | None = None
    norm_out: MapSpec | None = None

    def trace(self, site: Site, x: Value, tape: Tape) -> Value:
        """Return what the branch writes."""
        parts = self.parts(site)
        with tape.term("norms"):
            x = tape.run("norm_in", parts["norm_in"], x)
        x = tape.run("mixer", parts["mixer"], x)
        with tape.term("norms"):
            x = tape.run("norm_out", parts["norm_out"], x)
        with tape.term("dropout"):
            return tape.dropped(x, "residual")


class SublayerSpec(PartSpec):
    """Branches side by side on one reading of the stream: one is serial, two are a parallel block."""

    branches: tuple[BranchSpec, ...]
    norm_in: MapSpec | None = None  # of what all branches read: pre-norm
    norm_sum: MapSpec | None = None  # of the stream after writing: post-norm

    def trace(self, site: Site, x: Value, tape: Tape) -> Value:
        """Return the stream after all branches have written to the stream x."""
        parts = self.parts(site)
        with tape.term("norms"):
            y = tape.run("norm_in", parts["norm_in"], tape.residual.read(x))
        branches = parts["branches"]
        each = [
            tape.run(f"branches.{i}", one, y) for i, one in enumerate(branches if isinstance(branches, list) else ())
        ]
        with tape.term("norms"):
            return tape.run("norm_sum", parts["norm_sum"], tape.residual.written(x, each))


class BlockSpec(PartSpec):
    """One layer: an encoder's has two sublayers, the 2017 decoder's three."""

    sublayers: tuple[SublayerSpec, ...]

    def trace(self, site: Site, x: Value, tape: Tape) -> Value:
        """Return the stream after the layer."""
        return tape.run("sublayers", self.parts(site)["sublayers"], x)


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

    @property
    def n_branches(self) -> int:
        """How many branches write to the stream."""
        return sum(len(sublayer.branches) for block in self.blocks for sublayer in block.sublayers)

    def parts(self, site: Site) -> Mapping[str, Placed]:
        stream = Site(self.d_model, (self.d_model,), site.d_source, site.modules)
        return {
            "embedding": (self.embedding, stream),
            "blocks": [(block, stream) for block in self.blocks],
            "residual": (self.residual.within(self.n_branches), stream),
            "norm": self.norm and (self.norm, stream.at(self.residual.width(self.d_model))),
        }

    def trace(self, site: Site, x: Value, tape: Tape) -> Value:
        """Return the last hidden state for ids x; under full recomputation only the stream between blocks stays."""
        parts, before = self.parts(site), tape.residual
        with tape.term("embedding"):
            x = tape.input = tape.run("embedding", parts["embedding"], x)
        tape.residual, blocks = self.residual, parts["blocks"]
        x = self.residual.opened(x)
        for i, block in enumerate(blocks if isinstance(blocks, list) else ()):
            if tape.recompute == "full":
                with tape.term("stream"), tape.again(x, tape.memory):
                    x = tape.run(f"blocks.{i}", block, x)
            else:
                x = tape.run(f"blocks.{i}", block, x)
        tape.residual = before
        with tape.term("norms"):
            return tape.run("norm", parts["norm"], x)

    def resized(self, to: Sizes) -> Self:
        return super(StackSpec, self.but(blocks=to.layers(self.blocks))).resized(to)


class AheadSpec(PartSpec):
    """A module that predicts one token further than what stands before it: DeepSeek-V3, arXiv:2412.19437, section 2.2.

    The k-th makes block(hidden(norm_hidden(x_i)) + token(norm_token(e_i+k))) of what the one before it made of token i (the
    first: the stack's last hidden state) and the embedding of token i + k; normed, the model's first head reads from it
    token i + k + 1. For training: nothing else runs it.
    """

    hidden: MapSpec
    token: MapSpec
    block: BlockSpec
    norm_hidden: MapSpec | None = None
    norm_token: MapSpec | None = None
    norm: MapSpec | None = None  # of what the head reads; the next module reads what is not normed

    def parts(self, site: Site) -> Mapping[str, Placed]:
        stream = site.at(site.d_model)
        return {
            "norm_hidden": self.norm_hidden and (self.norm_hidden, site),
            "norm_token": self.norm_token and (self.norm_token, stream),
            "hidden": (self.hidden, site),
            "token": (self.token, stream),
            "block": (self.block, stream),
            "norm": self.norm and (self.norm, site),
        }


class ModelSpec(PartSpec):
    """A whole architecture: a decoder or an encoder (its masks decide), or both with cross-attention."""

    stack: StackSpec
    heads: tuple[HeadSpec, ...] = ()
    encoder: StackSpec | None = None
    init: InitSpec
    context: Length | None = None  # tokens it is published for; longer is not refused unless a part must
    ahead: tuple[AheadSpec, ...] = ()  # each predicts one token further than the last; used in training alone
    version: ClassVar[int] = 1  # of the language

    def __post_init__(self) -> None:
        names = [head.name for head in self.heads]
        if len(set(names)) < len(names):
            raise SpecError(f"Model.heads are called {', '.join(names)}; give each a name of its own")
        if self.ahead and not self.heads:
            raise SpecError("Model.ahead predicts with the first of Model.heads, and there is none; give the model one")

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
            "ahead": [(module, Site(self.stack.d_model, (width,), d_source, site.modules)) for module in self.ahead],
        }

    def cost(self, site: Site, load: Load) -> Cost:
        """Return the FLOPs of one pass; the encoder runs over `load.memory` tokens, the heads over all new ones.

        What predicts further tokens is left out: `cost_ahead` has it.
        """
        total = Cost()
        for name, placed in self.parts(site).items():
            if name == "ahead":
                continue
            reads = Load(load.batch, load.memory, causal_exact=load.causal_exact) if name == "encoder" else load
            for part, place in placed if isinstance(placed, list) else [placed] if placed else []:
                total += part.cost(place, reads)
        return total

    def cost_ahead(self, site: Site, load: Load) -> Cost:
        """Return the FLOPs that predicting further tokens adds to a pass of training: the modules, and the head for each."""
        total, heads = Cost(), self.parts(site)["heads"]
        assert isinstance(heads, list)
        for k, (_, module, place) in enumerate((p for p in inside(self, site) if p[0].startswith("ahead.")), 1):
            fewer = dataclasses.replace(load, query=max(0, load.query - k))
            total += module.cost(place, fewer) + heads[0][0].cost(heads[0][1], fewer)
        return total
