"""A choice of keys: DeepSeek sparse attention, whose lightning indexer says which keys each query attends to.

DeepSeek-AI 2025, the report of DeepSeek-V3.2 (from memory). It trains the indexer by a loss of its own, the divergence of its
scores' softmax from attention's weights; that loss is not here, and no gradient of another reaches a choice. Qwen sparse
attention (Qwen team 2026, Qwen3.8-Flash-Next) chooses whole blocks of keys likewise, by the mean of each (`whole_blocks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.layers.compression import Compressor, CompressorSpec, EndedBlocks, blocks_seen, gathered
from anyformer.layers.context import ForwardContext
from anyformer.layers.execution import as_given, exact, exact_dtype, exporting
from anyformer.layers.linear import LinearSpec
from anyformer.layers.mask import Everything, Mask
from anyformer.layers.norm import LayerNormSpec
from anyformer.layers.pairs import chosen_pairs
from anyformer.layers.part import Part
from anyformer.layers.query_scale import QueryScaleSpec
from anyformer.layers.rotary import RotarySpec, Rotation, fraction_of
from anyformer.layers.tokens import Tokens
from anyformer.layers.whole_blocks import WholeBlocks, whole_blocks
from anyformer.spec import Caveat, Cost, Count, MapSpec, PartSpec, Place, Placed, Sizes, Weight, Width, Window, Workload

INDEX = "index"  # its keys among what is stored
AT_ONCE = 2**24  # products of queries and keys in memory at once; heads take turns where there are more


class IndexerSpec(PartSpec):
    """The visible keys of the `top_k` best scores, alike for all heads; a score is the sum over the indexer's heads of
    w · relu(q·k / √head_dim) / √n_heads.

    Its queries are made of what attention's are made of, the latent where there is one; w, a number a head, and the one key a
    token of the stream. Keys whose scores equal the last of the best are chosen too. Its place's shape is the width of that
    latent. Where it chooses blocks of `every` keys, a query sees those of its own document that came before it whole by choice,
    and all keys behind them.
    """

    observed_as: ClassVar[str | None] = "indexer"
    by_count: ClassVar[bool] = False  # as of scores: whether it goes faster where positions count by one

    n_heads: Count
    head_dim: Width
    top_k: Window
    # of the pairs of features that turn: of each head the first or last, as many as of attention's; None: attention's layout
    layout: Literal["half", "interleaved"] | None = None
    where: Literal["first", "last"] = "first"
    norm_key: MapSpec | None = LayerNormSpec(eps=1e-6)
    norm_query: MapSpec | None = None  # of each head's
    norm_read: MapSpec | None = None  # of what its queries are made of (Mistral Large 4)
    query_scale: QueryScaleSpec | None = None  # what its queries are multiplied by, by their positions
    weighed: bool = True  # whether heads have a w; all count alike otherwise
    # keys of a block that is chosen as one, by the norm of the mean of its keys, which turns as the first of them
    every: Window = Window(1)
    # a block's key is the sum of its tokens' normed keys, each feature weighed by softmax(gate(x) + bias by place) (GLM-5.3)
    gated: bool = False
    # what makes its keys, where attention's are of blocks and it chooses among these
    compressor: CompressorSpec | None = None
    # "layer": its choice is that of an earlier layer, whose indexer is like this one, and it has no weights (GLM)
    reads: Literal["self", "layer"] = "self"
    # the name under which later layers find the choice; of one that reads "layer", the name of what it reads
    choice: str | None = None

    def __post_init__(self) -> None:
        if self.reads == "layer" and self.choice is None:
            raise self.refusal(
                "choice", "does not say what is read; give the name under which an earlier layer keeps it"
            )
        self.require("top_k", self.top_k % self.every == 0, f"must be a multiple of every = {self.every}")
        if self.every > 1 and self.compressor is not None:
            raise self.refusal(
                "every", "chooses blocks of tokens' keys, and a compressor makes one key of them; leave one out"
            )
        if self.gated and self.every == 1:
            raise self.refusal("gated", "weighs the keys of a block, and there are none of every = 1; leave one out")

    @property
    def kept(self) -> int:
        """The width of what is kept of a token: its key, and what that is weighed by."""
        return self.head_dim * (2 if self.gated else 1)

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        by_place = Weight((self.every, self.head_dim), ("block", "head_dim"), "bias", fill=0.0)
        return {"bias": by_place if self.gated else None}

    def parts(self, place: Place) -> Mapping[str, Placed]:
        compressor = self.compressor
        stream, heads = place.at(place.d_model), Width(self.n_heads * self.head_dim)
        return {
            "q": (LinearSpec(d_out=heads, axes=("heads", "query_rank")), place),
            "k": (LinearSpec(d_out=self.head_dim, axes=("head_dim", "d_model")), stream)
            if compressor is None
            else None,
            "gate": (LinearSpec(d_out=self.head_dim, axes=("head_dim", "d_model")), stream) if self.gated else None,
            "compressor": compressor and (compressor, place.at(self.head_dim)),
            "norm_key": self.norm_key and (self.norm_key, place.at(self.head_dim)),
            "norm_query": self.norm_query and (self.norm_query, place.at(self.head_dim)),
            "norm_read": self.norm_read and (self.norm_read, place),
            "query_scale": self.query_scale and (self.query_scale, place.at(self.n_heads, self.head_dim)),
            "weigh": (LinearSpec(d_out=Width(self.n_heads), axes=("heads", "d_model")), stream)
            if self.weighed
            else None,
        }

    def caveats(self) -> tuple[Caveat, ...]:
        said = "a choice hides its scores: its weights learn by a loss of their own, which is not here, and else stay as they are"
        return (Caveat("gradients", said),) if self.reads == "self" else ()

    def rotation(self, rotary: RotarySpec, width: int) -> RotarySpec:
        """How its queries and keys turn beside attention's, of this width."""
        n = min(rotary.dims(width), self.head_dim)
        fits = rotary.learned is None or n == rotary.dims(width)
        self.require("head_dim", fits, f"must be {rotary.dims(width)} at least: so many features learn how they turn")
        layout = self.layout or rotary.layout
        return rotary.but(fraction=fraction_of(n, self.head_dim), where=self.where, layout=layout)

    def cost(self, place: Place, workload: Workload) -> Cost:
        """The products that are made of tokens; those of pairs are `pair` FLOPs each. No query asks where no block is whole."""
        every = self.mean_of if self.compressor is None else self.compressor.every
        asking = workload.tokens if workload.past + workload.query >= every else 0
        of_queries = self.n_heads * (self.head_dim * place.shape[-1] + self.weighed * place.d_model)
        of_keys = Cost({"indexer": 2 * self.kept * place.d_model * workload.tokens})
        if self.compressor is not None:
            of_keys = self.compressor.cost(place.at(self.head_dim), workload).named("indexer")
        return Cost({"indexer": 2 * of_queries * asking}) + of_keys

    @property
    def choices(self) -> int:
        """How many choices it makes, each for as many of attention's heads."""
        return 1

    @property
    def pair(self) -> int:
        """FLOPs of one score: the heads' products, and their weighted sum."""
        return 2 * self.n_heads * (self.head_dim + self.weighed)

    @property
    def mean_of(self) -> int:
        """How many keys it scores as one, their mean."""
        return self.every

    def scored(self, mask: Mask, query: int, past: int) -> int:
        """How many (query, key or block) of `query` new tokens after `past` ones it scores, of a mask's visible ones."""
        if self.mean_of == 1:
            return mask.pairs(query, past, 1)
        if mask == Everything():
            return query * ((past + query) // self.every)
        return blocks_seen(self.every, past + query) - blocks_seen(self.every, past)

    def chosen_pairs(self, mask: Mask, query: int, past: int) -> int:
        """How many (query, key) are left of those that a mask shows to `query` new tokens after `past` ones."""
        return chosen_pairs(mask, query, past, self.top_k, self.every)

    def resized(self, to: Sizes) -> IndexerSpec:
        """Heads follow the rule for heads, and stay enough that some product of a pair is above 0: scores of 0 are equal."""
        n_heads, _, head_dim = to.heads(self.n_heads, self.n_heads, self.head_dim)
        every, n_heads = to.window(self.every), max(n_heads, min(self.n_heads, 16))
        top_k = max(1, to.window(self.top_k) // every) * every
        return to.fields(self, n_heads=n_heads, head_dim=head_dim, every=every, top_k=top_k)

    def fitted(self, before: tuple[int, int], after: tuple[int, int]) -> Self:
        """That for attention of other heads: (of queries, of keys) before it was resized and after."""
        return self


I = TypeVar("I", bound=IndexerSpec)


class Choosing(Part[I], Generic[I]):
    """What an indexer keeps of tokens or of blocks; a subclass scores it, and chooses, in `forward`."""

    q: nn.Module
    k: nn.Module | None
    gate: nn.Module | None
    bias: Tensor | None
    compressor: Compressor | None
    norm_key: nn.Module
    norm_query: nn.Module
    norm_read: nn.Module
    query_scale: Any

    def queries(self, narrow: Tensor, rotary: Rotation | None, context: ForwardContext) -> Tensor:
        """[batch, heads, query, head_dim] of what queries are made of [batch, query, …]."""
        q = self.q(self.norm_read(narrow)).unflatten(-1, (self.spec.n_heads, self.spec.head_dim)).transpose(1, 2)
        q = self.norm_query(q)
        q = q if self.query_scale is None else q * self.query_scale(context).to(q.dtype)
        return q if rotary is None else rotary.rotate(q, context)

    @torch.no_grad()
    def keys(self, x: Tensor, rotary: Rotation | None, context: ForwardContext) -> Tensor:
        """What is kept of x [batch, token, d_model]: its keys [batch, token, head_dim], of blocks as the map gives them, or with
        what they are weighed by beside them."""
        assert self.k is not None
        k = self.k(x)
        if self.gate is not None:
            return torch.cat((self.norm_key(k), self.gate(x)), -1)
        if self.spec.mean_of > 1:
            return k
        k = self.norm_key(k)
        return k if rotary is None else rotary.rotate(k[:, None], context)[:, 0]

    @torch.no_grad()
    def block_keys(
        self, x: Tensor, rotary: Rotation | None, blocks: EndedBlocks, state: Mapping[str, Tensor] | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """(the keys of the blocks of a pass [batch, block, head_dim], what of x [batch, token, d_model] waits for the next)."""
        assert self.compressor is not None
        k, waits = self.compressor(x, blocks, state, INDEX)
        k = self.norm_key(k)
        if rotary is not None:
            k = rotary.rotate_as(k[:, None], blocks.first(self.compressor.spec.every))[:, 0]
        return k, waits


class Indexer(Choosing[IndexerSpec]):
    weigh: nn.Module | None

    @torch.no_grad()
    def forward(
        self,
        narrow: Tensor,
        x: Tensor,
        keys: Tensor,
        among: Tokens,
        seen: Tensor | None,
        rotary: Rotation | None,
        context: ForwardContext,
    ) -> Tensor | None:
        """0 for a chosen key and -inf for another, [batch, 1, query, key]; None where all are chosen.

        `narrow` [batch, query, …] is what queries are made of, x [batch, query, d_model]; `keys` [batch, key, head_dim] are all
        that is kept, of the tokens `among`, `seen` [batch or 1, 1, query, key] the visible pairs. In float32 at least, as a
        router's choice.
        """
        every = self.spec.every
        if every == 1:
            return self._chosen(narrow, x, keys, seen, rotary, context)
        if among.n < every:
            return None
        blocks: WholeBlocks = context.once(f"whole blocks of {every} {among.name}", lambda: whole_blocks(among, every))
        shown = blocks.seen(seen)
        of_blocks = self._chosen(narrow, x, self._means(keys, rotary, blocks, among), shown, rotary, context)
        return blocks.spread(of_blocks, shown)

    def _means(self, keys: Tensor, rotary: Rotation | None, blocks: WholeBlocks, tokens: Tokens) -> Tensor:
        """The keys of blocks [batch, block, head_dim], of all that is kept of `tokens` [batch, key, head_dim]."""
        k = gathered(keys, blocks.members)
        if self.bias is None:
            k = self.norm_key(k.mean(2, dtype=exact_dtype(k)).to(keys.dtype))
        else:
            k, gate = k.chunk(2, -1)
            k = ((exact(gate) + exact(self.bias)).softmax(2).to(k.dtype) * k).sum(2)
        if rotary is None:
            return k
        first, position = torch.broadcast_tensors(blocks.members[..., 0], tokens.position[:, :1])[0], tokens.position
        position = position.expand(len(first), -1).gather(1, first)
        return rotary.rotate_as(k[:, None], Tokens(position))[:, 0]

    def _chosen(
        self,
        narrow: Tensor,
        x: Tensor,
        keys: Tensor,
        seen: Tensor | None,
        rotary: Rotation | None,
        context: ForwardContext,
    ) -> Tensor:
        """Likewise among keys, of tokens or of blocks."""
        spec, q = self.spec, self.queries(narrow, rotary, context)
        w = None if self.weigh is None else self.weigh(x)
        with as_given(x):
            k = exact(keys[:, None]).mT * spec.head_dim**-0.5
            some = max(1, AT_ONCE // max(1, q.shape[0] * q.shape[2] * k.shape[-1]))
            scores = k.new_zeros(())
            parts = exact(q).split(some, 1)
            shares = [None] * len(parts) if w is None else (exact(w) * spec.n_heads**-0.5).split(some, -1)
            for q_some, w_some in zip(parts, shares, strict=True):
                each = (q_some @ k).relu()  # [batch, heads, query, key]
                if w_some is None:
                    scores = scores + each.sum(1, keepdim=True)
                else:
                    scores = scores + (w_some[:, :, None] @ each.transpose(1, 2)).transpose(1, 2)
            scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
            left_out = below_the_best(scores, spec.top_k // spec.every, context)
            return torch.zeros_like(scores).masked_fill(left_out, -torch.inf)


def below_the_best(scores: Tensor, top_k: int, context: ForwardContext) -> Tensor:
    """Which scores [..., n] are less than the last of their `top_k` best."""
    # A graph that is exported is for lengths on both sides of top_k.
    among = F.pad(scores, (0, top_k), value=-torch.inf) if exporting() else scores
    least = among.topk(min(top_k, among.shape[-1]), -1).values[..., -1:]
    return context.decided(lambda: scores < least)
