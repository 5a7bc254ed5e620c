"""Qwen 2 to and from transformers' Qwen2ForCausalLM: biases where q, k and v are made; a window, if at all, at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.compose import layered, windowed
from anyformer.families.hf import table, windows
from anyformer.families.hf.llama import ATTENTION, EPS, GATED, NORMS, WIDTHS
from anyformer.families.hf.settings import Settings
from anyformer.families.llama import llama
from anyformer.families.qwen2 import with_qkv_biases
from anyformer.spec import ModelSpec

PLAIN = with_qkv_biases(llama(2, 8, 1, 8))
TEMPLATE = layered(PLAIN, windowed(PLAIN, 1).stack.blocks[0], PLAIN.stack.blocks[0])


def _read(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Of the window nothing is used unless use_sliding_window says so: layers from max_window_layers on, if none are listed."""
    n_layers, first = settings.take("num_hidden_layers", int), settings.take("max_window_layers", int, 28)
    size = settings.nullable("sliding_window", int, 4096)
    window = size if settings.take("use_sliding_window", bool, False) else None
    by_number = tuple(windows.FULL if window is None or i < first else windows.SLIDING for i in range(n_layers))
    return windows.typed(settings, spec, n_layers, settings.strings("layer_types") or by_number, window)


def _write(spec: ModelSpec) -> Mapping[str, Any]:
    size, types = windows.window_of(spec), windows.types_of(spec)
    return {
        "num_hidden_layers": spec.n_layers,
        "use_sliding_window": size is not None,
        "sliding_window": size,
        "max_window_layers": types.index(windows.SLIDING) if windows.SLIDING in types else spec.n_layers,
        "layer_types": types,
    }


WINDOWS = table.Pair(_read, _write)
QWEN2 = table.family(
    "qwen2",
    "Qwen2ForCausalLM",
    TEMPLATE,
    (
        *WIDTHS,
        table.heads(n_kv_heads=32),
        EPS,
        table.positions(context=32_768),
        table.tables(tied=False),
        WINDOWS,
    ),
    {**NORMS, **ATTENTION, **GATED},
)
