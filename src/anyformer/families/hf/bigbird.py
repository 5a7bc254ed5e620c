"""BigBird to and from transformers' BigBirdModel and the classes that put heads on it, as they compute in evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from anyformer.families.bigbird import bigbird, block_sparse
from anyformer.families.hf import headings
from anyformer.families.hf.bert import LAYER, MLM, NEXT
from anyformer.families.hf.encoder import SEGMENTS, encoder_family, laid_out, n_positions, sizes
from anyformer.families.hf.mapping import TensorRow, constant
from anyformer.families.hf.scales import scaled_tokens
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.table import Pair, at, eps
from anyformer.layers import GlobalBlocks, GQASpec
from anyformer.spec import ModelSpec, ScaleSpec

FULL, SPARSE = "original_full", "block_sparse"
BIASES = at("use_bias", bool, GQASpec, "bias_query", "bias_key", "bias_value", default=True)


def _read_attention(settings: Settings, spec: ModelSpec) -> ModelSpec:
    kind = settings.word("attention_type", (FULL, SPARSE), SPARSE)
    size, n_random = settings.take("block_size", int, 64), settings.take("num_random_blocks", int, 3)
    return block_sparse(spec, size, n_random) if kind == SPARSE else spec


def _written_attention(spec: ModelSpec) -> Mapping[str, Any]:
    found = next(spec.nested(GlobalBlocks), None)
    if found is None:
        return {"attention_type": FULL}
    return {"attention_type": SPARSE, "block_size": found.size, "num_random_blocks": found.n_random}


SCALE = scaled_tokens("rescale_embeddings", ScaleSpec(power=0.5))
ATTENTION = Pair(_read_attention, _written_attention)
HEADS = headings.usual_classes(
    "BigBird",
    "bert.",
    {
        "mlm": MLM,
        "nsp": headings.of_pairs("nsp", "bert.pooler", NEXT),
        "pooler": headings.pooled("bert.pooler"),
        "classes": headings.row_labels(*headings.TWO_LAYERS, headings.of_feed_forwards),
        "token_classes": headings.TOKEN_CLASSES,
    },
    {"ForPreTraining": ("mlm", "nsp")},
)


def further(spec: ModelSpec) -> Iterator[TensorRow]:
    """Zeros for the pooler, which their classes hold, where no head has it."""
    n = spec.stack.d_model
    if not {"nsp", "pooler"} & {head.name for head in spec.heads}:
        yield constant("pooler.weight", lambda: torch.zeros(n, n))
        yield constant("pooler.bias", lambda: torch.zeros(n))


BIGBIRD = encoder_family(
    "big_bird",
    bigbird(1, 8, 1),
    (*sizes(usual="gelu_new"), SEGMENTS, eps(1e-12), n_positions(default=4096), BIASES, SCALE, ATTENTION),
    HEADS,
    laid_out(LAYER),
    further=further,
)
