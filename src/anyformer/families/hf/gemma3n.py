"""Gemma 3n (text) to and from transformers' Gemma3nForCausalLM: what each layer has of a table or a map lies side by side there.

Files hold keys' and values' maps of the layers that read others', which nobody reads. The class clips AltUp's coefficients in
training alone (`altup_coef_clip`), which nothing here does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from anyformer.errors import SpecError
from anyformer.families.compose import changed, with_layers
from anyformer.families.gemma3n import borrowing, gemma3n
from anyformer.families.hf import table, windows
from anyformer.families.hf.gemma import LOCAL, SANDWICH, SIZES, SOFTCAP, TANH
from anyformer.families.hf.layout import Laid, Theirs, rows_of, within
from anyformer.families.hf.llama import ATTENTION, GATED, QK_NORMS
from anyformer.families.hf.mapping import TensorRow, dropped, one
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.windows import rotary_by_type
from anyformer.layers import (
    AttentionSpec,
    GatedFeedForwardSpec,
    LaurelSpec,
    PerLayerEmbeddingSpec,
    RotarySpec,
    StreamsSpec,
)
from anyformer.spec import BlockSpec, HeadSpec, ModelSpec, TableSpec, Vocab, Width

SPARSITY, SHARED = "activation_sparsity_pattern", "num_kv_shared_layers"
SPARSE_FIRST = 10  # that many layers where nothing is said, of more
# What all layers have in one: their tables, the maps of the tokens' vectors, the norm of these.
PER_LAYER = (
    "model.embed_tokens_per_layer",
    "model.per_layer_model_projection",
    "model.per_layer_projection_norm",
)
ALTUP = {
    "norm": "altup.router_norm",
    "router": "altup.modality_router",
    "predict": "altup.prediction_coefs",
    "correct": "altup.correction_coefs",
}
LAYER = {
    **SANDWICH,
    **ATTENTION,
    **QK_NORMS,
    **GATED,
    "0.branches.1.mixer.down": "laurel.linear_left",
    "0.branches.1.mixer.up": "laurel.linear_right",
    "0.branches.1.mixer.norm": "laurel.post_laurel_norm",
    "2.norm_in.weight": "altup.correct_output_scale",
}


# The modules of the sublayer that reads the layer's own embeddings.
INJECTION = {
    "2.branches.0.mixer.gate": "per_layer_input_gate",
    "2.branches.0.mixer.up": "per_layer_projection",
    "2.branches.0.norm_out": "post_per_layer_input_norm",
}


def side_by_side(spec: ModelSpec, names: tuple[str, str, str] = PER_LAYER) -> Iterator[TensorRow]:
    """The rows of what all layers have of a table and a map in one tensor of theirs, and of the norm that is one for all."""
    each = [f"stack.blocks.{i}.sublayers.2.branches.0.mixer" for i in range(spec.n_layers)]
    norm = one(spec, PerLayerEmbeddingSpec).norm
    tables, maps, own_norm = names
    links: dict[str | tuple[str, ...], Theirs] = {
        tuple(f"{place}.table" for place in each): Theirs(tables, by="input"),
        tuple(f"{place}.project" for place in each): Theirs(maps),
        f"shared.{norm and norm.shared}": Theirs(own_norm),
    }
    return rows_of(spec, links)


def unread(spec: ModelSpec, stack: str = "model.") -> TensorRow:
    """What files hold of keys and values in layers that read others'."""
    theirs = [i for i, block in enumerate(spec.stack.blocks) if borrows(block)]
    names = ("k_proj.weight", "v_proj.weight", "k_norm.weight", "k_proj.bias", "v_proj.bias")
    return dropped(*(f"{stack}layers.{i}.self_attn.{name}" for i in theirs for name in names))


def borrows(block: BlockSpec) -> bool:
    """Whether a layer reads another's keys and values."""
    return one(block, AttentionSpec).reads == "layer"


def shared_layers(blocks: Iterable[BlockSpec]) -> int:
    """How many of the last layers read others' keys and values. Raises SpecError where others do."""
    each = [borrows(block) for block in blocks]
    n = sum(each)
    if not all(each[len(each) - n :]):
        raise SpecError("layers that read others' keys stand between layers that have their own")
    return n


def own_layers(settings: Settings, spec: ModelSpec, default: int) -> int:
    """How many layers have keys and values of their own. Raises CheckpointError where a kind that does not is left."""
    n = settings.take(SHARED, int, default)
    own = max(0, spec.n_layers - n)
    kinds = windows.types_of(spec)
    if set(kinds[own:]) - set(kinds[:own]):
        raise settings.refusal(SHARED, f"leaves no layer of some kind keys of its own among the first {own}; take less")
    return own


def _read_layers(settings: Settings, spec: ModelSpec) -> ModelSpec:
    n = spec.n_layers
    own = own_layers(settings, spec, 15)
    usual = [0.95] * SPARSE_FIRST + [0.0] * (n - SPARSE_FIRST) if n > SPARSE_FIRST else 0.0
    sparse = settings.by_layer(SPARSITY, float, n, usual)
    widths = settings.by_layer("intermediate_size", int, n, 16_384)
    blocks = []
    for i, block in enumerate(spec.stack.blocks):
        block = changed(block, GatedFeedForwardSpec, d_ff=Width(widths[i]), sparsity=sparse[i] or None)
        blocks.append(block if i < own else borrowing(block))
    return with_layers(spec, blocks)


def _write_layers(spec: ModelSpec) -> dict[str, Any]:
    feeds = [one(block, GatedFeedForwardSpec) for block in spec.stack.blocks]
    return {
        SHARED: shared_layers(spec.stack.blocks),
        SPARSITY: [feed.sparsity or 0.0 for feed in feeds],
        "intermediate_size": [feed.d_ff for feed in feeds],
    }


def _read_tables(settings: Settings, spec: ModelSpec) -> ModelSpec:
    found = TableSpec(
        rows=Vocab(settings.positive("vocab_size_per_layer_input", int, 262_144)),
        width=Width(settings.positive("hidden_size_per_layer_input", int, 256)),
    )
    return changed(spec, PerLayerEmbeddingSpec, table=found)


def _write_tables(spec: ModelSpec) -> dict[str, Any]:
    found = one(spec, PerLayerEmbeddingSpec).table
    return {"vocab_size_per_layer_input": found.rows, "hidden_size_per_layer_input": found.width}


def _around(spec: ModelSpec) -> Laid:
    """How layers, and the model, read and write the streams."""
    found: Laid = {}
    for i in range(spec.n_layers):
        found |= within(ALTUP, f"stack.blocks.{i}.connection.", f"layers.{i}.")
    for i in range(spec.stack.residual.n_streams - 1):
        found[f"stack.residual.begin.{i}"] = Theirs(f"altup_projections.{i}")
        found[f"stack.residual.end.{i}"] = Theirs(f"altup_unembed_projections.{i}")
    return found


TABLES = table.Pair(_read_tables, _write_tables)  # behind those that change every table
GEMMA3N = table.family(
    "gemma3n_text",
    "Gemma3nForCausalLM",
    windows.two_kinds(gemma3n(5, 8, 1, 8, 1)),
    (
        *SIZES,
        TABLES,
        table.heads(n_kv_heads=2, head_dim=256),
        table.EVEN,
        table.activation("hidden_activation", TANH, GatedFeedForwardSpec),
        table.activation("hidden_activation", TANH, PerLayerEmbeddingSpec),
        table.at(SOFTCAP, float, HeadSpec, "softcap", default=30.0),
        table.at("altup_num_inputs", int, StreamsSpec, "n", default=4),
        table.at("laurel_rank", int, LaurelSpec, "rank", default=64),
        table.only(altup_active_idx=0, altup_correct_scale=True),
        rotary_by_type(RotarySpec(), RotarySpec(theta=1e6), 32_768, LOCAL),
        windows.layer_types(windows.each(5), 512),
        table.Pair(_read_layers, _write_layers),
    ),
    {**LAYER, **INJECTION},
    outside=_around,
    further=lambda spec: [*side_by_side(spec), unread(spec)],
    ignored=("hidden_act", "altup_coef_clip"),
)
