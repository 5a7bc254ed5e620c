"""The text model of GLM-5.3 Flash to and from transformers' Glm5NextTextModel with a head, which is inside a model that sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.compose import changed
from anyformer.families.glm import router
from anyformer.families.glm_next import glm_next
from anyformer.families.hf import table
from anyformer.families.hf.deepseek import LAYER, latent_heads, modules, n_shared, v3_routing
from anyformer.families.hf.deepseek_v4 import STREAMS, coefficients
from anyformer.families.hf.dsa import OWN, indexer
from anyformer.families.hf.experts import HELD, dense_by_type, expert_width, filed
from anyformer.families.hf.kimi import MAPS, forgetting, kda_sizes
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.states import kinds_of, layer_kinds, template
from anyformer.layers import (
    AttentionSpec,
    GatedDeltaNetSpec,
    GatedFeedForwardSpec,
    HyperConnectionSpec,
    IndexerSpec,
)
from anyformer.spec import ModelSpec

INDEXED, BOUND, SECTION = "indexed_attention", "linear_lower_bound", "linear_attn_config"
WORDS = {"linear_attention": GatedDeltaNetSpec, INDEXED: AttentionSpec}
INDEX = {
    "index_n_heads": ("n_heads", int, 32),
    "index_head_dim": ("head_dim", int, 128),
    "index_topk": ("top_k", int, 2048),
    "index_kpool": ("every", int, 16),
}


def _fourth(settings: Settings, n_layers: int) -> list[str]:
    return [[*WORDS][i % 4 == 3] for i in range(n_layers)]


def _bound(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """What decays' logarithms are no less than; a table of released files goes before, which has a bound if it is safe."""
    least = settings.written(BOUND) if settings.names(BOUND) else -5.0
    said = settings.written(SECTION)
    if isinstance(said, Mapping):
        least = said.get("gate_lower_bound", least)
        least = -5.0 if least is None and said.get("safe_gate", True) else least
    if least is not None and not (type(least) in (int, float) and least < 0):
        raise settings.refusal(BOUND, "is no bound below 0, or null")
    return changed(spec, GatedDeltaNetSpec, bound=None if least is None else -float(least))


def _bounded(spec: ModelSpec) -> dict[str, Any]:
    bound = one(spec, GatedDeltaNetSpec).bound
    return {BOUND: None if bound is None else -bound}


def _choices(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Refuse a choice that another layer reads, which the class finds in the layer before alone."""
    kinds, said = kinds_of(spec, WORDS), settings.strings("indexer_types") or (OWN,) * spec.n_layers
    if len(said) != len(kinds) or any(kind == INDEXED and each != OWN for kind, each in zip(kinds, said, strict=True)):
        raise settings.refusal(
            "indexer_types", f"must be {OWN} of each layer that attends; others are not computed here"
        )
    return spec


def _layer(spec: ModelSpec) -> dict[Any, Any]:
    """A layer's modules that files have as memory has them."""
    latent = {
        ours: theirs for ours, theirs in modules(spec).items() if isinstance(ours, str) or "kv_down" not in ours[0]
    }
    index = indexer(more={"gate.weight": "index_kpool_compress_gate", "bias": "index_kpool_compress_ape"})
    down = {f"{table.PROJECTION}.kv_down": "self_attn.kv_a_proj_with_mqa"}
    return {**latent, **down, **index, **MAPS, **LAYER}


def _forgetting(place: str) -> dict[str, str | Theirs]:
    return {**forgetting(place), f"{table.MIXER}.decay": f"{place}.A_log"}


CONVOLUTION = f"{table.MIXER}.convolution"
IN_MEMORY = {**_forgetting("self_attn.forget_gate"), CONVOLUTION: "self_attn.conv1d", **HELD}
IN_FILES = {
    **_forgetting("self_attn"),
    CONVOLUTION: Theirs("self_attn.*_conv1d", pieces=("q", "k", "v")),
    **filed(),
}
GLM_NEXT = table.family(
    "glm5_next_text",
    "Glm5NextForCausalLM",
    template(glm_next(4, 8, 1, 8, d_expert=8, choice=router(2, 1, 1.0), n_dense=0), WORDS),
    (
        *table.STREAM,
        table.only(hidden_act="silu"),  # of any other the class tells dense layers, not experts
        expert_width("moe_intermediate_size", "expert", 2048),
        n_shared(1),
        *latent_heads(head_dim=256, value_dim=256, rotary_dim=None, narrow=True),
        table.only(qk_rope_head_dim=0),
        table.rms_eps(1e-5),
        v3_routing(288, 8, 2.5, 1, 1),
        table.at("swiglu_limit", float, GatedFeedForwardSpec, "limit", default=10.0),
        table.context("max_position_embeddings", 1_048_576),
        table.tables(tied=False),
        kda_sizes(64),
        table.Pair(_bound, _bounded),
        table.together(IndexerSpec, INDEX),
        layer_kinds(WORDS, _fourth, {"full_attention": INDEXED}),
        dense_by_type(12_288, 3),
        table.Pair(_choices),
        table.only(index_kpool_always_select_tail=True, index_topk_pattern=None, index_topk_freq=1),
        *STREAMS,
        table.at("hc_sinkhorn_iters", int, HyperConnectionSpec, "iterations", default=20, positive=True),
    ),
    _layer,
    outside=lambda spec: coefficients(spec, ("attn_hc.", "hc_attn_"), ("ffn_hc.", "hc_ffn_")),
    apart=(IN_MEMORY, IN_FILES),
    passed_over=1,
    ignored=("index_skip_topk_offset",),
    fixed_masks=True,  # an indexer's, which sees the past alone
)
