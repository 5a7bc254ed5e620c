"""DeepSeek-V2 and V3 and Sarvam 105B to and from transformers' DeepseekV2ForCausalLM and DeepseekV3ForCausalLM.

V3's layers for further tokens stand in its released files after the last layer, numbered on. The class passes over them, so
files decide whether there are such layers: it leaves them out and the setting in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from anyformer.families.compose import changed
from anyformer.families.deepseek import LITE_ROUTER, V3_ROUTER, deepseek, predicting_further, sharpened
from anyformer.families.hf import table
from anyformer.families.hf.experts import BY_EXPERT, dense_first, expert_width
from anyformer.families.hf.layout import Laid, Modules, Theirs, gated, within
from anyformer.families.hf.llama import GATED, NORMS, WIDTHS
from anyformer.families.hf.mapping import Family, one
from anyformer.families.hf.rotary import scaling_settings
from anyformer.families.hf.settings import REQUIRED, Settings
from anyformer.layers import (
    AttentionSpec,
    GatedFeedForwardSpec,
    MLASpec,
    MoESpec,
    RotarySpec,
    RouterSpec,
    YaRN,
)
from anyformer.spec import ModelSpec, ScaleSpec


def _as_many(settings: Settings, spec: ModelSpec) -> ModelSpec:
    settings.require("num_key_value_heads", one(spec, MLASpec).n_heads)
    # The classes write qk_rope_head_dim and the sum there themselves.
    settings.ignore("head_dim", "qk_head_dim", "q_head_dim")
    return spec


def turning(spec: ModelSpec) -> int:
    """The features of a head that turn, which is qk_rope_head_dim."""
    return one(spec, MLASpec).turning


TURNING = table.only(head_dim=turning)  # of a class that turns so many where it is told


def latent_heads(
    kv_rank: int = 512,
    query_rank: int | None = 1536,
    head_dim: int = 128,
    value_dim: int = 128,
    *,
    rotary_dim: int | None = 64,
    narrow: bool = False,
) -> tuple[table.Pair, ...]:
    """The sizes of latent attention, by default V2's and V3's; there are as many heads of keys and values as of queries.

    `narrow`: of a class whose queries must come from a latent; one without a `rotary_dim` has no features that all heads share.
    """
    sizes: dict[str, tuple[str, type[Any], Any]] = {
        "num_attention_heads": ("n_heads", int, REQUIRED),
        "kv_lora_rank": ("kv_rank", int, kv_rank),
        "qk_nope_head_dim": ("head_dim", int, head_dim),
        "v_head_dim": ("value_dim", int, value_dim),
    }
    if rotary_dim is not None:
        sizes["qk_rope_head_dim"] = "rotary_dim", int, rotary_dim
    return (
        table.together(MLASpec, sizes),
        table.at("q_lora_rank", int, MLASpec, "query_rank", default=query_rank, nullable=not narrow),
        table.at("attention_bias", bool, MLASpec, "bias_output", "bias_down", default=False),
        table.Pair(_as_many, lambda spec: {"num_key_value_heads": one(spec, MLASpec).n_heads}),
    )


def layer_eps(default: float = 1e-6) -> table.Pair:
    """The eps of the layers' norms; those of the latents have 1e-6 whatever is said."""
    eps = table.rms_eps(default)

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        latent = one(spec, MLASpec)
        return changed(eps.read(settings, spec), MLASpec, norm_kv=latent.norm_kv, norm_query=latent.norm_query)

    return table.Pair(read, eps.write)


def latent_scale(usual: Mapping[str, Any] | None = None) -> table.Pair:
    """Attention's scale, which mscale_all_dim sharpens; `usual` is the table of a class that is given none."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        found = settings.section("rope_scaling") or settings.section("rope_parameters")
        found = found or (Settings(usual, "rope_parameters") if usual else None)
        share = found.optional("mscale_all_dim", float) if found else None
        scaling = one(spec, RotarySpec).scaling
        scale = sharpened(scaling.factor, share) if share and isinstance(scaling, YaRN) else ScaleSpec(power=-0.5)
        return changed(spec, AttentionSpec, scale=scale)

    def write(spec: ModelSpec) -> dict[str, Any]:
        scaling = one(spec, RotarySpec).scaling
        factor = one(spec, AttentionSpec).scale.factor
        found = scaling_settings(scaling)
        if found is None or not isinstance(scaling, YaRN) or factor <= 1 or scaling.factor <= 1:
            return {}
        share = round((math.sqrt(factor) - 1) / (0.1 * math.log(scaling.factor)), 12)
        if scaling.attention_factor == 1.0:  # as the released files say it
            found["mscale"] = share
            del found["attention_factor"]
        return {"rope_scaling": {**found, "mscale_all_dim": share}}

    return table.Pair(read, write)


def modules(spec: ModelSpec, ours: str = table.PROJECTION, theirs: str = "self_attn") -> Laid:
    """A layer's attention: the latent beside the rotary key, and for each head its key beside its value."""
    queries = "q_b_proj" if one(spec, MLASpec).query_rank else "q_proj"
    places: Modules = {
        "q_down": "q_a_proj",
        "norm_query": "q_a_layernorm",
        "q": queries,
        ("kv_down", "k_rotary"): "kv_a_proj_with_mqa",
        "norm_kv": "kv_a_layernorm",
        ("k", "v"): Theirs("kv_b_proj", by="head"),
        "o": "o_proj",
    }
    return within(places, f"{ours}.", f"{theirs}.")


def n_shared(default: int, name: str = "n_shared_experts") -> table.Pair:
    """How many shared experts there are: together they are one as wide as all of them."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        mixture = one(spec, MoESpec)
        n, expert = settings.take(name, int, default), mixture.expert
        if n < 1:
            raise settings.refusal(name, "leaves an expert without width; this class needs at least one")
        assert isinstance(expert, GatedFeedForwardSpec)
        return changed(spec, MoESpec, shared_expert=expert.but(d_ff=n * expert.d_ff))

    def write(spec: ModelSpec) -> dict[str, Any]:
        mixture = one(spec, MoESpec)
        shared = mixture.shared_expert and one(mixture.shared_expert, GatedFeedForwardSpec)
        each = one(mixture.expert, GatedFeedForwardSpec)
        return {name: max(1, shared.d_ff // each.d_ff) if shared else 1}

    return table.Pair(read, write)


def _read_groups(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """One of V2's methods looks at groups of experts, the other at all."""
    groups, best = settings.take("n_group", int, 1), settings.take("topk_group", int, 1)
    limited = settings.word("topk_method", ("greedy", "group_limited_greedy"), "greedy") != "greedy"
    return changed(spec, RouterSpec, n_groups=groups, top_groups=best) if limited else spec


def _write_groups(spec: ModelSpec) -> dict[str, Any]:
    router = one(spec, RouterSpec)
    method = "group_limited_greedy" if router.n_groups > 1 else "greedy"
    return {"topk_method": method, "n_group": router.n_groups, "topk_group": router.top_groups}


AHEAD = {
    "norm_token": "enorm",
    "norm_hidden": "hnorm",
    "norm": "shared_head.norm",
    ("token", "hidden"): Theirs("eh_proj", by="input"),
}


def further(default: int) -> table.Pair:
    """How many further tokens are predicted; classes call the setting by two names, and need neither."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        n = settings.take("num_nextn_predict_layers", int, settings.take("num_mtp_layers", int, default))
        return predicting_further(spec, n)

    def write(spec: ModelSpec) -> dict[str, Any]:
        n = len(spec.ahead)
        return {} if n == default else {"num_nextn_predict_layers": n}

    return table.Pair(read, write)


V2_ROUTING = {
    "n_routed_experts": ("n_experts", int, 64),
    "num_experts_per_tok": ("top_k", int, REQUIRED),
    "routed_scaling_factor": ("factor", float, 1.0),
}


def v3_routing(
    n_experts: Any = 256,
    top_k: Any = 8,
    factor: float = 2.5,
    groups: int = 8,
    best: int = 4,
    *,
    sum_is_one: bool = True,
    name: str = "n_routed_experts",
) -> table.Pair:
    """The router's settings; the arguments are what a class takes where nothing is said, `name` is that of their number."""
    found = {
        name: ("n_experts", int, n_experts),
        "num_experts_per_tok": ("top_k", int, top_k),
        "routed_scaling_factor": ("factor", float, factor),
        "n_group": ("n_groups", int, groups),
        "topk_group": ("top_groups", int, best),
        "norm_topk_prob": ("renormalise", bool, sum_is_one),
    }
    return table.together(RouterSpec, found)


SHARED = gated(f"{table.FEED}.shared_expert", "mlp.shared_experts")
LAYER = {**NORMS, **GATED, **SHARED}


def layer(spec: ModelSpec) -> dict[Any, Any]:
    """A layer's modules but for its experts."""
    return {**modules(spec), **LAYER}


def _family(
    hf_type: str,
    architecture: str,
    router: RouterSpec,
    own: Iterable[table.Pair],
    *last: table.Pair,
    n_dense: int,
    of_all: int,
    d_expert: int,
    context: int,
    query_rank: int | None = 1536,
    start: float = 0.02,
    first: tuple[table.Pair, ...] = (),
) -> Family:
    """The family of a class; the sizes are its defaults."""
    template = deepseek(n_layers=1, n_dense=0, d_model=8, n_heads=1, d_ff=8, d_expert=8, mscale=1.0, router=router)
    pairs = (
        *first,
        *WIDTHS,
        expert_width("moe_intermediate_size", "expert", d_expert),
        n_shared(of_all),
        *latent_heads(query_rank=query_rank),
        layer_eps(),
        table.positions(RotarySpec(layout="interleaved"), context=context),
        *own,
        latent_scale(),
        table.tables(tied=False, start=start),
        table.layers(),
        dense_first(n_dense),
        *last,
    )
    return table.family(
        hf_type,
        architecture,
        template,
        pairs,
        layer,
        apart=BY_EXPERT,
        ahead=AHEAD,
    )


LAYOUT = table.choice("rope_interleave", RotarySpec, "layout", {True: "interleaved", False: "half"}, True)
V2_OWN = (
    table.only(norm_topk_prob=False, scoring_func="softmax", mlp_bias=False),
    table.together(RouterSpec, V2_ROUTING),
    table.Pair(_read_groups, _write_groups),
)
V3_ONLY = table.only(scoring_func="sigmoid", topk_method="noaux_tc")
DEEPSEEK_V2 = _family(
    "deepseek_v2", "DeepseekV2ForCausalLM", LITE_ROUTER, V2_OWN, n_dense=0, of_all=2, d_expert=1407, context=2048
)
DEEPSEEK_V3 = _family(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    V3_ROUTER,
    (V3_ONLY, v3_routing(), LAYOUT, TURNING),
    further(0),
    n_dense=3,
    of_all=1,
    d_expert=2048,
    context=4096,
)
SARVAM = table.renamed(num_experts="n_routed_experts", num_shared_experts="n_shared_experts")
SARVAM_MLA = _family(
    "sarvam_mla",
    "DeepseekV3ForCausalLM",
    V3_ROUTER,
    (V3_ONLY, v3_routing(128, 8, 2.5, 1, 1), LAYOUT),
    further(0),
    n_dense=1,
    of_all=1,
    d_expert=2048,
    context=4096,
    query_rank=None,
    start=0.006,
    first=(SARVAM,),
)
