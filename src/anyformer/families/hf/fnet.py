"""FNet to and from transformers' FNetModel and the classes with heads."""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.fnet import fnet
from anyformer.families.hf import table
from anyformer.families.hf.bert import LAYER, bert_heads
from anyformer.families.hf.encoder import encoder_family, laid_out, n_positions
from anyformer.families.hf.settings import Settings
from anyformer.layers import FeedForwardSpec, SegmentsSpec
from anyformer.spec import EmbeddingSpec, ModelSpec


def _projected(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The embedding is as wide as the stream, and projected nevertheless."""
    return changed(spec, EmbeddingSpec, width=spec.stack.d_model)


FNET = encoder_family(
    "fnet",
    fnet(1, 8),
    (
        *table.STREAM,
        table.at("intermediate_size", int, FeedForwardSpec, "d_ff", default=3072),
        table.activation("hidden_act", "gelu_new", FeedForwardSpec),
        table.starts(),
        table.layers(),
        table.at("type_vocab_size", int, SegmentsSpec, "n_segments", default=4),
        table.eps(1e-12),
        n_positions(),
        table.Pair(_projected),
        # The same transform by products, of rows that are all as long as the class is told.
        table.only(use_tpu_fourier_optimizations=False),
    ),
    bert_heads("FNet", "fnet."),
    laid_out(
        {ours: theirs.replace("attention.", "fourier.") for ours, theirs in LAYER.items()},
        outside={"stack.embedding.projection": "embeddings.projection"},
    ),
    ignored=("tpu_short_seq_length",),
)
