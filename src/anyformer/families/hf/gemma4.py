"""Gemma 4 (text) to and from transformers' Gemma4ForCausalLM: heads by the kind of layer, a mixture beside the feed-forward.

The class makes the last layer full whatever is said, and takes the key/value heads of full layers only where keys are values.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, with_layers
from anyformer.families.gemma3n import injected
from anyformer.families.gemma4 import CONTEXT, EVERY, FULL_ROTARY, VOCABULARY, completed, gemma4, sharing
from anyformer.families.hf import table, windows
from anyformer.families.hf.gemma import SANDWICH, SOFTCAP, TANH, WIDTH
from anyformer.families.hf.gemma3n import INJECTION, own_layers, shared_layers, side_by_side, unread
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.llama import ATTENTION, D_FF, EPS, GATED, QK_NORMS
from anyformer.families.hf.mapping import TensorRow, one, width_of_head
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.windows import FULL, SLIDING, rotary_by_type
from anyformer.layers import GatedFeedForwardSpec, GQASpec, MoESpec, PerLayerEmbeddingSpec, RotarySpec
from anyformer.spec import BlockSpec, HeadSpec, ModelSpec

EQUAL, BY_LAYER = "attention_k_eq_v", "per_layer_config"
WIDE, KV_HEADS = "global_head_dim", "num_global_key_value_heads"
WIDENED, SHARED = "use_double_wide_mlp", "num_kv_shared_layers"
EXPERTS, TOP_K, D_EXPERT = "num_experts", "top_k_experts", "moe_intermediate_size"
READ, ROWS = "hidden_size_per_layer_input", "vocab_size_per_layer_input"
MIXTURE = "1.branches.1.mixer"


def _complete(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """What a layer has beside attention and a feed-forward: embeddings of its own, experts, a factor."""
    width, rows = settings.take(READ, int, 256), settings.positive(ROWS, int, VOCABULARY)
    mixed = settings.take("enable_moe_block", bool, False)
    mixture = tuple(settings.positive(name, int) for name in (EXPERTS, TOP_K, D_EXPERT)) if mixed else None
    if not mixed:
        settings.ignore(EXPERTS, TOP_K, D_EXPERT)
    reads = injected(rows, width) if width else None
    blocks = (completed(block, reads, mixture) for block in spec.stack.blocks)  # type: ignore[arg-type]
    return with_layers(spec, blocks)


def _completion(spec: ModelSpec) -> dict[str, Any]:
    layer = spec.stack.blocks[0]
    reads = next((value.table for value in layer.nested(PerLayerEmbeddingSpec)), None)
    mixture = next(layer.nested(MoESpec), None)
    found: dict[str, Any] = {READ: reads.width if reads else 0, ROWS: reads.rows if reads else spec.vocab_size}
    if mixture is None:
        return found
    width = one(mixture.expert, GatedFeedForwardSpec).d_ff
    routed = {EXPERTS: mixture.router.n_experts, TOP_K: mixture.router.top_k, D_EXPERT: width}
    return {**found, **routed, "enable_moe_block": True}


def _layers(settings: Settings, spec: ModelSpec) -> ModelSpec:
    n = settings.positive("num_hidden_layers", int)
    types, size = windows.said_types(settings, n, windows.each(EVERY), 512)
    types = (*types[:-1], FULL)
    spec = windows.typed(spec, types, size)
    blocks = _headed(settings, spec.stack.blocks, types)
    spec = with_layers(spec, blocks)
    n_shared = n - own_layers(settings, spec, 0)
    return with_layers(spec, sharing(blocks, n_shared, settings.take(WIDENED, bool, False)))


def _written_layers(spec: ModelSpec) -> dict[str, Any]:
    blocks, widths = spec.stack.blocks, [one(b, GatedFeedForwardSpec).d_ff for b in spec.stack.blocks]
    return {
        "num_hidden_layers": spec.n_layers,
        "layer_types": windows.types_of(spec),
        "sliding_window": windows.window_of(spec) or 512,
        SHARED: shared_layers(blocks),
        WIDENED: widths[-1] != widths[0],
        **_written_heads(spec),
    }


def _headed(settings: Settings, blocks: tuple[BlockSpec, ...], types: tuple[str, ...]) -> tuple[BlockSpec, ...]:
    """The layers with their sizes of attention: of all, else of the full ones, else of each by its number."""
    n_heads, one_map = settings.positive("num_attention_heads", int), settings.take(EQUAL, bool, False)
    plain = {"head_dim": settings.positive("head_dim", int, WIDTH)}
    plain["num_key_value_heads"] = settings.positive("num_key_value_heads", int, 4)
    full, by_layer = {"head_dim": settings.positive(WIDE, int, 512)}, settings.section(BY_LAYER)
    kv_heads = settings.optional(KV_HEADS, int)
    if kv_heads and one_map:
        full["num_key_value_heads"] = kv_heads
    found = []
    for i, (block, kind) in enumerate(zip(blocks, types, strict=True)):
        said = plain | (full if kind == FULL and settings.written(BY_LAYER) is None else {})
        own = by_layer and by_layer.section(next((k for k in (f"{i:02}", str(i)) if by_layer.names(k)), str(i)))
        if own:
            said = {name: own.positive(name, int, value) for name, value in said.items()}
            own.close()
        found.append(_with_heads(block, n_heads, one_map and kind == FULL, **said))
    if by_layer:
        by_layer.close()
    return tuple(found)


def _with_heads(block: BlockSpec, n_heads: int, one_map: bool, *, head_dim: int, num_key_value_heads: int) -> BlockSpec:
    values = {"values_are_keys": True, "bias_value": False} if one_map else {}
    kv_heads = None if num_key_value_heads == n_heads else num_key_value_heads
    return changed(block, GQASpec, n_heads=n_heads, n_kv_heads=kv_heads, head_dim=head_dim, **values)


def _written_heads(spec: ModelSpec) -> dict[str, Any]:
    """By the names of the released files; of a model without sliding layers, those of all are those of the full ones."""
    by_kind = {kind: one(block, GQASpec) for kind, block in zip(windows.types_of(spec), spec.stack.blocks, strict=True)}
    full = by_kind.get(FULL) or by_kind[SLIDING]
    plain = by_kind.get(SLIDING) or full
    return {
        "num_attention_heads": plain.n_heads,
        "num_key_value_heads": plain.kv_heads,
        "head_dim": width_of_head(spec, plain),
        WIDE: width_of_head(spec, full),
        KV_HEADS: full.kv_heads if full.values_are_keys else None,
        EQUAL: full.values_are_keys,
    }


def _layer(spec: ModelSpec) -> dict[Any, Any]:
    """The modules of a layer; what norms the feed-forward norms its sum with the experts where there are such."""
    factors = {f"{sublayer}.norm_sum.weight": Theirs("layer_scalar", by=(1,)) for sublayer in (1, 2)}
    found = {**SANDWICH, **ATTENTION, **QK_NORMS, **GATED, **INJECTION, **factors}
    if not any(spec.stack.blocks[0].nested(MoESpec)):
        return found
    return {
        **found,
        "1.branches.0.norm_in": "pre_feedforward_layernorm",
        "1.branches.0.norm_out": "post_feedforward_layernorm_1",
        "1.norm_out": "post_feedforward_layernorm",
        f"{MIXTURE}.norm": "pre_feedforward_layernorm_2",
        "1.branches.1.norm_out": "post_feedforward_layernorm_2",
        f"{MIXTURE}.router": "router.proj",
        f"{MIXTURE}.router.norm.weight": "router.scale",
        f"{MIXTURE}.router.gain": "router.per_expert_scale",
        (f"{MIXTURE}.experts.gate.weight", f"{MIXTURE}.experts.up.weight"): "experts.gate_up_proj",
        f"{MIXTURE}.experts.down.weight": "experts.down_proj",
    }


def _bare(model: ModelSpec) -> ModelSpec:
    """The template: layers of attention and a feed-forward alone, one of each kind."""
    feed = {id(b): b.sublayers[1].but(norm_sum=None) for b in model.stack.blocks}
    blocks = tuple(b.but(sublayers=(b.sublayers[0], feed[id(b)])) for b in model.stack.blocks)
    return windows.two_kinds(with_layers(model, blocks))


def _further(spec: ModelSpec) -> list[TensorRow]:
    reads = any(spec.stack.blocks[0].nested(PerLayerEmbeddingSpec))
    return [*(side_by_side(spec) if reads else ()), unread(spec)]


GEMMA4 = table.family(
    "gemma4_text",
    "Gemma4ForCausalLM",
    _bare(gemma4(EVERY, 8, 1, 8, 1, n_shared=0, width=None)),
    (
        *table.STREAM,
        D_FF,
        table.tables(tied=True),
        table.Pair(_complete, _completion),
        EPS,
        table.BIASES,
        table.activation("hidden_activation", TANH, GatedFeedForwardSpec),
        # Of the layers' embeddings too, which not every model has.
        table.Pair(table.activation("hidden_activation", TANH, PerLayerEmbeddingSpec).read),
        table.at(SOFTCAP, float, HeadSpec, "softcap", default=None, nullable=True),
        rotary_by_type(RotarySpec(), FULL_ROTARY, CONTEXT),
        table.only(rope_theta=FULL_ROTARY.theta),  # what the class takes where no tables are said
        table.Pair(_layers, _written_layers),
        # "vision" lets what is seen look ahead, and no text.
        table.only(use_bidirectional_attention=(None, "vision")),
    ),
    _layer,
    further=_further,
)
