"""DeepSeek-V2 and V3 to and from transformers' DeepseekV2ForCausalLM and DeepseekV3ForCausalLM."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from anyformer.families.compose import changed
from anyformer.families.deepseek import LITE_ROUTER, V3_ROUTER, deepseek
from anyformer.families.hf import table
from anyformer.families.hf.experts import expert_width, gated_experts
from anyformer.families.hf.further import further, further_rows
from anyformer.families.hf.latent import latent_heads, latent_rows, latent_scale, layer_eps
from anyformer.families.hf.layout import Modules
from anyformer.families.hf.llama import GATED, NORMS, WIDTHS
from anyformer.families.hf.mapping import Family, one
from anyformer.families.hf.settings import REQUIRED, Settings
from anyformer.layers import GatedFeedForwardSpec, MoESpec, RotarySpec, RouterSpec
from anyformer.spec import ModelSpec

MIXTURE = "mixture of experts"


def _shared(default: int) -> table.Pair:
    """How many shared experts there are: together they are one as wide as all of them."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        mixture = one(spec, MoESpec, MIXTURE)
        n, expert = settings.take("n_shared_experts", int, default), mixture.expert
        if n < 1:
            raise settings.refusal("n_shared_experts", "leaves an expert without width; this class needs at least one")
        assert isinstance(expert, GatedFeedForwardSpec)
        return changed(spec, MoESpec, shared_expert=expert.but(d_ff=n * expert.d_ff))

    def write(spec: ModelSpec) -> dict[str, Any]:
        mixture = one(spec, MoESpec, MIXTURE)
        shared = mixture.shared_expert and one(mixture.shared_expert, GatedFeedForwardSpec, "shared expert")
        each = one(mixture.expert, GatedFeedForwardSpec, "gated expert")
        return {"n_shared_experts": max(1, shared.d_ff // each.d_ff) if shared else 1}

    return table.Pair(read, write)


def _depth(first: int) -> table.Pair:
    """The layers, of which the first few have a feed-forward for experts; `first` where nothing is said."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        n_layers = settings.take("num_hidden_layers", int)
        n_dense = settings.take("first_k_dense_replace", int, first)
        settings.require("moe_layer_freq", 1)
        dense, sparse = spec.stack.blocks
        n_dense = min(n_dense, n_layers)
        return spec.but(stack=spec.stack.but(blocks=(*[dense] * n_dense, *[sparse] * (n_layers - n_dense))))

    def write(spec: ModelSpec) -> dict[str, Any]:
        of_experts = [any(isinstance(value, MoESpec) for value in block.nested()) for block in spec.stack.blocks]
        return {"num_hidden_layers": spec.n_layers, "first_k_dense_replace": [*of_experts, True].index(True)}

    return table.Pair(read, write)


def _read_groups(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """One of V2's methods looks at groups of experts, the other at all."""
    settings.require("topk_method", "greedy", "group_limited_greedy")
    groups, best = settings.take("n_group", int, 1), settings.take("topk_group", int, 1)
    limited = settings.take("topk_method", str, "greedy") == "group_limited_greedy"
    return changed(spec, RouterSpec, n_groups=groups, top_groups=best) if limited else spec


def _write_groups(spec: ModelSpec) -> dict[str, Any]:
    router = one(spec, RouterSpec, MIXTURE)
    method = "group_limited_greedy" if router.n_groups > 1 else "greedy"
    return {"topk_method": method, "n_group": router.n_groups, "topk_group": router.top_groups}


V2_ROUTING = {
    "n_routed_experts": ("n_experts", int, 64),
    "num_experts_per_tok": ("top_k", int, REQUIRED),
    "routed_scaling_factor": ("factor", float, 1.0),
}
V3_ROUTING = {
    "n_routed_experts": ("n_experts", int, 256),
    "num_experts_per_tok": ("top_k", int, 8),
    "routed_scaling_factor": ("factor", float, 2.5),
    "n_group": ("n_groups", int, 8),
    "topk_group": ("top_groups", int, 4),
    "norm_topk_prob": ("renormalise", bool, True),
}
EXPERTS = gated_experts("mlp.gate", "mlp.experts", "mlp.gate", "mlp.experts", ("gate_proj", "up_proj", "down_proj"))
ROWS = table.ExpertRows(
    lambda spec: [*latent_rows(spec), *EXPERTS.held(spec)], lambda spec: [*latent_rows(spec), *EXPERTS.filed(spec)]
)
SHARED = {f"{table.FEED}.shared_expert.{x}": f"mlp.shared_experts.{x}_proj" for x in ("gate", "up", "down")}
MODULES: Modules = {**NORMS, **GATED, **SHARED}
# What sets losses, the spread of experts over machines, and code that another program would run.
IDLE = ("output_router_logits", "aux_loss_alpha", "seq_aux", "router_aux_loss_coef", "ep_size", "auto_map")


def _family(
    hf_type: str,
    architecture: str,
    router: RouterSpec,
    own: Iterable[table.Pair],
    *last: table.Pair,
    n_dense: int,
    n_shared: int,
    d_expert: int,
    context: int,
) -> Family:
    """The family of a class; the sizes are its defaults."""
    template = deepseek(n_layers=2, n_dense=1, d_model=8, n_heads=1, d_ff=8, d_expert=8, n_shared=1, router=router)
    pairs = (
        *WIDTHS,
        expert_width("moe_intermediate_size", "expert", d_expert),
        _shared(n_shared),
        latent_heads(),
        layer_eps(),
        table.positions(RotarySpec(layout="interleaved"), context=context),
        *own,
        latent_scale(),
        table.tables(tied=False),
        _depth(n_dense),
        *last,
    )
    return table.family(hf_type, architecture, template, pairs, MODULES, experts=ROWS, ignored=IDLE)


LAYOUT = table.at(
    "rope_interleave",
    bool,
    RotarySpec,
    "layout",
    default=True,
    into=lambda interleaved: "interleaved" if interleaved else "half",
    out=lambda layout: layout == "interleaved",
)
V2_OWN = (
    table.only(norm_topk_prob=False, scoring_func="softmax", mlp_bias=False),
    table.together(RouterSpec, V2_ROUTING),
    table.Pair(_read_groups, _write_groups),
)
V3_OWN = (
    table.only(scoring_func="sigmoid", topk_method="noaux_tc"),
    table.together(RouterSpec, V3_ROUTING),
    LAYOUT,
)
DEEPSEEK_V2 = _family(
    "deepseek_v2", "DeepseekV2ForCausalLM", LITE_ROUTER, V2_OWN, n_dense=0, n_shared=2, d_expert=1407, context=2048
)
DEEPSEEK_V3 = further_rows(
    _family(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        V3_ROUTER,
        V3_OWN,
        further(),
        n_dense=3,
        n_shared=1,
        d_expert=2048,
        context=4096,
    )
)
