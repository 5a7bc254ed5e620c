"""fairseq's models of WMT19 to and from transformers' FSMTForConditionalGeneration, which has a vocabulary for each side."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.fsmt import fsmt
from anyformer.families.hf import table
from anyformer.families.hf.bart import BEHIND_PADDING, DECODER, ENCODER, POSITIONS, SCALED, START, stacks
from anyformer.families.hf.layout import Laid, Theirs, of_layers, rows_of, within
from anyformer.families.hf.mapping import Family, TensorRow, one, waves
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.stacks import encoder_of, two_stacks
from anyformer.layers import GQASpec, SinusoidSpec
from anyformer.spec import HeadSpec, ModelSpec, TableSpec

TABLES = tuple(
    f"model.{place}" for place in ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection")
)


def _read(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """One table of tokens for all, or one for each side and the head's."""
    source, target = (settings.positive(f"{side}_vocab_size", int, 42_024) for side in ("src", "tgt"))
    if settings.take("tie_word_embeddings", bool, False):
        if source != target:
            raise settings.refusal(
                "src_vocab_size", f"is not tgt_vocab_size = {target}, and one table is said for both"
            )
        return changed(spec, TableSpec, rows=target)
    apart = changed(spec, TableSpec, rows=target, shared=None)
    return apart.but(encoder=changed(encoder_of(apart), TableSpec, rows=source))


def _write(spec: ModelSpec) -> dict[str, Any]:
    rows = {side: one(stack, TableSpec).rows for _, side, stack in two_stacks(spec)}
    tied = bool(one(spec, HeadSpec).tied)
    return {"src_vocab_size": rows["encoder"], "tgt_vocab_size": rows["decoder"], "tie_word_embeddings": tied}


def _rows(spec: ModelSpec) -> list[TensorRow]:
    first, *others = TABLES
    tied = spec.heads[0].tied if spec.heads else None
    places = ("encoder.embedding.terms.0.table", "stack.embedding.terms.0.table", "heads.0.table")
    found: Laid = {f"shared.{tied}": Theirs(first, also=tuple(others))} if tied else {}
    found |= within({} if tied else dict(zip(places, TABLES, strict=True)))
    for (ours, side, layers), modules in zip(two_stacks(spec), (ENCODER, DECODER), strict=True):
        found |= of_layers(layers, f"model.{side}.layers", modules, ours)
    sinusoids, length = one(spec.stack, SinusoidSpec), spec.context or 1024
    angles, start = sinusoids.angles(spec.stack.d_model), sinusoids.start
    return [*rows_of(spec, found), *(waves(name, length + start, angles, start - 1) for name in POSITIONS)]


TO_SPEC, TO_CONFIG = table.both_ways(
    fsmt(d_model=8, layers=(1, 1), n_heads=(1, 1), d_ff=(8, 8), vocab_sizes=(8, 8), tied=True),
    (
        table.only(is_encoder_decoder=True),
        table.Pair(_read, _write),
        *stacks(GQASpec, "relu"),
        SCALED,
        START,
        table.context("max_position_embeddings", 1024),
        BEHIND_PADDING,
    ),
    ("langs",),
)
FSMT = Family("fsmt", "FSMTForConditionalGeneration", "model.", TO_SPEC, TO_CONFIG, _rows, fixed_masks=True)
