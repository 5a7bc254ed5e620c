"""Reformer: attention by hashed buckets and in blocks, reversible residuals, axial positions (arXiv:2001.04451)."""

from __future__ import annotations

from math import prod

from anyformer.families.compose import attend, embedding, feed, repeat, serial
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    AdjacentBlocks,
    AxialPositionsSpec,
    Causal,
    LayerNormSpec,
    LSHAttentionSpec,
    ReLU,
    ReversibleSpec,
)
from anyformer.spec import Count, HeadSpec, Length, ModelSpec, StackSpec, TableSpec, Vocab, Width, Window


def reformer(
    kinds: str,
    n_layers: int,
    d_model: int,
    n_heads: int,
    d_ff: int,
    *,
    head_dim: int,
    vocab_size: int,
    shape: tuple[int, int],
    narrow: int,
    chunks: tuple[int, int] = (64, 64),
    n_hashes: int = 1,
    n_buckets: tuple[int, ...] = (),
) -> ModelSpec:
    """Pre-norm layers of these kinds over and over, "local" or "lsh", whose chunks are (local, hashed).

    Positions are a row and a column of `shape`, of which the row's vector is `narrow`.
    """
    norm = LayerNormSpec(eps=1e-12)
    local, hashed = map(Window, chunks)
    mixers = {
        "local": attend(n_heads, head_dim=head_dim, mask=Causal() & AdjacentBlocks(size=local)),
        "lsh": LSHAttentionSpec(
            n_heads=Count(n_heads), head_dim=Width(head_dim), n_hashes=n_hashes, n_buckets=n_buckets, chunk=hashed
        ),
    }
    layers = {kind: serial(norm, mixer, feed(d_ff, ReLU())) for kind, mixer in mixers.items()}
    table = TableSpec(rows=Vocab(vocab_size))
    stack = StackSpec(
        d_model=Width(d_model),
        embedding=embedding(table, AxialPositionsSpec(shape=shape, widths=(Width(narrow),))),
        blocks=repeat([layers[kind] for kind in kinds.split()], n_layers),
        residual=ReversibleSpec(output="both"),
        norm=norm,
    )
    return ModelSpec(stack=stack, heads=(HeadSpec(table=table, bias=True),), context=Length(prod(shape)))


ENWIK8 = reformer(
    "local local lsh local", 12, 1024, 8, 4096, head_dim=128, vocab_size=258, shape=(128, 512), narrow=256,
    chunks=(128, 256), n_hashes=4, n_buckets=(512,),
)  # fmt: skip
CRIME_AND_PUNISHMENT = reformer(
    "local lsh", 6, 256, 2, 512, head_dim=64, vocab_size=320, shape=(512, 1024), narrow=64, n_buckets=(64, 128)
)

REFORMER = Origin("reformer", "gpt2", 2020, "arXiv:2001.04451, sections 2 and 3").lineage(
    "queries that are keys meet those of their bucket only, other layers their block and the one before; residuals are "
    "reversible, so that training keeps no more for more layers; positions of a row and a column",
    Preset("reformer-enwik8", ENWIK8, "149M", alias="reformer", tokenizer="bytes and two marks, 258"),
    Preset("reformer-crime-and-punishment", CRIME_AND_PUNISHMENT, "2.7M", tokenizer="SentencePiece BPE, 320"),
    sizes="Kitaev et al. 2020, arXiv:2001.04451, and the released configurations (sizes from memory)",
    tokenizer="bytes",
)
