"""Writes GGUF files as llama.cpp's conversion does, from a model's tensors under Hugging Face's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

Change = Callable[[str, np.ndarray], np.ndarray]
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
}
FOUR_NORMS = NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def file_name(theirs: str, names: Mapping[str, str]) -> str:
    stem, _, end = theirs.rpartition(".")
    if not stem.startswith("model.layers."):
        return f"{names[stem]}.{end}"
    _, _, layer, inner = stem.split(".", 3)
    return f"blk.{layer}.{names[inner]}.{end}"


def interleaved(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """As llama.cpp wants queries and keys: features that turn together side by side."""
    head_dim = weight.shape[0] // n_heads
    order = [
        h * head_dim + half * head_dim // 2 + i for h in range(n_heads) for i in range(head_dim // 2) for half in (0, 1)
    ]
    return weight[order]


def write(
    path: Path,
    architecture: str,
    tensors: Mapping[str, np.ndarray],
    settings: Mapping[str, Any],
    *,
    names: Mapping[str, str] = NAMES,
    kind: Kind = Kind.F32,
    tokens: Mapping[str, Any] | None = None,
) -> Path:
    """Write a file; matrices are quantised to `kind`, vectors stay float32."""
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in settings.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{architecture}.{key}", value)
    for key, value in (tokens or {}).items():
        add_token = {str: writer.add_string, int: writer.add_uint32, bool: writer.add_bool, list: writer.add_array}[
            type(value)
        ]
        add_token(f"tokenizer.{key}", value)
    for name, array in tensors.items():
        array = np.ascontiguousarray(array, dtype=np.float32)
        label = name if name.endswith("freqs.weight") else file_name(name, names)
        if array.ndim == 2 and kind != Kind.F32:
            writer.add_tensor(label, gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(label, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
