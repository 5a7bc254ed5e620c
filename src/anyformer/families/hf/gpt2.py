"""GPT and GPT-2 to and from transformers' OpenAIGPTLMHeadModel and GPT2LMHeadModel.

Matrices are (in, out), queries, keys and values one matrix.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from anyformer.families.compose import changed, with_layers
from anyformer.families.gpt2 import gpt2
from anyformer.families.hf import table
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.openai_gpt import openai_gpt
from anyformer.layers import GELU, AttentionSpec, FeedForwardSpec, GQASpec, ReLU, SiLU
from anyformer.spec import ModelSpec, ScaleSpec, StackSpec

D_MODEL = table.at("n_embd", int, StackSpec, "d_model")
N_HEADS = table.at("n_head", int, GQASpec, "n_heads")
EPS = table.eps(1e-5, "layer_norm_epsilon")
NO_DROPOUT = table.fixed(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
# Feed-forwards four times as wide as the stream, whatever is said.
FOURFOLD = table.Pair(lambda _, spec: changed(spec, FeedForwardSpec, d_ff=4 * spec.stack.d_model))
RENAMED = table.renamed(
    hidden_size="n_embd",
    max_position_embeddings="n_positions",
    num_attention_heads="n_head",
    num_hidden_layers="n_layer",
)
# Of GPT-2 and of what was named after it.
gpt_family = partial(table.family, stack="transformer", layer="h", tokens="wte", norm="ln_f")
MASKS = ("attn.bias", "attn.masked_bias")  # the causal mask, in old files


def _read_scale(settings: Settings, spec: ModelSpec) -> ModelSpec:
    power = -0.5 if settings.take("scale_attn_weights", bool, True) else 0.0
    by_layer = settings.take("scale_attn_by_inverse_layer_idx", bool, False)
    blocks = (
        changed(block, AttentionSpec, scale=ScaleSpec(factor=1 / (i + 1) if by_layer else 1.0, power=power))
        for i, block in enumerate(spec.stack.blocks)
    )
    return with_layers(spec, blocks)


def _write_scale(spec: ModelSpec) -> dict[str, Any]:
    scale = one(spec.stack, AttentionSpec).scale
    others = [value.scale for value in spec.stack.nested(AttentionSpec)][1:2]
    return {
        "scale_attn_weights": scale.power != 0,
        "scale_attn_by_inverse_layer_idx": any(other.factor == 0.5 for other in others),
    }


MODULES = {
    **table.norms("ln_1", "ln_2"),
    table.QKV: Theirs("attn.c_attn", turned=True),
    f"{table.PROJECTION}.o": Theirs("attn.c_proj", turned=True),
    f"{table.FEED}.up": Theirs("mlp.c_fc", turned=True),
    f"{table.FEED}.down": Theirs("mlp.c_proj", turned=True),
}
GPT2 = gpt_family(
    "gpt2",
    "GPT2LMHeadModel",
    gpt2(1, 8, 1),
    (
        RENAMED,
        table.VOCABULARY,
        table.learned("n_positions", 1024),
        D_MODEL,
        N_HEADS,
        table.d_ff("n_inner"),
        table.activation("activation_function", "gelu_new", FeedForwardSpec),
        EPS,
        table.layers("n_layer"),
        table.Pair(_read_scale, _write_scale),
        table.tables(tied=True),
        table.fixed(reorder_and_upcast_attn=False, add_cross_attention=False),
        NO_DROPOUT,
    ),
    MODULES,
    outside={"stack.embedding.terms.1": "wpe"},
    buffers=MASKS,
    # n_ctx repeats n_positions; scores are computed in float32 here whatever reorder_and_upcast_attn says.
    ignored=("n_ctx", "reorder_and_upcast_attn"),
)

# What this class means by the names, which is not what the others mean: its "gelu" is the tanh form.
MEANT = {"gelu": GELU(form="tanh"), "relu": ReLU(), "silu": SiLU(), "swish": SiLU()}
OPENAI_GPT = gpt_family(
    "openai-gpt",
    "OpenAIGPTLMHeadModel",
    openai_gpt(1, 8, 1),
    (
        RENAMED,
        table.VOCABULARY,
        table.learned("n_positions", 512),
        D_MODEL,
        N_HEADS,
        FOURFOLD,
        table.activation("afn", "gelu", FeedForwardSpec, MEANT),
        EPS,
        table.layers("n_layer"),
        table.tables(tied=True),
        NO_DROPOUT,
    ),
    MODULES,
    tokens="tokens_embed",
    outside={"stack.embedding.terms.1": "positions_embed"},
    buffers=("attn.bias",),  # the causal mask, in old files
    unneeded=("transformer.position_ids",),
    # n_ctx repeats n_positions; the others are past.
    ignored=("n_ctx", "n_special", "predict_special_tokens"),
    fixed_masks=True,
)
