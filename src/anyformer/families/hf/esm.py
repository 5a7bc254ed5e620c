"""ESM to and from transformers' EsmForMaskedLM, EsmModel and the classes that put labels on it."""

from __future__ import annotations

from typing import Any

import torch

from anyformer.families.compose import changed
from anyformer.families.esm import MASK, PADDING, esm
from anyformer.families.heads import contacts
from anyformer.families.hf import headings, table
from anyformer.families.hf.bert import BRANCHES, OF_ROBERTA
from anyformer.families.hf.encoder import encoder_family, laid_out, n_positions
from anyformer.families.hf.mapping import TensorRow, constant, dropped, width_of_head
from anyformer.families.hf.rotary import THETA
from anyformer.families.hf.settings import Settings
from anyformer.layers import FeedForwardSpec, GQASpec, LearnedPositionsSpec, RotarySpec, TokenDropoutSpec, TokensSpec
from anyformer.spec import EmbeddingSpec, ModelSpec

ABSOLUTE, ROTARY = "absolute", "rotary"
POSITIONS = n_positions(offset_by_padding=True, default=1026)


def _read(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The positions, the embedding's norm, and what becomes of masked tokens."""
    spec = POSITIONS.read(settings, spec)
    theta = settings.take("rope_theta", float, 10_000.0)
    if settings.word("position_embedding_type", (ABSOLUTE, ROTARY), ABSOLUTE) == ROTARY:
        embedding = spec.stack.embedding
        spec = spec.but(stack=spec.stack.but(embedding=embedding.but(terms=embedding.terms[:1])))
        spec = changed(spec, GQASpec, rotary=RotarySpec(theta=theta))
    if not settings.take("emb_layer_norm_before", bool, False):
        spec = changed(spec, EmbeddingSpec, norm=None)
    mask, dropped = settings.optional("mask_token_id", int), settings.take("token_dropout", bool, False)
    if not dropped:
        return changed(spec, TokensSpec, dropout=None)
    if mask is None:
        raise settings.refusal("mask_token_id", "is missing, and token_dropout needs it")
    return changed(spec, TokenDropoutSpec, token=mask)


def _write(spec: ModelSpec) -> dict[str, Any]:
    embedding, kinds = spec.stack.embedding, {type(value): value for value in spec.stack.nested()}
    rotary, dropped = kinds.get(RotarySpec), kinds.get(TokenDropoutSpec)
    rows = {"max_position_embeddings": (spec.context or 1024) + PADDING + 1, "pad_token_id": PADDING}
    return {
        **(POSITIONS.write(spec) if LearnedPositionsSpec in kinds else rows),
        "position_embedding_type": ABSOLUTE if rotary is None else ROTARY,
        THETA: rotary.theta if isinstance(rotary, RotarySpec) else 10_000.0,
        "emb_layer_norm_before": embedding.norm is not None,
        "token_dropout": dropped is not None,
        "mask_token_id": dropped.token if isinstance(dropped, TokenDropoutSpec) else MASK,
    }


def _frequencies(spec: ModelSpec) -> list[TensorRow]:
    """What the class holds of the angles: once, in older files in each layer, which transformers 5.23 writes as layer *."""
    rotary = next(spec.nested(RotarySpec), None)
    if rotary is None:
        return []
    turning, name = torch.tensor(rotary.frequencies(width_of_head(spec))), "rotary_embeddings.inv_freq"
    old = (f"{HEADS.prefix}encoder.layer.{i}.attention.self.{name}" for i in ("*", *range(spec.n_layers)))
    return [constant(name, lambda: turning), dropped(*old)]


REGRESSION = "esm.contact_head.regression"
EACH = {
    "mlm": OF_ROBERTA,
    "contacts": headings.Heading(lambda spec, n: contacts(), {"table": REGRESSION, "": REGRESSION}),
    "pooler": headings.pooled("esm.pooler.dense"),
    "classes": headings.row_labels(*headings.TWO_LAYERS),
    "token_classes": headings.TOKEN_CLASSES,
}
# Every class has the head for contacts, which only a call of its own asks.
CLASSES = {
    "EsmForMaskedLM": ("mlm", "contacts"),
    "EsmModel": ("pooler", "contacts"),
    "EsmForSequenceClassification": ("classes", "contacts"),
    "EsmForTokenClassification": ("token_classes", "contacts"),
}
HEADS = headings.HeadNames("esm.", "EsmModel", EACH, CLASSES)
ESM = encoder_family(
    "esm",
    esm(1, 8, 1, learned=True),
    (
        *table.STREAM,
        table.at("intermediate_size", int, FeedForwardSpec, "d_ff"),
        table.at("num_attention_heads", int, GQASpec, "n_heads"),
        table.EVEN,
        table.starts(),
        table.layers(),
        table.eps(1e-12),
        table.Pair(_read, _write),
        table.only(is_folding_model=False),
    ),
    HEADS,
    laid_out(
        {**BRANCHES, "0.norm_in": "attention.LayerNorm", "1.norm_in": "LayerNorm"},
        terms=("position",),
        outside={"stack.embedding.norm": "embeddings.layer_norm", "stack.norm": "encoder.emb_layer_norm_after"},
    ),
    buffers=("embeddings.position_ids", "embeddings.position_embeddings.weight"),
    further=_frequencies,
    ignored=("esmfold_config", "vocab_list", "hidden_act"),
)
