"""Heads that encoders and decoders carry beside, or instead of, the one that predicts the next token."""

from __future__ import annotations

from anyformer.errors import SpecError
from anyformer.layers import GELU, FirstTokenSpec, LinearSpec, MeanTokensSpec, Tanh, TokensSpec, UnitLengthSpec
from anyformer.spec import HeadSpec, MapSpec, ModelSpec, PoolSpec, TableSpec, Vocab


def masked_words(model: ModelSpec, activation: MapSpec | None = None) -> HeadSpec:
    """Return BERT's head: a layer as wide as the embedding, an activation (GELU), its norm, the tied table, a bias."""
    embedding = model.stack.embedding
    tokens = next((term for term in embedding.terms if isinstance(term, TokensSpec)), None)
    if tokens is None or embedding.norm is None:
        raise SpecError("a head for masked words repeats the embedding's table and norm, and there is none")
    layer = LinearSpec(d_out=embedding.width, bias=True)
    return HeadSpec(name="mlm", transform=(layer, activation or GELU(), embedding.norm), table=tokens.table, bias=True)


def pooler(pool: PoolSpec | None = None, activation: MapSpec | None = None) -> HeadSpec:
    """Return one vector a row: the first token's by default, through a layer and an activation (tanh)."""
    layer = LinearSpec(bias=True)
    return HeadSpec(name="pooler", pool=pool or FirstTokenSpec(), transform=(layer, activation or Tanh()))


def row_classes(
    n: int, name: str = "classes", pool: PoolSpec | None = None, activation: MapSpec | None = None
) -> HeadSpec:
    """Return `n` scores a row, of what the pooler gives: classes, or whether a sentence follows (name "nsp", n = 2)."""
    return pooler(pool, activation).but(name=name, table=TableSpec(rows=Vocab(n)), bias=True)


def token_classes(n: int, name: str = "token_classes", transform: tuple[MapSpec, ...] = ()) -> HeadSpec:
    """Return `n` scores a token."""
    return HeadSpec(name=name, transform=transform, table=TableSpec(rows=Vocab(n)), bias=True)


def sentence_embedding(pool: PoolSpec | None = None) -> HeadSpec:
    """Return one vector of length 1 a row, by default its tokens' mean (arXiv:1908.10084): products are cosines."""
    return HeadSpec(name="embedding", pool=pool or MeanTokensSpec(), transform=(UnitLengthSpec(),))
