"""ALBERT: one block for all layers, a factorised embedding. Lan et al. 2019, arXiv:1909.11942."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import post_norm, repeat
from anyformer.layers import (
    GELU,
    AddSpec,
    AttentionSpec,
    ByRole,
    FeedForwardSpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    LinearSpec,
    SegmentsSpec,
    Tanh,
    TokensSpec,
)
from anyformer.spec import BlockSpec, EmbeddingSpec, HeadSpec, Length, ModelSpec, StackSpec, TableSpec, Vocab, Width
from tests.hard_cases.case import Case, Parity, attention_heads, masked_words, of_transformers

NORM = LayerNormSpec(eps=1e-12)
ACTIVATION = GELU(form="tanh")


def albert(
    *,
    n_layers: int = 12,
    d_model: int = 768,
    width: int = 128,
    n_heads: int = 12,
    d_ff: int = 3072,
    n_positions: int = 512,
    vocab_size: int = 30_000,
) -> ModelSpec:
    """Return the architecture, heads for masked words and sentence order; sizes of base: the paper, table 1."""
    table = TableSpec(rows=Vocab(vocab_size), shared="tokens")
    heads = attention_heads(n_heads, bias=True)
    attend = post_norm(NORM, AttentionSpec(projection=heads))
    feed = post_norm(NORM, FeedForwardSpec(d_ff=Width(d_ff), activation=ACTIVATION))
    layer = BlockSpec(sublayers=(attend, feed), shared="layer")
    terms = EmbeddingSpec(
        terms=(TokensSpec(table=table), LearnedPositionsSpec(n_positions=Length(n_positions)), SegmentsSpec()),
        width=Width(width),
        norm=NORM,
        projection=LinearSpec(bias=True),
    )
    stack = StackSpec(d_model=Width(d_model), embedding=terms, blocks=repeat(layer, n_layers), residual=AddSpec())
    head = masked_words(table, NORM, ACTIVATION, width)
    pooler = (LinearSpec(bias=True), Tanh())  # its answer is read at the first token
    order = HeadSpec(name="order", transform=pooler, table=TableSpec(rows=Vocab(2)), bias=True)
    return ModelSpec(stack=stack, heads=(head, order), init=ByRole(), context=Length(n_positions))


def theirs(**sizes: Any) -> Any:
    """Return the model of transformers."""
    width = {"vocab_size": 30000, "embedding_size": 128, "hidden_size": 768, "intermediate_size": 3072}
    every = {**width, "num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 512, **sizes}
    return of_transformers("AlbertForPreTraining", "AlbertConfig", **every, attn_implementation="eager")


LAYER, SUBLAYERS = "albert.encoder.albert_layer_groups.{i}.albert_layers.0", "shared.layer.sublayers"


def rows() -> dict[str, Any]:
    """Return the table."""
    table: dict[str, Any] = {"predictions.bias": "heads.0.bias"}
    for k, name in enumerate(("word", "position", "token_type")):
        ours = "shared.tokens.weight" if k == 0 else f"stack.embedding.terms.{k}.weight"
        table[f"albert.embeddings.{name}_embeddings.weight"] = ours
    for w in ("weight", "bias"):
        table |= {
            f"albert.embeddings.LayerNorm.{w}": f"stack.embedding.norm.{w}",
            f"albert.encoder.embedding_hidden_mapping_in.{w}": f"stack.embedding.projection.{w}",
            f"{LAYER}.attention.LayerNorm.{w}": f"{SUBLAYERS}.0.norm_sum.{w}",
            f"{LAYER}.full_layer_layer_norm.{w}": f"{SUBLAYERS}.1.norm_sum.{w}",
            f"{LAYER}.ffn.{w}": f"{SUBLAYERS}.1.branches.0.mixer.up.{w}",
            f"{LAYER}.ffn_output.{w}": f"{SUBLAYERS}.1.branches.0.mixer.down.{w}",
            f"albert.pooler.{w}": f"heads.1.transform.0.{w}",
            f"sop_classifier.classifier.{w}": "heads.1.table.weight" if w == "weight" else "heads.1.bias",
            f"predictions.dense.{w}": f"heads.0.transform.0.{w}",
            f"predictions.LayerNorm.{w}": f"heads.0.transform.2.{w}",
        }
        for name, n in (("query", "q"), ("key", "k"), ("value", "v"), ("dense", "o")):
            table[f"{LAYER}.attention.{name}.{w}"] = f"{SUBLAYERS}.0.branches.0.mixer.projection.{n}.{w}"
    return table


SMALL = {"embedding_size": 20, "hidden_size": 40, "intermediate_size": 56, "max_position_embeddings": 64}

CASE = Case(
    "albert-base",
    albert,
    "12M",
    theirs,
    parity=Parity(
        lambda: theirs(**SMALL, vocab_size=96, num_hidden_layers=3, num_attention_heads=4),
        lambda: albert(vocab_size=96, width=20, d_model=40, n_heads=4, d_ff=56, n_layers=3, n_positions=64),
        rows(),
        unused=("predictions.decoder.weight", "predictions.decoder.bias"),
        segments=True,
        outputs={"mlm": "prediction_logits", "order": "sop_logits"},
    ),
)
