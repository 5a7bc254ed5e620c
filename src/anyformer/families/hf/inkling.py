"""The text model of Inkling to and from transformers' InklingForCausalLM; composites hold it by the names that were released.

A factor of the router's weights is of all that its mixture writes. Rows of the head beyond the vocabulary give no logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from anyformer.families.compose import changed, with_layers
from anyformer.families.hf import table, windows
from anyformer.families.hf.experts import EXPERTS, GATE_AND_UP, HELD, dense_by_type, expert_width, routed, sparse
from anyformer.families.hf.layout import Laid, Modules, Theirs, within
from anyformer.families.hf.llama import ATTENTION, EPS, GATED, NORMS, QK_NORMS, SPARSE_WIDTHS
from anyformer.families.hf.mapping import Family, TensorRow, Tensors, one, width_of_head
from anyformer.families.hf.scales import scaled_by
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.zaya import WORDS
from anyformer.families.inkling import inkling
from anyformer.layers import AttentionSpec, CausalConvolutionSpec, DistanceProfilesSpec, GQASpec, LogN, RouterSpec
from anyformer.spec import BlockSpec, HeadSpec, Length, ModelSpec, TableSpec, Vocab, Width, Window

SIZES = ("num_attention_heads", 64), ("num_key_value_heads", 8), ("head_dim", 128)
OF_WINDOWS = ("swa_num_attention_heads", 64), ("swa_num_key_value_heads", 16), ("swa_head_dim", 128)
FLOOR, GROWTH, SCORED = "log_scaling_n_floor", "log_scaling_alpha", "unpadded_vocab_size"
OTHERS = {
    "sliding_window": "sliding_window_size",
    "embedding_multiplier": "logits_mup_width_multiplier",
    "num_local_experts": "n_routed_experts",
    "sconv_kernel_size": "conv_kernel_size",
    "model_max_length": table.LENGTH,
}
OLDER = {"intermediate_size": "moe_intermediate_size", "dense_intermediate_size": "intermediate_size"}
# What predicts tokens further, which the class passes over, and what no number hangs on.
UNREAD = ("num_mtp_layers", "chain_hidden_post_norm", "mtp_hidden_states_first", "mtp_local_layer_ids")
UNUSED = ("tie_word_embeddings", "shared_expert_sink", "rms_norm_eps_moe_gate", "number_of_conv_states")


def _names(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """What settings are called too; in older files experts have the width that dense layers have in others."""
    settings.rename(OTHERS)
    if settings.written("dense_intermediate_size") is not None:
        settings.rename(OLDER)
    return spec


def _full(settings: Settings, n: int) -> list[bool]:
    near = settings.layers("local_layer_ids", n, (i for i in range(n) if (i + 1) % 6))
    return [i not in near for i in range(n)]


def _heads(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Heads and profiles of layers that see everything, and of those with a window, which is as long as their profiles."""
    (n, kv, width), (its_n, its_kv, its_width) = (
        [settings.positive(name, int, usual) for name, usual in names] for names in (SIZES, OF_WINDOWS)
    )
    states, extent = settings.positive("d_rel", int, 16), settings.positive("rel_extent", int, 1024)
    floor, growth = settings.nullable(FLOOR, int, None), settings.take(GROWTH, float, 0.1)
    grows = LogN(length=Length(floor), growth=growth) if floor and growth else None

    def made(block: BlockSpec) -> BlockSpec:
        size = windows.window_of(block)
        sizes = (its_n, its_kv, its_width) if size else (n, kv, width)
        fields = dict(zip(("n_heads", "n_kv_heads", "head_dim"), sizes, strict=True))
        scores = (DistanceProfilesSpec(width=Width(states), extent=Window(size or extent)),)
        attends = changed(block, AttentionSpec, scores=scores, query_scale=None if size else grows)
        return changed(attends, GQASpec, **fields)

    each = {id(block): made(block) for block in spec.stack.blocks}
    return with_layers(spec, (each[id(block)] for block in spec.stack.blocks))


def _said(spec: ModelSpec) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for block in reversed(spec.stack.blocks):
        heads, local = one(block, GQASpec), windows.window_of(block) is not None
        sizes = zip(
            OF_WINDOWS if local else SIZES, (heads.n_heads, heads.kv_heads, width_of_head(spec, heads)), strict=True
        )
        found |= {name: size for (name, _), size in sizes}
        profiles = one(block, DistanceProfilesSpec)
        found["d_rel"] = profiles.width
        if not local:
            found["rel_extent"] = profiles.extent
        if (grows := next(block.nested(LogN), None)) is not None:
            found |= {FLOOR: grows.length, GROWTH: grows.growth or 1 / math.log(grows.length)}
    return found


def _scored(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """How many tokens have logits: the first of those that there are."""
    n = min(settings.nullable(SCORED, int, None) or spec.vocab_size, spec.vocab_size)
    return spec.but(heads=tuple(changed(head, TableSpec, rows=Vocab(n)) for head in spec.heads))


def _rows_of_head(spec: ModelSpec) -> dict[str, Any]:
    return {SCORED: spec.n_scored} if spec.n_scored < spec.vocab_size else {}


ROUTING = {
    "n_routed_experts": ("n_experts", int, 256),
    "num_experts_per_tok": ("top_k", int, 6),
    "route_scale": ("factor", float, 8.0),
}
SCORES, THEN = f"{table.MIXER}.scores.0", "branches.0.then.convolution"
SCALE = "1.branches.0.norm_out.weight"
LAYER: Modules = {
    **NORMS,
    **ATTENTION,
    **QK_NORMS,
    **GATED,
    **HELD,
    **{f"{table.PROJECTION}.short_{x}": f"self_attn.{x[0]}_sconv.conv1d" for x in ("key", "value")},
    f"{SCORES}.states": "self_attn.r_proj",
    f"{SCORES}.weight": "self_attn.rel_logits_proj.proj",
    f"0.{THEN}": "attn_sconv.conv1d",
    f"1.{THEN}": "mlp_sconv.conv1d",
    **{f"{table.FEED}.scored.{x}.weight": f"mlp.shared_experts.{x}_proj" for x in ("gate", "up", "down")},
}
RELEASED: Modules = {
    "0.norm_in": "attn_norm",
    "1.norm_in": "mlp_norm",
    **{
        f"{table.PROJECTION}.{x}": f"attn.w{theirs}"
        for x, theirs in zip("qkvo", ("q_du", "k_dv", "v_dv", "o_ud"), strict=True)
    },
    **{ours: theirs.replace("self_attn", "attn") for ours, theirs in QK_NORMS.items()},
    **{f"{table.PROJECTION}.short_{x}": f"attn.{x[0]}_sconv" for x in ("key", "value")},
    f"{SCORES}.states": "attn.wr_du",
    f"{SCORES}.weight": "attn.rel_logits_proj.proj",
    f"0.{THEN}": "attn_sconv",
    f"1.{THEN}": "mlp_sconv",
    (f"{table.FEED}.gate", f"{table.FEED}.up"): Theirs("mlp.w13_dn", by="feature"),
    f"{table.FEED}.down": "mlp.w2_md",
    **routed("mlp.gate.weight", "mlp.gate.bias"),
    GATE_AND_UP: Theirs("mlp.experts.w13_weight", by="feature"),
    f"{EXPERTS}.down.weight": "mlp.experts.w2_weight",
    tuple(f"{table.FEED}.scored.{x}.weight" for x in ("gate", "up")): Theirs(
        "mlp.shared_experts.shared_w13_weight", by="feature"
    ),
    f"{table.FEED}.scored.down.weight": "mlp.shared_experts.shared_w2_weight",
}


def _around(norm: str) -> Callable[[ModelSpec], Laid]:
    """The norm of tokens' vectors, and each layer's factor of what experts or a dense feed-forward write."""

    def laid(spec: ModelSpec) -> Laid:
        found = {"stack.embedding.norm": norm}
        for i, block in enumerate(spec.stack.blocks):
            found[f"stack.blocks.{i}.sublayers.{SCALE}"] = f"layers.{i}.mlp.{'gate.' * sparse(block)}global_scale"
        return within(found)

    return laid


def _cut(rows: list[TensorRow], spec: ModelSpec) -> list[TensorRow]:
    """The rows, of the head's those that are scored; theirs has zeros behind them."""
    n = spec.vocab_size - spec.n_scored

    def cut(row: TensorRow) -> TensorRow:
        def load(theirs: Tensors) -> Tensors:
            return (theirs[0][: len(theirs[0]) - n],)

        def save(ours: Tensors) -> Tensors:
            return (F.pad(ours[0], (0, 0, 0, n)),)

        return row._replace(load=load, save=save)

    return [cut(row) if n and spec.heads and row.ours == ("heads.0.table.weight",) else row for row in rows]


def _family(modules: Modules, tokens: str, norm: str, head: str) -> Family:
    plain = table.family(
        "inkling_text",
        "InklingForCausalLM",
        inkling(2, 8, 1, 8, 1, n_near=1, every=2),
        (
            table.Pair(_names),
            *SPARSE_WIDTHS,
            EPS,
            expert_width("moe_intermediate_size", "expert", 3072),
            table.together(RouterSpec, ROUTING),
            # The class chooses among none beside no shared ones.
            table.at("n_shared_experts", int, RouterSpec, "n_shared", default=2, positive=True),
            table.at("conv_kernel_size", int, CausalConvolutionSpec, "size", default=4),
            scaled_by("logits_mup_width_multiplier", HeadSpec, 24.0, inverse=True),
            table.context(table.LENGTH, 131_072),
            table.starts(),
            table.fixed(tie_word_embeddings=False),
            table.Pair(_scored, _rows_of_head),
            windows.layer_types(_full, 512, WORDS, "sliding_window_size"),
            table.Pair(_heads, _said),
            dense_by_type(24_576, 0, "dense_mlp_idx"),
        ),
        modules,
        outside=_around(norm),
        tokens=tokens,
        heads=(head,),
        unneeded=("model.mtp.*",),
        ignored=(*UNREAD, *UNUSED),
    )
    return plain._replace(rows=lambda spec: _cut(plain.rows(spec), spec))


_RELEASED = _family(RELEASED, "embed", "embed_norm", "model.unembed")
INKLING = _family(LAYER, "embed_tokens", "embed_tokens.embed_norm", "lm_head")._replace(released=_RELEASED.rows)
