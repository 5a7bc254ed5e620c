"""What attention has beside heads, masks and positions, in words: whose keys it reads, which it chooses, what it gates."""

from __future__ import annotations

from anyformer.descriptions.words import number, phrase
from anyformer.layers import (
    AttentionSpec,
    DifferentialSpec,
    IndexerSpec,
    LogN,
    LogSteps,
    OutputGateSpec,
    QueryScaleSpec,
)


def keys(value: AttentionSpec) -> str | None:
    """Whose keys and values attention reads, or who reads its own: "read by later layers (local)"."""
    if value.keys is None:
        return None
    return (
        f"those of an earlier layer ({value.keys})"
        if value.reads == "layer"
        else f"read by later layers ({value.keys})"
    )


def gate(value: OutputGateSpec) -> str:
    """What attention's values are multiplied by before its output: "× Sigmoid(W x), a number a feature"."""
    over = "a number a feature" if value.over == "features" else "one a head"
    return f"× {phrase(value.activation)}(W x{' + b' if value.bias else ''}), {over}"


def difference(value: DifferentialSpec) -> str:
    """What of two heads' attention is taken: "a pair's second taken from its first, from 0.2 on, vectors of 0.1"."""
    start = "by depth" if value.start is None else f"from {number(value.start)} on"
    return f"a pair's second taken from its first, {start}, vectors of {number(value.std)}"


def indexer(value: IndexerSpec) -> str:
    """Which visible keys are attended to: "the best 2,048 by an indexer of 64 × 128, pairs half"."""
    if value.reads == "layer":
        return f"the best {value.top_k:,}, chosen by an earlier layer ({value.choice})"
    said = [f"the best {value.top_k:,} by an indexer of {value.n_heads} × {value.head_dim}"]
    said += [f"pairs {value.layout}"] if value.layout else []
    said += [f"read by later layers ({value.choice})"] if value.choice else []
    return ", ".join(said)


def query_scale(value: QueryScaleSpec) -> str:
    """What queries are multiplied by, by their positions p."""
    match value:
        case LogN(length=length):
            return f"× log n beyond {length:,} tokens"
        case LogSteps(length=length, growth=growth, start=start):
            position = f"(p + {start})" if start else "p"
            return f"× 1 + {number(growth)} · ln(1 + ⌊{position} / {length:,}⌋)"
        case _:
            return f"× {phrase(value)}"
