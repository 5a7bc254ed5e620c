"""DeBERTa-v3: scores of content and relative position, projected alike. He et al. 2021, arXiv:2111.09543."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.families.compose import block, embedding, post_norm, repeat
from anyformer.layers import (
    GELU,
    AddSpec,
    AttentionSpec,
    ByRole,
    Content,
    FeedForwardSpec,
    LayerNormSpec,
    Part,
    ScoreSpec,
    Tokens,
)
from anyformer.spec import (
    Count,
    Length,
    MapSpec,
    ModelSpec,
    PartSpec,
    Placed,
    ScaleSpec,
    Site,
    StackSpec,
    TableSpec,
    Vocab,
    Weight,
    Width,
    Window,
)
from tests.hard_cases.case import Case, Parity, attention_heads, masked_words, of_transformers

NORM = LayerNormSpec(eps=1e-7)


class RelativeTableSpec(PartSpec):
    """A vector of the stream's width for each bucket of distance, to both sides."""

    n_buckets: Count
    norm: MapSpec

    def weights(self, site: Site) -> Mapping[str, Weight | None]:
        return {"weight": Weight((2 * self.n_buckets, site.d_model), ("bucket", "d_model"), "table")}

    def parts(self, site: Site) -> Mapping[str, Placed]:
        return {"norm": (self.norm, site.at(site.d_model))}


class RelativeTable(Part[RelativeTableSpec]):
    weight: Tensor
    norm: nn.Module

    def forward(self) -> Tensor:
        return self.norm(self.weight)


class DisentangledSpec(ScoreSpec):
    """Content to position and position to content, the positions projected as the layer projects its tokens."""

    table: RelativeTableSpec
    farthest: Window = Window(512)
    reads_content = True

    def parts(self, site: Site) -> Mapping[str, Placed]:
        return {"table": (self.table, site)}

    def rows(self, distance: Tensor) -> Tensor:
        """Return the table's row for query position - key position: exact when near, logarithmic when far."""
        n = self.table.n_buckets
        middle = n // 2
        far = torch.log(distance.abs().clamp(min=1) / middle) / math.log((self.farthest - 1) / middle) * (middle - 1)
        bucket = torch.where(distance.abs() < middle, distance, distance.sign() * (far.ceil().long() + middle))
        return (bucket + n).clamp(0, 2 * n - 1)


class Disentangled(Part[DisentangledSpec]):
    table: RelativeTable

    def forward(self, content: Content, query: Tokens, key: Tokens) -> Tensor:
        q, k, width, vectors = content.q, content.k, content.q.shape[-1], self.table()
        queries, keys = (
            p(vectors).unflatten(-1, (-1, width)).permute(1, 2, 0) for p in (content.projection.q, content.projection.k)
        )
        rows = self.spec.rows(query.position - key.position)
        to_position, from_position = q @ keys, k @ queries  # [batch, heads, query or key, row]
        c2p = to_position.gather(-1, rows.expand(*to_position.shape[:-1], -1))
        p2c = from_position.gather(-1, rows.mT.expand(*from_position.shape[:-1], -1)).mT
        return (c2p + p2c) * (3 * width) ** -0.5


def deberta_v3(
    *,
    n_layers: int = 12,
    d_model: int = 768,
    n_heads: int = 12,
    d_ff: int = 3072,
    n_buckets: int = 256,
    context: int = 512,
    vocab_size: int = 128_100,
) -> ModelSpec:
    """Return the architecture with its MLM head; sizes of base: the paper, section 4.2, and the released config."""
    tokens = TableSpec(rows=Vocab(vocab_size), shared="tokens")
    table = RelativeTableSpec(n_buckets=Count(n_buckets), norm=NORM, shared="distances")
    attend = AttentionSpec(
        projection=attention_heads(n_heads, bias=True),
        scores=(DisentangledSpec(table=table, farthest=Window(context)),),
        scale=ScaleSpec(factor=3**-0.5, power=-0.5),  # three summands of equal weight
    )
    layer = block(post_norm(NORM, attend), post_norm(NORM, FeedForwardSpec(d_ff=Width(d_ff), activation=GELU())))
    terms = embedding(tokens, norm=NORM).but(masked=True)
    stack = StackSpec(d_model=Width(d_model), embedding=terms, blocks=repeat(layer, n_layers), residual=AddSpec())
    return ModelSpec(stack=stack, heads=(masked_words(tokens, NORM),), init=ByRole(), context=Length(context))


def theirs(**sizes: Any) -> Any:
    """Return the model of transformers."""
    relative = {
        "relative_attention": True,
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 256,
    }
    flags = {**relative, "norm_rel_ebd": "layer_norm", "type_vocab_size": 0, "position_biased_input": False}
    base = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
    every = {"vocab_size": 128_100, **base, **flags, **sizes}
    return of_transformers("DebertaV2ForMaskedLM", "DebertaV2Config", **every)


LAYER, SUBLAYERS = "deberta.encoder.layer.{i}", "stack.blocks.{i}.sublayers"


def rows() -> dict[str, Any]:
    """Return the table."""
    table: dict[str, Any] = {
        "deberta.embeddings.word_embeddings.weight": "shared.tokens.weight",
        "deberta.encoder.rel_embeddings.weight": "shared.distances.weight",
        "cls.predictions.bias": "heads.0.bias",
    }
    for w in ("weight", "bias"):
        table |= {
            f"deberta.embeddings.LayerNorm.{w}": f"stack.embedding.norm.{w}",
            f"deberta.encoder.LayerNorm.{w}": f"shared.distances.norm.{w}",
            f"{LAYER}.attention.output.dense.{w}": f"{SUBLAYERS}.0.branches.0.mixer.projection.o.{w}",
            f"{LAYER}.attention.output.LayerNorm.{w}": f"{SUBLAYERS}.0.norm_sum.{w}",
            f"{LAYER}.intermediate.dense.{w}": f"{SUBLAYERS}.1.branches.0.mixer.up.{w}",
            f"{LAYER}.output.dense.{w}": f"{SUBLAYERS}.1.branches.0.mixer.down.{w}",
            f"{LAYER}.output.LayerNorm.{w}": f"{SUBLAYERS}.1.norm_sum.{w}",
            f"cls.predictions.transform.dense.{w}": f"heads.0.transform.0.{w}",
            f"cls.predictions.transform.LayerNorm.{w}": f"heads.0.transform.2.{w}",
        }
        for name in ("query", "key", "value"):
            ours = f"{SUBLAYERS}.0.branches.0.mixer.projection.{name[0]}.{w}"
            table[f"{LAYER}.attention.self.{name}_proj.{w}"] = ours
    return table


SMALL = {"vocab_size": 96, "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 56}

CASE = Case(
    "deberta-v3-base",
    deberta_v3,
    "184M",
    theirs,
    headless=True,
    parity=Parity(
        lambda: theirs(**SMALL, position_buckets=6, max_position_embeddings=32),
        lambda: deberta_v3(vocab_size=96, d_model=40, n_heads=4, d_ff=56, n_layers=2, n_buckets=6, context=32),
        rows(),
        unused=("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"),
        outputs={"mlm": "logits"},
    ),
)
