"""EXAONE 4 to and from transformers' Exaone4ForCausalLM: full layers rotate nothing where there are windows, and all else."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.exaone import exaone4, hybrid
from anyformer.families.hf import table
from anyformer.families.hf.llama import ATTENTION, GATED, NORMS_BEHIND, QK_NORMS, WIDTHS
from anyformer.families.hf.settings import Settings
from anyformer.layers import AttentionSpec, Causal, RMSNormSpec
from anyformer.spec import ModelSpec


def _read(settings: Settings, spec: ModelSpec) -> ModelSpec:
    n_layers, size = settings.take("num_hidden_layers", int), settings.nullable("sliding_window", int, 4096)
    types = settings.strings("layer_types")
    if types is None:
        every = settings.take("sliding_window_pattern", int, 4) if size else 1
        if every < 1:
            raise settings.refusal("sliding_window_pattern", "must be at least 1")
        types = tuple(table.SLIDING if (i + 1) % every else table.FULL for i in range(n_layers))
    settings.ignore("sliding_window_pattern")  # in words in the released files, which list the types
    if size is None:
        turning = spec.stack.blocks[0]
        full = changed(turning, AttentionSpec, mask=Causal())
        spec = spec.but(stack=spec.stack.but(blocks=(turning, full)))
    return table.typed(settings, spec, n_layers, types, size)


def _write(spec: ModelSpec) -> dict[str, Any]:
    found = {"num_hidden_layers": spec.n_layers, "layer_types": table.types_of(spec)}
    return {**found, "sliding_window": table.window_of(spec)}


EXAONE4 = table.family(
    "exaone4",
    "Exaone4ForCausalLM",
    table.two_kinds(hybrid(exaone4(4, 8, 1, 8), 1)),
    (
        *WIDTHS,
        table.heads(),
        table.at("rms_norm_eps", float, RMSNormSpec, "eps", default=1e-5),
        table.positions(),
        table.tables(tied=False),
        table.Pair(_read, _write),
    ),
    {**NORMS_BEHIND, **QK_NORMS, **ATTENTION, **GATED},
)
