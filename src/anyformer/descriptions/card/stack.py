"""The rows of a card that describe one stack: sizes, attention, positions, feed-forwards, norms, biases."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from anyformer.descriptions import words
from anyformer.descriptions.card import attention as attention
from anyformer.descriptions.card import norms as norms
from anyformer.descriptions.card.moe import moe_rows
from anyformer.descriptions.card.row import CardRow, joined, per_layer
from anyformer.descriptions.grouping import by_layer, distinct_layers, in_words
from anyformer.layers import (
    AddSpec,
    AttentionSpec,
    GQASpec,
    LocalAndGlobalSpec,
    MLASpec,
    MoESpec,
    SegmentsSpec,
    TokensSpec,
)
from anyformer.spec import BlockSpec, Place, StackSpec, TableSpec, tensors

Say = Callable[[BlockSpec], Hashable]
BIASES = {
    "q": "query",
    "k": "key",
    "v": "value",
    "o": "attention output",
    "q_down": "latents",
    "kv_down": "latents",
    "k_rotary": "latents",
    "gate": "feed-forward in",
    "up": "feed-forward in",
    "down": "feed-forward out",
    "router": "router",
}


def stack_rows(stack: StackSpec, section: str, d_source: int) -> Iterator[CardRow]:
    """What there is to say of a stack; `d_source` is the width of the encoder that it reads, or 0."""

    def row(key: str, name: str, say: Say, show: Callable[[Any], str] = words.number) -> Iterator[CardRow]:
        yield from per_layer(section, key, name, by_layer(stack, say), show)

    def text(key: str, name: str, say: Callable[[BlockSpec], str | None]) -> Iterator[CardRow]:
        yield from row(key, name, say, str)

    def each(key: str, name: str, say: Callable[[AttentionSpec], str | None]) -> Iterator[CardRow]:
        yield from text(key, name, lambda b: joined(say(m) for m in attention.self_attentions(b)))

    def one(key: str, name: str, say: Callable[[AttentionSpec], float | None]) -> Iterator[CardRow]:
        show = attention.root if key == "attention_scale" else words.number
        yield from row(key, name, lambda b: attention.first(say(m) for m in attention.self_attentions(b)), show)

    def size(key: str, name: str, field: str = "") -> Iterator[CardRow]:
        yield from row(key, name, lambda b: attention.size(b, field or key))

    place = Place(stack.d_model, (stack.d_model,), d_source or stack.d_model)
    yield CardRow(section, "n_layers", "layers", f"{len(stack.blocks)}", len(stack.blocks))
    yield CardRow(section, "d_model", "model dimension", f"{stack.d_model:,}", stack.d_model)
    yield from size("n_heads", "heads")
    yield from size("n_kv_heads", "key/value heads", "kv_heads")
    yield from row("head_dim", "head dimension", lambda b: attention.head_dim(b, place))
    yield from row("value_dim", "value dimension", lambda b: attention.value_dim(b, place))
    yield from size("query_rank", "query latent")
    yield from size("kv_rank", "key/value latent")
    yield from each("attention", "attention", lambda m: words.heads(m.projection))
    yield from text("direction", "direction", attention.direction)
    yield from each("keys_seen", "keys seen", lambda m: words.mask(m.mask))
    yield from text("cross_attention", "cross-attention", attention.cross)
    yield from one("attention_scale", "attention scale", lambda m: attention.scale(m, place))
    yield from one("attention_softcap", "attention softcap", lambda m: m.softcap)
    yield from each("attention_sink", "attention sink", lambda m: "one a head" if m.sink else None)
    yield from one("logn", "log-n scaling from", lambda m: m.logn)
    yield from size("qkv_clip", "q, k, v clipped to ±", "clip")
    yield from each("qk_norm", "QK-norm", lambda m: attention.qk_norm(m.projection))
    yield from each("latent_norm", "norm of latents", lambda m: attention.latent_norm(m.projection))
    yield from _positions(stack, section)
    yield from row("rope_theta", "RoPE theta", lambda b: attention.rotary(b, "theta"))
    yield from row("rotary_dim", "dimensions that rotate", lambda b: attention.turning(b, place))
    yield from text("rope_layout", "RoPE pairs", attention.layout)
    yield from text("rope_scaling", "RoPE scaling", attention.scaling)
    yield from text("activation", "activation", lambda b: joined(_feeds(m) for m in words.mixers(b)))
    yield from row("d_ff", "FFN dimension", lambda b: attention.first(_d_ff(m) for m in words.mixers(b)))
    yield from moe_rows(stack, section)
    yield from text("other_mixers", "other mixers", lambda b: joined(map(_unknown, words.mixers(b))))
    yield from text("arrangement", "arrangement", lambda b: joined(map(norms.arrangement, b.sublayers)))
    yield from text("norm", "norm", lambda b: joined(words.norm(n) for n in norms.norms(b)))
    yield from text("norm_eps", "norm eps", lambda b: joined(f"{e:g}" for n in norms.norms(b) if (e := norms.eps(n))))
    yield from text("norm_placement", "norm placement", lambda b: joined(map(norms.placement, b.sublayers)))
    yield from text("branch_maps", "other maps of branches", lambda b: joined(map(norms.other_maps, b.sublayers)))
    if stack.norm is not None:
        yield CardRow(section, "final_norm", "final norm", words.norm(stack.norm))
    if stack.embedding.norm is not None:
        yield CardRow(section, "embedding_norm", "embedding norm", words.norm(stack.embedding.norm))
    yield CardRow(section, "biases", "biases", joined(_biases(stack, place)) or "none")
    yield from _embedding(stack, section)
    if stack.residual != AddSpec():
        factor = getattr(stack.residual, "scale", None)
        said = f"{words.number(factor)} · x + branch" if factor is not None else words.part(stack.residual)
        yield CardRow(section, "residual", "residual", said, factor)


def _positions(stack: StackSpec, section: str) -> Iterator[CardRow]:
    terms = [words.position(t) for t in stack.embedding.terms if not _looks_up(t) and not isinstance(t, SegmentsSpec)]
    for term in stack.embedding.terms:
        if isinstance(term, SegmentsSpec):
            yield CardRow(section, "n_segments", "segments", f"{term.n_segments}", term.n_segments)
    own = by_layer(stack, attention.relative)
    said = "; ".join(filter(None, (*terms, in_words(own)))) or "none"
    yield CardRow(section, "positions", "positions", said)


def _embedding(stack: StackSpec, section: str) -> Iterator[CardRow]:
    embedding = stack.embedding
    if embedding.width is not None:
        yield CardRow(section, "embedding_width", "embedding width", f"{embedding.width:,}, projected", embedding.width)
    for term in embedding.terms:
        if isinstance(term, TokensSpec) and term.table.width not in (None, embedding.width, stack.d_model):
            width = term.table.width or 0
            yield CardRow(section, "embedding_width", "embedding width", f"{width:,}, projected", width)
        if isinstance(term, TokensSpec) and term.scale is not None:
            yield CardRow(section, "embedding_scale", "embedding scale", words.scale(term.scale, "d_model"))
        if not isinstance(term, TokensSpec) and _looks_up(term):
            yield CardRow(section, "embedding", "embedding", words.part(term))
    if embedding.masked:
        yield CardRow(section, "embedding_masked", "padding", "embedded as zero")


def _feeds(mixer: Any) -> str | None:
    mixer = mixer.expert if isinstance(mixer, MoESpec) else mixer
    return words.feed_forward(mixer) if hasattr(mixer, "activation") else None


def _d_ff(mixer: Any) -> int | None:
    return None if isinstance(mixer, MoESpec) else getattr(mixer, "d_ff", None)


def _unknown(mixer: Any) -> str | None:
    if isinstance(mixer, AttentionSpec):
        return (
            None
            if isinstance(mixer.projection, GQASpec | LocalAndGlobalSpec | MLASpec)
            else words.part(mixer.projection)
        )
    return None if isinstance(mixer, MoESpec) or hasattr(mixer, "activation") else words.part(mixer)


def _biases(stack: StackSpec, place: Place) -> Iterator[str]:
    """Which maps add a bias, by the names of the tensors, so that a user's own parts are among them."""
    for layers in distinct_layers(stack):
        for path, weight in tensors(layers.block, place):
            *_, owner, last = path.split(".")
            if last == "bias" and weight.trainable:
                yield "norms" if owner.startswith("norm") else BIASES.get(owner, owner.replace("_", " "))


def _looks_up(term: Any) -> bool:
    return any(isinstance(value, TableSpec) for value in term.nested())
