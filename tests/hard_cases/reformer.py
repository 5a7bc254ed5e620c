"""Reformer (enwik8): reversible, chunks and hashed buckets, axial positions. Kitaev et al. 2020, arXiv:2001.04451."""

from __future__ import annotations

from typing import Any

from anyformer.families import PRESETS
from anyformer.spec import ModelSpec
from tests.hard_cases.case import Case, of_transformers


def reformer() -> ModelSpec:
    """Return enwik8's; sizes: the released config."""
    return PRESETS["reformer-enwik8"].spec


def theirs() -> Any:
    """Return the model of transformers."""
    sizes = {"hidden_size": 1024, "num_attention_heads": 8, "attention_head_size": 128, "feed_forward_size": 4096}
    axial = {"axial_pos_shape": [128, 512], "axial_pos_embds_dim": [256, 768], "max_position_embeddings": 65_536}
    layers = ["local", "local", "lsh", "local"] * 3
    every = {"attn_layers": layers, "vocab_size": 258, "is_decoder": True, **sizes, **axial}
    return of_transformers("ReformerModelWithLMHead", "ReformerConfig", **every)


# Their head has a bias that nothing reads.
CASE = Case("reformer-enwik8", reformer, "149M", theirs, surplus=258)
