"""Attention: softmax(q·k · scale + scores, over the keys that the mask shows) · v. Vaswani et al. 2017, section 3.2."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import reduce
from operator import add
from typing import Any, ClassVar, Literal

from torch import Tensor

from anyformer.errors import SpecError
from anyformer.layers.blocks_beside import kept_of_blocks, misfit, place_of_blocks, seen_of, with_blocks
from anyformer.layers.choice import choice, choice_misfit, heads_of, index_keys, unread
from anyformer.layers.compression import Compressor, CompressorSpec
from anyformer.layers.context import ForwardContext, Kernel, Notes, SoftmaxOptions, Store
from anyformer.layers.differential import Differential, DifferentialSpec, paired
from anyformer.layers.execution import product_dtype
from anyformer.layers.indexer import INDEX, Choosing, IndexerSpec
from anyformer.layers.mask import And, Causal, Everything, Mask, ignores_heads
from anyformer.layers.memory_beside import kept_of_memory, keys_and_memory, memory_misfit, with_memory
from anyformer.layers.memory_efficient import checkpointed
from anyformer.layers.output_gate import OutputGateSpec
from anyformer.layers.pairs import computed_pairs, scored_pairs
from anyformer.layers.part import Part
from anyformer.layers.projection import Projection, ProjectionSpec
from anyformer.layers.query_scale import QueryScaleSpec
from anyformer.layers.rotary import Rotation
from anyformer.layers.scores import Content, ScoreSpec, ValueSpec, memo_key
from anyformer.layers.tokens import Tokens
from anyformer.layers.transient_global import TransientGlobal, TransientGlobalSpec, keys_beside, with_sums
from anyformer.layers.value_convolution import ValueConvolution, ValueConvolutionSpec
from anyformer.spec import (
    Caveat,
    Cost,
    Kept,
    KeptBeside,
    MapSpec,
    MixerSpec,
    Place,
    Placed,
    Positive,
    ScaleSpec,
    Sizes,
    Weight,
    Workload,
    inside,
)


class AttentionSpec(MixerSpec):
    """Attention over the layer's own input, the encoder's output (memory), the embedding's output (input), or the keys and values
    that an earlier layer stored (layer): Brandon et al. 2024, arXiv:2405.12981 (cross-layer attention), as in Gemma 3n."""

    counted_as: ClassVar[str | None] = "attention"
    projection: ProjectionSpec
    mask: Mask = Everything()
    scores: tuple[ScoreSpec, ...] = ()
    relative_values: ValueSpec | None = None  # what the weights add to the values (Shaw's relative positions)
    scale: ScaleSpec = ScaleSpec(power=-0.5)  # of the width of a query
    softcap: Positive | None = None  # cap · tanh(q·k · scale / cap); scores and the mask come after it (Gemma 2)
    sink: bool = False  # a learned score for each head that takes weight and gives no value (gpt-oss)
    gate: OutputGateSpec | None = None  # of what attention gives, before the map of all heads (Qwen3-Next)
    norm: MapSpec | None = None  # of what all heads give as one vector, gated or not, before that map (BitNet)
    reads: Literal["self", "memory", "input", "layer"] = "self"
    memory: bool = False  # keys and values of the encoder's output beside the layer's own (T5Gemma 2)
    # the name under which later layers find what this one stores; of one that reads "layer", the name of what it reads
    keys: str | None = None
    queries: str | None = None  # the name under which what stands beside it finds its queries, as they are scored
    query_scale: QueryScaleSpec | None = None  # what queries are multiplied by, by their positions
    difference: DifferentialSpec | None = None  # of pairs of heads (DiffLlama)
    # which visible keys each query attends to, alike for all heads (DeepSeek-V3.2) or for some each (MiniMax-M3)
    indexer: IndexerSpec | None = None
    # keys and values of blocks of past tokens beside those that the mask shows; an indexer then chooses among blocks
    compressor: CompressorSpec | None = None
    transient: TransientGlobalSpec | None = None  # keys of sums of blocks, past ones or not, beside them (LongT5)
    convolution: ValueConvolutionSpec | None = None  # of the values, added to what attention gives (Nyströmformer)

    def __post_init__(self) -> None:
        if self.reads == "memory" and getattr(self.projection, "rotary", None) is not None:
            said = "does not go with the projection's rotary, which turns keys by the positions of the text itself"
            raise self.refusal("reads", f"{said}; leave it out, or give scores of distances such as ALiBi")
        if self.reads == "layer" and self.keys is None:
            raise self.refusal("keys", "does not say what is read; give the name under which an earlier layer keeps it")
        if self.reads in ("memory", "input") and self.keys is not None:
            raise self.refusal("keys", f"names keys of the layer's own, and it reads {self.reads!r}; leave one out")
        heads = getattr(self.projection, "kv_heads", getattr(self.projection, "n_heads", 2))
        if self.difference is not None and heads % 2:
            raise SpecError(
                f"Attention.difference is of pairs of heads, and there are {heads} of keys and values; take an even number"
            )
        if self.projection.of_one and self.reads != "self":
            raise self.refusal("reads", "is of keys that are not made with its queries, and its projection makes both")
        if (why := next(filter(None, (score.unfit(self) for score in self.scores)), None)) is not None:
            raise self.refusal("scores", why)
        convolved = self.convolution and self.convolution.misfit(self)
        if (found := choice_misfit(self) or misfit(self) or memory_misfit(self) or convolved) is not None:
            raise self.refusal(*found)

    def resized(self, to: Sizes) -> AttentionSpec:
        """Heads whose difference is taken stay in pairs; an indexer that chooses for some each goes by how many there are now."""
        if self.difference is not None:
            to = to.in_pairs()
        if self.indexer is None:
            return super().resized(to)
        plain = to.fields(self, indexer=None)
        return plain.but(indexer=self.indexer.resized(to).fitted(heads_of(self), heads_of(plain)))

    @property
    def reads_memory(self) -> bool:
        """Whether it reads what an encoder made, alone or beside its own tokens."""
        return self.reads == "memory" or self.memory

    @property
    def own_indexer(self) -> IndexerSpec | None:
        """What says which keys are attended to, where that is no other layer's choice."""
        return self.indexer if self.indexer and self.indexer.reads == "self" else None

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        n_heads = self.projection.sizes(self.inner(place))[0]
        return {"sink": Weight((n_heads,), ("heads",), "bias", fill=0.0) if self.sink else None}

    def parts(self, place: Place) -> Mapping[str, Placed]:
        inner_place, own = self.inner(place), self.own_indexer
        n_heads, width, value_width = self.projection.sizes(inner_place)
        return {
            "projection": (self.projection, inner_place),
            "scores": [(score, place.at(n_heads, width)) for score in self.scores],
            "relative_values": self.relative_values
            and (self.relative_values, place.at(n_heads, self._seen_width(value_width))),
            "difference": self.difference and (self.difference, place.at(n_heads, width, value_width)),
            "gate": self.gate
            and (self.gate, place.at(n_heads, value_width, self.projection.narrow_width(inner_place))),
            "norm": self.norm and (self.norm, place.at(n_heads * value_width)),
            "indexer": own and (own, inner_place.at(self.projection.index_width(inner_place))),
            "query_scale": self.query_scale and (self.query_scale, place.at(n_heads, width)),
            "transient": self.transient and (self.transient, place.at(n_heads, width)),
            "compressor": self.compressor and (self.compressor, place_of_blocks(self, inner_place)),
            "convolution": self.convolution and (self.convolution, place.at(n_heads, value_width)),
        }

    def _seen_width(self, value_width: int) -> int:
        """The width of what a head takes the means of: its values, or those of a pair of heads."""
        return value_width if self.difference is None else 2 * value_width

    def inner(self, place: Place) -> Place:
        """The place of its projection, which knows how wide it is what keys are made of; 0 where they are not made here."""
        if self.reads_memory and not place.d_source:
            said = "memory = true" if self.memory else "reads = 'memory'"
            raise SpecError(f"Attention.{said} needs an encoder to read from; give the model one")
        if self.memory and place.d_source != place.d_model:
            said = f"an encoder {place.d_source} wide, and the layer's own keys are made of {place.d_model}"
            raise self.refusal("memory", f"is made by the same maps of {said}; make both as wide")
        source = {"memory": place.d_source, "layer": 0}.get(self.reads, place.d_model)
        return dataclasses.replace(place, d_source=source)

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]] | None:
        kept = {} if self.reads == "layer" else self.projection.cache_shapes(self.inner(place))
        own = self.own_indexer if self.compressor is None else None
        return ({**kept, INDEX: (own.kept,)} if own else kept) or None

    def beside(self, place: Place) -> tuple[KeptBeside, ...]:
        inner_place = self.inner(place)
        own = kept_of_blocks(self, inner_place), kept_of_memory(self, inner_place), self.projection.beside(inner_place)
        return sum(own, ())

    def lends(self) -> Mapping[str, str]:
        return self._named(own=True)

    def borrows(self) -> Mapping[str, str]:
        return self._named(own=False)

    def _named(self, *, own: bool) -> Mapping[str, str]:
        """The names of what is its own, or of what it reads of others."""
        choice = self.indexer.choice if self.indexer and (self.indexer.reads == "self") == own else None
        keys = self.keys if (self.reads == "self") == own else None
        names = {"keys": keys, "choice": choice, "queries": self.queries if own else None}
        return {what: name for what, name in names.items() if name is not None}

    def n_maps(self, place: Place) -> int:
        return 0 if self.reads == "memory" else self.projection.sizes(self.inner(place))[0]

    def reads_input(self) -> bool:
        return self.reads == "input" or self.projection.reads_input

    def unfit(self, what: str, lender: MixerSpec, place: Place) -> str | None:
        return unread(self, what, lender, place)

    def within(self, layer: int, n_layers: int) -> AttentionSpec:
        if self.difference is None or self.difference.start is not None:
            return self
        return self.but(difference=self.difference.within(layer))

    def goes_round(self, n: int) -> bool:
        """Whether rows of n plain tokens can be attended to a stretch of keys at a time, by q·k and causality alone."""
        alone = not self.scores and not self.sink and self.softcap is None and self.shared_by_heads(1)
        return alone and self.mask.within((0, n), (0, n)) == Causal()

    def shared_by_heads(self, n: int) -> bool:
        """Whether n processes can compute some of the heads each, of queries, keys and values that all are given."""
        apart = self.reads == "self" and self.keys is None and not self.by_head and ignores_heads(self.mask)
        heads = self.projection.stored_heads
        beside = self.indexer or self.compressor or self.transient or self.convolution or self.memory
        return apart and not beside and heads > 0 and heads % n == 0

    def together(self) -> str | None:
        if self.projection.mixes:
            return "makes queries and keys of several tokens, which lie in two stretches"
        if self.convolution is not None:
            return "mixes tokens with their neighbours"
        return "makes keys of blocks, which lie in several stretches" if self.compressor or self.transient else None

    def caveats(self) -> tuple[Caveat, ...]:
        if self.compressor is None and not self.projection.mixes:
            return ()
        waiting = "that wait for their block to be whole" if self.compressor else "that the next one is mixed with"
        return (Caveat("rewind", f"tokens {waiting} are one state, and none can be taken back"),)

    def reach(self) -> int | None:
        return self.mask.reach()

    def kept_as(self) -> Kept:
        return "memory" if self.reads == "memory" else "tokens"

    def cost(self, place: Place, workload: Workload) -> Cost:
        """Projections, scores and values; a mask's hidden pairs are not counted if `workload.causal_exact`."""
        inner_place, own = self.inner(place), self.reads != "memory"
        n_heads, width, value_width = self.projection.sizes(inner_place)
        keys = workload.past + workload.query if own else workload.memory
        made = workload.query if own else 0 if workload.past else workload.memory  # the memory's keys are made once
        made += workload.query // self.transient.every if self.transient else 0
        made += workload.memory if self.memory and not workload.past else 0
        reach = self.mask.reach() if own else None
        held = keys if reach is None else min(workload.past, reach - 1) + workload.query
        absorbed = self.absorbs(workload.query, held)
        if absorbed:
            width, value_width = self.projection.absorbed_sizes()
        products = 2 * computed_pairs(self, workload, n_heads) * workload.batch
        found = self.projection.cost(inner_place, dataclasses.replace(workload, memory=made))
        found += Cost({"scores": width * products, "values": self._seen_width(value_width) * products})
        between = self.projection.between(workload.query, held, absorbed=absorbed) * workload.batch
        found += Cost({"absorption" if absorbed else "expansion": between} if between else {})
        for _, part, its_place in (each for each in inside(self, place) if each[0] != "projection"):
            found += part.cost(its_place, dataclasses.replace(workload, own=own))
        if (indexer := self.own_indexer) is not None:
            found += Cost({"indexer scores": indexer.pair * scored_pairs(self, workload) * workload.batch})
        return found

    def narrowed(self, place: Place, ranks: int) -> AttentionSpec | None:
        """Its share of the heads; None where what is added, hidden or normed is not each head's by itself."""
        of_all = self.norm, self.difference, self.compressor, self.transient, self.queries, self.convolution
        if any(each is not None for each in of_all) or not ignores_heads(self.mask):
            return None
        if self.indexer is not None and self.indexer.choices > 1:  # each of them for other heads
            return None
        if not all(each.heads_apart for each in (*self.scores, *filter(None, [self.relative_values]))):
            return None
        projection = self.projection.narrowed(self.inner(place), ranks)
        return projection and self.but(projection=projection)

    def absorbs(self, query: int, keys: int) -> bool:
        """Whether keys are read as they are stored; scores of content are of the queries and keys of each head."""
        return not self.by_head and self.projection.absorbs(query, keys)

    @property
    def by_head(self) -> bool:
        """Whether a score or a value is made of the queries, keys and values of each head."""
        own = (self.difference, self.relative_values)
        return any(each is not None for each in own) or any(score.reads_content for score in self.scores)


class Attention(Part[AttentionSpec]):
    projection: Projection[Any]
    scores: Any
    relative_values: Any
    sink: Tensor | None
    gate: Any
    norm: Any
    difference: Differential | None
    indexer: Choosing[Any] | None
    compressor: Compressor | None
    transient: TransientGlobal | None
    convolution: ValueConvolution | None
    query_scale: Any

    def __init__(self, spec: AttentionSpec, place: Place) -> None:
        super().__init__(spec, place)
        inner_place = spec.inner(place)
        self.n_heads, width, _ = spec.projection.sizes(inner_place)
        self.scale = spec.scale.value(width)
        self.rotation = spec.projection.rotation(inner_place)
        self.index_rotary = spec.indexer.rotation(*self.rotation) if spec.indexer and self.rotation else None
        _ = self.index_rotary and self.index_rotary.key  # taken here: a compiled pass cannot wait for its lock
        self.by_content = tuple(i for i, score in enumerate(spec.scores) if score.reads_content)
        self.by_position = tuple(i for i in range(len(spec.scores)) if i not in self.by_content)
        self.hides_later = Causal() in (spec.mask.masks if isinstance(spec.mask, And) else (spec.mask,))
        self.seen_mask = seen_of(spec)
        of_blocks = self.transient and self.transient.scores
        placed = [*(self.scores[i] for i in self.by_position), *([of_blocks] if of_blocks else [])]
        self.memo_key = memo_key([self.seen_mask.key, str(self.n_heads)], placed)

    def forward(self, x: Tensor, context: ForwardContext, store: Store) -> tuple[Tensor, Notes]:
        """[batch, token, d_model] of x of that shape; notes its weights [batch, heads, query, key] where the pass asks."""
        p, spec, kernel = self.projection, self.spec, context.kernels[self.digest]
        narrow = p.narrow(x)
        if spec.reads == "memory":
            q, keys = p.query(narrow, context), context.memory_tokens
            stored = store.once(lambda: p.store(context.given("memory"), context))
        elif spec.reads == "input":
            q, new = p.query(narrow, context), p.store(context.given("input"), context)
            stored, keys = store.extend(new), store.keys
        elif spec.reads == "layer":
            q, (stored, keys) = p.query(narrow, context), context.memo.found[f"keys {spec.keys}"]
            stored = {**stored, **store.extend(index)} if (index := index_keys(self, x, context)) else stored
        else:
            q, new = p.project(narrow, x, context, store)
            new = {**new, **index_keys(self, x, context)}
            stored, keys = (new, None) if kernel.brings else (store.extend(new), store.keys)
            if spec.keys is not None:
                context.memo.found[f"keys {spec.keys}"] = stored, keys
        keys = context.tokens if keys is None else keys
        if self.compressor is not None:
            stored, keys, chosen = with_blocks(self, narrow, x, stored, keys, context, store)
        else:
            chosen = choice(self, narrow, x, stored, keys, context, spec.mask)
        if self.transient is not None:
            stored, keys = with_sums(self, x, stored, keys, context)
        if spec.memory:
            stored, keys = with_memory(self, stored, keys, context, store)
        growth = None if self.query_scale is None else self.query_scale(context)
        q = q if growth is None else q * growth.to(q.dtype)
        if spec.queries is not None:
            context.memo.found[f"queries {spec.queries}"] = q
        absorbed = spec.absorbs(context.tokens.n, keys.n) and p.can_absorb()
        q, k, v = p.absorb(q, stored) if absorbed else p.expand(q, stored)
        v = v if self.difference is None else paired(v)
        seen = self._seen(kernel, context, keys)

        def core(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
            content = Content(q, k, p, self.scale, self.hides_later, x, growth)
            scores = self._sum(self.by_content, content, context.tokens, keys)
            if chosen is not None:
                scores = chosen if scores is None else scores + chosen
            how = SoftmaxOptions(self.scale, spec.softcap, self.sink, scores, context.rates.attention)
            y, weights = kernel(q, k, v, seen, how)
            if self.relative_values is not None:
                y = y + self.relative_values(weights, context.tokens.as_queries(), keys.as_keys())
            return y, weights

        y, weights = checkpointed(core, q, k, v, context=context) if context.recompute == "selective" else core(q, k, v)
        y = p.unfold(y) if absorbed else y
        y = y if self.difference is None else self.difference(y)
        y = y if self.convolution is None else y + self.convolution(v, context.tokens.document)
        y = y if self.gate is None else self.gate(y, x, narrow)
        if spec.norm is not None:
            y = self.norm(y.transpose(1, 2).flatten(2)).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        notes = {"attention": weights} if context.weights and weights is not None else {}
        return p.output(y, context), {**notes, **p.notes(context, (x.shape[0], x.shape[1]))}

    def prepare(self, x: Tensor, context: ForwardContext) -> None:
        kernel, keys = context.kernels[self.digest], context.tokens
        if self.rotation is not None:
            rotary, width = self.rotation
            Rotation(rotary, self.projection.frequencies).tables(context, width, product_dtype(x))
        if self.query_scale is not None:
            self.query_scale(context)
        if self.memo_key and self.compressor is None and not kernel.brings:
            keys = context.memory_tokens or keys if self.spec.reads == "memory" else keys
            keys = keys if self.transient is None else keys_beside(self.transient.spec, keys, context)
            keys = keys_and_memory(keys, context) if self.spec.memory else keys
            self._seen(kernel, context, keys)

    def _seen(self, kernel: Kernel, context: ForwardContext, keys: Tokens) -> Any:
        """What a kernel makes of the mask and of scores by position."""
        bias = self._by_place if self.by_position or self.transient else None
        return context.once(
            self.memo_key and f"{kernel.name} {self.memo_key} {keys.name}",
            lambda: kernel.prepare(self.seen_mask, bias, context.tokens, keys, self.n_heads),
        )

    def _by_place(self, query: Tokens, keys: Tokens) -> Tensor | None:
        own = self._sum(self.by_position, None, query, keys)
        return own if self.transient is None else self.transient.added(own, query.as_queries(), keys.as_keys())

    def _sum(self, which: tuple[int, ...], content: Content | None, query: Tokens, keys: Tokens) -> Tensor | None:
        each = (self.scores[i](content, query.as_queries(), keys.as_keys()) for i in which)
        found = [score for score in each if score is not None]
        return reduce(add, found) if found else None
