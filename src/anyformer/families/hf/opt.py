"""OPT to and from transformers' OPTForCausalLM: separate matrices, norms before or after, a table of another width."""

from __future__ import annotations

from typing import Any

from anyformer.families.hf import table
from anyformer.families.hf.settings import Settings
from anyformer.families.opt import opt
from anyformer.layers import FeedForwardSpec, GQASpec, LayerNormSpec
from anyformer.spec import ModelSpec


def _read(settings: Settings, template: ModelSpec) -> ModelSpec:
    """Where the norms stand, and how wide the table is."""
    d_model = settings.positive("hidden_size", int)
    return opt(
        1,
        d_model,
        1,
        table_width=settings.positive("word_embed_proj_dim", int, d_model),
        norm_first=settings.take("do_layer_norm_before", bool, True),
        final_norm=not settings.take("_remove_final_layer_norm", bool, False),
    )


def _write(spec: ModelSpec) -> dict[str, Any]:
    norm_first = spec.stack.blocks[0].sublayers[0].norm_in is not None
    table = spec.heads[0].table if spec.heads else None
    return {
        "do_layer_norm_before": norm_first,
        "_remove_final_layer_norm": norm_first and spec.stack.norm is None,
        "word_embed_proj_dim": (table.width if table else None) or spec.stack.d_model,
    }


# Of OPT and of other decoders of fairseq.
LAYER = {
    **table.norms("self_attn_layer_norm", "final_layer_norm"),
    **{f"{table.PROJECTION}.{x}": f"self_attn.{x}_proj" for x in "qkv"},
    f"{table.PROJECTION}.o": "self_attn.out_proj",
    **table.feeds(up="fc1", down="fc2"),
}
OPT = table.family(
    "opt",
    "OPTForCausalLM",
    opt(1, 8, 1),
    (
        table.Pair(_read, _write),
        *table.STREAM,
        table.at("num_attention_heads", int, GQASpec, "n_heads"),
        table.at("ffn_dim", int, FeedForwardSpec, "d_ff", default=3072),
        table.activation("activation_function", "relu", FeedForwardSpec),
        table.learned("max_position_embeddings", 2048),
        table.at("enable_bias", bool, FeedForwardSpec, "bias_in", "bias_out", default=True),
        table.at("enable_bias", bool, GQASpec, *table.ALL_BIASES, default=True),
        table.at("layer_norm_elementwise_affine", bool, LayerNormSpec, "weight", "bias", default=True),
        table.tables(tied=True, name="init_std"),
        table.layers(),
        table.fixed(dropout=0.0),
    ),
    LAYER,
    stack="model.decoder",
    norm="final_layer_norm",
    outside={
        "stack.embedding.terms.1": "embed_positions",
        "stack.embedding.terms.0.projection": "project_in",
        "heads.0.transform.0": "project_out",
    },
)
