"""The text model of Muse Glimmer to and from transformers' MuseGlimmerTextModel with a head, which is inside a model that sees.

Of a theta for each layer the class asks only whether it is 0: such a layer rotates nothing.
"""

from __future__ import annotations

from anyformer.families.gemma import NORM
from anyformer.families.hf import table, windows
from anyformer.families.hf.gemma import SANDWICH, SOFTCAP
from anyformer.families.hf.llama import ATTENTION, D_FF, GATED
from anyformer.families.hf.mapping import one
from anyformer.families.hf.scales import scaled_by
from anyformer.families.hf.settings import Settings
from anyformer.families.muse import muse_glimmer
from anyformer.layers import AttentionSpec, GatedFeedForwardSpec, RMSNormSpec, RotarySpec
from anyformer.spec import BranchSpec, HeadSpec, ModelSpec, ScaleSpec


def _alike(settings: Settings, spec: ModelSpec) -> ModelSpec:
    theta, said = one(spec, RotarySpec).theta, settings.written(windows.THETAS)
    if isinstance(said, list) and any(each not in (0, theta) for each in said):
        raise settings.refusal(
            windows.THETAS, f"is not computed here; only 0 and the theta of all layers, {theta}, are"
        )
    return spec


MUSE_GLIMMER = table.family(
    "muse_glimmer_text",
    "MuseGlimmerForCausalLM",
    muse_glimmer(1, 8, 1, 8, 1),
    (
        *table.STREAM,
        D_FF,
        table.activation("hidden_activation", "silu", GatedFeedForwardSpec),
        table.heads(n_kv_heads=2, head_dim=128),
        table.EVEN,
        table.BIASES,
        table.rms_eps(1e-5),
        table.at(
            "post_norm_eps",
            float,
            BranchSpec,
            "norm_out",
            default=1e-8,
            into=lambda eps: NORM.but(eps=eps),
            out=lambda norm: norm.eps if isinstance(norm, RMSNormSpec) else 1e-8,
        ),
        table.at(
            "qk_scale_factor",
            float,
            AttentionSpec,
            "scale",
            default=3.87,
            into=lambda factor: ScaleSpec(factor=factor, power=-0.5),
            out=lambda scale: scale.factor,
        ),
        scaled_by("output_multiplier", HeadSpec, 26**-0.5),
        table.at(SOFTCAP, float, HeadSpec, "softcap", default=20.0),
        table.tables(tied=False),
        table.layers(),
        table.positions(context=131_072),
        table.Pair(_alike),
        windows.by_theta(lambda settings, n: [(n - 1 - i) % 4 == 0 for i in range(n)], 2048, turns=False),
    ),
    {**SANDWICH, **ATTENTION, **GATED, f"{table.MIXER}.gate": "self_attn.gate_proj"},
)
