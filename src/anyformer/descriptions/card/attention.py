"""What a card says of attention: its heads, its positions, what is done to queries, keys and scores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from anyformer.descriptions import words
from anyformer.descriptions.card.row import joined
from anyformer.layers import AttentionSpec, Everything, MLASpec
from anyformer.spec import BlockSpec, Place, ScaleSpec


def self_attentions(block: BlockSpec) -> list[AttentionSpec]:
    """The attentions of a layer that read their own stack."""
    return [m for m in words.mixers(block) if isinstance(m, AttentionSpec) and m.reads != "memory"]


def first(values: Iterable[Any]) -> Any:
    """The first that is there, or None."""
    return next((value for value in values if value is not None), None)


def size(block: BlockSpec, name: str) -> Any:
    """Return a field by its name from the first mixer that has it, a user's own among them."""
    return first(getattr(v, name, None) for m in words.mixers(block) for v in m.nested())


def _sizes(mixer: AttentionSpec, place: Place) -> tuple[int, int, int] | None:
    try:
        return mixer.projection.sizes(place)
    except TypeError:  # a user's own projection need not say
        return None


def head_dim(block: BlockSpec, place: Place) -> int | None:
    """The width of a query's head; of latent attention, what of it has no position."""
    own = _size_of_latent(block)  # without what rotates
    sizes = first(_sizes(m, place) for m in words.mixers(block) if isinstance(m, AttentionSpec))
    return own or (sizes[1] if sizes else size(block, "head_dim"))


def value_dim(block: BlockSpec, place: Place) -> int | None:
    """The width of a value's head where that is another than a query's."""
    sizes = first(_sizes(m, place) for m in words.mixers(block) if isinstance(m, AttentionSpec))
    return None if sizes is None or sizes[2] == head_dim(block, place) else sizes[2]


def _size_of_latent(block: BlockSpec) -> int | None:
    projections = [m.projection for m in words.mixers(block) if isinstance(m, AttentionSpec)]
    return first(p.head_dim for p in projections if isinstance(p, MLASpec))


def direction(block: BlockSpec) -> str | None:
    """Whether a token sees later ones."""
    both = {True: "causal", False: "bidirectional"}
    return joined(
        both[words.causal(m.mask)] if words.causal(m.mask) or m.mask == Everything() else "as the mask says"
        for m in self_attentions(block)
    )


def scale(mixer: AttentionSpec, place: Place) -> float | None:
    """What q · k is multiplied by where that is not 1/√width."""
    sizes = _sizes(mixer, place)
    return None if mixer.scale == ScaleSpec(power=-0.5) or sizes is None else mixer.scale.value(sizes[1])


def root(scale: float) -> str:
    """Return a factor as 1/√n where n is a whole number."""
    width = scale**-2
    return f"1/√{round(width)}" if width > 1 and abs(width - round(width)) < 1e-6 * width else words.number(scale)


def cross(block: BlockSpec) -> str | None:
    """What reads the encoder's output."""
    cross = [m for m in words.mixers(block) if isinstance(m, AttentionSpec) and m.reads == "memory"]
    return joined(f"{words.heads(m.projection)}, over the encoder's output" for m in cross)


def qk_norm(projection: Any) -> str | None:
    """The norm of queries and keys, and over what it runs."""
    over = {
        "head": "over each head",
        "heads": "over each head, a gain for each",
        "projection": "over all heads as one vector",
    }
    norm = getattr(projection, "norm_query", None) or getattr(projection, "norm_key", None)
    if norm is None or isinstance(projection, MLASpec):
        return None
    which = "" if getattr(projection, "norm_key", None) and projection.norm_query else " (one of the two)"
    return f"{words.norm(norm)} {over.get(getattr(projection, 'norm_over', ''), '')}{which}".strip()


def latent_norm(projection: Any) -> str | None:
    """The norm of the vectors that keys, values and queries come from."""
    norm = isinstance(projection, MLASpec) and (projection.norm_kv or projection.norm_query)
    return words.norm(norm) if norm else None


def relative(block: BlockSpec) -> str | None:
    """How attention knows of positions."""
    attentions = self_attentions(block)
    said = ["RoPE" for m in attentions if getattr(m.projection, "rotary", None)]
    said += [words.position(score) for m in attentions for score in m.scores]
    said += [words.position(m.relative_values) for m in attentions if m.relative_values]
    return joined(said)


def rotary(block: BlockSpec, name: str) -> Any:
    """Return a field of the rotary embedding, or None without one."""
    return first(
        getattr(rotary, name) for m in self_attentions(block) if (rotary := getattr(m.projection, "rotary", None))
    )


def turning(block: BlockSpec, place: Place) -> int | None:
    """How many features of a head rotate where not all do."""
    for m in self_attentions(block):
        rotary, sizes = getattr(m.projection, "rotary", None), _sizes(m, place)
        if isinstance(m.projection, MLASpec):
            return m.projection.rotary_dim
        if rotary and sizes and rotary.dims(sizes[1]) != sizes[1]:
            return rotary.dims(sizes[1])
    return None


def layout(block: BlockSpec) -> str | None:
    """Which features rotate together."""
    layout = rotary(block, "layout")
    return {"half": "(i, i + r/2)", "interleaved": "(2i, 2i + 1)"}.get(layout, layout) if layout else None


def scaling(block: BlockSpec) -> str | None:
    """How rotary frequencies are stretched."""
    scaling = rotary(block, "scaling")
    if scaling is None:
        return None
    factor, original = getattr(scaling, "factor", None), getattr(scaling, "original_context", None)
    if factor is None:
        return words.part(scaling)
    return f"{scaling.kind} × {words.number(factor)}" + (f" from {original:,} tokens" if original else "")
