"""What follows from an architecture here: kernels, the cache, where its weights can go, and laws that it waives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile

from anyformer.amounts import gibibytes
from anyformer.cache import STATE_NBYTES
from anyformer.descriptions.facts import AttentionFacts, every_attention, masks_by_head, own_parts, parts, where
from anyformer.errors import SpecError
from anyformer.families import FAMILIES
from anyformer.families.hf.mapping import class_of, fitting
from anyformer.families.hf.pooling import without_pooling
from anyformer.kernels import KERNELS, choose
from anyformer.kernels.fastest import LEAST, LEAST_ON_GPU, Fastest, FastestOnGPU
from anyformer.layers import Causal, Everything, MLASpec
from anyformer.layers.causality import sees_later_tokens
from anyformer.layers.tokens import unmarked
from anyformer.spec import ModelSpec, cached_calls

LENGTH = 2048  # tokens, where no context is given
LONGEST = 8192  # tokens, for which blocks are worked out
PLAIN = "sdpa without a mask's tensor"
NBYTES = 2  # of a number in bfloat16


def consequences(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    yield from _kernels(spec)
    yield from _cache(spec)
    yield from _export(spec)
    for kind, caveat in dict.fromkeys((v.kind, caveat) for v in parts(spec) for caveat in v.caveats()):
        yield f"law of {caveat.law}", f"{kind} waives it: {caveat.reason}"
    own = own_parts(spec)
    unknown = f"not known: {', '.join(own)} {'is a part' if len(own) == 1 else 'are parts'} of your own"
    yield "torch.compile", unknown if own else "one graph without a break"


def _kernels(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    said: dict[str, list[AttentionFacts]] = {}
    for attention in every_attention(spec):
        said.setdefault(_kernel(attention, spec), []).append(attention)
    for text, found in said.items():
        yield "kernel", f"attention in {where(found, spec)} runs on {text}"


def _kernel(attention: AttentionFacts, spec: ModelSpec) -> str:
    on_gpu = choose(None, attention.spec, "cuda")
    other = on_gpu.other.name if isinstance(on_gpu, FastestOnGPU) else on_gpu.name
    blocks, unblocked = _blocks(attention, spec), _unblocked(attention, spec, other)
    rest = unblocked if unblocked == PLAIN else f"{unblocked}; {_flex(attention, other)}"
    return rest if blocks is None else f"{blocks}; else {rest}"


def _flex(attention: AttentionFacts, other: str) -> str:
    """What takes the other's place on a GPU, or that nothing does; on a CPU blocks are as fast and have a backward pass."""
    reason = KERNELS["flex"].refuses(attention.spec)
    if reason is not None or attention.spec.scores:
        return reason or "flex, taken by name alone, leaves hidden blocks out on a GPU; on a CPU it is forward alone"
    return f"trained on a GPU from {LEAST_ON_GPU[other]:,} tokens on: flex, which leaves hidden blocks out"


def _blocks(attention: AttentionFacts, spec: ModelSpec) -> str | None:
    """Where blocks are left out of account, and how many; None where another kernel is faster at this context too."""
    kernel, length = choose(None, attention.spec), min(spec.context or LENGTH, LONGEST)
    if not isinstance(kernel, Fastest) or attention.spec.reads == "memory":
        return None
    n_heads, tokens = attention.sizes[0] if attention.sizes else 1, unmarked(length)
    sections = kernel.sections(attention.spec.mask, tokens, tokens, n_heads, biased=bool(attention.spec.scores))
    if sections is None:
        return None
    share = sum(section.pairs for section in sections) / (n_heads * length * length)
    least = LEAST[kernel.other.name]
    return f"blocked on a CPU, from {least:,} tokens on: it computes {share:.0%} of all pairs at {length:,} tokens"


def _unblocked(attention: AttentionFacts, spec: ModelSpec, taken: str) -> str:
    faster = list(takewhile(lambda name: name != taken, KERNELS))
    refused = [reason for name in faster if (reason := KERNELS[name].refuses(attention.spec)) is not None]
    if taken != "sdpa":
        return f"{taken}: {', '.join(refused)}" if refused else taken
    if attention.spec.scores:
        kinds = ", ".join(score.kind for score in attention.spec.scores)
        return (
            f"sdpa with a table of scores [heads, query, key] ({kinds}); on a CPU rows, which keeps no weights of them"
        )
    length = spec.context or LENGTH
    left = attention.spec.mask.within((0, length), (0, length))
    plain = attention.spec.reads == "memory" or left in (Causal(), Everything())
    if plain and attention.spec.indexer is None:
        return PLAIN
    n = masks_by_head(attention)
    shape = "[query, key]" if n == 1 else f"[{n} heads, query, key]"
    return f"sdpa with a dense mask {shape}, {gibibytes(n * length * length)} at {length:,} tokens"


def _cache(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    own = (a for a in every_attention(spec) if a.stack != "encoder" and a.spec.reads != "memory")
    if ahead := [a for a in own if sees_later_tokens(a.spec.mask, after_prefix=True)]:
        yield "cache", f"tokens are not decoded one by one: attention in {where(ahead, spec)} sees what comes after"
        return
    calls = [call for call in cached_calls(spec) if call.shapes]
    kept = [(call.reach, call.shapes) for call in calls if call.how == "tokens" and call.every == 1]
    states = [call.shapes for call in calls if call.how == "state" and not call.name]
    if states:
        nbytes = STATE_NBYTES * _numbers(states)
        yield (
            "cache",
            f"{len(states)} layers keep a state in place of tokens: {nbytes:,} bytes a row, however long it is",
        )
    full = [shapes for reach, shapes in kept if reach is None]
    rings = [reach for reach, _ in kept if reach is not None]
    for reach in sorted(set(rings)):
        yield "cache", f"{rings.count(reach)} of {len(kept)} cached layers keep a ring of the last {reach:,} tokens"
    if full:
        nbytes = NBYTES * _numbers(full)
        reason = "" if rings else "no ring cache: no mask has a limited reach; "
        each = f"{len(full)} of {len(kept)} cached layers keep every token"
        yield "cache", f"{reason}{each}: {nbytes:,} bytes a token in bfloat16"
    elif rings and all(call.every == 1 for call in calls):
        yield "cache", f"the cache stops growing at {max(rings):,} tokens"
    for every in sorted({call.every for call in calls if call.every > 1}):
        blocks = [call.shapes for call in calls if call.every == every]
        nbytes = NBYTES * _numbers(blocks)
        yield "cache", f"{len(blocks)} layers keep one for {every:,} tokens: {nbytes:,} bytes each in bfloat16"
    if made_once := sum(call.how == "memory" for call in calls):
        yield "cache", f"keys and values of the encoder's output are made once, in {made_once} layers"
    for projection in dict.fromkeys(attention.spec.projection for attention in every_attention(spec)):
        if isinstance(projection, MLASpec):
            latent = f"{projection.kv_rank + projection.turning:,} numbers"
            heads = projection.n_heads * (projection.head_dim + projection.turning + projection.value_width)
            text = f"a layer keeps one latent of {latent} a token; keys and values of all heads would be {heads:,}"
            yield "cache", text


def _numbers(kept: Iterable[Mapping[str, tuple[int, ...]]]) -> int:
    """How many numbers tensors of these shapes hold."""
    return sum(math.prod(shape) for shapes in kept for shape in shapes.values())


def _export(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    try:
        family, config = fitting(FAMILIES.values(), without_pooling(spec))
        yield "export", f"saved as a Hugging Face directory for {class_of(family, config)}"
    except SpecError as error:
        yield "export", f"saved in our own format: {error}"
