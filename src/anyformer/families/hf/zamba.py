"""Zamba 2 to and from transformers' Zamba2ForCausalLM, where a shared block holds the adapters of all its uses."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, with_layers
from anyformer.families.hf import table
from anyformer.families.hf.layout import Modules, Theirs
from anyformer.families.hf.mamba import mixer, modules
from anyformer.families.hf.mapping import one
from anyformer.families.hf.rotary import rotary, rotary_settings
from anyformer.families.hf.settings import Settings
from anyformer.families.zamba import OF_2_7B, turns, zamba2
from anyformer.layers import GatedFeedForwardSpec, GQASpec, RMSNormSpec, RotarySpec, SSDSpec
from anyformer.spec import ModelSpec, Width

ALONE, HYBRID = "linear_attention", "hybrid"
TEMPLATE = zamba2(2, 8, 1, 8, 2, attending=(1,), low=True)
OF_MIXERS = {
    "n_heads": "n_mamba_heads",
    "head_dim": "mamba_headdim",
    "state_dim": "mamba_d_state",
    "n_groups": "mamba_ngroups",
    "expand": "mamba_expand",
    "size": "mamba_d_conv",
    "biased": "use_conv_bias",
    "least": "time_step_min",
}
ADAPTED = ("use_shared_attention_adapter", "adapter_rank")


def _heads(settings: Settings, spec: ModelSpec) -> ModelSpec:
    width, n_heads = 2 * spec.stack.d_model, settings.positive("num_attention_heads", int, 32)
    if width % n_heads:
        raise settings.refusal("num_attention_heads", f"does not divide twice hidden_size = {spec.stack.d_model}")
    settings.require("num_key_value_heads", n_heads)
    low, rank = settings.take(ADAPTED[0], bool, False), Width(settings.positive(ADAPTED[1], int, 128))
    spec = changed(spec, GQASpec, n_heads=n_heads, head_dim=width // n_heads, adapter=rank if low else None)
    return changed(spec, GatedFeedForwardSpec, adapter=rank)


def _said_of_heads(spec: ModelSpec) -> dict[str, Any]:
    found, feed = one(spec, GQASpec), one(spec, GatedFeedForwardSpec)
    each = dict(zip(ADAPTED, (found.adapter is not None, feed.adapter), strict=True))
    return {"num_attention_heads": found.n_heads, **each}


def _positions(settings: Settings, spec: ModelSpec) -> ModelSpec:
    length = settings.positive(table.LENGTH, int, 4096)
    found = rotary(settings, length, fraction=None)
    turning = found if settings.take("use_mem_rope", bool, False) else None
    return changed(spec, GQASpec, rotary=turning).but(context=length)


def _said_of_positions(spec: ModelSpec) -> dict[str, Any]:
    found = next(spec.nested(RotarySpec), None)
    said = {} if found is None else rotary_settings(found, fraction=None)
    return {table.LENGTH: spec.context or 4096, "use_mem_rope": found is not None, **said}


def _layers(settings: Settings, spec: ModelSpec) -> ModelSpec:
    n, usual = settings.positive("num_hidden_layers", int, 54), (HYBRID if i in OF_2_7B else ALONE for i in range(54))
    found = settings.words("layers_block_type", n, (ALONE, HYBRID), usual, {"mamba": ALONE})
    mamba, hybrid = spec.stack.blocks
    each = turns(hybrid, settings.positive("num_mem_blocks", int, 1))
    n_before = (found[:i].count(HYBRID) for i in range(n))
    blocks = (each[at % len(each)] if word == HYBRID else mamba for word, at in zip(found, n_before, strict=True))
    return with_layers(spec, blocks)


def _uses(spec: ModelSpec) -> dict[int, str]:
    """The layers that attend, each with the name of its block."""
    found = ((i, next(block.nested(GQASpec), None)) for i, block in enumerate(spec.stack.blocks))
    return {i: heads.common or "" for i, heads in found if heads is not None}


def _said_of_layers(spec: ModelSpec) -> dict[str, Any]:
    uses = _uses(spec)
    words = [HYBRID if i in uses else ALONE for i in range(spec.n_layers)]
    blocks = {"num_mem_blocks": max(1, len(set(uses.values())))}
    return {"num_hidden_layers": spec.n_layers, "layers_block_type": words, **blocks}


def _blocks(spec: ModelSpec) -> Modules:
    """The shared blocks, which stand where they are first used, and each use's adapters in them."""
    found: dict[str | tuple[str, ...], Theirs] = {}
    uses = _uses(spec)

    def place(name: str, module: str) -> Theirs:
        first, *later = (f"layers.{i}.shared_transformer.{module}" for i, other in uses.items() if other == name)
        return Theirs(first, also=tuple(later))

    for name in dict.fromkeys(uses.values()):
        own = f"shared.{name}_"
        found |= {f"{own}{x}": place(name, f"self_attn.{x}_proj") for x in "qkvo"}
        found[f"{own}gate", f"{own}up"] = place(name, "feed_forward.gate_up_proj")
        found[f"{own}down"] = place(name, "feed_forward.down_proj")
        found[f"{own}norm"] = place(name, "input_layernorm")
        found[f"{own}norm_feed"] = place(name, "pre_ff_layernorm")
    for number, (i, name) in enumerate(uses.items()):
        for end in (0, 1):
            for k, x in enumerate("qkv"):
                own = f"stack.blocks.{i}.sublayers.{table.PROJECTION}.adapters.{k}.maps.{end}"
                found[own] = place(name, f"self_attn.linear_{x}_adapter_list.{number}.{end}")
            own = f"stack.blocks.{i}.sublayers.{table.FEED}.adapter.maps.{end}"
            found[own] = place(name, f"feed_forward.gate_up_proj_adapter_list.{number}.{end}")
    return found


LAST = table.MIXER.replace("0", "2", 1)
ZAMBA2 = table.family(
    "zamba2",
    "Zamba2ForCausalLM",
    TEMPLATE,
    (
        table.renamed(layer_types="layers_block_type"),
        *table.STREAM,
        table.rms_eps(1e-5),
        table.Pair(lambda _, spec: changed(spec, SSDSpec, norm=RMSNormSpec(eps=1e-5))),  # whatever is said of the others
        *mixer(OF_MIXERS, 64, 1, heads=8)[:2],
        table.d_ff("intermediate_size", GatedFeedForwardSpec),
        table.activation("hidden_act", "gelu", GatedFeedForwardSpec),
        table.at("add_bias_linear", bool, GatedFeedForwardSpec, "bias_in", "bias_out", default=False),
        table.at("add_bias_linear", bool, SSDSpec, "bias", default=False),
        table.Pair(_heads, _said_of_heads),
        table.Pair(_positions, _said_of_positions),
        table.tables(tied=True),
        table.Pair(_layers, _said_of_layers),
        # the class whose tables are not tied has a block of its own for each use
        table.only(use_long_context=False, tie_word_embeddings=True),
    ),
    {
        "0.norm_in": "input_layernorm",
        **modules("mamba"),
        "1.branches.0.norm_out": "linear",
        "2.norm_in": "mamba_decoder.input_layernorm",
        **{own.replace(table.MIXER, LAST, 1): theirs for own, theirs in modules("mamba_decoder.mamba").items()},
    },
    norm="final_layernorm",
    outside=_blocks,
    ignored=(
        "chunk_size", "time_step_max", "time_step_floor", "use_mem_eff_path",
        "attention_hidden_size", "attention_head_dim", "head_dim", "kv_channels", "num_query_groups", "hybrid_layer_ids",
        "use_conv_bias",
    ),
)  # fmt: skip
