"""GPT-2 to and from transformers' GPT2LMHeadModel: matrices are (in, out), queries, keys and values one matrix."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.gpt2 import gpt2
from anyformer.families.hf import table
from anyformer.families.hf.classifiers import ClassificationHead, classifying
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.settings import Settings
from anyformer.layers import AttentionSpec, FeedForwardSpec, GQASpec, LayerNormSpec
from anyformer.spec import ModelSpec, ScaleSpec, StackSpec

D_MODEL = table.at("n_embd", int, StackSpec, "d_model")
N_HEADS = table.at("n_head", int, GQASpec, "n_heads")
EPS = table.at("layer_norm_epsilon", float, LayerNormSpec, "eps", default=1e-5)
MASKS = ("attn.bias", "attn.masked_bias")  # the causal mask, in old files


def _read_scale(settings: Settings, spec: ModelSpec) -> ModelSpec:
    power = -0.5 if settings.take("scale_attn_weights", bool, True) else 0.0
    by_layer = settings.take("scale_attn_by_inverse_layer_idx", bool, False)
    blocks = (
        changed(block, AttentionSpec, scale=ScaleSpec(factor=1 / (i + 1) if by_layer else 1.0, power=power))
        for i, block in enumerate(spec.stack.blocks)
    )
    return spec.but(stack=spec.stack.but(blocks=tuple(blocks)))


def _write_scale(spec: ModelSpec) -> dict[str, Any]:
    scales = [value.scale for value in spec.stack.nested() if isinstance(value, AttentionSpec)]
    by_layer = len(scales) > 1 and scales[1].factor == 0.5
    return {"scale_attn_weights": scales[0].power != 0, "scale_attn_by_inverse_layer_idx": by_layer}


GPT2 = classifying(
    table.family(
        "gpt2",
        "GPT2LMHeadModel",
        gpt2(1, 8, 1),
        (
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
            table.NO_DROPOUT,
        ),
        {
            **table.norms("ln_1", "ln_2"),
            table.QKV: Theirs("attn.c_attn", turned=True),
            f"{table.PROJECTION}.o": Theirs("attn.c_proj", turned=True),
            "1.branches.0.mixer.up": Theirs("mlp.c_fc", turned=True),
            "1.branches.0.mixer.down": Theirs("mlp.c_proj", turned=True),
        },
        stack="transformer",
        layer="h",
        tokens="wte",
        norm="ln_f",
        outside={"stack.embedding.terms.1": "wpe"},
        buffers=MASKS,
        # n_ctx repeats n_positions; scores are computed in float32 here whatever reorder_and_upcast_attn says.
        ignored=("n_ctx", "reorder_and_upcast_attn"),
    ),
    {
        "GPT2ForSequenceClassification": ClassificationHead("classes"),
        "GPT2ForTokenClassification": ClassificationHead("token_classes", "classifier"),
    },
)
