"""XLNet to and from transformers' XLNetModel and the classes that put heads on it.

Their perm_mask is our order, their target_mapping the positions of our blanks, their mems our cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from anyformer.families.compose import changed
from anyformer.families.hf import table
from anyformer.families.hf.encoder import encoder_family, laid_out, sizes
from anyformer.families.hf.headings import LABELLED, Heading, HeadNames, row_labels
from anyformer.families.hf.mapping import TensorRow, one, reshaped, width_of_head
from anyformer.families.hf.settings import Settings
from anyformer.families.xlnet import permuted_words, xlnet
from anyformer.layers import And, AttentionSpec, GQASpec, LastTokenSpec, RelativeSinusoidSpec, SlidingWindow, TwoStreams
from anyformer.spec import ModelSpec, Window

SCORES = f"{table.MIXER}.scores"
LAYER = {
    "0.norm_sum": "rel_attn.layer_norm",
    f"{table.FEED}.up": "ff.layer_1",
    f"{table.FEED}.down": "ff.layer_2",
    "1.norm_sum": "ff.layer_norm",
    f"{SCORES}.0.bias_key": "rel_attn.r_w_bias",
    f"{SCORES}.0.bias_position": "rel_attn.r_r_bias",
    f"{SCORES}.1.bias_segment": "rel_attn.r_s_bias",
    f"{SCORES}.1.weight": "rel_attn.seg_embed",
}
BY_HEAD = {**{f"{table.PROJECTION}.{x}.weight": x for x in "qkv"}, f"{SCORES}.0.r": "r"}
# How much of a text its memory holds, and what nothing reads; a memory is the caller's cache here.
IGNORED = (
    *("reuse_len", "use_mems_eval", "use_mems_train", "untie_r", "start_n_top", "end_n_top", "ff_dropout", "dropatt"),
    *("init", "init_range", "init_std", "max_position_embeddings"),
)


def further(spec: ModelSpec) -> Iterator[TensorRow]:
    """The rows of the blanks' vector and of attention: its matrices are [d_model, heads, head_dim], the output's too."""
    n_heads = one(spec, GQASpec).n_heads

    def by_head(matrix: Tensor) -> Tensor:
        return matrix.unflatten(1, (n_heads, -1))

    yield reshaped("stack.embedding.terms.0.blank", "mask_emb", lambda t: t[0, 0], lambda t: t[None, None])
    for i in range(spec.n_layers):
        ours, theirs = f"stack.blocks.{i}.sublayers", f"layer.{i}.rel_attn"
        for name, other in BY_HEAD.items():
            yield reshaped(f"{ours}.{name}", f"{theirs}.{other}", lambda t: t.flatten(1).T, lambda t: by_head(t.T))
        yield reshaped(f"{ours}.{table.PROJECTION}.o.weight", f"{theirs}.o", lambda t: t.flatten(1), by_head)


def _read_attention(settings: Settings, spec: ModelSpec) -> ModelSpec:
    kind, same = settings.word("attn_type", ("bi", "uni"), "bi"), settings.take("same_length", bool, False)
    memory = settings.optional("mem_len", int)
    if kind == "bi":  # where the class does not look at same_length
        return spec
    spec = changed(spec, RelativeSinusoidSpec, bidirectional=False)
    if not same:
        return changed(spec, AttentionSpec, mask=TwoStreams(forward=True))
    if not memory:
        raise settings.refusal("same_length", "needs mem_len, how many tokens before its own each sees")
    window = SlidingWindow(size=Window(memory + 1))
    return changed(spec, AttentionSpec, mask=And(masks=(window, TwoStreams(forward=True))))


def _written_attention(spec: ModelSpec) -> Mapping[str, Any]:
    mask = one(spec, AttentionSpec).mask
    if mask == TwoStreams():
        return {"attn_type": "bi", "same_length": False}
    window = next(mask.nested(SlidingWindow), None)
    return {"attn_type": "uni", "same_length": window is not None, "mem_len": window and window.size - 1}


# Every token sees all, those before it, or as many before it as its memory holds. The class's tokens whose memory is not full
# see as many as it holds: token by token that is the window, in longer pieces it is less.
ATTENTION = table.Pair(_read_attention, _written_attention)
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
    xlnet(1, 8, 1),
    (
        *sizes("d_model", "d_inner", "n_head", "ff_activation", "n_layer"),
        table.eps(1e-12),
        ATTENTION,
        # Clamped distances, texts in both directions and other summaries are not computed here.
        table.only(bi_data=False, clamp_len=(-1, 0), d_head=width_of_head),
        table.only(summary_type="last", summary_use_proj=True, summary_activation="tanh"),
    ),
    HEADS,
    laid_out(LAYER, terms=(), layer="layer"),
    further=further,
    tokens="word_embedding",
    ignored=IGNORED,
)
