"""A.X-K1 to and from transformers' AXK1ForCausalLM: DeepSeek-V3's with a norm behind experts.

The released files hold that norm beside every layer's others, dense ones' too, which nobody reads, and no corrections.
"""

from __future__ import annotations

from anyformer.families.axk1 import axk1, normed_experts
from anyformer.families.compose import changed
from anyformer.families.deepseek import V3_ROUTER
from anyformer.families.hf import table
from anyformer.families.hf.deepseek import (
    LAYOUT,
    TURNING,
    latent_heads,
    latent_scale,
    layer,
    layer_eps,
    n_shared,
    v3_routing,
)
from anyformer.families.hf.experts import HELD, dense_by_type, expert_width, filed
from anyformer.families.hf.llama import SPARSE_WIDTHS
from anyformer.families.hf.mapping import TensorFiles
from anyformer.layers import RotarySpec, RouterSpec
from anyformer.spec import BranchSpec, ModelSpec

BEHIND = {"1.branches.0.norm_out": "mlp.post_mlp_layernorm"}
BEHIND_FILED = {"1.branches.0.norm_out": "post_mlp_layernorm"}


def _corrected(spec: ModelSpec, files: TensorFiles) -> ModelSpec:
    """The model with corrections where files hold them, whatever was said."""
    layers = (f"layers.{i}.mlp.gate.e_score_correction_bias" for i in range(spec.n_layers))
    names = (f"{prefix}{name}" for name in layers for prefix in ("model.", ""))  # the second in files without a head
    return changed(spec, RouterSpec, correction=any(name in files for name in names))


AXK1 = table.family(
    "axk1",
    "AXK1ForCausalLM",
    changed(
        axk1(1, 8, 1, 8, d_expert=8, choice=V3_ROUTER, n_dense=0), BranchSpec, norm_out=None
    ),  # until it is known where
    (
        *SPARSE_WIDTHS,
        expert_width("moe_intermediate_size", "expert", 2048),
        n_shared(1),
        *latent_heads(narrow=True),
        layer_eps(),
        table.positions(RotarySpec(layout="interleaved"), context=32_768),
        v3_routing(192),
        table.choice("topk_method", RouterSpec, "correction", {"noaux_tc": True, "greedy": False}, "noaux_tc"),
        LAYOUT,
        TURNING,
        latent_scale(),
        table.tables(tied=False),
        table.layers(),
        dense_by_type(18_432, 1, "first_k_dense_replace"),
        table.Pair(lambda _, spec: normed_experts(spec)),
        table.only(scoring_func="sigmoid", moe_layer_freq=1),
    ),
    layer,
    apart=({**HELD, **BEHIND}, {**filed(), **BEHIND_FILED}),
    buffers=("self_attn.rotary_emb.inv_freq", "post_mlp_layernorm.weight"),
)._replace(of_files=_corrected)
