"""HY 4 to and from transformers' HYV4ForCausalLM, whose files call some tensors otherwise, the dense gates among them."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.glm import router
from anyformer.families.hf import table
from anyformer.families.hf.deepseek import latent_heads, latent_scale, layer_eps, modules, n_shared, v3_routing
from anyformer.families.hf.deepseek_v4 import STREAMS, coefficients
from anyformer.families.hf.dsa import OWN, SHARED, index_sizes, indexer, shared_choices
from anyformer.families.hf.experts import HELD, dense_by_type, expert_width
from anyformer.families.hf.layout import Laid, Theirs, within
from anyformer.families.hf.llama import NORMS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.hunyuan import hy_v4
from anyformer.layers import (
    GatedFeedForwardSpec,
    HyperConnectionSpec,
    HyperStreamsSpec,
    IndexerSpec,
    LayerNormSpec,
    MoESpec,
    RMSNormSpec,
    RotarySpec,
)
from anyformer.spec import ModelSpec


def _own_first(settings: Settings, n: int) -> tuple[str, ...]:
    return tuple(OWN if i == 0 or i % 4 == 1 else SHARED for i in range(n))


def _norms(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The indexer's keys have the layers' eps."""
    eps = one(one(spec, HyperConnectionSpec), RMSNormSpec).eps
    return changed(spec, IndexerSpec, norm_key=LayerNormSpec(eps=eps))


def _limit(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Of what experts' gates are clamped to; not of the shared one's, nor of dense layers'."""
    limit = settings.positive("swiglu_limit", float, 10.0)  # what is not, the class clamps all to, whatever it says
    mixture = one(spec, MoESpec)
    expert = one(mixture.expert, GatedFeedForwardSpec)
    return changed(spec, MoESpec, expert=expert.but(limit=limit))


def _clamped(spec: ModelSpec) -> dict[str, Any]:
    expert = one(one(spec, MoESpec).expert, GatedFeedForwardSpec)
    return {"swiglu_limit": expert.limit or 0.0}


def _around(spec: ModelSpec) -> Laid:
    """The coefficients of streams; files without a head call those at the end as the last name has it."""
    attention, feed = ("attn_hc.", "hc_pre.hc_attn_layer.hc_"), ("ffn_hc.", "hc_pre.hc_mlp_layer.hc_")
    return coefficients(spec, attention, feed, ("hc_head.hc_", "hc_pre.hc_head.hc_head_", "hc_head.hc_pre.hc_head_"))


def _fed(ours: str, theirs: str) -> dict[str, str | Theirs]:
    gate = Theirs(f"{theirs}.gate_proj", also=(f"{theirs}.linear_gate",))
    return {f"{ours}.gate": gate, **{f"{ours}.{x}": f"{theirs}.{x}_proj" for x in ("up", "down")}}


def _layer(spec: ModelSpec) -> Laid:
    theirs = "self_attn"
    return {
        **modules(spec),
        **indexer(),
        **within(NORMS),
        f"{table.MIXER}.gate": Theirs(f"{theirs}.gate_proj", also=(f"{theirs}.linear_gate",)),
        f"{table.MIXER}.sink": Theirs(f"{theirs}.sinks", also=(f"{theirs}.learnable_sink_param",)),
        **within(_fed(table.FEED, "mlp")),
        **within(_fed(f"{table.FEED}.shared_expert", "mlp.shared_experts")),
        **within(HELD),
    }


HY_V4 = table.family(
    "hy_v4",
    "HYV4ForCausalLM",
    changed(hy_v4(1, 8, 1, 8, d_expert=8, choice=router(2, 1, 1.0), n_dense=0), GatedFeedForwardSpec, limit=None),
    (
        *table.STREAM,
        table.only(hidden_act="silu"),  # of any other the class tells dense layers, not experts
        expert_width("moe_intermediate_size", "expert", 768),
        n_shared(1),
        *latent_heads(head_dim=192, value_dim=256, narrow=True),
        layer_eps(1e-5),
        table.Pair(_norms),
        table.positions(RotarySpec(), context=262_144),
        v3_routing(256, 8, 2.827, 1, 1),
        latent_scale(),
        table.tables(tied=False, start=0.006),
        table.layers(),
        dense_by_type(6912, 1),
        table.Pair(_limit, _clamped),
        *index_sizes(16),
        shared_choices(_own_first),
        *STREAMS,
        table.at("hc_eps", float, HyperStreamsSpec, "least", default=1e-6),
        table.at("hc_eps", float, HyperConnectionSpec, "floor", default=1e-6),
        table.at("hc_magnitude", float, HyperConnectionSpec, "most", default=2.0, positive=True),
    ),
    _layer,
    outside=_around,
    unneeded=("model.mtp_layers.*",),
    ignored=("learnable_sink_init",),
)
