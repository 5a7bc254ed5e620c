"""The operators of a whole pass: embedding, layers, norms, heads; and those that only training runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from anyformer.costs.hardware.operators import Operator, linears, map_operator, mixer_operators, settled
from anyformer.spec import (
    AheadSpec,
    BlockSpec,
    HeadSpec,
    MapSpec,
    ModelSpec,
    PartSpec,
    Place,
    StackSpec,
    Workload,
    inside,
)


def operators(spec: ModelSpec, workload: Workload, *, head_tokens: int | None = None) -> tuple[Operator, ...]:
    """The operators of one forward pass; heads read all new tokens, or `head_tokens` of each row."""
    found: list[Operator] = []
    for name, part, inner_place in inside(spec, Place()):
        if isinstance(part, StackSpec):
            if name == "encoder":
                own = Workload(workload.batch, workload.memory, causal_exact=workload.causal_exact)
                found += _stack(part, inner_place, own) if own.query and not workload.past else ()
            else:
                found += _stack(part, inner_place, workload)
        elif isinstance(part, HeadSpec):
            for block in part.layers.blocks if part.layers else ():
                found += _block(block, inner_place.at(inner_place.d_model), workload)
            few = (
                workload
                if head_tokens is None
                else dataclasses.replace(workload, query=min(head_tokens, workload.query))
            )
            found.append(_head(part.but(layers=None), inner_place, few))
        elif not isinstance(part, AheadSpec):
            found += _other(part, inner_place, workload)
    return tuple(found)


def operators_ahead(spec: ModelSpec, workload: Workload) -> tuple[Operator, ...]:
    """Those of what predicts further tokens, which runs in training alone; the k-th sees k tokens a row fewer."""
    found: list[Operator] = []
    head = next(((part, at) for _, part, at in inside(spec, Place()) if isinstance(part, HeadSpec)), None)
    modules = [(part, at) for _, part, at in inside(spec, Place()) if isinstance(part, AheadSpec)]
    for k, (module, inner_place) in enumerate(modules, 1):
        fewer = dataclasses.replace(workload, query=max(0, workload.query - k))
        if not fewer.query:
            continue
        for _, part, at in inside(module, inner_place):
            if isinstance(part, BlockSpec):
                found += _block(part, at, fewer)
            elif isinstance(part, MapSpec):
                found += list(linears("ahead", part, at, fewer.tokens)) or [map_operator(part, at, fewer.tokens)]
        if head is not None:
            found.append(_head(head[0], head[1], fewer))
    return tuple(dataclasses.replace(o, part="ahead") for o in found)


def _stack(stack: StackSpec, inner_place: Place, workload: Workload) -> Iterator[Operator]:
    stream = Place(stack.d_model, (stack.d_model,), inner_place.d_source, inner_place.modules)
    width, tokens = stack.d_model, workload.tokens
    for _, part, at in inside(stack.embedding, stream):
        found = list(linears("embedding", part, at, tokens))
        yield from found or [
            Operator("embedding", "movement", part.kind, features=tokens * width, numbers=2 * tokens * width)
        ]
    counted: dict[int, list[Any]] = {}
    for block in stack.blocks:
        counted.setdefault(id(block), [block, 0])[1] += 1
    for block, times in counted.values():
        for operator in _block(block, stream, workload):
            yield dataclasses.replace(operator, times=times)
    if stack.norm is not None:
        yield map_operator(stack.norm, stream.at(stack.residual.width(width)), tokens)


def _block(block: BlockSpec, stream: Place, workload: Workload) -> Iterator[Operator]:
    width, tokens = stream.d_model, workload.tokens
    for sublayer in block.sublayers:
        norms = [sublayer.norm_in, sublayer.norm_sum]
        for branch in sublayer.branches:
            norms += [branch.norm_in, branch.norm_out]
            yield from mixer_operators(branch.mixer, stream, workload)
            yield Operator("residual", "element-wise", "Add", features=tokens * width, numbers=3 * tokens * width)
        for norm in norms:
            if norm is not None:
                yield map_operator(norm, stream, tokens)


def _head(head: HeadSpec, place: Place, workload: Workload) -> Operator:
    tokens = workload.tokens if head.pool is None else workload.batch
    placed = dict(head.parts(place))["table"]
    flops = head.cost(place, workload).flops
    if head.table is None or not isinstance(placed, tuple):
        return Operator("logits", "contraction", "other", flops=flops, numbers=2 * tokens * place.shape[-1])
    width, rows = placed[1].shape[-1], head.table.rows
    return Operator(
        "logits",
        "contraction",
        "Linear",
        flops=flops,
        shape=(tokens, rows, width),
        weights=rows * width,
        numbers=tokens * (rows + width),
        features=tokens * rows,
    )


def _other(part: PartSpec, place: Place, workload: Workload) -> Iterator[Operator]:
    """What a part that is neither stack nor head declares: heads of further tokens, say."""
    declared = part.cost(place, workload)
    if declared.flops:
        yield from settled(
            list(linears(next(iter(declared)), part, place, workload.tokens)), declared, next(iter(declared))
        )
