"""BART and Marian to and from transformers' BartForConditionalGeneration and MarianMTModel: post-norm stacks.

Whether the bias of the logits is anything but zeros only files say: their classes hold it as a buffer, never trained there.
"""

from __future__ import annotations

from typing import Any

from anyformer.errors import SpecError
from anyformer.families.bart import bart
from anyformer.families.hf.layout import Link, deviation, link, rows_of, starts
from anyformer.families.hf.mapping import Family, Files, TensorRow, Tensors, dropped, one
from anyformer.families.hf.settings import Settings, spelling
from anyformer.families.hf.stacks import Side, feeds, first_attention, placed, shared_table_rows, sides
from anyformer.families.marian import marian
from anyformer.families.transformer import ROOT
from anyformer.layers import AttentionSpec, FeedForwardSpec, GQASpec, LearnedPositionsSpec, SinusoidSpec, TokensSpec
from anyformer.spec import HeadSpec, ModelSpec

BIAS = "final_logits_bias"
TABLES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
POSITIONS = tuple(f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder"))
HARMLESS = ("activation_dropout", "encoder_layerdrop", "decoder_layerdrop", "classif_dropout", "output_past")


def sizes(settings: Settings, vocab_size: int, activation: str) -> dict[str, Any]:
    """What both classes say alike, as arguments of `bart` and `marian`. Raises CheckpointError."""
    settings.ignore(*HARMLESS)
    for name in ("is_encoder_decoder", "tie_word_embeddings"):
        settings.require(name, True)
    for name in ("normalize_before", "add_final_layer_norm"):  # of older files
        settings.require(name, False)

    def both(name: str) -> tuple[int, int]:
        return settings.take(f"encoder_{name}", int), settings.take(f"decoder_{name}", int)

    layers = both("layers")
    settings.require("num_hidden_layers", layers[0])
    return {
        "d_model": settings.take("d_model", int),
        "vocab_size": settings.take("vocab_size", int, vocab_size),
        "layers": layers,
        "n_heads": both("attention_heads"),
        "d_ff": both("ffn_dim"),
        "activation": settings.activation("activation_function", activation),
        "token_scale": ROOT if settings.take("scale_embedding", bool, False) else None,
        "head_bias": settings.take("add_bias_logits", bool, False),
    }


def to_bart(settings: Settings) -> ModelSpec:
    """The model that a configuration of BART describes. Raises CheckpointError."""
    settings.require("static_position_embeddings", False)
    settings.require("normalize_embedding", True)
    settings.require("extra_pos_embeddings", 2)
    n_positions = settings.take("max_position_embeddings", int, 1024)
    spec = bart(**sizes(settings, 50_265, "gelu"), n_positions=n_positions).but(init=starts(settings, "init_std"))
    settings.close()
    return spec


def to_marian(settings: Settings) -> ModelSpec:
    """The model that a configuration of Marian describes. Raises CheckpointError."""
    found = sizes(settings, 58_101, "gelu")
    settings.require("static_position_embeddings", True)
    settings.require("normalize_embedding", False)
    settings.require("share_encoder_decoder_embeddings", True)
    settings.require("decoder_vocab_size", found["vocab_size"])
    settings.ignore("init_std")  # Marian has a start of its own
    spec = marian(**found, context=settings.take("max_position_embeddings", int, 1024))
    settings.close()
    return spec


def written(spec: ModelSpec) -> dict[str, Any]:
    """The settings that `sizes` reads. Raises SpecError for a model that lacks a whole part."""
    found: dict[str, Any] = {}
    for side in sides(spec):
        heads, feed = first_attention(side.stack).projection, feeds(side.stack)[0]
        if not isinstance(heads, GQASpec) or not isinstance(feed, FeedForwardSpec):
            raise SpecError("the model has no multi-head attention, or no feed-forward without a gate")
        found |= {
            f"{side.theirs}_layers": len(side.stack.blocks),
            f"{side.theirs}_attention_heads": heads.n_heads,
            f"{side.theirs}_ffn_dim": feed.d_ff,
            f"{side.theirs}_layerdrop": 0.0,
        }
    return {
        "vocab_size": spec.vocab_size,
        "d_model": spec.stack.d_model,
        **found,
        "activation_function": spelling(one(spec, FeedForwardSpec, "feed-forward without a gate").activation) or "relu",
        "scale_embedding": one(spec, TokensSpec, "table of tokens").scale is not None,
        "add_bias_logits": one(spec, HeadSpec, "head").bias,
        "init_std": deviation(spec),
        "tie_word_embeddings": True,
        "is_encoder_decoder": True,
        **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0),
    }


def to_config_of_bart(spec: ModelSpec) -> dict[str, Any]:
    """The nearest configuration of BART. Raises SpecError for a model that lacks a whole part of it."""
    positions = one(spec, LearnedPositionsSpec, "learned positions")
    return written(spec) | {"max_position_embeddings": positions.n_positions}


def to_config_of_marian(spec: ModelSpec) -> dict[str, Any]:
    """The nearest configuration of Marian. Raises SpecError for a model that lacks a whole part of it."""
    one(spec, SinusoidSpec, "sinusoids for positions")
    shared = {"share_encoder_decoder_embeddings": True, "decoder_vocab_size": spec.vocab_size}
    return written(spec) | shared | {"max_position_embeddings": spec.context or 1024}


def links(side: Side) -> list[Link]:
    """The links of a stack's norms, matrices and learned positions."""
    theirs, embedding = f"model.{side.theirs}", f"{side.ours}.embedding"
    found = [
        link(f"{embedding}.norm", f"{theirs}.layernorm_embedding"),
        link(f"{embedding}.terms.1", f"{theirs}.embed_positions"),
    ]
    for at in placed(side):
        layer = f"{theirs}.layers.{at.layer}"
        if not isinstance(at.mixer, AttentionSpec):
            found += [link(f"{at.path}.up", f"{layer}.fc1"), link(f"{at.path}.down", f"{layer}.fc2")]
            found.append(link(f"{at.sublayer}.norm_sum", f"{layer}.final_layer_norm"))
            continue
        attention = f"{layer}.{'encoder_attn' if at.mixer.reads == 'memory' else 'self_attn'}"
        found += [link(f"{at.path}.projection.{x}", f"{attention}.{x}_proj") for x in "qkv"]
        found.append(link(f"{at.path}.projection.o", f"{attention}.out_proj"))
        found.append(link(f"{at.sublayer}.norm_sum", f"{attention}_layer_norm"))
    return found


def bias_row(spec: ModelSpec) -> TensorRow:
    """The row of the bias of the logits."""
    return TensorRow(("heads.0.bias",), (BIAS,), _one_row_less, _one_row_more) if spec.heads[0].bias else dropped(BIAS)


def rows(spec: ModelSpec) -> list[TensorRow]:
    """The table of tensors."""
    found = shared_table_rows(spec, "model.shared.weight", "lm_head.weight", TABLES)
    return [*found, bias_row(spec), *(row for side in sides(spec) for row in rows_of(spec, links(side)))]


def rows_of_marian(spec: ModelSpec) -> list[TensorRow]:
    """The table of tensors; files may hold the sinusoids too."""
    return [*rows(spec), dropped(*POSITIONS)]


def biased(spec: ModelSpec, files: Files) -> ModelSpec:
    """The model with a bias of the logits where files hold one that is not zero, whatever was said."""
    if BIAS not in files or not bool(files.read(BIAS).any()):
        return spec
    return spec.but(heads=tuple(head.but(bias=True) for head in spec.heads))


def _one_row_less(one_tensor: Tensors) -> Tensors:
    return (one_tensor[0][0],)


def _one_row_more(one_tensor: Tensors) -> Tensors:
    return (one_tensor[0][None],)


BART = Family("bart", "BartForConditionalGeneration", "model.", to_bart, to_config_of_bart, rows, of_files=biased)
MARIAN = Family("marian", "MarianMTModel", "model.", to_marian, to_config_of_marian, rows_of_marian, of_files=biased)
