"""The rows of a card that describe one stack: sizes, attention, positions, feed-forwards, experts, norms, biases."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from anyformer.descriptions import feed_forwards, options, words
from anyformer.descriptions.facts import (
    head_sharing,
    head_sizes,
    looks_up,
    maps,
    n_shared_experts,
    norm_places,
    position_parts,
    position_terms,
)
from anyformer.descriptions.grouping import by_layer, distinct_layers, in_words, places
from anyformer.descriptions.words import each, number
from anyformer.layers import (
    AddSpec,
    AttentionSpec,
    GroupsSpec,
    MLASpec,
    MoESpec,
    NormSpec,
    PerLayerEmbeddingSpec,
    TokensSpec,
)
from anyformer.spec import BlockSpec, Place, ScaleSpec, StackSpec, SublayerSpec, tensors
from anyformer.variants.parts import attentions

Heads = Callable[[Sequence[Any], Place], Any]  # reads what heads have in common off mixers

BIASES = {
    "q": "query",
    "k": "key",
    "v": "value",
    "o": "attention output",
    **dict.fromkeys(("q_down", "kv_down", "k_rotary"), "latents"),
    "compressor": "places in blocks",
    "coefficients": "streams",
    "gate": "feed-forward in",
    "up": "feed-forward in",
    "down": "feed-forward out",
    "router": "router",
    "mixer": "experts",
    "projection": "attention output",
}


@dataclass(frozen=True)
class CardRow:
    """One row, one meaning."""

    section: str  # architecture; encoder and decoder where there are both; model, training, source
    key: str  # stable within a version of the JSON keys
    name: str  # as it is shown
    words: str
    value: Any = None  # a number, or a list of them by layer; None where words alone say it


class StackRow(NamedTuple):
    """A row that is read layer by layer: None or nothing said where a layer has none of it."""

    key: str
    name: str
    read: Callable[[Any, Place], Hashable]  # of a layer, or of its mixture of experts
    show: Callable[[Any], str] = number

    def rows(self, section: str, values: Sequence[Hashable]) -> Iterator[CardRow]:
        """The row, where any layer has a value."""
        values = [None if value == "" else value for value in values]
        some = [value for value in values if value is not None]
        if some:
            said = in_words([None if value is None else self.show(value) for value in values])
            numbers: Any = values[0] if len(set(values)) == 1 else values
            yield CardRow(section, self.key, self.name, said, None if isinstance(some[0], str) else numbers)


def stack_rows(stack: StackSpec, section: str, place: Place) -> Iterator[CardRow]:
    """The rows of a stack whose mixers stand at `place`."""

    def read(readings: Iterable[StackRow]) -> Iterator[CardRow]:
        for reading in readings:
            yield from reading.rows(section, by_layer(stack, lambda b, of=reading.read: of(b, b.inner(place))))

    yield CardRow(section, "n_layers", "layers", f"{len(stack.blocks)}", len(stack.blocks))
    yield CardRow(section, "d_model", "model dimension", f"{stack.d_model:,}", stack.d_model)
    yield from read(ATTENTION)
    yield from _positions(stack, section)
    yield from read(ROTARY)
    yield from _experts(stack, section, place)
    yield from read(NORMS)
    if stack.norm is not None:
        yield CardRow(section, "final_norm", "final norm", words.norm(stack.norm))
    if stack.embedding.norm is not None:
        yield CardRow(section, "embedding_norm", "embedding norm", words.norm(stack.embedding.norm))
    yield CardRow(section, "biases", "biases", each(_biases(stack, place), ", ") or "none")
    yield from _embedding(stack, section)
    if stack.residual != AddSpec():
        factor = getattr(stack.residual, "scale", None)
        yield CardRow(section, "residual", "residual", words.residual(stack.residual), factor)
    connections = by_layer(stack, lambda block: block.connection and words.phrase(block.connection))
    if any(connections):
        yield CardRow(section, "connection", "connection", in_words(connections))


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _own(block: BlockSpec) -> list[AttentionSpec]:
    """The attentions of a layer that read its own stack."""
    return [attention for attention in attentions(block, reads=None) if attention.reads != "memory"]


def _field(name: str) -> Heads:
    """Reads a field by its name from the first part of a mixer that has it, a user's own among them."""
    return lambda found, _: _first(getattr(value, name, None) for mixer in found for value in mixer.nested())


def _of(read: Heads, crossing: bool = False) -> Callable[[BlockSpec, Place], Any]:
    """Reads a layer's mixers without its attention to the encoder; `crossing`: that one, where it is not like the others."""

    def found(block: BlockSpec, place: Place) -> Any:
        cross = attentions(block, reads="memory") if _own(block) else []
        own, other = read([m for m in block.mixers if m not in cross], place), read(cross, place)
        if not crossing:
            return own
        return other if other != own else None

    return found


def _each(say: Callable[[AttentionSpec], str | None]) -> Callable[[BlockSpec, Place], str]:
    """Reads what is said of each attention to the stack itself."""
    return lambda block, _: each(map(say, _own(block)), ", ")


def _sizes(found: Sequence[Any], place: Place) -> tuple[int, int, int] | None:
    return _first(head_sizes(mixer.projection, place) for mixer in found if isinstance(mixer, AttentionSpec))


def _head_dim(found: Sequence[Any], place: Place) -> int | None:
    """The width of a query's head; of latent attention, what of it does not rotate."""
    latent = _first(m.projection.head_dim for m in found if isinstance(getattr(m, "projection", None), MLASpec))
    return latent or (sizes[1] if (sizes := _sizes(found, place)) else _field("head_dim")(found, place))


def _value_dim(found: Sequence[Any], place: Place) -> int | None:
    sizes = _sizes(found, place)
    return None if sizes is None or sizes[2] == _head_dim(found, place) else sizes[2]


def _heads(attention: AttentionSpec) -> str:
    return ", ".join([words.heads(attention.projection), *options.of_heads(attention.projection)])


def _cross(block: BlockSpec, _: Place) -> str:
    found = attentions(block, reads="memory")
    return each((f"{words.heads(a.projection)}, over the encoder's output" for a in found), ", ")


def _scale(block: BlockSpec, place: Place) -> float | None:
    """What q · k is multiplied by where that is not 1/√width."""
    unusual = [a for a in _own(block) if a.scale != ScaleSpec(power=-0.5)]
    return _first(a.scale.value(sizes[1]) for a in unusual if (sizes := head_sizes(a.projection, place)))


def _root(scale: float) -> str:
    """A factor as 1/√n where n is a whole number."""
    width = scale**-2
    return f"1/√{round(width)}" if width > 1 and abs(width - round(width)) < 1e-6 * width else number(scale)


def _value_norm(attention: AttentionSpec) -> str | None:
    norm = getattr(attention.projection, "norm_value", None)
    return None if norm is None else words.norm(norm)


def _latent_norm(attention: AttentionSpec) -> str | None:
    projection = attention.projection
    if not isinstance(projection, MLASpec):
        return None
    norm = projection.norm_kv or projection.norm_query
    said = [words.norm(norm)] if norm else []
    return ", ".join([*said, *words.scale_correction(projection)]) or None


def _rotary(name: str) -> Callable[[BlockSpec, Place], Any]:
    """Reads a field of the rotary embedding."""
    return lambda block, _: _first(
        getattr(rotary, name) for a in _own(block) if (rotary := getattr(a.projection, "rotary", None))
    )


def _rotated(block: BlockSpec, place: Place) -> int | None:
    """How many dimensions of a head rotate where not all do."""
    for attention in _own(block):
        projection, sizes = attention.projection, head_sizes(attention.projection, place)
        if isinstance(projection, MLASpec):
            return projection.rotary_dim if projection.rotary else None
        rotary = getattr(projection, "rotary", None)
        if rotary and sizes and rotary.dims(sizes[1]) != sizes[1]:
            return rotary.dims(sizes[1])
    return None


def _scaling(scaling: Any) -> str:
    factor, original = getattr(scaling, "factor", None), getattr(scaling, "original_context", None)
    said = f"{words.kind(scaling)} × {number(factor)}" if factor is not None else words.phrase(scaling)
    return said + (f" from {original:,} tokens" if original and factor is not None else "")


def _positions(stack: StackSpec, section: str) -> Iterator[CardRow]:
    for term in stack.embedding.terms:
        if isinstance(term, GroupsSpec):
            yield CardRow(section, f"n_{term.called}", term.called, f"{term.n}", term.n)

    def of(block: BlockSpec) -> str | None:
        found = (part for attention in _own(block) for part in position_parts(attention))
        return each(("RoPE" if part.kind == "Rotary" else words.position(part) for part in found), ", ") or None

    said = (*map(words.position, position_terms(stack)), in_words(by_layer(stack, of)))
    yield CardRow(section, "positions", "positions", "; ".join(filter(None, said)) or "none")


def _is_feed(mixer: Any) -> bool:
    plain = mixer.expert if isinstance(mixer, MoESpec) else mixer
    return hasattr(plain, "activation") and not isinstance(plain, PerLayerEmbeddingSpec)


def _activation(block: BlockSpec, _: Place) -> str:
    return each(map(feed_forwards.activation, filter(_is_feed, block.mixers)), ", ")


def _d_ff(block: BlockSpec, _: Place) -> int | None:
    return _first(getattr(mixer, "d_ff", None) for mixer in block.mixers if not isinstance(mixer, MoESpec))


def _other(block: BlockSpec, _: Place) -> str:
    """Mixers, and projections of attention, that have no rows of their own."""
    said = []
    for mixer in block.mixers:
        if isinstance(mixer, AttentionSpec):
            said += [] if head_sharing(mixer.projection) else [words.phrase(mixer.projection)]
        elif not isinstance(mixer, MoESpec) and not _is_feed(mixer):
            said.append(words.phrase(mixer))
    return each(said, ", ")


def _experts(stack: StackSpec, section: str, place: Place) -> Iterator[CardRow]:
    mixtures = by_layer(stack, lambda block: _first(m if isinstance(m, MoESpec) else None for m in block.mixers))
    at = [i for i, mixture in enumerate(mixtures) if mixture is not None]
    if not at:
        return
    yield CardRow(section, "moe_layers", "MoE layers", f"all {len(at)}" if len(at) == len(mixtures) else places(at), at)
    for reading in EXPERTS:
        yield from reading.rows(section, [reading.read(mixtures[i], place) for i in at])


def _arrangement(sublayer: SublayerSpec) -> str:
    n = len(sublayer.branches)
    norms = "one norm" if sublayer.norm_in else "a norm each" if sublayer.branches[0].norm_in else "no norm"
    late = ", one written when the layer ends" if any(branch.late for branch in sublayer.branches) else ""
    return "serial" if n == 1 else f"{n} branches in parallel, {norms}{late}"


def _by_sublayer(say: Callable[[SublayerSpec], str]) -> Callable[[BlockSpec, Place], str]:
    return lambda block, _: each(map(say, block.sublayers), ", ")


def _by_norm(say: Callable[[Any], str]) -> Callable[[BlockSpec, Place], str]:
    return _by_sublayer(lambda one: each((say(v) for _, v in maps(one) if isinstance(v, NormSpec)), ", "))


def _other_maps(sublayer: SublayerSpec) -> str:
    """What else than norms stands there: the gains of ReZero, a shift, a convolution of what a branch writes."""
    at = {"in": "before a branch", "out": "after a branch", "sum": "after the sum", "skip": "on the way around"}
    said = [f"{words.phrase(v)} {at[where]}" for where, v in maps(sublayer) if not isinstance(v, NormSpec)]
    return each((*said, *(f"{words.phrase(b.then)} {at['out']}" for b in sublayer.branches if b.then)), ", ")


def _embedding(stack: StackSpec, section: str) -> Iterator[CardRow]:
    def width(value: int) -> CardRow:
        return CardRow(section, "embedding_width", "embedding width", f"{value:,}, projected", value)

    embedding = stack.embedding
    if embedding.width is not None:
        yield width(embedding.width)
    for term in embedding.terms:
        if not isinstance(term, TokensSpec):
            if looks_up(term):
                yield CardRow(section, "embedding", "embedding", words.phrase(term))
            continue
        if term.table.width not in (None, embedding.width, stack.d_model):
            yield width(term.table.width or 0)
        if term.scale is not None:
            yield CardRow(section, "embedding_scale", "embedding scale", words.scale(term.scale, "d_model"))
        if term.dropout is not None:
            yield CardRow(section, "token_dropout", "token dropout", words.phrase(term.dropout))
    if embedding.masked:
        yield CardRow(section, "embedding_masked", "padding", "embedded as zero")


def _biases(stack: StackSpec, place: Place) -> Iterator[str]:
    """The maps that add a bias, by the names of the tensors, so that a user's own parts are among them."""
    for layers in distinct_layers(stack):
        for path, weight in tensors(layers.block, place):
            *_, owner, last = (part for part in path.split(".") if part != "maps" and not part.isdigit())
            if (last == "bias" or weight.axes == ("gates",)) and weight.trainable:
                owner = "gates" if weight.axes == ("gates",) else owner
                yield "norms" if owner.startswith("norm") else BIASES.get(owner, owner.replace("_", " "))


PAIRS = {"half": "(i, i + r/2)", "interleaved": "(2i, 2i + 1)"}
HEADS: Mapping[str, tuple[str, Heads]] = {
    "n_heads": ("heads", _field("n_heads")),
    "n_kv_heads": ("key/value heads", _field("kv_heads")),
    "head_dim": ("head dimension", _head_dim),
    "value_dim": ("value dimension", _value_dim),
    "query_rank": ("query latent", _field("query_rank")),
    "kv_rank": ("key/value latent", _field("kv_rank")),
}
ATTENTION = (
    *(StackRow(key, name, _of(read)) for key, (name, read) in HEADS.items()),
    StackRow("attention", "attention", _each(_heads), str),
    StackRow("direction", "direction", _each(lambda a: words.direction(a.mask)), str),
    StackRow("keys_seen", "keys seen", _each(lambda a: words.mask(a.mask)), str),
    StackRow("shared_keys", "keys and values", _each(options.keys), str),
    StackRow("cross_attention", "cross-attention", _cross, str),
    *(
        StackRow(f"cross_{key}", f"cross-attention's {name}", _of(read, crossing=True))
        for key, (name, read) in HEADS.items()
    ),
    StackRow("attention_scale", "attention scale", _scale, _root),
    StackRow("attention_softcap", "attention softcap", lambda block, _: _first(a.softcap for a in _own(block))),
    StackRow("attention_sink", "attention sink", _each(lambda a: "one a head" if a.sink else None), str),
    StackRow(
        "query_scale", "queries", _each(lambda a: options.query_scale(a.query_scale) if a.query_scale else None), str
    ),
    StackRow("difference", "heads", _each(lambda a: options.difference(a.difference) if a.difference else None), str),
    StackRow("blocks", "compressed keys", _each(options.blocks), str),
    StackRow("keys_chosen", "keys chosen", _each(lambda a: options.indexer(a.indexer) if a.indexer else None), str),
    StackRow("output_gate", "output", _each(options.output), str),
    StackRow(
        "output_norm", "norm of values", _each(lambda a: f"{words.norm(a.norm)}, of all heads" if a.norm else None), str
    ),
    StackRow("qkv_clip", "q, k, v clipped to ±", _of(_field("clip"))),
    StackRow("qk_norm", "QK-norm", _each(options.qk_norm), str),
    StackRow("value_norm", "value norm", _each(_value_norm), str),
    StackRow("latent_norm", "norm of latents", _each(_latent_norm), str),
)
ROTARY = (
    StackRow("rope_theta", "RoPE theta", _rotary("theta")),
    StackRow("rotary_dim", "rotary dimensions", _rotated),
    StackRow("rope_layout", "RoPE pairs", _rotary("layout"), lambda layout: PAIRS.get(layout) or str(layout)),
    StackRow("rope_direction", "RoPE turns", lambda b, p: "backwards" if _rotary("backwards")(b, p) else None, str),
    StackRow("rope_scaling", "RoPE scaling", lambda b, p: (s := _rotary("scaling")(b, p)) and _scaling(s), str),
    StackRow("rope_frequencies", "RoPE frequencies", lambda b, p: "learned" if _rotary("learned")(b, p) else None, str),
    StackRow("activation", "activation", _activation, str),
    StackRow("d_ff", "FFN dimension", _d_ff),
)
EXPERTS = (
    StackRow("n_experts", "experts", lambda m, _: m.router.n_experts),
    StackRow("n_identity_experts", "identity experts", lambda m, _: m.router.n_identity or None),
    StackRow("n_experts_active", "experts a token", lambda m, _: m.router.top_k),
    StackRow("expert_d_ff", "expert FFN dimension", lambda m, _: getattr(m.expert, "d_ff", None)),
    StackRow("expert_latent", "experts' latent", lambda m, _: m.latent),
    StackRow("shared_expert_d_ff", "shared expert FFN dimension", lambda m, _: getattr(m.shared_expert, "d_ff", None)),
    StackRow("n_shared_experts", "shared experts", lambda m, _: n_shared_experts(m) or None),
    StackRow("router", "router", lambda m, _: feed_forwards.router(m.router), str),
    StackRow("shared_gate", "shared expert's gate", lambda m, _: "sigmoid" if m.shared_gate else None, str),
    StackRow("weighs", "weights multiply", lambda m, _: "what experts read" if m.weighs == "input" else None, str),
    StackRow("capacity", "expert capacity", lambda m, _: m.capacity and words.phrase(m.capacity), str),
)
NORMS = (
    StackRow("other_mixers", "other mixers", _other, str),
    StackRow("arrangement", "arrangement", _by_sublayer(_arrangement), str),
    StackRow("norm", "norm", _by_norm(words.norm), str),
    StackRow("norm_eps", "norm eps", _by_norm(lambda n: number(n.eps) if hasattr(n, "eps") else ""), str),
    StackRow("norm_placement", "norm placement", _by_sublayer(lambda s: words.PLACEMENTS[norm_places(s)]), str),
    StackRow("branch_maps", "other maps of branches", _by_sublayer(_other_maps), str),
)
