"""Qwen 2 to and from transformers' Qwen2ForCausalLM: biases where q, k and v are made; a window, if at all, at the end."""

from __future__ import annotations

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


def _used(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Of the window nothing is used unless use_sliding_window says so."""
    size = settings.nullable(windows.WINDOW, int, 4096)
    settings.put({windows.WINDOW: size if settings.take("use_sliding_window", bool, False) else None})
    return spec


def _use(spec: ModelSpec) -> dict[str, Any]:
    types = windows.types_of(spec)
    return {
        "use_sliding_window": windows.SLIDING in types,
        windows.WINDOW: None,
        "max_window_layers": types.index(windows.SLIDING) if windows.SLIDING in types else spec.n_layers,
    }


def first_full(default: int) -> windows.Full:
    """The first max_window_layers, `default` where nothing is said; all where there is no window."""

    def full(settings: Settings, n_layers: int) -> list[bool]:
        n, none = settings.take("max_window_layers", int, default), settings.nullable(windows.WINDOW, int, 4096) is None
        return [none or i < n for i in range(n_layers)]

    return full


WINDOWS = table.Pair(_used, _use), windows.layer_types(first_full(28), 4096)
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
        *WINDOWS,
    ),
    {**NORMS, **ATTENTION, **GATED},
)
