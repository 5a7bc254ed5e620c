"""ERNIE 4.5's mixtures to and from transformers' Ernie4_5_MoeForCausalLM, which holds the corrections as one row of a table."""

from __future__ import annotations

from anyformer.families.compose import with_layers
from anyformer.families.ernie4_5_moe import ernie4_5_moe
from anyformer.families.hf import table
from anyformer.families.hf.deepseek import SHARED, n_shared
from anyformer.families.hf.experts import ALONE, expert_width, filed, routed, sparse
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.llama import ATTENTION, GATED, NORMS, WIDTHS
from anyformer.families.hf.settings import Settings
from anyformer.layers import RotarySpec, RouterSpec
from anyformer.spec import ModelSpec

LAYER = {**NORMS, **ATTENTION, **GATED, **SHARED}


def _routed(corrections: str) -> dict[str, str | Theirs]:
    return routed("mlp.gate.weight", Theirs(f"{corrections}.e_score_correction_bias", by="row"))


def _read(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The layers, of which every so many from one to another hold experts."""
    n, every = settings.positive("num_hidden_layers", int), settings.positive("moe_layer_interval", int, 1)
    first, last = settings.written("moe_layer_start_index"), settings.written("moe_layer_end_index")
    first, last = 1 if first is None else first, n - 1 if last in (None, -1) else last
    for name, index in (("moe_layer_start_index", first), ("moe_layer_end_index", last)):
        if type(index) is not int:
            raise settings.refusal(name, "must be the number of a layer")
    dense, mixture = spec.stack.blocks
    kinds = ((i + 1) % every == 0 and first <= i <= last for i in range(n))
    return with_layers(spec, (mixture if kind else dense for kind in kinds))


def _write(spec: ModelSpec) -> dict[str, int]:
    n, at = spec.n_layers, [i for i, block in enumerate(spec.stack.blocks) if sparse(block)]
    found = {"moe_layer_start_index": at[0] if at else n, "moe_layer_end_index": at[-1] if at else n}
    return {"num_hidden_layers": n, **found, "moe_layer_interval": at[1] - at[0] if len(at) > 1 else 1}


ERNIE_MOE = table.family(
    "ernie4_5_moe",
    "Ernie4_5_MoeForCausalLM",
    ernie4_5_moe(2, 8, 1, 8, 1, d_expert=8, n_experts=2, top_k=1),
    (
        *WIDTHS,
        expert_width("moe_intermediate_size", "expert", 1536),
        n_shared(2, "moe_num_shared_experts"),
        table.heads(n_kv_heads=4),
        table.rms_eps(1e-5),
        table.positions(RotarySpec(theta=500_000.0, layout="interleaved"), context=131_072),
        table.together(RouterSpec, {"moe_num_experts": ("n_experts", int, 64), "moe_k": ("top_k", int, 6)}),
        table.tables(tied=True),
        table.Pair(_read, _write),
        table.only(use_bias=False, moe_norm_min=1e-12),
    ),
    LAYER,
    apart=({**ALONE, **_routed("mlp.gate.moe_statics")}, {**filed(None), **_routed("mlp.moe_statics")}),
)
