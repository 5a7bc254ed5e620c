"""Heads that encoders and decoders carry beside, or instead of, the one that predicts the next token."""

from __future__ import annotations

from anyformer.errors import SpecError
from anyformer.layers import (
    GELU,
    ContactsSpec,
    FirstTokenSpec,
    LastTokenSpec,
    LinearSpec,
    MeanTokensSpec,
    Tanh,
    TokensSpec,
    UnitLengthSpec,
)
from anyformer.spec import HeadSpec, MapSpec, ModelSpec, PoolSpec, TableSpec, Vocab

CLASSES = "classes"  # the head whose rows are labels of a text
JUDGES = (CLASSES, "token_classes")  # the heads whose rows are labels
EMBEDDING = "embedding"  # the head that makes one vector of a text


def masked_words(model: ModelSpec, activation: MapSpec | None = None) -> HeadSpec:
    """BERT's head: a layer as wide as the embedding, an activation (GELU), its norm or else the last, the tied table, a bias."""
    embedding = model.stack.embedding
    tokens = next((term for term in embedding.terms if isinstance(term, TokensSpec)), None)
    norm = embedding.norm or model.stack.norm
    if tokens is None or norm is None:
        raise SpecError(
            "a head for masked words repeats the embedding's table and its norm or the last, and there is none"
        )
    layer = LinearSpec(d_out=embedding.width, bias=True)
    return HeadSpec(name="mlm", transform=(layer, activation or GELU(), norm), table=tokens.table, bias=True)


def with_masked_words(model: ModelSpec, *others: HeadSpec, activation: MapSpec | None = None) -> ModelSpec:
    """The model with the head that masked words train, and others after it."""
    return model.but(heads=(masked_words(model, activation), *others))


def words_of_table(model: ModelSpec) -> HeadSpec:
    """The embedding's table and a bias."""
    return HeadSpec(table=next(model.stack.embedding.nested(TableSpec)), bias=True)


def contacts() -> HeadSpec:
    """A score for each pair of tokens that they lie together, of all maps of attention (ESM)."""
    return HeadSpec(name="contacts", pool=ContactsSpec(), table=TableSpec(rows=Vocab(1)), bias=True)


def pooler(pool: PoolSpec | None = None, activation: MapSpec | None = None) -> HeadSpec:
    """One vector a row: the first token's by default, through a layer and an activation (tanh)."""
    layer = LinearSpec(bias=True)
    return HeadSpec(name="pooler", pool=pool or FirstTokenSpec(), transform=(layer, activation or Tanh()))


def row_classes(
    n: int, name: str = CLASSES, pool: PoolSpec | None = None, activation: MapSpec | None = None
) -> HeadSpec:
    """`n` scores a row, of what the pooler gives: classes, or whether a sentence follows (name "nsp", n = 2)."""
    return pooler(pool, activation).but(name=name, table=TableSpec(rows=Vocab(n)), bias=True)


def token_classes(n: int, name: str = "token_classes") -> HeadSpec:
    """`n` scores a token."""
    return HeadSpec(name=name, table=TableSpec(rows=Vocab(n)), bias=True)


def last_token_classes(n: int) -> HeadSpec:
    """`n` scores a row, of the vector of its last token as it is: of a decoder, which has seen all by then."""
    return HeadSpec(name=CLASSES, pool=LastTokenSpec(), table=TableSpec(rows=Vocab(n)))


def with_rows(head: HeadSpec, n: int) -> HeadSpec:
    """A head for `n` labels instead of as many as it had."""
    return head if head.table is None else head.but(table=head.table.but(rows=Vocab(n)))


def sentence_embedding(pool: PoolSpec | None = None, layers: tuple[MapSpec, ...] = ()) -> HeadSpec:
    """One vector of length 1 a row, by default of its tokens' mean, behind layers (arXiv:1908.10084): products are cosines."""
    return HeadSpec(name=EMBEDDING, pool=pool or MeanTokensSpec(), transform=(*layers, UnitLengthSpec()))


def with_head(model: ModelSpec, head: HeadSpec) -> ModelSpec:
    """The model with a head after its others, or in the place of the one that has its name."""
    if not any(own.name == head.name for own in model.heads):
        return model.but(heads=(*model.heads, head))
    return model.but(heads=tuple(head if own.name == head.name else own for own in model.heads))
