"""Windows and rotary positions layer by layer: what the types of a configuration's layers say of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anyformer.families.compose import changed, firsts, windowed, with_layers
from anyformer.families.compose import window as window_mask
from anyformer.families.hf.mapping import one
from anyformer.families.hf.rotary import FRACTION, THETA, rotary, rotary_of, rotary_settings, scaling_settings
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.table import Pair
from anyformer.layers import AttentionSpec, Causal, GQASpec, RotarySpec, SlidingWindow
from anyformer.spec import BlockSpec, ModelSpec, Spec, Window

SLIDING, FULL = WORDS = "sliding_attention", "full_attention"  # what types are called, if a class has no other words
WINDOW, THETAS = "sliding_window", "layer_rope_theta"
Full = Callable[[Settings, int], Sequence[bool]]  # of so many layers, whether each sees everything where none is listed


def window(default: int | None) -> Pair:
    """The window of every layer; null is none, and `default` goes where nothing is said."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        size = settings.nullable(WINDOW, int, default)
        return spec if size is None else windowed(spec, size)

    return Pair(read, lambda spec: {WINDOW: window_of(spec)})


def window_of(spec: Spec) -> int | None:
    """The size of the first window in a model or a part; None without one."""
    return next((value.size for value in spec.nested(SlidingWindow)), None)


def two_kinds(model: ModelSpec) -> ModelSpec:
    """The template of a model with sliding layers and full ones: the first of each."""
    first = firsts(types_of(model), model)
    return with_layers(model, (first[SLIDING], first[FULL]))


def each(n: int, setting: str | None = None) -> Full:
    """Each n-th layer sees everything, or each of as many as an older `setting` says."""

    def full(settings: Settings, n_layers: int) -> list[bool]:
        every = n if setting is None else settings.positive(setting, int, n)
        return [(i + 1) % every == 0 for i in range(n_layers)]

    return full


def layer_types(usual: Full, size: int | None, words: tuple[str, str] = WORDS, name: str = WINDOW) -> Pair:
    """The depth, each layer's type and the window, called `name`, of a template of `two_kinds`.

    `usual` and `size` go where nothing is said; null is no window.
    """

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        n_layers = settings.positive("num_hidden_layers", int)
        return typed(spec, *said_types(settings, n_layers, usual, size, words, name), words)

    def write(spec: ModelSpec) -> dict[str, Any]:
        found, size = {"num_hidden_layers": spec.n_layers, "layer_types": types_of(spec, words)}, window_of(spec)
        return found if size is None else {**found, name: size}  # some classes know no null there

    return Pair(read, write)


def said_types(
    settings: Settings,
    n_layers: int,
    usual: Full,
    size: int | None,
    words: tuple[str, str] = WORDS,
    name: str = WINDOW,
) -> tuple[tuple[str, ...], int | None]:
    """Each layer's type, and the window. Raises CheckpointError for types that are none, and for sliding ones without it."""
    window, full = settings.nullable(name, int, size), usual(settings, n_layers)  # whose settings are read in any case
    types = settings.words("layer_types", n_layers, words, (words[each] for each in full))
    if window is None and words[0] in types:
        raise settings.refusal(name, "leaves the sliding layers without a window, which this class refuses")
    return types, window


def typed(spec: ModelSpec, types: tuple[str, ...], window: int | None, words: tuple[str, str] = WORDS) -> ModelSpec:
    """The template with a layer for each type and this window."""
    blocks: dict[str, BlockSpec] = dict(zip(words, spec.stack.blocks, strict=True))
    spec = with_layers(spec, (blocks[kind] for kind in types))
    return spec if window is None else changed(spec, SlidingWindow, size=Window(window))


def types_of(spec: ModelSpec, words: tuple[str, str] = WORDS) -> list[str]:
    """Each layer's type."""
    return [words[window_of(block) is None] for block in spec.stack.blocks]


def typed_rotary(inner: Settings, context: int, plain: RotarySpec, whole: bool = True) -> RotarySpec:
    """The rotary positions of one type's table, in which no class finds `truncate`; `whole` heads turn whatever is said."""
    inner.require("truncate", True)
    found = rotary_of(inner, context, plain)
    if whole and found.fraction != 1:
        raise inner.refusal(FRACTION, "is not computed here; only 1.0 is")
    return found


def rotary_by_type(
    local: RotarySpec,
    full: RotarySpec,
    context: int,
    setting: str | None = None,
    words: tuple[str, str] = WORDS,
    whole: bool | None = None,
) -> Pair:
    """The context and the rotary positions of a template's layers, such as `two_kinds` makes: sliding ones and full ones.

    Each type of layer has a table of its own; in older files the full layers have the usual settings and the others a theta by
    the name `setting`, or nothing. The arguments are what the class takes where nothing is said; `whole`: heads turn as a whole
    whatever is said, which they do, if nothing else is said here, where both of these do.
    """
    whole = local.fraction == full.fraction == 1 if whole is None else whole

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        length = settings.take("max_position_embeddings", int, context)
        plain = local if setting is None else local.but(theta=settings.take(setting, float, local.theta)), full
        tables = settings.section("rope_parameters")
        if tables is None:
            each: tuple[RotarySpec, ...] = plain[0], rotary(settings, length, plain=plain[1], fraction=None)
        else:
            inner = tuple(map(tables.section, words))
            each = tuple(
                p if i is None else typed_rotary(i, length, p, whole) for i, p in zip(inner, plain, strict=True)
            )
            tables.require("rope_type", "default")  # a word that ZAYA1's files have beside the tables
            tables.close()
        of_type: dict[str, RotarySpec] = dict(zip(words, each, strict=True))
        pairs = zip(spec.stack.blocks, types_of(spec, words), strict=True)
        blocks = (changed(block, RotarySpec, **of_type[kind].values()) for block, kind in pairs)
        return with_layers(spec, blocks).but(context=length)

    def write(spec: ModelSpec) -> dict[str, Any]:
        found = dict(zip(words, (local, full), strict=True))
        for kind, block in zip(types_of(spec, words), spec.stack.blocks, strict=True):
            found[kind] = next(block.nested(RotarySpec), found[kind])
        length = {"max_position_embeddings": spec.context or context}
        if setting is not None:
            sliding, whole = (found[word] for word in words)
            return {**length, setting: sliding.theta, **rotary_settings(whole, fraction=None)}
        tables = {
            kind: {"rope_type": "default", THETA: each.theta, **(scaling_settings(each.scaling) or {})}
            for kind, each in found.items()
        }
        for kind, usual in zip(words, (local, full), strict=True):
            if found[kind].fraction != 1 or usual.fraction != 1:
                tables[kind][FRACTION] = found[kind].fraction
        return {**length, "rope_parameters": tables}

    return Pair(read, write)


def turning_windows(usual: Full, size: int, *, turns: bool = False) -> Pair:
    """Each layer's window, of a model that is laid out and whose layers all turn; those that see everything may not.

    `usual` and `size` are what a class takes where nothing is said.
    """

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        types, window = said_types(settings, spec.n_layers, usual, size)

        def placed(block: BlockSpec, kind: str) -> BlockSpec:
            if kind == SLIDING and window is not None:
                return changed(block, AttentionSpec, mask=window_mask(window))
            full = changed(block, AttentionSpec, mask=Causal())
            return full if turns else changed(full, GQASpec, rotary=None)

        return with_layers(spec, map(placed, spec.stack.blocks, types))

    return Pair(read, lambda spec: {"layer_types": types_of(spec), WINDOW: window_of(spec) or size})


def by_theta(usual: Full, size: int, *, turns: bool = True) -> Pair:
    """Each layer's window and theta, 0 for none, of a model that is laid out, whose layers are alike and turn.

    `usual` and `size` are what a class takes where nothing is said, and whether layers that see everything `turns` then.
    """

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        n, plain, block = spec.n_layers, one(spec, RotarySpec), spec.stack.blocks[0]
        types, window = said_types(settings, n, usual, size)
        each = (changed(block, AttentionSpec, mask=mask) for mask in (window_mask(window or size), Causal()))
        spec = typed(with_layers(spec, each), types, window)
        said = [0 if full and not turns else plain.theta for full in usual(settings, n)]
        thetas = settings.written(THETAS) or said
        if (
            not isinstance(thetas, list)
            or len(thetas) != n
            or not all(type(x) in (int, float) and x >= 0 for x in thetas)
        ):
            raise settings.refusal(THETAS, f"must be {n} numbers, 0 for a layer without positions")
        turning = (plain.but(theta=float(theta)) if theta else None for theta in thetas)
        blocks = (changed(b, GQASpec, rotary=rotary) for b, rotary in zip(spec.stack.blocks, turning, strict=True))
        return with_layers(spec, blocks)

    def write(spec: ModelSpec) -> dict[str, Any]:
        rotaries = [one(block, GQASpec).rotary for block in spec.stack.blocks]
        thetas = [rotary.theta if rotary else 0 for rotary in rotaries]
        return {"layer_types": types_of(spec), WINDOW: window_of(spec) or size, THETAS: thetas}

    return Pair(read, write)
