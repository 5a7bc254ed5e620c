"""Reformer to and from transformers' ReformerModelWithLMHead: two kinds of layers, and positions of a row and a column.

Where a file fixes no seed their class draws other directions in each pass; here they are those of seed 0 in all.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from anyformer.families.compose import changed, with_layers
from anyformer.families.hf import table
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.mapping import TensorRow, one
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.states import kinds_of
from anyformer.families.reformer import reformer
from anyformer.layers import (
    AdjacentBlocks,
    AttentionSpec,
    AxialPositionsSpec,
    FeedForwardSpec,
    GQASpec,
    LearnedPositionsSpec,
    LSHAttentionSpec,
)
from anyformer.spec import BlockSpec, Length, ModelSpec, TermSpec, Width

WORDS = {"local": AttentionSpec, "lsh": LSHAttentionSpec}
TEMPLATE = reformer("local lsh", 2, 8, 1, 8, head_dim=8, vocab_size=8, shape=(2, 4), narrow=2)
HEAD = "lm_head.decoder"
PLACES = "embeddings.position_embeddings"


def _whole_numbers(settings: Settings, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    found = default if settings.written(name) is None else settings.numbers(name)
    if any(number != int(number) for number in found):
        raise settings.refusal(name, "must be a list of whole numbers; mend the file")
    return tuple(int(number) for number in found)


def _read_positions(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """A row and a column side by side, or learned ones; either way the context."""
    length = settings.positive("max_position_embeddings", int, 4096)
    term: TermSpec = LearnedPositionsSpec(n_positions=Length(length))
    settings.ignore("axial_pos_embds_dim", "axial_pos_shape")
    if settings.take("axial_pos_embds", bool, True):
        widths = _whole_numbers(settings, "axial_pos_embds_dim", (64, 192))
        shape = _whole_numbers(settings, "axial_pos_shape", (64, 64))
        if sum(widths) != spec.stack.d_model or len(widths) != len(shape):
            raise settings.refusal(
                "axial_pos_embds_dim", f"must be {len(shape)} widths whose sum is hidden_size = {spec.stack.d_model}"
            )
        term = AxialPositionsSpec(shape=shape, widths=tuple(Width(width) for width in widths[:-1]))
    tokens, _ = spec.stack.embedding.terms
    embedding = spec.stack.embedding.but(terms=(tokens, term))
    return spec.but(stack=spec.stack.but(embedding=embedding), context=length)


def _write_positions(spec: ModelSpec) -> dict[str, Any]:
    if any(isinstance(term, LearnedPositionsSpec) for term in spec.stack.embedding.terms):
        learned = one(spec, LearnedPositionsSpec)
        return {"axial_pos_embds": False, "max_position_embeddings": learned.n_positions}
    axial = one(spec, AxialPositionsSpec)
    return {
        "axial_pos_embds": True,
        "axial_pos_shape": [*axial.shape],
        "axial_pos_embds_dim": [*axial.widths, spec.stack.d_model - sum(axial.widths)],
        "max_position_embeddings": spec.context or prod(axial.shape),
    }


def _read_heads(settings: Settings, spec: ModelSpec) -> ModelSpec:
    n_heads = settings.positive("num_attention_heads", int, 12)
    head_dim = settings.positive("attention_head_size", int, 64)
    for part in (GQASpec, LSHAttentionSpec):
        spec = changed(spec, part, n_heads=n_heads, head_dim=head_dim)
    return spec


def _write_heads(spec: ModelSpec) -> dict[str, Any]:
    found = next(spec.nested(GQASpec, LSHAttentionSpec))
    return {
        "num_attention_heads": found.n_heads,
        "attention_head_size": found.head_dim or spec.stack.d_model // found.n_heads,
    }


def _read_buckets(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """One number, one for each factor, or as many as the length of a text asks for."""
    said = settings.written("num_buckets")
    if said is None:
        return spec
    found = (said,) if isinstance(said, int) else _whole_numbers(settings, "num_buckets", ())
    return changed(spec, LSHAttentionSpec, n_buckets=found)


def _write_buckets(spec: ModelSpec) -> dict[str, Any]:
    found = one(spec, LSHAttentionSpec).n_buckets
    return {"num_buckets": [*found] if len(found) > 1 else found[0] if found else None}


def _read_layers(settings: Settings, spec: ModelSpec) -> ModelSpec:
    words = settings.strings("attn_layers") or ("local", "lsh") * 3
    if set(words) - set(WORDS):
        raise settings.refusal("attn_layers", f"must be a list of {' and '.join(WORDS)}")
    chunks = one(spec, AdjacentBlocks).size, one(spec, LSHAttentionSpec).chunk
    if len(set(words)) == 2 and chunks[1] % chunks[0]:
        raise settings.refusal(
            "local_attn_chunk_length",
            f"does not divide lsh_attn_chunk_length = {chunks[1]}: texts filled up to both, as the class does, are not computed",
        )
    kinds: Mapping[str, BlockSpec] = dict(zip(WORDS, spec.stack.blocks, strict=True))
    settings.require("num_hidden_layers", len(words))
    if not settings.take("is_decoder", bool, False):
        raise settings.refusal("is_decoder", "sees later tokens, its first block the last; only true is computed here")
    return with_layers(spec, (kinds[word] for word in words))


def _positions(spec: ModelSpec) -> dict[str, str | Theirs]:
    """The tables of positions: theirs of each digit have a dimension for every one, of length 1 but for its own."""
    term, place = spec.stack.embedding.terms[-1], "stack.embedding.terms.1"
    if not isinstance(term, AxialPositionsSpec):
        return {place: f"{PLACES}.embedding"}
    widths = (*term.widths, spec.stack.d_model - sum(term.widths))
    found: dict[str, str | Theirs] = {}
    for i, (n, width) in enumerate(zip(term.shape, widths, strict=True)):
        shape = tuple(n if k == i else 1 for k in range(len(term.shape)))
        found[f"{place}.weight_{i}"] = Theirs(f"{PLACES}.weights.{i}", by=(*shape, width))
    return found


_PLAIN = table.family(
    "reformer",
    "ReformerModelWithLMHead",
    TEMPLATE,
    (
        *table.STREAM,
        table.Pair(_read_heads, _write_heads),
        table.at("feed_forward_size", int, FeedForwardSpec, "d_ff", default=512),
        table.activation("hidden_act", "relu", FeedForwardSpec),
        table.eps(1e-12),
        table.Pair(_read_positions, _write_positions),
        table.together(
            AdjacentBlocks,
            {
                "local_attn_chunk_length": ("size", int, 64),
                "local_num_chunks_before": ("before", int, 1),
                "local_num_chunks_after": ("after", int, 0),
            },
        ),
        table.together(
            LSHAttentionSpec,
            {
                "lsh_attn_chunk_length": ("chunk", int, 64),
                "lsh_num_chunks_before": ("before", int, 1),
                "lsh_num_chunks_after": ("after", int, 0),
                "num_hashes": ("n_hashes", int, 1),
                "hash_seed": ("seed", int, 0),
            },
        ),
        table.Pair(_read_buckets, _write_buckets),
        table.starts(),
        table.fixed(pad_token_id=0),  # with which the class fills its chunks, hidden
        table.only(tie_word_embeddings=False, sinusoidal_pos_embds=False),
        table.Pair(_read_layers),
    ),
    {
        **table.norms("attention.layer_norm", "feed_forward.layer_norm"),
        **{f"{table.PROJECTION}.{x[0]}": f"attention.self_attention.{x}" for x in ("query", "key", "value")},
        **{f"{place}.o": "attention.output.dense" for place in (table.PROJECTION, table.MIXER)},
        f"{table.MIXER}.qk": "attention.self_attention.query_key",
        f"{table.MIXER}.v": "attention.self_attention.value",
        **table.feeds(up="feed_forward.dense.dense", down="feed_forward.output.dense"),
    },
    stack="reformer",
    layer="encoder.layers",
    tokens="embeddings.word_embeddings",
    norm="encoder.layer_norm",
    outside=_positions,
    heads=(HEAD,),
    # How much is computed at once, deviations at the start, dropout, and what the released files say of nothing.
    ignored=(
        "chunk_size_lm_head", "axial_norm_std", "intermediate_size", "local_attention_probs_dropout_prob",
        "lsh_attention_probs_dropout_prob", "num_chunks_before", "num_chunks_after",
    ),
)  # fmt: skip


def _to_config(spec: ModelSpec) -> dict[str, Any]:
    """Of a model with layers of one kind, what is said of the other is the template's."""
    kinds = kinds_of(spec, WORDS)
    lacking = (layer for kind, layer in zip(WORDS, TEMPLATE.stack.blocks, strict=True) if kind not in kinds)
    whole = with_layers(spec, (*spec.stack.blocks, *lacking))
    return {**_PLAIN.to_config(whole), "attn_layers": kinds, "is_decoder": True}


def _rows(spec: ModelSpec) -> list[TensorRow]:
    """The bias of the head twice: transformers' class adds the decoder's, up to version 4 the same as its own.

    Versions 5.20 to 5.23 hold its own alone, and add none.
    """
    twice = (f"{HEAD}.bias", "lm_head.bias")
    return [
        TensorRow(row.ours, twice, lambda theirs: theirs[:1], lambda ours: (ours[0], ours[0].clone()), twice[1:])
        if row.theirs == twice[:1]
        else row
        for row in _PLAIN.rows(spec)
    ]


REFORMER = _PLAIN._replace(to_config=_to_config, rows=_rows)
