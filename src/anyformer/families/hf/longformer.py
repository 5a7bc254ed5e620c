"""Longformer to and from transformers' LongformerModel and the classes that put heads on it.

Which tokens are global is a fact about a text, theirs as `global_attention_mask`, ours as `facts={"mark": …}`. Where nothing
is said none is, but for the class that classifies texts, to which the first token is.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.hf import table
from anyformer.families.hf.bert import LAYER, OF_ROBERTA
from anyformer.families.hf.encoder import SEGMENTS, encoder_family, eps, laid_out, n_positions, sizes
from anyformer.families.hf.headings import TOKEN_CLASSES, TWO_LAYERS, pooled, row_labels, usual_classes
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.longformer import first_marked, longformer
from anyformer.layers import LocalAndGlobalSpec, SymmetricWindow
from anyformer.spec import ModelSpec, StackSpec, Window

WINDOW = "attention_window"
GLOBAL = {f"{table.PROJECTION}.{x[0]}_global": f"attention.self.{x}_global" for x in ("query", "key", "value")}


def with_windows(settings: Settings, stack: StackSpec) -> StackSpec:
    """The stack with the windows that `attention_window` says: one for all layers, or one each. Raises CheckpointError."""
    each = settings.by_layer(WINDOW, int, len(stack.blocks), 512)
    if any(n % 2 for n in each):
        raise settings.refusal(WINDOW, "must be even")
    if len(set(each)) == 1:
        return changed(stack, SymmetricWindow, radius=Window(each[0] // 2))
    blocks = (
        changed(block, SymmetricWindow, radius=Window(n // 2)) for block, n in zip(stack.blocks, each, strict=True)
    )
    return stack.but(blocks=tuple(blocks))


def windows_of(stack: StackSpec) -> dict[str, Any]:
    """The setting that says the windows of a stack. Raises SpecError for a layer without one."""
    return {WINDOW: [2 * one(block, SymmetricWindow).radius for block in stack.blocks]}


WINDOWS = table.Pair(
    lambda settings, spec: spec.but(stack=with_windows(settings, spec.stack)), lambda spec: windows_of(spec.stack)
)


def _divided(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Refuse heads that do not divide the width."""
    n_heads = one(spec, LocalAndGlobalSpec).n_heads
    if n_heads < 1 or spec.stack.d_model % n_heads:
        raise settings.refusal("num_attention_heads", f"does not divide hidden_size = {spec.stack.d_model}")
    return spec


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
        *sizes(heads=LocalAndGlobalSpec, even=table.Pair(_divided)),
        WINDOWS,
        table.Pair(_first),
        SEGMENTS,
        eps(1e-12),
        n_positions(offset_by_padding=True),
    ),
    HEADS,
    laid_out(LAYER | GLOBAL),
    ignored=("onnx_export", "attention_mode", "ignore_attention_mask"),
)
