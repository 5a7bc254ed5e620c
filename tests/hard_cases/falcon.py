"""Falcon-7B: one norm for two parallel branches, one key/value head. Almazrouei et al. 2023, arXiv:2311.16867."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.families.compose import block, language_model, pre_norm, repeat
from anyformer.layers import GELU, AttentionSpec, Causal, FeedForwardSpec, LayerNormSpec, RotarySpec
from anyformer.spec import ModelSpec, Width
from tests.hard_cases.case import Case, Parity, attention_heads, of_transformers


def falcon(*, n_layers: int = 32, d_model: int = 4544, n_heads: int = 71, vocab_size: int = 65_024) -> ModelSpec:
    """Return the architecture; sizes of the 7B: the paper, table 15, and the released config.json."""
    norm = LayerNormSpec(eps=1e-5)
    heads = attention_heads(n_heads, 1).but(rotary=RotarySpec(theta=1e4))
    feed = FeedForwardSpec(d_ff=Width(4 * d_model), activation=GELU(), bias_in=False, bias_out=False)
    layer = block(pre_norm(norm, AttentionSpec(projection=heads, mask=Causal()), feed))
    return language_model(
        vocab_size=vocab_size, d_model=d_model, blocks=repeat(layer, n_layers), norm=norm, tied=True, context=2048
    )


def theirs(**sizes: Any) -> Any:
    """Return the model of transformers."""
    published = {"vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71}
    flags = {
        "bias": False,
        "multi_query": True,
        "parallel_attn": True,
        "new_decoder_architecture": False,
        "alibi": False,
        "attn_implementation": "eager",
    }
    return of_transformers("FalconForCausalLM", "FalconConfig", **{**published, **flags, **sizes})


def split(fused: Tensor) -> tuple[Tensor, ...]:
    """Return q, k and v of rows [all query heads, k, v], with heads of 8."""
    return torch.split(fused, [fused.shape[0] - 16, 8, 8])


LAYER, SUBLAYER = "transformer.h.{i}", "stack.blocks.{i}.sublayers.0"
QKV = tuple(f"{SUBLAYER}.branches.0.mixer.projection.{name}.weight" for name in "qkv")

CASE = Case(
    "falcon-7b",
    falcon,
    "6.92B",
    theirs,
    parity=Parity(
        lambda: theirs(vocab_size=96, hidden_size=40, num_hidden_layers=2, num_attention_heads=5),
        lambda: falcon(vocab_size=96, d_model=40, n_layers=2, n_heads=5),
        {
            "transformer.word_embeddings.weight": "shared.tokens.weight",
            f"{LAYER}.input_layernorm.weight": f"{SUBLAYER}.norm_in.weight",
            f"{LAYER}.input_layernorm.bias": f"{SUBLAYER}.norm_in.bias",
            f"{LAYER}.self_attention.query_key_value.weight": (QKV, split),
            f"{LAYER}.self_attention.dense.weight": f"{SUBLAYER}.branches.0.mixer.projection.o.weight",
            f"{LAYER}.mlp.dense_h_to_4h.weight": f"{SUBLAYER}.branches.1.mixer.up.weight",
            f"{LAYER}.mlp.dense_4h_to_h.weight": f"{SUBLAYER}.branches.1.mixer.down.weight",
            "transformer.ln_f.weight": "stack.norm.weight",
            "transformer.ln_f.bias": "stack.norm.bias",
        },
        unused=("lm_head.weight",),
    ),
)
