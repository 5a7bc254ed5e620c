"""Granite 4.0 H, Bamba, and Granite's mixtures with a feed-forward for all tokens, with windows and sinks too, to and from
transformers' classes."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, edited
from anyformer.families.granite import granite_moe
from anyformer.families.granite_hybrid import bamba, granite_hybrid
from anyformer.families.hf import table
from anyformer.families.hf.experts import EXPERTS, GATE_AND_UP, expert_width, mixtral_routing
from anyformer.families.hf.granite import MULTIPLIERS, SINK, WINDOWS
from anyformer.families.hf.granite import PAIRS as GRANITE_PAIRS
from anyformer.families.hf.layout import gated
from anyformer.families.hf.llama import ATTENTION, EPS, MLP_BIAS, NORMS, SPARSE_WIDTHS, WIDTHS
from anyformer.families.hf.mamba import OF_A_HYBRID, mixer, modules
from anyformer.families.hf.mapping import one
from anyformer.families.hf.rotary import FRACTION, rotary, rotary_settings
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.states import OLDER, kinds_of, layer_kinds, template
from anyformer.layers import (
    AttentionSpec,
    GatedFeedForwardSpec,
    GQASpec,
    MoESpec,
    RotarySpec,
    RouterSpec,
    SSDSpec,
)
from anyformer.spec import ModelSpec

WORDS = {"linear_attention": SSDSpec, "full_attention": AttentionSpec}


def _experts(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Experts beside a feed-forward for all tokens, or that alone."""
    n = settings.take("num_local_experts", int, 8)
    if n:
        return changed(spec, RouterSpec, n_experts=n, top_k=settings.take("num_experts_per_tok", int, 2))
    settings.ignore("num_experts_per_tok", "intermediate_size")
    return edited(spec, MoESpec, lambda mixture: mixture.shared_expert)


def _said(spec: ModelSpec) -> dict[str, Any]:
    found = next(spec.nested(RouterSpec), None)
    if found is not None:
        return {"num_local_experts": found.n_experts, "num_experts_per_tok": found.top_k}
    dense = next((value.d_ff for value in spec.nested(GatedFeedForwardSpec)), 1024)
    return {"num_local_experts": 0, "shared_intermediate_size": dense}


def _turned(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Positions turn where that is said; the settings of what does not turn say nothing."""
    length = settings.positive("max_position_embeddings", int, 2048)
    if settings.word("position_embedding_type", ("nope", "rope"), "nope") == "rope":
        spec = changed(spec, GQASpec, rotary=rotary(settings, length, fraction=None))
    else:
        settings.ignore("rope_theta", "rope_scaling", "rope_parameters")
    return spec.but(context=length)


def _positions(spec: ModelSpec) -> dict[str, Any]:
    found = next(spec.nested(RotarySpec), None)
    said = {} if found is None else rotary_settings(found, fraction=None)
    length = {"max_position_embeddings": spec.context or 2048}
    return {**length, "position_embedding_type": None if found is None else "rope", **said}


def _feeds() -> dict[Any, str]:
    """Experts and the feed-forward beside them, or that alone."""
    sparse, beside = "block_sparse_moe.", "shared_mlp."
    return {
        f"{table.FEED}.router": f"{sparse}router",
        GATE_AND_UP: f"{sparse}experts.gate_up_proj",
        f"{EXPERTS}.down.weight": f"{sparse}experts.down_proj",
        **{
            place: name
            for inner in (table.FEED, f"{table.FEED}.shared_expert")
            for place, name in (
                ((f"{inner}.gate", f"{inner}.up"), f"{beside}input_linear"),
                (f"{inner}.down", f"{beside}output_linear"),
            )
        },
    }


def _all_states(_: Settings, n_layers: int) -> list[str]:
    return ["linear_attention"] * n_layers


def _listed(settings: Settings, n_layers: int) -> list[str]:
    said = settings.layers("attn_layer_indices", n_layers)
    return ["full_attention" if i in said else "linear_attention" for i in range(n_layers)]


LAYER = {**NORMS, **ATTENTION, **modules("mamba")}
IN_FILES = {
    "block_sparse_moe.router": "block_sparse_moe.router.layer",
    "block_sparse_moe.experts.gate_up_proj": "block_sparse_moe.input_linear.weight",
    "block_sparse_moe.experts.down_proj": "block_sparse_moe.output_linear.weight",
}
FEEDS = _feeds(), {ours: IN_FILES.get(theirs, theirs) for ours, theirs in _feeds().items()}  # in memory, and in files


def _beside(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """A feed-forward for all tokens beside the experts, where it has a width."""
    width = settings.take("shared_intermediate_size", int, 0)
    expert = one(spec, GatedFeedForwardSpec)
    return changed(spec, MoESpec, shared_expert=expert.but(d_ff=width) if width else None)


def _said_beside(spec: ModelSpec) -> dict[str, Any]:
    shared = one(spec, MoESpec).shared_expert
    return {"shared_intermediate_size": one(shared, GatedFeedForwardSpec).d_ff if shared else 0}


MIXTURE = granite_moe(1, 8, 1, 8, n_experts=64, logits=1.0)
OF_MIXTURES = (*GRANITE_PAIRS, mixtral_routing(8, 2), table.Pair(_beside, _said_beside))
GRANITE_MOE_SWA = table.family(
    "granitemoe_swa",
    "GraniteMoeSWAForCausalLM",
    changed(MIXTURE, AttentionSpec, sink=True),
    (*OF_MIXTURES, WINDOWS),
    {**NORMS, **ATTENTION, **FEEDS[0], **SINK},
)
GRANITE_MOE_SHARED = table.family(
    "granitemoeshared",
    "GraniteMoeSharedForCausalLM",
    MIXTURE,
    OF_MIXTURES,
    {**NORMS, **ATTENTION},
    apart=FEEDS,
)
GRANITE_HYBRID = table.family(
    "granitemoehybrid",
    "GraniteMoeHybridForCausalLM",
    template(granite_hybrid(6, 32, 1, 8, shared=8, n_experts=64, top_k=1, scores=1.0, logits=1.0), WORDS),
    (
        *SPARSE_WIDTHS,
        table.if_any(MoESpec, expert_width("intermediate_size", "expert", 11_008)),
        table.if_any(MoESpec, expert_width("shared_intermediate_size", "shared_expert", 1024)),
        table.Pair(_experts, _said),
        table.heads(),
        table.EVEN,
        table.BIASES,
        EPS,
        *MULTIPLIERS,
        table.Pair(_turned, _positions),
        *mixer(OF_A_HYBRID, 256, 1),
        table.tables(tied=False),
        layer_kinds(WORDS, _all_states, OLDER),
    ),
    LAYER,
    apart=FEEDS,
    ignored=("mamba_chunk_size", "normalization_function", "init_method"),
)


BAMBA_KINDS = layer_kinds(WORDS, _listed)
BAMBA = table.family(
    "bamba",
    "BambaForCausalLM",
    template(bamba(2, 32, 1, 8, attending=(1,)), WORDS),
    (
        *WIDTHS,
        table.heads(n_kv_heads=8),
        table.EVEN,
        table.BIASES,
        MLP_BIAS,
        table.rms_eps(1e-5),
        table.only(partial_rotary_factor=0.5),  # which the class takes whatever is said, but within the table
        table.positions(RotarySpec(fraction=0.5), fraction=FRACTION, context=262_144),
        *mixer(OF_A_HYBRID, 256, 1),
        table.tables(tied=False),
        table.Pair(
            BAMBA_KINDS.read,
            lambda spec: {
                "num_hidden_layers": spec.n_layers,
                "attn_layer_indices": [i for i, word in enumerate(kinds_of(spec, WORDS)) if word == "full_attention"],
            },
        ),
    ),
    {
        "0.norm_in": "input_layernorm",
        "1.norm_in": "pre_ff_layernorm",
        **ATTENTION,
        **modules("mamba"),
        **gated(table.FEED, "feed_forward"),
    },
    norm="final_layernorm",
    ignored=("mamba_chunk_size", "z_loss_coefficient"),
)
