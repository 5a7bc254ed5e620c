"""The same architecture at another size: `resize` keeps its proportions, `shrink` its structure at the least size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from typing import Annotated, Literal, cast

from anyformer.errors import SpecError
from anyformer.spec import (
    Architecture,
    Length,
    ModelSpec,
    Sizes,
    Spec,
    Vocab,
    Width,
    parameters,
    period,
    specification,
)
from anyformer.spec.ranges import Layers, refuse

SIZES = {"vocab_size": Vocab, "context": Length, "d_model": Width, "n_layers": Annotated[int, Layers]}
Counted = Literal["total", "non_embedding"]  # which parameters a size counts
DEPTH_POWER = 0.5  # depth and head_dim follow the width by this power: halfway between constant and proportional


class Proportional(Sizes):
    """Widths in proportion to d_model, depth and head_dim to its root."""

    def __init__(
        self, old: ModelSpec, d_model: int, n_layers: int, vocab_size: int | None, context: int | None
    ) -> None:
        self.old, self.d_model, self.n_layers = old, d_model, n_layers
        self.vocab_size, self.context = vocab_size, context
        self.ratio = d_model / old.stack.d_model

    def width(self, old: int) -> int:
        if old == self.old.stack.d_model:
            return self.d_model  # as it is asked for, be it no multiple of 8
        return old if self.ratio == 1 else max(8, 8 * round(old * self.ratio / 8))

    def heads(self, n_heads: int, n_kv_heads: int, head_dim: int | None) -> tuple[int, int, int | None]:
        if self.ratio == 1:
            return n_heads, n_kv_heads, head_dim
        old_dim = head_dim or self.old.stack.d_model / n_heads
        ideal = old_dim * self.ratio**DEPTH_POWER
        share = n_heads * old_dim / self.old.stack.d_model
        group = n_heads // n_kv_heads if 1 < n_kv_heads < n_heads else 1
        if head_dim is None:
            # d_model is divided among the heads: into multiples of 8, as vector units like them, where that can be.
            part = 8 if self.d_model % 8 == 0 and ideal > 4 else 2
            counts = [n for n in range(1, self.d_model // part + 1) if self.d_model % (n * part) == 0]
            if not counts:
                raise SpecError(f"d_model = {self.d_model} gives no head an even width; give an even number")
            heads, dim = (
                min(counts, key=lambda n: abs(math.log(self.d_model / n / ideal)) + 0.5 * (n % group > 0)),
                None,
            )
        else:
            dim = max(8, 8 * round(ideal / 8))
            heads = group * max(1, round(share * self.d_model / dim / group))
        if n_kv_heads in (1, n_heads):
            return heads, 1 if n_kv_heads == 1 else heads, dim
        groups = [n for n in range(1, heads + 1) if heads % n == 0]
        return heads, min(groups, key=lambda n: abs(math.log(n / heads * n_heads / n_kv_heads))), dim

    def in_pairs(self) -> Proportional:
        return _InPairs(self.old, self.d_model, self.n_layers, self.vocab_size, self.context)

    def layers(self, blocks: tuple[Spec, ...]) -> tuple[Spec, ...]:
        n = max(1, round(len(blocks) * self.n_layers / self.old.n_layers))
        return cut(blocks, n)

    def length(self, old: int) -> int:
        if self.context is None or self.old.context is None:
            return old
        return max(1, round(old * self.context / self.old.context))

    def vocab(self, old: int) -> int:
        """Tables of all tokens have the new size; what has fewer rows, as of labels, keeps them; none has more."""
        if self.vocab_size is None:
            return old
        return self.vocab_size if old == self.old.vocab_size else min(old, self.vocab_size)


class _InPairs(Proportional):
    """The same of pairs of heads, each as one of twice the width."""

    def heads(self, n_heads: int, n_kv_heads: int, head_dim: int | None) -> tuple[int, int, int | None]:
        pairs, of_keys, width = super().heads(n_heads // 2, max(1, n_kv_heads // 2), head_dim and 2 * head_dim)
        return 2 * pairs, 2 * of_keys, width and width // 2


# That shrinking leaves: T5-11B's feed-forward is 64 × d_model, Switch-C has 2,048 experts.
MOST_WIDTH, MOST_COUNT = 256, 16
MOST_LAYERS = 12  # Nemotron-H has 52 layers of three kinds in no pattern


class Least(Sizes):
    """Small enough for a test in milliseconds; what distinguishes the architecture is kept."""

    def __init__(self, old: ModelSpec) -> None:
        self.old = old
        self.d_model = self.width(old.stack.d_model)
        self.head_dims, self.kv_heads = _apart(old), _fewer(old)

    def width(self, old: int) -> int:
        return min(MOST_WIDTH, max(8, 4 * round(old * 32 / self.old.stack.d_model / 4)))

    def heads(self, n_heads: int, n_kv_heads: int, head_dim: int | None) -> tuple[int, int, int | None]:
        kv_heads = {1: 1, n_heads: 4}.get(n_kv_heads, self.kv_heads.get((n_heads, n_kv_heads), 2))
        return 4, kv_heads, None if head_dim is None else self.head_dims.get(head_dim, 16)  # 16 ≠ 32 / 4

    def layers(self, blocks: tuple[Spec, ...]) -> tuple[Spec, ...]:
        start, n_repeating = _pattern(blocks)
        first = (run[0] for run in _runs(blocks[:start]))
        kept = (*first, *blocks[start : start + max(n_repeating, 1 if start else 2)])
        return kept if len(kept) <= MOST_LAYERS else _each_after_each(blocks)

    def count(self, old: int) -> int:
        return old if old <= 2 else min(MOST_COUNT, 2 ** round(math.log2(old) / 2))

    def length(self, old: int) -> int:
        context = self.old.context or old
        return 64 if old == context else 32 if old < context else 128

    def window(self, old: int) -> int:
        return min(old, 5)

    def vocab(self, old: int) -> int:
        return min(old, 101)


def _apart(spec: ModelSpec) -> dict[int, int]:
    """Widths of heads that differ within one kind of part (Gemma 4's), as the least that differ alike: the narrowest is 16."""
    kinds: dict[type, set[int]] = {}
    for block in {id(block): block for stack in spec.stacks.values() for block in stack.blocks}.values():
        for value in block.nested():
            width = value.values().get("head_dim")
            if isinstance(width, int):
                kinds.setdefault(type(value), set()).add(width)
    several = (widths for widths in kinds.values() if len(widths) > 1)
    return {width: 16 * round(width / min(widths)) for widths in several for width in widths}


def _fewer(spec: ModelSpec) -> dict[tuple[int, int], int]:
    """Of numbers of heads of keys that differ beside as many heads of queries (MiMo's, Gemma 4's), the least as 1."""
    found: dict[int, set[int]] = {}
    for value in spec.nested():
        n_heads, n_kv_heads = (value.values().get(name) for name in ("n_heads", "n_kv_heads"))
        if isinstance(n_heads, int) and isinstance(n_kv_heads, int):
            found.setdefault(n_heads, set()).add(n_kv_heads)
    return {(n_heads, min(several)): 1 for n_heads, several in found.items() if len(several) > 1}


def shrink(architecture: Architecture) -> ModelSpec:
    """The least model of the same structure: d_model 32, a full period of the pattern of layers, windows of 5 keys."""
    spec = specification(architecture)
    return spec.resized(Least(spec))


def resize(
    architecture: Architecture,
    *,
    n_params: int | None = None,
    vocab_size: int | None = None,
    context: int | None = None,
    d_model: int | None = None,
    n_layers: int | None = None,
    count: Counted = "total",
) -> ModelSpec:
    """The same architecture, proportions kept, of about `n_params` parameters, or of a given d_model and n_layers.

    d_ff and heads follow d_model; depth and head_dim follow its square root. `context` sets learned positions, and what other
    lengths are in proportion to. Raises SpecError where no model of the architecture comes within a fifth of `n_params`, where
    its pattern cannot be cut to `n_layers`, and for numbers below 1.
    """
    asked = {
        "n_params": n_params,
        "vocab_size": vocab_size,
        "context": context,
        "d_model": d_model,
        "n_layers": n_layers,
    }
    for name, number in asked.items():
        if number is not None and number < 1:
            raise SpecError(f"{name} = {number} makes no model; give a number above 0")
        if number is not None and name in SIZES and (said := refuse(SIZES[name])(number)):
            raise SpecError(f"{name} = {number} {said}")
    spec = specification(architecture)
    if n_params is not None and d_model is not None:
        raise SpecError("resize takes n_params or d_model, not both")
    parameters(spec)  # refuses what cannot be built, before other sizes could hide it

    def at(width: int, depth: int | None = None) -> ModelSpec:
        ideal = max(1, round(spec.n_layers * (width / spec.stack.d_model) ** DEPTH_POWER))
        n = n_layers or depth or ideal
        try:
            sized = spec.resized(Proportional(spec, width, n, vocab_size, context))
        except SpecError as error:
            raise SpecError(f"resized to d_model = {width} and {n} layers: {error}") from None
        if n_layers not in (None, sized.n_layers):
            raise SpecError(f"the pattern of {spec.n_layers} layers can be cut to {sized.n_layers}, not to {n_layers}")
        return sized

    if n_params is None:
        return at(d_model or spec.stack.d_model, None if d_model else spec.n_layers)

    def size(candidate: ModelSpec) -> int:
        return cast(int, getattr(parameters(candidate), count))

    widths = list(_widths())
    low, high = 0, len(widths) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if size(at(widths[middle])) < n_params else (low, middle)
    near = [at(width) for width in widths[max(0, low - 4) : low + 4]]
    others = [at(m.stack.d_model, m.n_layers + step) for m in near for step in (-1, 1) if m.n_layers + step > 0]

    def misfit(candidate: ModelSpec) -> float:
        depth = spec.n_layers * (candidate.stack.d_model / spec.stack.d_model) ** DEPTH_POWER
        return abs(math.log(size(candidate) / n_params)) + 0.02 * abs(math.log(candidate.n_layers / depth))

    best = min([*near, *others], key=misfit)
    if not 0.8 < size(best) / n_params < 1.25:
        raise SpecError(
            f"no model of this architecture has about {n_params:,} parameters; the nearest has {size(best):,} "
            f"(d_model {best.stack.d_model}, {best.n_layers} layers, vocabulary {best.vocab_size:,})"
        )
    return best


def cut(blocks: tuple[Spec, ...], n: int) -> tuple[Spec, ...]:
    """The pattern of the blocks for `n` layers: repeated where it is periodic, and each run before that in proportion."""
    start, n_repeating = _pattern(blocks)

    def share(length: int) -> int:
        return max(1, round(length * n / len(blocks)))

    first = tuple(run[0] for run in _runs(blocks[:start]) for _ in range(share(len(run))))
    return (*first, *(blocks[start + i % n_repeating] for i in range(max(n - len(first), n_repeating))))


def _pattern(blocks: tuple[Spec, ...]) -> tuple[int, int]:
    """(where layers begin to repeat, after how many): as few as can be, runs of equal layers before it counted once each."""
    kinds = [blocks.index(block) for block in blocks]
    found = ((start, period(kinds[start:])) for start in range(len(kinds)))
    repeating = [(start, n) for start, n in found if n < len(kinds) - start or start == len(kinds) - 1]
    return min(repeating, key=lambda at: len(_runs(blocks[: at[0]])) + at[1])


def _runs(blocks: tuple[Spec, ...]) -> list[tuple[Spec, ...]]:
    return [tuple(run) for _, run in groupby(blocks)]


def _each_after_each(blocks: tuple[Spec, ...]) -> tuple[Spec, ...]:
    """Of layers in no pattern, one for each kind and kind before it that there is, in their order, and the last."""
    kinds = [run[0] for run in _runs(blocks)]
    pairs = list(zip((None, *kinds), kinds, strict=False))
    kept = tuple(kind for i, (before, kind) in enumerate(pairs) if (before, kind) not in pairs[:i])
    return kept if kept[-1] == kinds[-1] else (*kept, kinds[-1])


def _widths() -> Iterator[int]:
    """The widths that models have: multiples of 8, coarser as they grow, so that they divide into even heads."""
    width = 16
    while width <= 65_536:
        yield width
        width += 8 if width < 64 else 16 if width < 128 else 32 if width < 512 else 64 if width < 2048 else 128
