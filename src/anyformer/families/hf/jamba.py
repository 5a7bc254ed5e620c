"""Jamba to and from transformers' JambaForCausalLM: which layers attend and which have experts by periods and offsets."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, with_layers
from anyformer.families.hf import table
from anyformer.families.hf.experts import ALONE, filed, sparse
from anyformer.families.hf.layout import gated
from anyformer.families.hf.llama import ATTENTION, EPS, WIDTHS
from anyformer.families.hf.mamba import S6_IN_A_HYBRID, s6_mixer, s6_modules
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.states import kinds_of
from anyformer.families.jamba import ATTENDS, EVERY, EXPERTS_EVERY, HAS_EXPERTS, jamba
from anyformer.layers import AttentionSpec, RouterSpec, S6Spec
from anyformer.spec import BlockSpec, ModelSpec

WORDS = {"mamba": S6Spec, "attention": AttentionSpec}
DEFAULTS = {"attn_layer": (EVERY, ATTENDS), "expert_layer": (EXPERTS_EVERY, HAS_EXPERTS)}


def _periodic(settings: Settings, name: str, n_layers: int) -> list[bool]:
    """Of each layer whether it is one of those that come periodically."""
    period, offset = (
        settings.take(f"{name}_{word}", int, default)
        for word, default in zip(("period", "offset"), DEFAULTS[name], strict=True)
    )
    if not 0 <= offset < period:
        raise settings.refusal(f"{name}_offset", f"must be from 0 to {name}_period - 1 = {period - 1}")
    return [i % period == offset for i in range(n_layers)]


def _period(name: str, chosen: list[bool]) -> dict[str, int]:
    """The settings of those that are chosen; where none is, their offset is behind the last layer."""
    first, *later = [i for i, each in enumerate(chosen) if each] or [len(chosen)]
    period = later[0] - first if later else max(first, len(chosen) - 1) + 1
    return {f"{name}_period": period, f"{name}_offset": first}


def _read(settings: Settings, spec: ModelSpec) -> ModelSpec:
    n_layers = settings.positive("num_hidden_layers", int)
    attends, has_experts = (_periodic(settings, name, n_layers) for name in DEFAULTS)
    top_k = settings.positive("num_experts_per_tok", int, 2)
    n = settings.positive("num_experts", int, settings.optional("num_local_experts", int) or 16)
    spec = spec if n == 1 else changed(spec, RouterSpec, n_experts=n, top_k=top_k)
    kinds = {(kind, sparse(block)): block for kind, block in zip(kinds_of(spec, WORDS), spec.stack.blocks, strict=True)}

    def layer(attends: bool, has_experts: bool) -> BlockSpec:
        return kinds["attention" if attends else "mamba", has_experts and n > 1]

    return with_layers(spec, map(layer, attends, has_experts))


def _write(spec: ModelSpec) -> dict[str, Any]:
    router = next(spec.nested(RouterSpec), None)
    return {
        "num_hidden_layers": spec.n_layers,
        "num_experts": router.n_experts if router else 1,
        "num_experts_per_tok": router.top_k if router else 1,
        **_period("attn_layer", [kind == "attention" for kind in kinds_of(spec, WORDS)]),
        **_period("expert_layer", [sparse(block) for block in spec.stack.blocks]),
    }


LAYER = {
    "0.norm_in": "input_layernorm",
    "1.norm_in": "pre_ff_layernorm",
    **ATTENTION,
    **s6_modules("mamba"),
    **gated(table.FEED, "feed_forward"),
    f"{table.FEED}.router": "feed_forward.router",
}
# One layer of each kind: of two and three layers, one attends and one has experts.
TEMPLATE = jamba(4, 32, 1, 8, n_experts=64, top_k=1, attends=(2, 1), experts=(3, 0))
JAMBA = table.family(
    "jamba",
    "JambaForCausalLM",
    TEMPLATE,
    (
        *WIDTHS,
        table.heads(n_kv_heads=8),
        EPS,
        table.context("max_position_embeddings", 262_144),
        *s6_mixer(S6_IN_A_HYBRID),
        table.tables(tied=False),
        table.Pair(_read, _write),
    ),
    LAYER,
    apart=(
        {ours: theirs.replace("mlp", "feed_forward") for ours, theirs in ALONE.items()},
        filed(None, "feed_forward.experts"),
    ),
    norm="final_layernorm",
)
