"""OPT to and from transformers' OPTForCausalLM: separate matrices, norms before or after, a table of another width."""

from __future__ import annotations

from typing import Any

from anyformer.families.hf import table
from anyformer.families.hf.layout import deviation, starts, tied
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings, spelling
from anyformer.families.opt import opt
from anyformer.layers import FeedForwardSpec, GQASpec, LayerNormSpec, LearnedPositionsSpec
from anyformer.spec import ModelSpec


def _read(settings: Settings, template: ModelSpec) -> ModelSpec:
    d_model = settings.take("hidden_size", int)
    affine = settings.take("layer_norm_elementwise_affine", bool, True)
    return opt(
        n_layers=settings.take("num_hidden_layers", int),
        d_model=d_model,
        n_heads=settings.take("num_attention_heads", int),
        vocab_size=settings.take("vocab_size", int),
        d_ff=settings.take("ffn_dim", int, 3072),
        table_width=settings.take("word_embed_proj_dim", int, d_model),
        norm=LayerNormSpec(weight=affine, bias=affine),
        norm_first=settings.take("do_layer_norm_before", bool, True),
        final_norm=not settings.take("_remove_final_layer_norm", bool, False),
        bias=settings.take("enable_bias", bool, True),
        activation=settings.activation("activation_function", "relu"),
        tied=settings.take("tie_word_embeddings", bool, True),
        context=settings.take("max_position_embeddings", int, 2048),
    ).but(init=starts(settings, "init_std"))


def _write(spec: ModelSpec) -> dict[str, Any]:
    heads = one(spec.stack, GQASpec, "multi-head attention")
    feed = one(spec.stack, FeedForwardSpec, "feed-forward without a gate")
    norm_first = spec.stack.blocks[0].sublayers[0].norm_in is not None
    return {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.stack.d_model,
        "num_hidden_layers": spec.n_layers,
        "ffn_dim": feed.d_ff,
        "max_position_embeddings": one(spec.stack, LearnedPositionsSpec, "learned positions").n_positions,
        "do_layer_norm_before": norm_first,
        "_remove_final_layer_norm": norm_first and spec.stack.norm is None,
        "word_embed_proj_dim": (spec.heads[0].table.width if spec.heads and spec.heads[0].table else None)
        or spec.stack.d_model,
        "num_attention_heads": heads.n_heads,
        "activation_function": spelling(feed.activation) or "relu",
        "init_std": deviation(spec),
        "enable_bias": heads.bias_query,
        "layer_norm_elementwise_affine": one(spec.stack, LayerNormSpec, "layer norm").weight,
        "tie_word_embeddings": tied(spec),
        "dropout": 0.0,
    }


OPT = table.family(
    "opt",
    "OPTForCausalLM",
    opt(1, 8, 1),
    (table.Pair(_read, _write),),
    {
        **table.norms("self_attn_layer_norm", "final_layer_norm"),
        **{f"{table.PROJECTION}.{x}": f"self_attn.{x}_proj" for x in "qkv"},
        f"{table.PROJECTION}.o": "self_attn.out_proj",
        **table.feeds(up="fc1", down="fc2"),
    },
    stack="model.decoder",
    norm="final_layer_norm",
    outside={
        "stack.embedding.terms.1": "embed_positions",
        "stack.embedding.terms.0.projection": "project_in",
        "heads.0.transform.0": "project_out",
    },
    buffers=(),
)
