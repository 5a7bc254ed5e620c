"""XLNet to and from transformers' XLNetModel and the classes that put heads on it.

Their perm_mask is our order, their target_mapping the positions of our blanks, their mems our cache.
"""

from __future__ import annotations

from collections.abc import Iterator

from anyformer.families.hf import table
from anyformer.families.hf.encoder import encoder_family, eps, laid_out
from anyformer.families.hf.headings import LABELLED, Heading, HeadNames, row_labels
from anyformer.families.hf.mapping import TensorRow, Tensors, one, same
from anyformer.families.hf.settings import Settings
from anyformer.families.xlnet import permuted_words, xlnet
from anyformer.layers import FeedForwardSpec, GQASpec, LastTokenSpec
from anyformer.spec import ModelSpec, StackSpec

LAYER = {
    "0.norm_sum": "rel_attn.layer_norm",
    f"{table.FEED}.up": "ff.layer_1",
    f"{table.FEED}.down": "ff.layer_2",
    "1.norm_sum": "ff.layer_norm",
}
SCORES = "0.branches.0.mixer.scores"
ALIKE = {
    f"{SCORES}.0.bias_key": "r_w_bias",
    f"{SCORES}.0.bias_position": "r_r_bias",
    f"{SCORES}.1.bias_segment": "r_s_bias",
    f"{SCORES}.1.weight": "seg_embed",
}
BY_HEAD = {**{f"{table.PROJECTION}.{x}.weight": x for x in "qkv"}, f"{SCORES}.0.r": "r"}
# How much of a text its memory holds, and what nothing reads; a memory is the caller's cache here.
IGNORED = (
    *("mem_len", "reuse_len", "use_mems_eval", "use_mems_train", "untie_r", "start_n_top", "end_n_top", "ff_dropout"),
    *("dropatt", "init", "init_range", "init_std", "max_position_embeddings"),
)


def _said(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Refuse what is not computed here: decoders, clamped distances, texts in both directions, other summaries."""
    settings.require("attn_type", "bi")
    settings.require("bi_data", False)
    settings.require("same_length", False)
    settings.require("clamp_len", -1, 0)
    settings.require("summary_type", "last")
    settings.require("summary_use_proj", True)
    settings.require("summary_activation", "tanh")
    settings.require("d_head", spec.stack.d_model // one(spec, GQASpec, "multi-head attention").n_heads)
    return spec


def further(spec: ModelSpec) -> Iterator[TensorRow]:
    """The rows of the blanks' vector and of attention: its matrices are [d_model, heads, head_dim], the output's too."""
    n_heads = one(spec, GQASpec, "multi-head attention").n_heads

    def by_head(tensors: Tensors) -> Tensors:
        return tuple(t.T.unflatten(1, (n_heads, -1)).contiguous() for t in tensors)

    def output_by_head(tensors: Tensors) -> Tensors:
        return tuple(t.unflatten(1, (n_heads, -1)).contiguous() for t in tensors)

    yield TensorRow(("stack.embedding.terms.0.blank",), ("mask_emb",), _vector, _of_one_token)
    for i in range(spec.n_layers):
        ours, theirs = f"stack.blocks.{i}.sublayers", f"layer.{i}.rel_attn"
        yield from (same(f"{ours}.{name}", f"{theirs}.{other}") for name, other in ALIKE.items())
        for name, other in BY_HEAD.items():
            yield TensorRow((f"{ours}.{name}",), (f"{theirs}.{other}",), _matrix, by_head)
        yield TensorRow((f"{ours}.{table.PROJECTION}.o.weight",), (f"{theirs}.o",), _output, output_by_head)


def _vector(tensors: Tensors) -> Tensors:
    return tuple(t[0, 0] for t in tensors)


def _of_one_token(tensors: Tensors) -> Tensors:
    return tuple(t[None, None] for t in tensors)


def _matrix(tensors: Tensors) -> Tensors:
    return tuple(t.flatten(1).T.contiguous() for t in tensors)


def _output(tensors: Tensors) -> Tensors:
    return tuple(t.flatten(1) for t in tensors)


HEADS = HeadNames(
    "transformer.",
    "XLNetModel",
    {
        "plm": Heading(lambda spec, n: permuted_words(spec), {"": "lm_loss"}),
        "classes": row_labels("sequence_summary.summary", "logits_proj", pool=LastTokenSpec()),
        **LABELLED,
    },
    {
        "XLNetLMHeadModel": ("plm",),
        "XLNetModel": (),
        "XLNetForSequenceClassification": ("classes",),
        "XLNetForTokenClassification": ("token_classes",),
        "XLNetForQuestionAnsweringSimple": ("span",),
    },
)
XLNET = encoder_family(
    "xlnet",
    xlnet(n_layers=1, d_model=8, n_heads=1),
    (
        table.VOCABULARY,
        table.at("d_model", int, StackSpec, "d_model"),
        table.at("d_inner", int, FeedForwardSpec, "d_ff"),
        table.at("n_head", int, GQASpec, "n_heads"),
        table.EVEN,
        table.activation("ff_activation", "gelu", FeedForwardSpec),
        table.starts(),
        table.layers("n_layer"),
        eps(1e-12),
        table.Pair(_said, lambda spec: {}),
    ),
    HEADS,
    laid_out(LAYER, terms=(), layer="layer"),
    further=further,
    tokens="word_embedding",
    twins={"transformer.word_embedding.weight": ("lm_loss.weight",)},
    buffers=(),
    ignored=IGNORED,
)
