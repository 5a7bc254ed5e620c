"""XLM and FlauBERT to and from transformers' XLMModel, FlaubertModel and the classes that put heads on them.

Their `langs` are our facts "language". Positions that start as sinusoids are a table there too, whose numbers files hold.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, edited
from anyformer.families.heads import token_classes, words_of_table
from anyformer.families.hf import table
from anyformer.families.hf.encoder import causal, encoder_family
from anyformer.families.hf.gpt2 import FOURFOLD
from anyformer.families.hf.headings import LABELLED, Heading, HeadNames
from anyformer.families.hf.layout import Laid, of_layers, within
from anyformer.families.hf.mapping import Family
from anyformer.families.hf.settings import Settings
from anyformer.families.xlm import TABLES, xlm
from anyformer.layers import (
    GELU,
    ByRole,
    FeedForwardSpec,
    FirstTokenSpec,
    GQASpec,
    LanguagesSpec,
    Normal,
    ReLU,
)
from anyformer.spec import Count, EmbeddingSpec, ModelSpec, StackSpec, SublayerSpec

ATTENTION = {
    f"{table.PROJECTION}.{x}": f"{theirs}_lin" for x, theirs in zip("qkvo", ("q", "k", "v", "out"), strict=True)
}
FEED = {f"{table.FEED}.up": "lin1", f"{table.FEED}.down": "lin2"}
WORDS, SUMMARY = "pred_layer.proj", "sequence_summary.summary"
# What is done with texts, how tables start, and what the training code was told.
# fmt: off
IGNORED = (
    "sinusoidal_embeddings", "id2lang", "lang2id", "langs", "lgs", "lang_id", "start_n_top", "end_n_top", "bos_index",
    "eos_index", "pad_index", "unk_index", "mask_index", "mask_token_id", "max_vocab", "min_count", "same_enc_dec",
    "amp", "fp16", "use_apex", "bptt", "clip_grad_norm", "group_by_size", "lg_sampling_factor", "max_batch_size",
    "mlm_steps", "sample_alpha", "tokens_per_batch", "word_blank", "word_dropout", "word_keep", "word_mask",
    "word_mask_keep_rand", "word_pred", "word_rand", "word_shuffle",
)
# fmt: on


def _read_languages(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """A vector for each of several languages, if they have one."""
    n, told = settings.positive("n_langs", int, 1), settings.take("use_lang_emb", bool, True)
    tokens, positions = spec.stack.embedding.terms
    languages = (LanguagesSpec(n_languages=Count(n)),) if told and n > 1 else ()
    return changed(spec, EmbeddingSpec, terms=(tokens, positions, *languages))


def _written_languages(spec: ModelSpec) -> dict[str, Any]:
    found = next(spec.stack.nested(LanguagesSpec), None)
    return {"n_langs": 1 if found is None else found.n, "use_lang_emb": True}


def _read_placement(settings: Settings, spec: ModelSpec) -> ModelSpec:
    if not settings.take("pre_norm", bool, False):
        return spec
    return edited(spec, SublayerSpec, lambda own: own.but(norm_in=own.norm_sum, norm_sum=None))


def _written_placement(spec: ModelSpec) -> dict[str, Any]:
    return {"pre_norm": spec.stack.blocks[0].sublayers[0].norm_in is not None}


def _read_start(settings: Settings, spec: ModelSpec) -> ModelSpec:
    scale = settings.take("embed_init_std", float, TABLES)
    return spec.but(init=spec.init.but(table=Normal(scale=scale)))


def _written_start(spec: ModelSpec) -> dict[str, Any]:
    own = spec.init.table if isinstance(spec.init, ByRole) else None
    return {"embed_init_std": own.scale if isinstance(own, Normal) else TABLES}


def _links(spec: ModelSpec) -> Laid:
    """The modules of the embedding, and of all layers: those of one kind lie together."""
    outside = {"terms.1": "position_embeddings", "terms.2": "lang_embeddings", "norm": "layer_norm_emb"}
    norms = {
        f"stack.blocks.{i}.sublayers.{j}.norm_{at}": f"layer_norm{j + 1}.{i}"
        for i in range(spec.n_layers)
        for j in (0, 1)
        for at in ("in", "sum")
    }
    layers = of_layers(spec.stack, "attentions", ATTENTION) | of_layers(spec.stack, "ffns", FEED)
    return within(outside, "stack.embedding.") | within(norms) | layers


def heads(name: str) -> HeadNames:
    """The heads of the classes whose names begin with `name`."""
    return HeadNames(
        "transformer.",
        f"{name}Model",
        {
            "mlm": Heading(lambda spec, n: words_of_table(spec).but(name="mlm"), {"": WORDS}),
            "lm": Heading(lambda spec, n: words_of_table(spec), {"": WORDS}),
            "classes": Heading(
                lambda spec, n: token_classes(n).but(name="classes", pool=FirstTokenSpec()),
                {"table": SUMMARY, "": SUMMARY},
                labelled=True,
            ),
            **LABELLED,
        },
        {
            f"{name}WithLMHeadModel": ("mlm",),
            f"{name}Model": (),
            f"{name}ForSequenceClassification": ("classes",),
            f"{name}ForTokenClassification": ("token_classes",),
            f"{name}ForQuestionAnsweringSimple": ("span",),
        },
        {"mlm": "lm"},
    )


TEMPLATE = xlm(1, 8, 1, vocab_size=8)
PAIRS = (
    table.renamed(n_words="vocab_size"),
    # An adaptive softmax, decoders beside encoders and other summaries are not computed here.
    table.only(asm=False, is_encoder=True, encoder_only=True, share_inout_emb=True),
    table.only(summary_type="first", summary_use_proj=True, summary_activation="", summary_proj_to_labels=True),
    table.VOCABULARY,
    table.at("emb_dim", int, StackSpec, "d_model"),
    FOURFOLD,
    table.at("n_heads", int, GQASpec, "n_heads"),
    table.even("n_heads", "emb_dim"),
    table.choice("gelu_activation", FeedForwardSpec, "activation", {True: GELU(), False: ReLU()}, True),
    causal("causal"),
    table.starts(name="init_std"),
    table.Pair(_read_start, _written_start),
    table.layers("n_layers"),
    table.learned("max_position_embeddings", 512),
    table.Pair(_read_languages, _written_languages),
    table.eps(1e-12),
    table.fixed(pad_token_id=2),  # by which the class counts the tokens of a text that comes without a mask
)


def _family(hf_type: str, name: str, *more: table.Pair) -> Family:
    found = encoder_family(
        hf_type,
        TEMPLATE.but(heads=()),
        (*PAIRS, *more),
        heads(name),
        _links,
        tokens="embeddings",
        buffers=("position_ids",),
        ignored=IGNORED,
    )
    return found._replace(fixed_masks=True)


XLM = _family("xlm", "XLM")
FLAUBERT = _family("flaubert", "Flaubert", table.Pair(_read_placement, _written_placement))
