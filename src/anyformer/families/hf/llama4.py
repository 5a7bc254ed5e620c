"""Llama 4's text models to and from transformers' Llama4ForCausalLM: what a layer sees, rotates and holds is said layer by layer.

Experts hold matrices (in, out), in files too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyformer.families.compose import changed, with_layers
from anyformer.families.hf import table, windows
from anyformer.families.hf.experts import EXPERTS, GATE_AND_UP, mixtral_routing, sparse
from anyformer.families.hf.layout import Theirs, gated
from anyformer.families.hf.llama import ATTENTION, NORMS, SWIGLU
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.llama4 import llama4, unturned
from anyformer.layers import (
    AttentionSpec,
    Causal,
    GatedFeedForwardSpec,
    GQASpec,
    LogSteps,
    RMSNormSpec,
    RotarySpec,
    SameBlock,
)
from anyformer.spec import BlockSpec, Length, ModelSpec, Window

CHUNKED, CHUNK = "chunked_attention", 8192
ROTATING = "no_rope_layers"  # of which 1 are those that rotate


def rotating(settings: Settings, n: int) -> Sequence[int]:
    """Of each layer 1 if it rotates, 0 if not: by a list, or all but every so many."""
    every = settings.positive("no_rope_layer_interval", int, 4)
    return settings.flags(ROTATING, n, [int((i + 1) % every != 0) for i in range(n)], "rotates")


def _read(settings: Settings, spec: ModelSpec) -> ModelSpec:
    n = settings.positive("num_hidden_layers", int)
    step = settings.positive("interleave_moe_layer_step", int, 1)
    moe = settings.layers("moe_layers", n, range(step - 1, n, step))
    turning = rotating(settings, n)
    usual = (CHUNKED if turns else windows.FULL for turns in turning)
    types = settings.words("layer_types", n, (CHUNKED, windows.FULL), usual)
    chunk = Causal() & SameBlock(size=Window(settings.positive("attention_chunk_size", int, CHUNK)))
    width = settings.positive("intermediate_size_mlp", int, 16_384)
    norm = one(spec, RMSNormSpec).but(weight=False) if settings.take("use_qk_norm", bool, True) else None
    scaling = one(spec, RotarySpec).scaling
    if norm is not None and scaling is not None and scaling.magnitude() != 1:
        raise settings.refusal(
            "use_qk_norm", "takes away again how much longer the scaling makes what it turns; say false"
        )
    growth, length = settings.positive("attn_scale", float, 0.1), settings.positive("floor_scale", int, 8192)
    grows = settings.take("attn_temperature_tuning", bool, True)
    steps = LogSteps(length=Length(length), growth=growth, start=1) if grows else None
    dense, mixture = spec.stack.blocks

    def layer(of_experts: bool, turns: int, kind: str) -> BlockSpec:
        found = mixture if of_experts else changed(dense, GatedFeedForwardSpec, d_ff=width)
        if not turns:
            found = unturned(found, steps)
        elif norm is not None:
            found = changed(found, GQASpec, norm_query=norm, norm_key=norm)
        return changed(found, AttentionSpec, mask=chunk if kind == CHUNKED else Causal())

    kinds = [(i in moe, turning[i], types[i]) for i in range(n)]
    made = {kind: layer(*kind) for kind in dict.fromkeys(kinds)}
    return with_layers(spec, (made[kind] for kind in kinds))


def _write(spec: ModelSpec) -> dict[str, Any]:
    blocks, attentions = spec.stack.blocks, [one(block, AttentionSpec) for block in spec.stack.blocks]
    turns = [one(block, GQASpec).rotary is not None for block in blocks]
    moe = [i for i, block in enumerate(blocks) if sparse(block)]
    width = {sparse(block): one(block, GatedFeedForwardSpec).d_ff for block in blocks}
    chunk = next((part.size for part in spec.nested(SameBlock)), CHUNK)
    steps = next(spec.nested(LogSteps), None)
    said = {"attn_scale": steps.growth, "floor_scale": steps.length} if steps else {}
    return {
        "num_hidden_layers": len(blocks),
        "moe_layers": moe,
        ROTATING: list(map(int, turns)),
        "layer_types": [windows.FULL if each.mask == Causal() else CHUNKED for each in attentions],
        "attention_chunk_size": chunk,
        "intermediate_size": width.get(True, 8192),
        "intermediate_size_mlp": width.get(False, 16_384),
        "use_qk_norm": any(part.norm_query is not None for part in spec.nested(GQASpec)),
        "attn_temperature_tuning": steps is not None,
        **said,
    }


LAYER = {**NORMS, **ATTENTION}
FEEDS = gated(table.FEED, "feed_forward")
SHARED = gated(f"{table.FEED}.shared_expert", "feed_forward.shared_expert")
HELD: dict[Any, Any] = {
    f"{table.FEED}.router": "feed_forward.router",
    GATE_AND_UP: Theirs("feed_forward.experts.gate_up_proj", turned=True),
    f"{EXPERTS}.down.weight": Theirs("feed_forward.experts.down_proj", turned=True),
}

LLAMA4 = table.family(
    "llama4_text",
    "Llama4ForCausalLM",
    llama4(2, 8, 1, 8, 1, n_experts=2, d_dense=8, qk_norm=False),
    (
        *table.STREAM,
        table.at("intermediate_size", int, GatedFeedForwardSpec, "d_ff", default=8192),
        SWIGLU,
        table.heads(n_kv_heads=8, head_dim=128),
        table.BIASES,
        table.rms_eps(1e-5),
        table.positions(RotarySpec(theta=500_000.0, layout="interleaved"), context=131_072),
        mixtral_routing(16, 1),
        table.tables(tied=False),
        table.Pair(_read, _write),
    ),
    {**LAYER, **FEEDS, **SHARED, **HELD},
    ignored=("for_llm_compressor",),
)
