"""What attention has beside heads, masks and positions, in words: whose keys it reads, which it chooses, what it gates."""

from __future__ import annotations

from typing import Any

from anyformer.descriptions.words import each, norm, number, phrase, shared_maps
from anyformer.layers import (
    AttentionSpec,
    BlockIndexerSpec,
    CompressorSpec,
    DifferentialSpec,
    GQASpec,
    IndexerSpec,
    LogN,
    LogSteps,
    MLASpec,
    MoASpec,
    OutputGateSpec,
    QueryScaleSpec,
    SharedKVSpec,
    SSMaxSpec,
    ValueConvolutionSpec,
)

NORM_OVER = {
    "head": "of each head",
    "heads": "of each head, a gain for each",
    "projection": "of all heads together",
}


def keys(value: AttentionSpec) -> str | None:
    """Whose keys and values attention reads, or who reads its own: "read by later layers (local)"."""
    if value.keys is None:
        return None
    if value.reads == "layer":
        return f"those of an earlier layer ({value.keys})"
    return f"read by later layers ({value.keys})"


def of_heads(projection: Any) -> list[str]:
    """What is said of heads beside their kind: of what they are made, whose maps those are, and what mixes tokens."""
    if isinstance(projection, SharedKVSpec):
        return ["one vector as key and value"]
    if isinstance(projection, MoASpec):
        return [f"of {projection.router.top_k} of {projection.router.n_experts} experts for queries and outputs"]
    if not isinstance(projection, GQASpec):
        return []
    said = ["of the stream and the embedding side by side"] if projection.with_input else []
    said += ["values of the stream around"] if projection.values_read == "outer" else []
    said += shared_maps(projection)
    if projection.convolved is not None:
        said += [f"convolved over {projection.convolved.each} and {projection.convolved.heads} tokens"]
    if projection.short is not None:
        said += [f"keys and values convolved over {projection.short.size} tokens"]
    return [*said, *(["keys and values by one map"] if projection.values_are_keys else [])]


def qk_norm(attention: AttentionSpec, *, exact: bool = False) -> str | None:
    """The norms of queries and keys: "RMSNorm of each head, after the rotation"; those of MLA's latents are others."""
    projection = attention.projection
    found = [getattr(projection, name, None) for name in ("norm_query", "norm_key")]
    if isinstance(projection, MLASpec) or not any(found):
        return None
    said = each(norm(value, exact=exact) for value in found if value)
    over = NORM_OVER.get(getattr(projection, "norm_over", ""), "")
    last = ", after the rotation" if getattr(projection, "norm_last", False) else ""
    which = "" if all(found) else " (queries alone)" if found[0] else " (keys alone)"
    return f"{said} {over}{last}{which}".strip()


def gate(value: OutputGateSpec) -> str:
    """What attention's values are multiplied by before its output: "× Sigmoid(W x), a number a feature"."""
    over = "a number a feature" if value.over == "features" else "one a head"
    over += ", of what queries are made of" if value.reads == "query" else ""
    return f"× {phrase(value.activation)}(W x{' + b' if value.bias else ''}), {over}"


def output(attention: AttentionSpec) -> str | None:
    """What becomes of attention's values before its output."""
    said = [convolution(attention.convolution)] if attention.convolution else []
    said += [gate(attention.gate)] if attention.gate else []
    return ", ".join(said) or None


def convolution(value: ValueConvolutionSpec) -> str:
    """What is added to attention's values: "values convolved over 33 tokens, by head"."""
    return f"values convolved over {value.size:,} tokens, by head"


def difference(value: DifferentialSpec) -> str:
    """What of two heads' attention is taken: "a pair's second taken from its first, from 0.2 on, vectors of 0.1"."""
    start = "by depth" if value.start is None else f"from {number(value.start)} on"
    return f"a pair's second taken from its first, {start}, vectors of {number(value.std)}"


def indexer(value: IndexerSpec) -> str:
    """Which visible keys are attended to: "the best 2,048, in blocks of 4, by an indexer of 64 × 128, pairs half"."""
    if value.reads == "layer":
        return f"{best(value)}, chosen by an earlier layer ({value.choice})"
    of = " blocks" if value.compressor else f", in blocks of {value.every:,}," if value.mean_of > 1 else ""
    said = [f"{best(value)}{of} by an indexer of {value.n_heads} × {value.head_dim}"]
    if isinstance(value, BlockIndexerSpec):
        near = "the own among them" if value.near == 1 else f"the last {value.near} among them"
        said += [near, "a choice a head of it"]
    elif not value.weighed:
        said += ["heads count alike"]
    said += [f"{norm(value.norm_read, exact=True)} of what it reads"] if value.norm_read else []
    said += [f"{norm(value.norm_query, exact=True)} of its queries"] if value.norm_query else []
    said += [f"queries {query_scale(value.query_scale)}"] if value.query_scale else []
    said += [f"pairs {value.layout}"] if value.layout else []
    said += ["the last features turn"] if value.where == "last" else []
    said += [norm_of(value.compressor, "of its blocks")] if value.compressor and value.compressor.norm else []
    said += [f"read by later layers ({value.choice})"] if value.choice else []
    return ", ".join(said)


def best(value: IndexerSpec) -> str:
    """How many keys or blocks are chosen: "the best 16 blocks of 128"."""
    of = f" blocks of {value.every:,}" if isinstance(value, BlockIndexerSpec) else ""
    return f"the best {value.top_k:,}{of}"


def blocks(attention: AttentionSpec) -> str | None:
    """Which keys there are beside those of tokens: "blocks of 4, each with half of the one before, RMSNorm of blocks"."""
    value, sums = attention.compressor, attention.transient
    if sums is not None:
        said = [f"sums of blocks of {sums.every:,}"]
        said += [f"{norm(sums.norm, exact=True)} of blocks"] if sums.norm else []
        said += [f"{sums.scores.n_buckets} buckets to {sums.scores.max_distance:,} blocks"] if sums.scores else []
        return ", ".join(said)
    if value is None:
        return None
    said = [f"blocks of {value.every:,}"]
    said += ["each with half of the one before"] if value.overlap else []
    said += [norm_of(value, "of blocks")] if value.norm else []
    return ", ".join(said)


def norm_of(value: CompressorSpec, what: str) -> str:
    """The norm of what a compressor makes."""
    assert value.norm is not None
    return f"{norm(value.norm, exact=True)} {what}"


def query_scale(value: QueryScaleSpec) -> str:
    """What queries are multiplied by, by their positions p."""
    match value:
        case LogN(length=length, growth=float(growth)):
            return f"× 1 + {number(growth)} · ln(n / {length:,}) beyond {length:,} tokens"
        case LogN(length=length):
            return f"× log n beyond {length:,} tokens"
        case LogSteps(length=length, growth=growth, start=start):
            position = f"(p + {start})" if start else "p"
            return f"× 1 + {number(growth)} · ln(1 + ⌊{position} / {length:,}⌋)"
        case SSMaxSpec():
            return "× s · ln n + b, learned by each head"
        case _:
            return f"× {phrase(value)}"
