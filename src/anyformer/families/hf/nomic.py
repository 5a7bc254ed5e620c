"""Nomic BERT, GTE, jina-embeddings-v3 and EuroBERT to and from transformers' NomicBertModel and its like, and the classes with
heads.
"""

from __future__ import annotations

from collections.abc import Mapping

from anyformer.families.compose import changed
from anyformer.families.eurobert import eurobert, masked_table
from anyformer.families.hf import headings, table
from anyformer.families.hf.bert import WORDS, roberta_heads
from anyformer.families.hf.encoder import SEGMENTS, Links, encoder_family, laid_out, sizes
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.llama import ATTENTION, GATED, NORMS, WIDTHS
from anyformer.families.hf.llama_like import EPS_1E5
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.nomic import gte, jina_v3, nomic_bert
from anyformer.layers import GatedFeedForwardSpec, GQASpec, RotarySpec, SegmentsSpec
from anyformer.layers.embedding import n_segments
from anyformer.spec import EmbeddingSpec, ModelSpec

TINY = {"n_layers": 1, "d_model": 8, "n_heads": 1}
BEHIND = {"0.norm_sum": "post_attention_layernorm", "1.norm_sum": "post_mlp_layernorm"}
LAYER = {**ATTENTION, **GATED, **BEHIND}


def _gated(usual: str, theta: float, context: int) -> tuple[table.Pair, ...]:
    """The sizes and the rotary positions; the arguments are what the class takes where nothing is said."""
    return (
        *sizes(feed=GatedFeedForwardSpec, usual=usual),
        table.only(head_dim=lambda spec: spec.stack.d_model // one(spec, GQASpec).n_heads),
        table.eps(1e-12),
        table.positions(RotarySpec(theta=theta), context=context),
    )


def _heads(name: str, prefix: str, words: headings.Heading) -> headings.HeadNames:
    """The heads of the classes whose names begin with `name`; the bare one has no pooler, that of texts has."""
    classes = headings.row_labels(f"{prefix}.pooler.dense", "classifier")
    found = {"mlm": words, "classes": classes, "token_classes": headings.TOKEN_CLASSES}
    return headings.usual_classes(name, f"{prefix}.", found)


NOMIC_HEADS = _heads(
    "NomicBert",
    "nomic_bert",
    headings.words(
        f"{WORDS}.transform.dense",
        f"{WORDS}.transform.layer_norm",
        Theirs(WORDS, also=(f"{WORDS}.decoder",)),
        headings.of_feed_forwards,
    ),
)


def _of_flash_attention(attention: str, feed: Mapping[str, str]) -> Links:
    """As code on flash_attn's modules files a model: queries, keys and values in one matrix, norms by their numbers."""
    return laid_out(
        {
            **feed,
            table.QKV: f"{attention}.Wqkv",
            f"{table.PROJECTION}.o": f"{attention}.out_proj",
            "0.norm_sum": "norm1",
            "1.norm_sum": "norm2",
        },
        terms=("token_type",),
        layer="encoder.layers",
        outside={"stack.embedding.norm": "emb_ln"},
    )


NOMIC = encoder_family(
    "nomic_bert",
    nomic_bert(**TINY),
    (*_gated("silu", 1000.0, 2048), SEGMENTS, table.fixed(pad_token_id=0)),  # null is refused there
    NOMIC_HEADS,
    laid_out(LAYER, terms=("token_type",), layer="layers"),
    filed=(
        _of_flash_attention("attn", table.feeds(up="mlp.fc11", gate="mlp.fc12", down="mlp.fc2")),
        NOMIC_HEADS,
    ),
)


def _read_segments(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """As many kinds of text as are said; with 0 there is no table of them."""
    if settings.take("type_vocab_size", int, 1) == 0:
        return changed(spec, EmbeddingSpec, terms=spec.stack.embedding.terms[:1])
    return changed(spec, SegmentsSpec, n_segments=settings.positive("type_vocab_size", int, 1))


def _gte_heads(norm: str) -> headings.HeadNames:
    return _heads("Gte", "gte", headings.words("lm_head.dense", f"lm_head.{norm}", "lm_head.decoder"))


GTE_HEADS = _gte_heads("layer_norm")
GTE = encoder_family(
    "gte",
    gte(**TINY),
    (
        *_gated("gelu", 160_000.0, 8192),
        table.Pair(_read_segments, lambda spec: {"type_vocab_size": n_segments(spec.stack.embedding)}),
    ),
    GTE_HEADS,
    laid_out(LAYER, terms=("token_type",), layer="layers"),
    filed=(
        laid_out(
            {
                table.QKV: "attention.qkv_proj",
                f"{table.PROJECTION}.o": "attention.o_proj",
                (f"{table.FEED}.up", f"{table.FEED}.gate"): "mlp.up_gate_proj",
                f"{table.FEED}.down": "mlp.down_proj",
                "0.norm_sum": "attn_ln",
                "1.norm_sum": "mlp_ln",
            },
            terms=("token_type",),
        ),
        _gte_heads("norm"),
    ),
)
JINA_HEADS = roberta_heads("JinaEmbeddingsV3")
FEED = table.feeds(up="mlp.fc1", down="mlp.fc2")
# Files of the adapters for its tasks are refused: their tensors are none of the class's.
JINA = encoder_family(
    "jina_embeddings_v3",
    jina_v3(**TINY),
    (
        *sizes(),
        table.at("type_vocab_size", int, SegmentsSpec, "n_segments", default=1),
        table.eps(1e-5),
        table.positions(RotarySpec(theta=20_000.0), context=8194),
    ),
    JINA_HEADS,
    laid_out({**ATTENTION, **FEED, **BEHIND}, terms=("token_type",), layer="layers"),
    filed=(
        _of_flash_attention("mixer", FEED),
        JINA_HEADS,
    ),
)
MASKED_TABLE = headings.Heading(lambda spec, n: masked_table(spec.vocab_size), {"table": "lm_head"})
EUROBERT_HEADS = headings.usual_classes(
    "EuroBert", "model.", {"mlm": MASKED_TABLE, "token_classes": headings.TOKEN_CLASSES}
)
EUROBERT = encoder_family(
    "eurobert",
    eurobert(1, 8, 1, 8).but(heads=()),
    (
        *WIDTHS,
        table.heads(),
        table.EVEN,
        table.BIASES,
        table.only(mlp_bias=False),  # the head would have one too
        EPS_1E5,
        table.positions(context=8192),
        table.starts(),
        table.layers(),
        # Of the hidden word; changes no number, and the class wants it among the tokens.
        table.fixed(mask_token_id=lambda spec: min(128_002, spec.vocab_size - 1)),
    ),
    EUROBERT_HEADS,
    laid_out({**NORMS, **ATTENTION, **GATED}, terms=(), layer="layers", outside={"stack.norm": "norm"}),
    tokens="embed_tokens",
    # The first says how the class of texts pools, which is not read here.
    ignored=("classifier_pooling", "mask_token_id"),
)
