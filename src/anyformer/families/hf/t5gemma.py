"""T5Gemma to and from transformers' T5GemmaForConditionalGeneration: a table of Gemma 2's settings for each stack."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import causal, changed, with_layers
from anyformer.families.hf.gemma import GEMMA2
from anyformer.families.hf.layout import Laid, Theirs, of_layers, rows_of, within
from anyformer.families.hf.llama import ATTENTION, GATED
from anyformer.families.hf.mapping import Family, TensorRow
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.stacks import encoder_of, two_stacks
from anyformer.families.t5gemma import t5gemma
from anyformer.spec import BlockSpec, ModelSpec, TableSpec

# What the class copies into each table, and rates of dropout.
COPIED = ("classifier_dropout_rate", "cross_attention_hidden_size", "initializer_range", "vocab_size")
TIED = "tie_word_embeddings"


def _to_spec(settings: Settings) -> ModelSpec:
    tied = settings.take(TIED, bool, True)
    settings.require("is_encoder_decoder", True)
    settings.ignore(*COPIED)
    each = [_side(settings, name) for name in ("encoder", "decoder")]
    settings.close()
    encoder, decoder = (changed(spec, TableSpec, shared="tokens" if tied else None) for spec in each)
    return t5gemma(encoder, decoder)


def _side(settings: Settings, name: str) -> ModelSpec:
    """The model of one stack alone; a table that is absent is the class's own sizes, which nobody has."""
    table = settings.section(name)
    if table is None:
        raise settings.refusal(name, "leaves the size of that stack unknown; add the table of its settings")
    table.ignore(*COPIED[:2])
    return GEMMA2.to_spec(table)


def _to_config(spec: ModelSpec) -> dict[str, Any]:
    decoder = with_layers(spec.but(encoder=None), map(_deaf, spec.stack.blocks))
    encoder = decoder.but(stack=causal(encoder_of(spec)))
    tied = any(head.tied for head in spec.heads)
    sides = {name: GEMMA2.to_config(side) for name, side in (("encoder", encoder), ("decoder", decoder))}
    return {**sides, TIED: tied, "vocab_size": spec.vocab_size, "is_encoder_decoder": True}


def _deaf(layer: BlockSpec) -> BlockSpec:
    """The layer without its attention to the encoder."""
    first, *rest = layer.sublayers
    return layer.but(sublayers=(first, *rest[-1:]))


def _layer(feed: int) -> dict[str, str]:
    """The modules of a layer whose feed-forward is this sublayer, a third one before it where it is not the second."""
    found = {ours.replace("1.", f"{feed}.", 1): theirs for ours, theirs in GATED.items()} | ATTENTION
    cross = {ours.replace("0.", "1.", 1): theirs.replace("self", "cross") for ours, theirs in ATTENTION.items()}
    found |= cross if feed == 2 else {}
    names = ("self_attn", "cross_attn", "feedforward")
    for sublayer, name in enumerate(names if feed == 2 else names[::2]):
        found[f"{sublayer}.norm_in"] = f"pre_{name}_layernorm"
        found[f"{sublayer}.branches.0.norm_out"] = f"post_{name}_layernorm"
    return found


def _rows(spec: ModelSpec) -> list[TensorRow]:
    head = "lm_head.out_proj"
    tied = spec.heads[0].tied if spec.heads else None
    decoder = Theirs("model.decoder.embed_tokens", also=(head,) if tied else ())
    links: Laid = within({"encoder.embedding.terms.0.table": "model.encoder.embed_tokens"})
    links |= {f"shared.{tied}" if tied else "stack.embedding.terms.0.table": decoder, "heads.0.table": Theirs(head)}
    for (ours, side, stack), feed in zip(two_stacks(spec), (1, 2), strict=True):
        links |= {f"{ours}.norm": Theirs(f"model.{side}.norm")}
        links |= of_layers(stack, f"model.{side}.layers", _layer(feed), ours)
    return [*rows_of(spec, links)]


T5GEMMA = Family("t5gemma", "T5GemmaForConditionalGeneration", "model.", _to_spec, _to_config, _rows, fixed_masks=True)
