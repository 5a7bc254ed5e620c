"""Longformer to and from transformers' LongformerModel and the classes that put heads on it.

Which tokens are global is a fact about a text, theirs as `global_attention_mask`, ours as `facts={"mark": …}`. Where nothing
is said none is, but for the class that classifies texts, to which the first token is.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, with_layers
from anyformer.families.hf import table
from anyformer.families.hf.bert import LAYER, OF_ROBERTA
from anyformer.families.hf.encoder import SEGMENTS, encoder_family, laid_out, n_positions, sizes
from anyformer.families.hf.headings import TOKEN_CLASSES, TWO_LAYERS, pooled, row_labels, usual_classes
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.longformer import first_marked, longformer
from anyformer.layers import LocalAndGlobalSpec, SymmetricWindow
from anyformer.spec import ModelSpec, Window

WINDOW = "attention_window"
GLOBAL = {f"{table.PROJECTION}.{x[0]}_global": f"attention.self.{x}_global" for x in ("query", "key", "value")}


def _windowed(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The windows of layers, one for all or one each."""
    each = settings.by_layer(WINDOW, int, spec.n_layers, 512)
    if any(n % 2 for n in each):
        raise settings.refusal(WINDOW, "must be even")
    layers = zip(spec.stack.blocks, each, strict=True)
    return with_layers(spec, (changed(block, SymmetricWindow, radius=Window(n // 2)) for block, n in layers))


def _windows(spec: ModelSpec) -> dict[str, Any]:
    return {WINDOW: [2 * one(block, SymmetricWindow).radius for block in spec.stack.blocks]}


WINDOWS = table.Pair(_windowed, _windows)


def _first(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """What is global where nothing is said, which their classes differ in."""
    named = settings.strings("architectures") or ()
    return first_marked(spec) if next((n for n in named if n in HEADS.classes), "") == OF_TEXTS else spec


OF_TEXTS = "LongformerForSequenceClassification"
HEADS = usual_classes(
    "Longformer",
    "longformer.",
    {
        "mlm": OF_ROBERTA,
        "pooler": pooled("longformer.pooler.dense"),
        "classes": row_labels(*TWO_LAYERS),
        "token_classes": TOKEN_CLASSES,
    },
)
LONGFORMER = encoder_family(
    "longformer",
    longformer(1, 8, 1),
    (
        *sizes(heads=LocalAndGlobalSpec, even=table.even(part=LocalAndGlobalSpec)),
        WINDOWS,
        table.Pair(_first),
        SEGMENTS,
        table.eps(1e-12),
        n_positions(offset_by_padding=True),
    ),
    HEADS,
    laid_out(LAYER | GLOBAL),
    ignored=("onnx_export", "attention_mode", "ignore_attention_mask"),
)
