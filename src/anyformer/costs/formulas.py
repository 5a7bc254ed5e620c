"""The sizes that papers' formulas are made of, read off a specification, and which parameters each paper calls active."""

from __future__ import annotations

from collections.abc import Mapping

from anyformer.errors import SpecError
from anyformer.layers import AttentionSpec, FeedForwardSpec, GQASpec
from anyformer.spec import (
    AheadSpec,
    BlockSpec,
    HeadSpec,
    ModelSpec,
    Place,
    TableSpec,
    inside,
    parameters,
    parameters_met,
    tensors,
)

Sizes = tuple[int, int, int]  # heads, the width of one, d_ff


def uniform(spec: ModelSpec, *, any_width: bool = False) -> Sizes:
    """The sizes of a decoder of equal layers of multi-head attention and a plain feed-forward.

    `any_width` allows d_ff and heads of any width. Raises SpecError, which says what it has, for any other model.
    """
    if spec.encoder is not None:
        raise SpecError("an encoder and a decoder")
    if spec.ahead:
        raise SpecError("modules that predict further tokens")
    d_model = spec.stack.d_model
    sizes, *others = {_sizes(block, d_model): None for block in spec.stack.blocks}
    if others:
        raise SpecError("layers of several sizes")
    n_heads, head_dim, d_ff = sizes
    if not any_width and d_ff != 4 * d_model:
        raise SpecError(f"a feed-forward of {d_ff / d_model:.3g} · d_model")
    if not any_width and n_heads * head_dim != d_model:
        raise SpecError(f"heads of {n_heads} · {head_dim} features beside d_model = {d_model:,}")
    return sizes


def _sizes(block: BlockSpec, d_model: int) -> Sizes:
    attentions = [mixer for mixer in block.mixers if isinstance(mixer, AttentionSpec)]
    feeds = [mixer for mixer in block.mixers if isinstance(mixer, FeedForwardSpec)]
    others = [mixer.kind for mixer in block.mixers if mixer not in attentions and mixer not in feeds]
    if others:
        raise SpecError(f"layers with {others[0]}")
    if len(attentions) != 1 or len(feeds) != 1:
        raise SpecError(f"layers of {len(attentions)} attentions and {len(feeds)} feed-forwards")
    projection = attentions[0].projection
    if not isinstance(projection, GQASpec):
        raise SpecError(f"{projection.kind} attention")
    if projection.kv_heads != projection.n_heads:
        raise SpecError(f"{projection.kv_heads} key/value heads for {projection.n_heads} heads")
    n_heads, head_dim, _ = projection.sizes(Place(d_model, (d_model,), d_model))
    return n_heads, head_dim, feeds[0].d_ff


def parameters_multiplied(spec: ModelSpec, *, ahead: bool) -> int:
    """What one token is multiplied with in a forward pass: shared layers at each call, no table but the first head's.

    `ahead`: the same of what predicts further tokens, with the head that runs again for each.
    """
    ran = [each for each in inside(spec, Place()) if isinstance(each[1], AheadSpec) == ahead]
    return sum(parameters_met(part, place) for _, part, place in ran) + (len(ran) if ahead else 1) * head_table(spec)


def head_table(spec: ModelSpec) -> int:
    """The numbers of the first head's table, tied or not."""
    tables = (part.parts(place)["table"] for _, part, place in inside(spec, Place()) if isinstance(part, HeadSpec))
    first = next(tables, None)
    return sum(weight.numel for _, weight in tensors(*first)) if isinstance(first, tuple) else 0


def active_parameters(spec: ModelSpec) -> Mapping[str, int]:
    """What one token uses under each convention of the field, by its name.

    all: without the experts not chosen (Mixtral's 12.9B); without the input table, where no head multiplies by it:
    gpt-oss's 3.61B and 5.13B; without tables: neither the input's nor the head's (Gemma 2's and Qwen's "non-embedding").
    """
    count, tied = parameters(spec), {head.tied for head in spec.heads} - {None}
    tables: dict[object, int] = {}
    for name, stack in spec.stacks.items():
        for value in stack.embedding.nested(TableSpec):
            if value.shared not in tied:
                width = value.width or stack.embedding.width or stack.d_model
                tables[value.shared or (name, value)] = value.rows * width
    return {
        "all": count.active,
        "without the input table": count.active - sum(tables.values()),
        "without tables": count.active - count.embedding,
    }
