"""BioGPT and XGLM to and from transformers' BioGptForCausalLM and XGLMForCausalLM: embeddings are scaled or not."""

from __future__ import annotations

from anyformer.families.hf import table
from anyformer.families.hf.bart import SCALED
from anyformer.families.hf.opt import LAYER
from anyformer.families.xglm import biogpt, xglm
from anyformer.layers import FeedForwardSpec, GQASpec
from anyformer.spec import StackSpec

BIOGPT = table.family(
    "biogpt",
    "BioGptForCausalLM",
    biogpt(1, 8, 1),
    (
        *table.STREAM,
        table.at("num_attention_heads", int, GQASpec, "n_heads", default=16),
        table.EVEN,
        table.at("intermediate_size", int, FeedForwardSpec, "d_ff", default=4096),
        table.activation("hidden_act", "gelu", FeedForwardSpec),
        table.learned("max_position_embeddings", 1024),
        SCALED,
        table.tables(tied=True),
        table.layers(),
        table.fixed(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    ),
    LAYER,
    stack="biogpt",
    norm="layer_norm",
    outside={"stack.embedding.terms.1": "embed_positions"},
    heads=("output_projection",),
    ignored=("layer_norm_eps",),  # the class's norms have 1e-5 whatever it says
)
XGLM = table.family(
    "xglm",
    "XGLMForCausalLM",
    xglm(1, 8, 1),
    (
        table.VOCABULARY,
        table.at("d_model", int, StackSpec, "d_model", default=1024),
        table.at("attention_heads", int, GQASpec, "n_heads", default=16),
        table.EVEN,
        table.at("ffn_dim", int, FeedForwardSpec, "d_ff", default=4096),
        table.activation("activation_function", "gelu", FeedForwardSpec),
        table.context("max_position_embeddings", 2048),
        SCALED,
        table.only(add_cross_attention=False),
        table.tables(tied=True, name="init_std"),
        table.layers("num_layers"),
        table.fixed(dropout=0.0, attention_dropout=0.0),
    ),
    LAYER,
    norm="layer_norm",
    unneeded=("model.embed_positions.weights",),  # the sinusoids, in old files
)
