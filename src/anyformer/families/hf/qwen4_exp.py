"""The text model of Qwen4-Exp (Qwen3.8-Flash-Next) to and from transformers' Qwen4ExpForCausalLM.

A layer of ours with n-grams has a sublayer before its others; theirs calls it `ple`. Files hold its tables in pieces, and the
numbers that its hashes are made with, which follow from the settings. The class passes over the module for further tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from anyformer.errors import CheckpointError
from anyformer.families.compose import changed, with_layers
from anyformer.families.hf import table
from anyformer.families.hf.experts import HELD, SHARED, filed
from anyformer.families.hf.layout import Laid, Theirs, moved, within
from anyformer.families.hf.mapping import TensorRow, Tensors, constant, one, width_of_head
from anyformer.families.hf.qwen3_next import AHEAD, PLAINLY, SIZES, experts
from anyformer.families.hf.rotary import FRACTION
from anyformer.families.hf.settings import Settings, spelling
from anyformer.families.hf.states import full_each, layer_kinds, template
from anyformer.families.qwen3_next import EVERY
from anyformer.families.qwen4_exp import qwen4_exp, with_ngrams
from anyformer.layers import (
    AttentionSpec,
    EngramSpec,
    GatedDeltaNetSpec,
    GatedResidualSpec,
    GatedStreamsSpec,
    GQASpec,
    IndexerSpec,
    RotarySpec,
    RouterSpec,
)
from anyformer.spec import BlockSpec, ModelSpec, Vocab, Width, Window

WORDS = {"linear_attention": GatedDeltaNetSpec, "indexed_attention": AttentionSpec}
OLDER = {"full_attention": "indexed_attention"}
GATES = ("sigmoid", "silu")
LAYERS, BUDGET, END = "ple_layer_ids", "indexer_budget", "eos_token_id"
INDEXER = ("indexer_n_heads", "indexer_kv_heads", "indexer_head_dim", BUDGET, "indexer_compress_ratio")
# Fields of n-grams by their settings, with what the class takes where nothing is said.
TABLES = {
    "ngram_vocab_size_base": ("rows", 20_000_000),
    "ngram_size": ("longest", 3),
    "heads_per_ngram": ("n_tables", 8),
    "make_ngram_vocab_size_divisible_by": ("multiple", 128),
    "ple_conv_kernel_size": ("size", 4),
    "split_ngram_parts": ("pieces", 512),
}
# Of what predicts a token further, which the class passes over; what a state is computed in; and what follows from the layers.
UNREAD = ("mtp", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype", "number_of_conv_states")


def _default_layers(settings: Settings, n_layers: int) -> list[str]:
    return [OLDER.get(word, word) for word in full_each("full_attention_interval", EVERY)(settings, n_layers)]


def _read_gate(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The activation of linear attention's gate: that of the hidden layers where nothing is said."""
    said = settings.optional("output_gate_type", str)
    activation = settings.activation("hidden_act" if said is None else "output_gate_type", "silu")
    if spelling(activation) not in GATES:
        raise settings.refusal("output_gate_type", f"must be {' or '.join(GATES)}, or hidden_act where it is not said")
    return changed(spec, GatedDeltaNetSpec, activation=activation)


def _write_gate(spec: ModelSpec) -> dict[str, Any]:
    gated = next(spec.nested(GatedDeltaNetSpec), None)
    return {} if gated is None else {"output_gate_type": spelling(gated.activation)}


def _read_indexer(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The choice of blocks, all of whose settings the class needs where a layer attends."""
    attends = next(spec.nested(GQASpec), None)
    if attends is None and all(settings.written(name) is None for name in INDEXER):
        return spec
    n_heads, of_keys, head_dim, budget, every = (settings.positive(name, int) for name in INDEXER)
    settings.require(INDEXER[1], 1)
    if of_keys != 1 or budget % every:
        raise settings.refusal(BUDGET, f"must be a multiple of indexer_compress_ratio = {every}, as the class says")
    if attends is None:
        return spec
    turning = attends.rotary.dims(width_of_head(spec, attends)) if attends.rotary else 0
    if turning > head_dim:
        raise settings.refusal(
            "indexer_head_dim", f"is less than the {turning} features that turn of attention's heads"
        )
    return changed(spec, IndexerSpec, n_heads=n_heads, head_dim=head_dim, top_k=Window(budget), every=Window(every))


def _write_indexer(spec: ModelSpec) -> dict[str, Any]:
    indexer = next(spec.nested(IndexerSpec), None)
    if indexer is None:
        return {}
    return dict(zip(INDEXER, (indexer.n_heads, 1, indexer.head_dim, indexer.top_k, indexer.every), strict=True))


def _layers_said(settings: Settings, spec: ModelSpec) -> list[int]:
    said = settings.layers(LAYERS, spec.n_layers, first=1)
    beyond = len(said) < len(set(settings.written(LAYERS) or ()))  # which this class refuses
    if beyond or any(next(spec.stack.blocks[i - 1].nested(AttentionSpec), None) for i in said):
        raise settings.refusal(LAYERS, f"must be a list of layers of linear attention, from 1 to {spec.n_layers}")
    return sorted(said)


def _read_ngrams(settings: Settings, spec: ModelSpec) -> ModelSpec:
    layers = _layers_said(settings, spec)
    sizes: dict[str, Any] = {own: settings.positive(name, int, usual) for name, (own, usual) in TABLES.items()}
    width, seed = settings.positive("ple_embed_dim", int, spec.stack.d_model), settings.take("seed", int, 1234)
    if not layers:
        return spec
    said = settings.written(END)
    end = next(iter(said), None) if isinstance(said, list) else said
    if type(end) is not int or end < 0:
        raise settings.refusal(END, f"must be the id of a token, at which n-grams of {LAYERS} end")
    norm = one(spec, GatedStreamsSpec).norm
    engram = EngramSpec(vocab=Vocab(spec.vocab_size), end=end, width=Width(width), seed=seed, norm=norm, **sizes)
    blocks = list(spec.stack.blocks)
    for number, i in enumerate(layers):
        blocks[i - 1] = with_ngrams(blocks[i - 1], engram.but(number=number))
    return with_layers(spec, blocks)


def _write_ngrams(spec: ModelSpec) -> dict[str, Any]:
    each = {i: engram for i, block in enumerate(spec.stack.blocks) if (engram := _ngrams(block))}
    if not each:
        return {}
    engram = next(iter(each.values()))
    sizes = {name: getattr(engram, field) for name, (field, _) in TABLES.items()}
    of_all = {"ple_embed_dim": engram.width, "seed": engram.seed, END: engram.end}
    return {LAYERS: [i + 1 for i in each], **of_all, **sizes}


def _ngrams(block: BlockSpec) -> EngramSpec | None:
    return next(block.nested(EngramSpec), None)


def _either(modules: Mapping[Any, Any]) -> dict[Any, Any]:
    """The modules of a layer's sublayers, where they are the first and where n-grams stand before them."""

    def later(name: str) -> str:
        number, _, rest = name.partition(".")
        return f"{int(number) + 1}.{rest}"

    return {**modules, **moved(modules, later)}


def _layer(spec: ModelSpec) -> dict[Any, Any]:
    """A layer's modules but for its experts and the tables of n-grams."""
    wide = (spec.stack.residual.n_streams * spec.stack.d_model,)
    norms = {f"norm_{ours}": Theirs(f"ple.norm_{theirs}", by=wide) for ours, theirs in NORMS.items()}
    maps = {"key": "ple.key_proj", "value": "ple.value_proj", "local": "ple.conv1d"}
    return {**_either({**PLAINLY, **INDEX, **SHARED}), **within({**maps, **norms}, f"{table.MIXER}.")}


NORMS = {"key": "key", "query": "query", "value": "conv"}  # of a sublayer with n-grams
INDEX = {
    tuple(f"{table.MIXER}.indexer.{x}" for x in "qk"): "self_attn.indexer.index_qk_proj",
    f"{table.MIXER}.indexer.norm_query": "self_attn.indexer.q_layernorm",
    f"{table.MIXER}.indexer.norm_key": "self_attn.indexer.k_layernorm",
}
TABLE = f"{table.MIXER}.table"
STORED = "ple.ple_embedding.ngram_embedding"


def _filed(spec: ModelSpec) -> dict[Any, Any]:
    """What files have otherwise: a tensor for each expert, tables in pieces."""
    engram = next(spec.nested(EngramSpec), None)
    n = math.ceil(engram.all_rows / math.ceil(engram.all_rows / engram.pieces)) if engram else 1
    return {**_either(filed()), TABLE: Theirs(f"{STORED}.shard_*", pieces=tuple(map(str, range(n))))}


def _around(spec: ModelSpec) -> Laid:
    """How each sublayer reads and writes the streams, and how they are read at the end."""
    wide = (spec.stack.residual.n_streams * spec.stack.d_model,)
    read = {"norm": Theirs("hc_norm", by=wide), "down": "input_mix_weight_down", "up": "input_mix_weight_up"}
    found = within(read, "stack.residual.end.", "hyper_connection_mixer.")
    for i, block in enumerate(spec.stack.blocks):
        first = block.connection.n_whole() if block.connection else 0
        for k, name in enumerate(("attn", "mlp"), first):
            place, theirs = f"stack.blocks.{i}.connection.sublayers.{k}.", f"layers.{i}.{name}_hyper_connection."
            found |= within(read, f"{place}read.", theirs) | within({"write": "block_inject_weight"}, place, theirs)
    return found


def _hashing(spec: ModelSpec) -> Iterator[TensorRow]:
    """The rows of the numbers that hashes are made with. A file whose numbers differ is refused."""
    for i, block in enumerate(spec.stack.blocks):
        if (engram := _ngrams(block)) is None:
            continue
        starts = tuple(sum(engram.sizes[:k]) for k in range(engram.all_tables))
        names = {
            "layer_multipliers": engram.factors,
            "ngram_heads_vocab_sizes": engram.sizes,
            "ngram_heads_offsets": starts,
        }
        for name, numbers in names.items():
            yield _constant(f"model.layers.{i}.ple.ple_embedding.{name}", torch.tensor(numbers))


def _constant(name: str, numbers: torch.Tensor) -> TensorRow:
    def load(theirs: Tensors) -> Tensors:
        if not theirs[0].is_meta and not torch.equal(theirs[0], numbers):
            raise CheckpointError(f"{name} is not what follows from the settings of n-grams; copy config.json again")
        return ()

    return constant(name, lambda: numbers)._replace(load=load)


QWEN4_EXP = table.family(
    "qwen4_exp_text",
    "Qwen4ExpForCausalLM",
    template(qwen4_exp(4, 8, 1, 8, 1, n_experts=64, top_k=1), WORDS),
    (
        *experts(512, 10),
        table.at("norm_topk_prob", bool, RouterSpec, "renormalise", default=True),
        *SIZES,
        table.positions(RotarySpec(fraction=1.0), fraction=FRACTION, context=32_768),
        layer_kinds(WORDS, _default_layers, OLDER),
        table.Pair(_read_gate, _write_gate),
        table.Pair(_read_indexer, _write_indexer),
        table.at("hc_count", int, GatedStreamsSpec, "n", default=4),
        table.at("hc_lowrank", int, GatedStreamsSpec, "rank", default=320),
        table.at("hc_lowrank", int, GatedResidualSpec, "rank", default=320),
        table.Pair(_read_ngrams, _write_ngrams),
    ),
    _layer,
    outside=_around,
    apart=({**_either(HELD), TABLE: STORED}, _filed),
    further=_hashing,
    ignored=UNREAD,
    unneeded=AHEAD,
)
