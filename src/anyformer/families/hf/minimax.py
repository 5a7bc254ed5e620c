"""MiniMax-M2 to and from transformers' MiniMaxM2ForCausalLM: Mixtral's files, the corrections beside the router."""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.hf import table
from anyformer.families.hf.experts import EXPERTS, GATE_AND_UP, OF_MIXTRAL, TRAINING
from anyformer.families.hf.llama import ATTENTION, EPS, NORMS, QK_NORMS, WIDTHS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.rotary import FRACTION
from anyformer.families.hf.settings import Settings
from anyformer.families.minimax import minimax_m2
from anyformer.layers import GQASpec, RotarySpec, RouterSpec
from anyformer.spec import ModelSpec

ROUTER = f"{table.FEED}.router"
LAYER = {**NORMS, **ATTENTION, **QK_NORMS}


def _turning(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The released files say how many features of a head rotate."""
    n, heads = settings.optional("rotary_dim", int), one(spec, GQASpec, "attention")
    if n is None or settings.names(FRACTION):
        return spec
    return changed(spec, RotarySpec, fraction=n / (heads.head_dim or spec.stack.d_model // heads.n_heads))


MINIMAX_M2 = table.family(
    "minimax_m2",
    "MiniMaxM2ForCausalLM",
    minimax_m2(1, 8, 1, 8, n_experts=64, top_k=1),
    (
        *WIDTHS,
        table.heads(n_kv_heads=8, head_dim=128),
        EPS,
        table.positions(RotarySpec(theta=5_000_000.0), fraction=FRACTION, context=196_608),
        table.Pair(_turning),
        table.at("num_local_experts", int, RouterSpec, "n_experts", default=256),
        table.at("num_experts_per_tok", int, RouterSpec, "top_k", default=8),
        table.tables(tied=False),
        table.layers(),
        table.only(scoring_func="sigmoid", use_routing_bias=True, use_qk_norm=True, qk_norm_type="per_layer"),
        table.only(attn_type_list=lambda spec: [1] * spec.n_layers, shared_intermediate_size=0),
    ),
    {
        **LAYER,
        f"{ROUTER}.weight": "mlp.gate.weight",
        f"{ROUTER}.correction": "mlp.e_score_correction_bias",
        GATE_AND_UP: "mlp.experts.gate_up_proj",
        f"{EXPERTS}.down.weight": "mlp.experts.down_proj",
    },
    filed={
        **LAYER,
        **{ours: theirs for ours, theirs in OF_MIXTRAL.items() if ours != ROUTER},
        f"{ROUTER}.weight": "block_sparse_moe.gate.weight",
        f"{ROUTER}.correction": "block_sparse_moe.e_score_correction_bias",
    },
    # Modules that predict further tokens, in training.
    ignored=(*TRAINING, "num_mtp_modules", "mtp_transformer_layers", "use_mtp", "auto_map"),
)
