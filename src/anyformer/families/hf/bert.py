"""BERT, RoBERTa, RemBERT, DistilBERT and ELECTRA to and from transformers' BertModel and its like and the classes with heads.

XLM-R's, CamemBERT's and data2vec's classes are RoBERTa's by other names, RoFormer's are BERT's with rotary positions,
BertGeneration's are BERT as an encoder and as a decoder of its own.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.bert import bert, masked_apart, rembert
from anyformer.families.electra import replaced
from anyformer.families.heads import words_of_table
from anyformer.families.hf import headings, table
from anyformer.families.hf.encoder import (
    SEGMENTS,
    SIZES,
    causal,
    encoder_family,
    laid_out,
    n_positions,
    sizes,
    width,
)
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.mapping import TensorRow, one, waves, width_of_head
from anyformer.families.hf.settings import Settings
from anyformer.families.roformer import roformer
from anyformer.layers import GELU, LinearSpec, ReLU, RotarySpec
from anyformer.spec import HeadSpec, ModelSpec

LAYER = {
    f"{table.PROJECTION}.q": "attention.self.query",
    f"{table.PROJECTION}.k": "attention.self.key",
    f"{table.PROJECTION}.v": "attention.self.value",
    f"{table.PROJECTION}.o": "attention.output.dense",
    "0.norm_sum": "attention.output.LayerNorm",
    f"{table.FEED}.up": "intermediate.dense",
    f"{table.FEED}.down": "output.dense",
    "1.norm_sum": "output.LayerNorm",
}
BRANCHES = {ours: theirs for ours, theirs in LAYER.items() if not ours.endswith("norm_sum")}
CONTEXT = 1536  # of RoFormer, where nothing is said
NEXT, WORDS = "cls.seq_relationship", "cls.predictions"
MLM = headings.words(
    f"{WORDS}.transform.dense",
    f"{WORDS}.transform.LayerNorm",
    Theirs(WORDS, also=(f"{WORDS}.decoder",)),
    headings.of_feed_forwards,
)


def bert_heads(name: str, prefix: str, *first: str, words: headings.Heading = MLM) -> headings.HeadNames:
    """The heads of BERT's classes by other names, `words` for masked words; those whose names end with `first` come first."""
    pooler = f"{prefix}pooler.dense"
    each = {
        "mlm": words,
        "nsp": headings.of_pairs("nsp", pooler, NEXT),
        "pooler": headings.pooled(pooler),
        "classes": headings.row_labels(pooler, "classifier"),
        **headings.LABELLED,
    }
    classes = {"ForPreTraining": ("mlm", "nsp"), "ForMaskedLM": ("mlm",), "ForNextSentencePrediction": ("nsp",)}
    return headings.usual_classes(name, prefix, each, {end: classes[end] for end in (*first, *classes)})


HEADS = bert_heads("Bert", "bert.")
# Some say how a pooler that is always this one is made.
IGNORED = (
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
)
BERT = encoder_family(
    "bert",
    bert(1, 8, 1),
    (*SIZES, SEGMENTS, table.eps(1e-12), n_positions()),
    HEADS,
    laid_out(LAYER),
    ignored=(*IGNORED, "directionality"),
)
ERNIE = encoder_family(
    "ernie",
    bert(1, 8, 1),
    # A table of tasks beside that of segments is not read here.
    (*SIZES, SEGMENTS, table.eps(1e-12), n_positions(), table.only(use_task_id=False)),
    bert_heads("Ernie", "ernie.", "ForMaskedLM"),
    laid_out(LAYER),
    ignored=("task_type_vocab_size",),
)
# GELU, whatever hidden_act says.
OF_ROBERTA = headings.words("lm_head.dense", "lm_head.layer_norm", Theirs("lm_head", also=("lm_head.decoder",)))


def roberta_heads(name: str, prefix: str = "roberta.") -> headings.HeadNames:
    """The heads of the classes whose names begin with `name`, the encoder's tensors with `prefix`."""
    each = {
        "mlm": OF_ROBERTA,
        "pooler": headings.pooled(f"{prefix}pooler.dense"),
        "classes": headings.row_labels(*headings.TWO_LAYERS),
        **headings.LABELLED,
    }
    return headings.usual_classes(name, prefix, each)


ROBERTA, XLM_ROBERTA, CAMEMBERT, DATA2VEC = (
    encoder_family(
        hf_type,
        bert(1, 8, 1, n_segments=1),
        (*SIZES, SEGMENTS, table.eps(1e-12), n_positions(offset_by_padding=True)),
        roberta_heads(name, prefix),
        laid_out(LAYER),
    )
    for hf_type, name, prefix in (
        ("roberta", "Roberta", "roberta."),
        ("xlm-roberta", "XLMRoberta", "roberta."),
        ("camembert", "Camembert", "roberta."),
        ("data2vec-text", "Data2VecText", "data2vec_text."),
    )
)


def _read_width(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The width of the table that the head for masked words has, if there is that head."""
    found = settings.positive("output_embedding_size", int, 1664)
    own = masked_apart(spec, found, headings.of_feed_forwards(spec))
    return spec.but(heads=tuple(own if head.name == "mlm" else head for head in spec.heads))


def _written_width(spec: ModelSpec) -> dict[str, Any]:
    firsts = (layer for head in spec.heads if head.name == "mlm" for layer in head.transform[:1])
    layer = next((layer for layer in firsts if isinstance(layer, LinearSpec)), None)
    return {} if layer is None else {"output_embedding_size": layer.d_out or spec.stack.d_model}


REMBERT_HEADS = headings.usual_classes(
    "RemBert",
    "rembert.",
    {
        "mlm": headings.Heading(
            lambda spec, n: masked_apart(spec, 1664, headings.of_feed_forwards(spec)),
            {
                "transform.0": f"{WORDS}.dense",
                "transform.2": f"{WORDS}.LayerNorm",
                "table": f"{WORDS}.decoder",
                "": f"{WORDS}.decoder",
            },
        ),
        "pooler": headings.pooled("rembert.pooler.dense"),
        "classes": headings.row_labels("rembert.pooler.dense", "classifier"),
        **headings.LABELLED,
    },
)
REMBERT = encoder_family(
    "rembert",
    rembert(1, 8, 1).but(heads=()),
    (*SIZES, width(256, always=True, name="input_embedding_size"), SEGMENTS, table.eps(1e-12), n_positions()),
    REMBERT_HEADS,
    laid_out(LAYER, outside={"stack.embedding.projection": "encoder.embedding_hidden_mapping_in"}),
    of_heads=(table.Pair(_read_width, _written_width),),
)

LAYER_OF_DISTILBERT = {
    **{f"{table.PROJECTION}.{x}": f"attention.{x}_lin" for x in "qkv"},
    f"{table.PROJECTION}.o": "attention.out_lin",
    "0.norm_sum": "sa_layer_norm",
    f"{table.FEED}.up": "ffn.lin1",
    f"{table.FEED}.down": "ffn.lin2",
    "1.norm_sum": "output_layer_norm",
}
DISTILBERT_HEADS = headings.usual_classes(
    "DistilBert",
    "distilbert.",
    {
        "mlm": headings.words("vocab_transform", "vocab_layer_norm", "vocab_projector", headings.of_feed_forwards),
        "classes": headings.row_labels("pre_classifier", "classifier", lambda spec: ReLU()),
        **headings.LABELLED,
    },
)
DISTILBERT = encoder_family(
    "distilbert",
    bert(1, 8, 1, n_segments=0),
    (*sizes("dim", "hidden_dim", "n_heads", "activation", "n_layers"), n_positions()),
    DISTILBERT_HEADS,
    laid_out(LAYER_OF_DISTILBERT, terms=("position",), layer="transformer.layer"),
    ignored=("sinusoidal_pos_embds", "tie_weights_"),  # how the table of positions starts; an old word for tied
)

RTD, GENERATED = "discriminator_predictions", "generator_predictions"


def _replaced(spec: ModelSpec, n: int) -> HeadSpec:
    return replaced().but(transform=(LinearSpec(bias=True), headings.of_feed_forwards(spec)))


ELECTRA_HEADS = headings.usual_classes(
    "Electra",
    "electra.",
    {
        "rtd": headings.Heading(
            _replaced,
            {"transform.0": f"{RTD}.dense", "table": f"{RTD}.dense_prediction", "": f"{RTD}.dense_prediction"},
        ),
        # GELU, whatever hidden_act says.
        "mlm": headings.words(f"{GENERATED}.dense", f"{GENERATED}.LayerNorm", "generator_lm_head"),
        "classes": headings.row_labels(*headings.TWO_LAYERS, lambda spec: GELU()),
        **headings.LABELLED,
    },
    {"ForPreTraining": ("rtd",)},
)
ELECTRA = encoder_family(
    "electra",
    bert(1, 8, 1, width=4),
    (*SIZES, width(128, always=False), SEGMENTS, table.eps(1e-12), n_positions()),
    ELECTRA_HEADS,
    laid_out(LAYER, outside={"stack.embedding.projection": "embeddings_project"}),
)


def _waves(spec: ModelSpec) -> list[TensorRow]:
    """The row of what their class holds of the angles: sines, then cosines, of each position."""
    frequencies = one(spec, RotarySpec).frequencies(width_of_head(spec))
    return [waves("encoder.embed_positions.weight", spec.context or CONTEXT, frequencies)]


ROFORMER_HEADS = headings.poolerless("RoFormer", "roformer.", MLM)
ROFORMER = encoder_family(
    "roformer",
    roformer(1, 8, 1),
    (
        *SIZES,
        width(None, always=False),
        SEGMENTS,
        table.eps(1e-12),
        table.context("max_position_embeddings", CONTEXT),
        table.only(rotary_value=False),
    ),
    ROFORMER_HEADS,
    laid_out(LAYER, terms=("token_type",), outside={"stack.embedding.projection": "embeddings_project"}),
    further=_waves,
)

GENERATION_HEADS = headings.HeadNames(
    "bert.",
    "BertGenerationEncoder",
    {"lm": headings.Heading(lambda spec, n: words_of_table(spec), {"": Theirs("lm_head", also=("lm_head.decoder",))})},
    {"BertGenerationDecoder": ("lm",), "BertGenerationEncoder": ()},
)
BERT_GENERATION = encoder_family(
    "bert-generation",
    bert(1, 8, 1, n_segments=0),
    (*SIZES, table.eps(1e-12), n_positions(), causal("is_decoder")),
    GENERATION_HEADS,
    laid_out(LAYER, terms=("position",)),
)
