"""MiniMax-M3's text model to and from transformers' MiniMaxM3VLForCausalLM, alone and inside a model that sees.

The class counts blocks from the first slot of a row, be that padding; here they start with a document, so that padding changes
nothing. It turns as much of a head as partial_rotary_factor says, whatever rotary_dim does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyformer.families.compose import changed, with_layers
from anyformer.families.hf import table
from anyformer.families.hf.experts import (
    DENSE,
    HELD,
    SPARSE,
    dense_width,
    expert_width,
    mixtral_routing,
    sparse,
    with_dense,
)
from anyformer.families.hf.gpt_oss import GATES
from anyformer.families.hf.layout import within
from anyformer.families.hf.llama import ATTENTION, EPS, GATED, NORMS, QK_NORMS
from anyformer.families.hf.mapping import one, width_of_head
from anyformer.families.hf.minimax import CORRECTED_MIXTRAL
from anyformer.families.hf.rotary import FRACTION
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.windows import FULL
from anyformer.families.minimax import minimax_m3
from anyformer.layers import AttentionSpec, BlockIndexerSpec, RotarySpec, RouterSpec
from anyformer.spec import BlockSpec, ModelSpec

CHOOSING = "minimax_m3_sparse"
TEMPLATE = minimax_m3(1, 8, 1, 8, 1, d_expert=8, n_dense=0)
# Each number of the indexer, by its name, that in the released table, and its default.
INDEX = {
    "n_heads": ("index_n_heads", "sparse_num_index_heads", 4),
    "head_dim": ("index_head_dim", "sparse_index_dim", 128),
    "every": ("index_block_size", "sparse_block_size", 128),
    "top_k": ("index_topk_blocks", "sparse_topk_blocks", 16),
    "near": ("index_local_blocks", "sparse_local_block", 1),
}


def _layers(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The layers, each with experts or dense, and with an indexer or without."""
    n, released = settings.positive("num_hidden_layers", int), settings.section("sparse_attention_config")
    chooses: Sequence[int] = [0] * n
    numbers = {own: settings.positive(name, int, default) for own, (name, _, default) in INDEX.items()}
    if released is not None:
        numbers = {own: released.positive(name, int, numbers[own]) for own, (_, name, _) in INDEX.items()}
        chooses = released.flags("sparse_attention_freq", n, chooses, "chooses its keys")
        for name, value in (("use_sparse_attention", True), ("sparse_score_type", "max"), ("sparse_init_block", 0)):
            released.require(name, value)
        released.require("sparse_disable_index_value", released.written("sparse_attention_freq"))
        released.close()
    types = settings.words("layer_types", n, (FULL, CHOOSING), ((FULL, CHOOSING)[each] for each in chooses))
    mixed = settings.flags("moe_layer_freq", n, [1] * n, "has experts")
    feeds = settings.words("mlp_layer_types", n, (DENSE, SPARSE), ((DENSE, SPARSE)[each] for each in mixed))
    width = settings.positive("dense_intermediate_size", int, 12_288)
    if CHOOSING in types:
        spec = changed(spec, BlockIndexerSpec, **numbers)
        if numbers["head_dim"] < (turning := _turning(spec)):
            raise settings.refusal("index_head_dim", f"is less than the {turning} features of a head that turn")
    (block,) = spec.stack.blocks
    each = {CHOOSING: block, FULL: changed(block, AttentionSpec, indexer=None)}
    return with_dense(with_layers(spec, (each[kind] for kind in types)), feeds, width)


def _said(spec: ModelSpec) -> dict[str, Any]:
    blocks, indexer = spec.stack.blocks, next(spec.nested(BlockIndexerSpec), None)
    numbers = {name: getattr(indexer, own) if indexer else default for own, (name, _, default) in INDEX.items()}
    return {
        "num_hidden_layers": len(blocks),
        "layer_types": [CHOOSING if _chooses(block) else FULL for block in blocks],
        "mlp_layer_types": [SPARSE if sparse(block) else DENSE for block in blocks],
        "dense_intermediate_size": dense_width(spec).get("intermediate_size", 12_288),
        **numbers,
    }


def _chooses(block: BlockSpec) -> bool:
    return one(block, AttentionSpec).indexer is not None


def _turning(spec: ModelSpec) -> int:
    """How many features of a head turn."""
    return one(spec, RotarySpec).dims(width_of_head(spec))


INDEXER = f"{table.MIXER}.indexer."
SHARED = f"{table.FEED}.shared_expert."
FED = {
    tuple(f"{place}{x}" for x in ("gate", "up")): f"{theirs}.gate_up_proj"
    for place, theirs in ((f"{table.FEED}.", "mlp"), (SHARED, "mlp.shared_experts"))
}
FED_DOWN = {f"{table.FEED}.down": "mlp.down_proj", f"{SHARED}down": "mlp.shared_experts.down_proj"}
LAYER = {**NORMS, **ATTENTION, **QK_NORMS}
NAMES = {"q": "q_proj", "k": "k_proj", "norm_query": "q_norm", "norm_key": "k_norm"}
MINIMAX_M3 = table.family(
    "minimax_m3_vl_text",
    "MiniMaxM3VLForCausalLM",
    TEMPLATE,
    (
        *table.STREAM,
        expert_width("intermediate_size", "expert", 3072),
        expert_width("shared_intermediate_size", "shared_expert", 3072),
        table.heads(n_kv_heads=4, head_dim=128),
        EPS,
        *GATES,
        table.positions(RotarySpec(theta=5_000_000.0), fraction=FRACTION, context=524_288),
        table.only(rotary_dim=_turning),
        table.fixed(rotary_dim=_turning),
        mixtral_routing(128, 4),
        table.at("routed_scaling_factor", float, RouterSpec, "factor", default=2.0),
        table.tables(tied=False),
        table.Pair(_layers, _said),
        table.only(scoring_func="sigmoid", use_routing_bias=True, use_qk_norm=True, qk_norm_type="per_head"),
        table.only(use_gemma_norm=True, n_shared_experts=1),
    ),
    {
        **LAYER,
        **FED,
        **FED_DOWN,
        **within(NAMES, INDEXER, "self_attn.indexer."),
        **HELD,
    },
    # What the class writes of the text model alone is as in memory; the released files, which see, are otherwise.
    released={
        **LAYER,
        **GATED,
        **{f"{SHARED}{x}": f"block_sparse_moe.shared_experts.{x}_proj" for x in ("gate", "up", "down")},
        **within(NAMES, INDEXER, "self_attn.index_"),
        **CORRECTED_MIXTRAL,
    },
    fixed_masks=True,  # where an indexer chooses, which sees the past alone whatever is asked
    # Modules that predict further tokens, in training; the activation that gates have in place of theirs.
    ignored=("num_mtp_modules", "mtp_transformer_layers", "use_mtp", "hidden_act"),
)
