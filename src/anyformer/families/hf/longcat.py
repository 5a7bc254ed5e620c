"""LongCat-Flash to and from transformers' LongcatFlashForCausalLM.

The class has gates and ups of its identity experts too, and wants them in files. Nobody reads them: written they are zeros, and
files without them, as released ones may be, are read alike. It passes over the layer for further tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn import functional as F

from anyformer.families.hf import table
from anyformer.families.hf.deepseek import TURNING, latent_heads, latent_scale, layer_eps, modules, turning
from anyformer.families.hf.experts import expert_width
from anyformer.families.hf.layout import Laid, gated, within
from anyformer.families.hf.llama import SWIGLU
from anyformer.families.hf.mapping import TensorRow, Tensors, constant, one
from anyformer.families.longcat import longcat, routing
from anyformer.layers import GatedFeedForwardSpec, MoESpec, RotarySpec, RouterSpec
from anyformer.spec import ModelSpec

LATE = "1.branches.1.mixer"
GATE_AND_UP = (f"{LATE}.experts.gate.weight", f"{LATE}.experts.up.weight")
ROUTER = {
    f"{LATE}.router.weight": "mlp.router.classifier.weight",
    f"{LATE}.router.correction": "mlp.router.e_score_correction_bias",
}
HELD = {GATE_AND_UP: "mlp.experts.gate_up_proj", f"{LATE}.experts.down.weight": "mlp.experts.down_proj"}
FILED = {f"{LATE}.experts.{x}": f"mlp.experts.*.{x}_proj" for x in ("gate", "up", "down")}
ROUTING = {
    "n_routed_experts": ("n_experts", int, 512),
    "zero_expert_num": ("n_identity", int, 256),
    "moe_topk": ("top_k", int, 12),
    "routed_scaling_factor": ("factor", float, 6.0),
}


def _layer(spec: ModelSpec) -> Laid:
    """All but the experts; theirs are numbered by the half of a layer that they are of."""
    found = within(ROUTER)
    for half, (attention, feed) in enumerate(((0, 1), (2, 3))):
        found |= modules(spec, f"{attention}.branches.0.mixer.projection", f"self_attn.{half}")
        feeds = {"norm_in": f"post_attention_layernorm.{half}", **gated("branches.0.mixer", f"mlps.{half}")}
        found |= within(feeds, f"{feed}.")
        found |= within({f"{attention}.norm_in": f"input_layernorm.{half}"})
    return found


def _held(spec: ModelSpec, rows: Iterable[TensorRow]) -> list[TensorRow]:
    """The rows of all tensors, those of gates and ups with zeros behind them for identities."""
    n = one(spec, RouterSpec).n_identity

    def padded(row: TensorRow) -> TensorRow:
        def load(theirs: Tensors) -> Tensors:
            return row.load((theirs[0][: len(theirs[0]) - n],))

        def save(ours: Tensors) -> Tensors:
            return (F.pad(row.save(ours)[0], (0, 0, 0, 0, 0, n)),)

        return row._replace(load=load, save=save)

    return [padded(row) if len(row.ours) > 1 and row.ours[0].endswith(GATE_AND_UP[0]) else row for row in rows]


def _filed(spec: ModelSpec, rows: Iterable[TensorRow]) -> list[TensorRow]:
    """The rows of all tensors, and of what identities have in files."""
    mixture = one(spec, MoESpec)
    first, expert = mixture.router.n_experts, one(mixture.expert, GatedFeedForwardSpec)
    nothing = torch.zeros(()).expand(expert.d_ff, spec.stack.d_model)
    names = (
        f"model.layers.{layer}.mlp.experts.{i}.{x}_proj.weight"
        for layer in range(spec.n_layers)
        for i in range(first, mixture.router.n_choices)
        for x in ("gate", "up")
    )
    return [*rows, *(constant(name, lambda: nothing) for name in names)]


_PLAIN = table.family(
    "longcat_flash",
    "LongcatFlashForCausalLM",
    longcat(1, 8, 1, 8, 8, routing(1, 1, 1)),
    (
        *table.STREAM,
        table.at("ffn_hidden_size", int, GatedFeedForwardSpec, "d_ff", default=12_288),
        SWIGLU,
        expert_width("expert_ffn_hidden_size", "expert", 2048),
        *latent_heads(narrow=True),
        TURNING,
        table.fixed(head_dim=turning),
        layer_eps(1e-5),
        table.positions(RotarySpec(theta=1e7, layout="interleaved"), context=131_072),
        latent_scale(),
        table.together(RouterSpec, ROUTING),
        table.tables(tied=False),
        table.layers("num_layers"),
        table.only(num_hidden_layers=lambda spec: 2 * spec.n_layers, router_bias=False, zero_expert_type="identity"),
        table.only(attention_method="MLA", mla_scale_q_lora=True, mla_scale_kv_lora=True),
    ),
    _layer,
    apart=(HELD, FILED),
    unneeded=("model.mtp.*",),
)
IN_MEMORY, IN_FILES = _PLAIN.rows, _PLAIN.files or _PLAIN.rows
LONGCAT_FLASH = _PLAIN._replace(
    rows=lambda spec: _held(spec, IN_MEMORY(spec)), files=lambda spec: _filed(spec, IN_FILES(spec))
)
