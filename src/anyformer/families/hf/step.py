"""Step 3.5 and 3.7 to and from files of the released Step3p5ForCausalLM, which transformers has inside a model that sees.

Released files hold the experts of a layer as one tensor each of gates, of what they gate, and of what leads out. Layers for
further tokens stand behind the last one; the class passes over them, and so do we.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.errors import SpecError
from anyformer.families.compose import changed, with_layers
from anyformer.families.glm import router
from anyformer.families.hf import table, windows
from anyformer.families.hf.deepseek import LAYER
from anyformer.families.hf.experts import DENSE, EXPERTS, HELD, SPARSE, dense_by_type, expert_width, routed
from anyformer.families.hf.layout import gated
from anyformer.families.hf.llama import ATTENTION, QK_NORMS
from anyformer.families.hf.mapping import one, width_of_head
from anyformer.families.hf.rotary import FRACTION, THETA
from anyformer.families.hf.settings import Settings
from anyformer.families.step import clamped, step
from anyformer.layers import GatedFeedForwardSpec, GQASpec, RotarySpec, RouterSpec
from anyformer.spec import Count, ModelSpec, Width

HEADS, BY_LAYER, OTHER = "num_sliding_attention_heads", "per_layer_config", "attention_other_setting"
KINDS, FEEDS, ENUMERATED, TABLES = "layer_types", "mlp_layer_types", "moe_layers_enum", "rope_parameters"
FRACTIONS, LATER = "partial_rotary_factors", "num_nextn_predict_layers"
LIMITS = ("swiglu_limits", "swiglu_limits_shared")  # of experts; of a shared one, and of a dense layer
WHOLE = step(2, 8, 1, 8, 1, n_near=1, d_expert=8, choice=router(2, 1, 1.0), n_dense=0)
TEMPLATE = with_layers(WHOLE, WHOLE.stack.blocks[::-1])  # a window first
ROUTING = {
    "n_routed_experts": ("n_experts", int, 288),
    "num_experts_per_tok": ("top_k", int, 8),
    "moe_router_scaling_factor": ("factor", float, 1.0),
}


def _older(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Know what released files say as the class then keeps it: lists without what is of later tokens, a table for each type."""
    n, later = settings.positive("num_hidden_layers", int), settings.take(LATER, int, 0)
    lists = {name: settings.written(name) for name in (KINDS, FEEDS, *LIMITS, THETA, FRACTIONS)}
    padded = {name: each for name, each in lists.items() if isinstance(each, list) and len(each) == n + later}
    settings.put({name: each[:n] for name, each in padded.items()})
    _enumerated(settings, n)
    other = settings.section(OTHER)
    if other is not None and settings.written(HEADS) is None:
        settings.put({HEADS: other.optional("num_attention_heads", int)})
    words, said = settings.strings(KINDS) or (windows.FULL,) * n, settings.written(TABLES) or {}
    if said:
        if not isinstance(said, Mapping) or not all(isinstance(said.get(word), Mapping) for word in words):
            raise settings.refusal(TABLES, "must have a table for each type of layer, which the class asks for")
        return spec
    thetas, shares = settings.by_layer(THETA, float, n, 1e4), settings.by_layer(FRACTIONS, float, n, 1.0)
    tables: dict[str, Any] = {}
    for word, theta, share in zip(words, thetas, shares, strict=False):
        tables.setdefault(word, {THETA: theta, FRACTION: share})  # of a type's first layer
    if settings.section("rope_scaling") is not None and windows.FULL in tables:
        tables[windows.FULL] |= settings.written("rope_scaling")
    settings.put({TABLES: tables})
    return spec


def _enumerated(settings: Settings, n: int) -> None:
    """Know the numbers of layers with experts as a word for each layer, where that is not said."""
    said = settings.written(ENUMERATED)
    if said is None or settings.written(FEEDS) is not None:
        return
    each = said.split(",") if isinstance(said, str) else said
    if not isinstance(each, list) or not all(str(number).strip().isdigit() for number in each):
        raise settings.refusal(ENUMERATED, "must be numbers of layers, with commas between them")
    numbers = set(map(int, each))
    settings.put({FEEDS: [SPARSE if i in numbers else DENSE for i in range(n)]})


def _heads(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """As many heads of queries in windows as is said; those of keys and values, and their width, are all layers'."""
    usual = one(spec, GQASpec)
    near = Count(settings.positive(HEADS, int, usual.n_heads))
    width = width_of_head(spec)
    settings.require("query_pre_attn_scalar", width)
    each = [near if kind == windows.SLIDING else usual.n_heads for kind in windows.types_of(spec)]
    _told(settings, each, usual.n_heads)
    alike = {"n_kv_heads": usual.kv_heads, "head_dim": Width(width)}
    blocks = zip(spec.stack.blocks, each, strict=True)
    return with_layers(spec, (changed(block, GQASpec, n_heads=n, **alike) for block, n in blocks))


def _told(settings: Settings, each: list[Count], usual: int) -> None:
    """Refuse what says a second time how many heads each layer has where it says something else."""
    said = settings.written(BY_LAYER)
    found = {str(i): value for i, value in said.items()} if isinstance(said, Mapping) else {"": said}
    name = "num_attention_heads"
    if said is not None and (
        "" in found or any(found.get(str(i), {name: usual}) != {name: n} for i, n in enumerate(each))
    ):
        raise settings.refusal(BY_LAYER, f"says of a layer what {HEADS} does not, which is not computed here")


def _said(spec: ModelSpec) -> dict[str, Any]:
    blocks = zip(windows.types_of(spec), spec.stack.blocks, strict=True)
    found = {kind: one(block, GQASpec) for kind, block in blocks}
    usual = found.get(windows.FULL) or found[windows.SLIDING]
    near = found.get(windows.SLIDING, usual)
    width = width_of_head(spec, usual)
    return {"num_attention_heads": usual.n_heads, HEADS: near.n_heads, "query_pre_attn_scalar": width}


def _limits(settings: Settings, spec: ModelSpec) -> ModelSpec:
    for name in LIMITS:
        if isinstance(said := settings.written(name), list):
            settings.put({name: [limit or 0.0 for limit in said] or None})
    limits = (settings.by_layer(name, float, spec.n_layers, 0.0) for name in LIMITS)
    each = zip(spec.stack.blocks, *limits, strict=True)
    return with_layers(spec, (clamped(block, limit or None, of_shared or None) for block, limit, of_shared in each))


def _clamping(spec: ModelSpec) -> dict[str, Any]:
    feeds = [[*block.nested(GatedFeedForwardSpec)] for block in spec.stack.blocks]  # an expert's before a shared one's
    if not all(feeds):
        raise SpecError("a layer has no gated feed-forward, and this class has one in each")
    each = [feed[0].limit if len(feed) > 1 else None for feed in feeds], [feed[-1].limit for feed in feeds]
    return {name: limits if any(limits) else None for name, limits in zip(LIMITS, each, strict=True)}


LAYERS = {
    **LAYER,
    **ATTENTION,
    **QK_NORMS,
    f"{table.MIXER}.gate": "self_attn.g_proj",
    **HELD,
}
SHARED = f"{table.FEED}.shared_expert"
RELEASED = {
    **LAYER,
    **ATTENTION,
    **QK_NORMS,
    f"{table.MIXER}.gate": "self_attn.g_proj",
    **gated(SHARED, "share_expert"),
    **{f"{EXPERTS}.{x}.weight": f"moe.{x}_proj.weight" for x in ("gate", "up", "down")},
    **routed("moe.gate.weight", "moe.router_bias"),
}
STEP = table.family(
    "step3p5",
    "Step3p5ForCausalLM",
    TEMPLATE,
    (
        table.renamed(
            num_attention_groups="num_key_value_heads",
            moe_num_experts="n_routed_experts",
            moe_top_k="num_experts_per_tok",
            share_expert_dims="share_expert_dim",
            num_mtp_layers=LATER,
        ),
        table.Pair(_older),
        *table.STREAM,
        expert_width("moe_intermediate_size", "expert", 1280),
        expert_width("share_expert_dim", "shared_expert", 1280),
        table.heads(n_kv_heads=8, head_dim=128),
        table.BIASES,
        table.rms_eps(1e-5),
        table.together(RouterSpec, ROUTING),
        table.tables(tied=False),
        table.fixed(sliding_window=512),  # without one the class has no mask
        windows.layer_types(windows.each(1), None),
        windows.rotary_by_type(RotarySpec(), RotarySpec(), 128_000, whole=False),
        table.Pair(_heads, _said),
        dense_by_type(11_264, 3),
        table.Pair(_limits, _clamping),
        table.only(gating=(True, "per-head"), use_bidirectional_attention=False, mlp_bias=False),
        table.fixed(pad_token_id=1),  # the class takes no null there
    ),
    LAYERS,
    passed_over=3,
    released=RELEASED,
    ignored=(
        *(LATER, "mtp_layer_types", "mtp_mlp_layer_types", "num_local_experts"),  # the last is never what is taken
        "hidden_act",  # the class takes SiLU whatever is said
        # Of released files: what the class does in any case.
        *("max_seq_len", "use_moe", "use_qk_norm", "use_moe_router_bias", "use_head_wise_attn_gate", "yarn_only_types"),
        *("moe_router_activation", "norm_expert_weight", "need_fp32_gate", "att_impl_type", "zero_centered"),
    ),
)
