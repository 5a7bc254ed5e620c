"""Longformer: a window, and marked tokens with projections of their own. Beltagy et al. 2020, arXiv:2004.05150."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from anyformer.families.compose import block, embedding, post_norm, repeat
from anyformer.layers import (
    GELU,
    AddSpec,
    AttentionSpec,
    ByRole,
    FeedForwardSpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    LinearSpec,
    Mask,
    Now,
    Projection,
    ProjectionSpec,
    SegmentsSpec,
    SymmetricWindow,
    Tokens,
)
from anyformer.spec import (
    Count,
    Length,
    ModelSpec,
    Placed,
    Site,
    Sizes,
    StackSpec,
    TableSpec,
    Vocab,
    Width,
    Window,
)
from tests.hard_cases.case import Case, Parity, masked_words, of_transformers

NORM = LayerNormSpec(eps=1e-5)


class LocalAndGlobalSpec(ProjectionSpec):
    """Two sets of heads, each with its queries, keys and values; masks let one of them answer a token, never both."""

    n_heads: Count  # of each set

    def sizes(self, site: Site) -> tuple[int, int, int]:
        return 2 * self.n_heads, site.d_model // self.n_heads, site.d_model // self.n_heads

    def parts(self, site: Site) -> Mapping[str, Placed]:
        into, out = LinearSpec(bias=True), LinearSpec(bias=True, role="output")
        return {f"{n}{of}": (into, site) for of in ("", "_global") for n in "qkv"} | {"o": (out, site)}

    def cache_shapes(self, site: Site) -> Mapping[str, tuple[int, ...]]:
        n_heads, width, _ = self.sizes(site)
        return {"key": (n_heads, width), "value": (n_heads, width)}

    def resized(self, to: Sizes) -> LocalAndGlobalSpec:
        return self.but(n_heads=Count(to.heads(self.n_heads, self.n_heads, None)[0]))


class LocalAndGlobal(Projection[LocalAndGlobalSpec]):
    def query(self, x: Tensor, now: Now) -> Tensor:
        return self._sets("q", x)

    def store(self, source: Tensor, now: Now) -> dict[str, Tensor]:
        return {"key": self._sets("k", source), "value": self._sets("v", source)}

    def expand(self, q: Tensor, stored: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        return q, stored["key"], stored["value"]

    def output(self, y: Tensor) -> Tensor:
        """Return the sum over the two sets: the one that sees no key for a token gives 0."""
        local, everywhere = y.chunk(2, 1)
        return self.get_submodule("o")((local + everywhere).transpose(1, 2).flatten(2))

    def _sets(self, name: str, x: Tensor) -> Tensor:
        both = torch.cat((self.get_submodule(name)(x), self.get_submodule(f"{name}_global")(x)), -1)
        return both.unflatten(-1, (2 * self.spec.n_heads, -1)).transpose(1, 2)


class MarkedKeys(Mask):
    """Every token sees those that are marked."""

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return _marked(key) & (query.position >= 0)


class MarkedQueries(Mask):
    """Marked tokens see everything."""

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return _marked(query) & (key.position >= 0)


class Beyond(Mask):
    """Heads from the n-th on see everything."""

    n_heads: Count

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return head >= self.n_heads

    def resized(self, to: Sizes) -> Beyond:
        return self.but(n_heads=Count(to.heads(self.n_heads, self.n_heads, None)[0]))


def _marked(tokens: Tokens) -> Tensor:
    return torch.zeros_like(tokens.position, dtype=torch.bool) if tokens.mark is None else tokens.mark > 0


def longformer(
    *,
    n_layers: int = 12,
    d_model: int = 768,
    n_heads: int = 12,
    d_ff: int = 3072,
    window: int = 512,
    n_positions: int = 4096,
    vocab_size: int = 50_265,
) -> ModelSpec:
    """Return the architecture with its MLM head; sizes of base: the paper, section 5, and the released config."""
    table, heads = TableSpec(rows=Vocab(vocab_size), shared="tokens"), Count(n_heads)
    second, window_or_marked = Beyond(n_heads=heads), SymmetricWindow(radius=Window(window // 2)) | MarkedKeys()
    seen = (window_or_marked & ~MarkedQueries() & ~second) | (MarkedQueries() & second)
    attend = post_norm(NORM, AttentionSpec(projection=LocalAndGlobalSpec(n_heads=heads), mask=seen))
    layer = block(attend, post_norm(NORM, FeedForwardSpec(d_ff=Width(d_ff), activation=GELU())))
    positions = LearnedPositionsSpec(n_positions=Length(n_positions), offset=2)
    terms = embedding(table, positions, SegmentsSpec(n_segments=Count(1)), norm=NORM)
    stack = StackSpec(d_model=Width(d_model), embedding=terms, blocks=repeat(layer, n_layers), residual=AddSpec())
    return ModelSpec(stack=stack, heads=(masked_words(table, NORM),), init=ByRole(), context=Length(n_positions))


def theirs(**sizes: Any) -> Any:
    """Return the model of transformers."""
    fixed = {"type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
    every = {"vocab_size": 50_265, "max_position_embeddings": 4098, **fixed, **sizes}
    return of_transformers("LongformerForMaskedLM", "LongformerConfig", **every)


LAYER, SUBLAYERS = "longformer.encoder.layer.{i}", "stack.blocks.{i}.sublayers"


def rows() -> dict[str, Any]:
    """Return the table."""
    table: dict[str, Any] = {"lm_head.bias": "heads.0.bias"}
    for k, name in enumerate(("word", "position", "token_type")):
        ours = "shared.tokens.weight" if k == 0 else f"stack.embedding.terms.{k}.weight"
        table[f"longformer.embeddings.{name}_embeddings.weight"] = ours
    for w in ("weight", "bias"):
        table |= {
            f"longformer.embeddings.LayerNorm.{w}": f"stack.embedding.norm.{w}",
            f"{LAYER}.attention.output.dense.{w}": f"{SUBLAYERS}.0.branches.0.mixer.projection.o.{w}",
            f"{LAYER}.attention.output.LayerNorm.{w}": f"{SUBLAYERS}.0.norm_sum.{w}",
            f"{LAYER}.intermediate.dense.{w}": f"{SUBLAYERS}.1.branches.0.mixer.up.{w}",
            f"{LAYER}.output.dense.{w}": f"{SUBLAYERS}.1.branches.0.mixer.down.{w}",
            f"{LAYER}.output.LayerNorm.{w}": f"{SUBLAYERS}.1.norm_sum.{w}",
            f"lm_head.dense.{w}": f"heads.0.transform.0.{w}",
            f"lm_head.layer_norm.{w}": f"heads.0.transform.2.{w}",
        }
        for name in ("query", "key", "value"):
            for of in ("", "_global"):
                ours = f"{SUBLAYERS}.0.branches.0.mixer.projection.{name[0]}{of}.{w}"
                table[f"{LAYER}.attention.self.{name}{of}.{w}"] = ours
    return table


SMALL = {"vocab_size": 96, "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 56}

CASE = Case(
    "longformer-base",
    longformer,
    "149M",
    theirs,
    parity=Parity(
        lambda: theirs(**SMALL, attention_window=6, max_position_embeddings=66),
        lambda: longformer(vocab_size=96, d_model=40, n_heads=4, d_ff=56, n_layers=2, window=6, n_positions=64),
        rows(),
        unused=("lm_head.decoder.weight", "lm_head.decoder.bias", "longformer.embeddings.position_ids"),
        outputs={"mlm": "logits"},
        marked="global_attention_mask",
    ),
)
