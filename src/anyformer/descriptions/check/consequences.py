"""What follows from an architecture here: kernels, the cache, where its weights can go, and laws that it waives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import takewhile

from anyformer.descriptions.facts import Attention, attentions, masks_by_head, own_parts, parts, where
from anyformer.errors import SpecError
from anyformer.families import FAMILIES
from anyformer.families.hf.mapping import fitting
from anyformer.kernels import KERNELS, choose
from anyformer.layers import Causal, Everything, MLASpec
from anyformer.layers.causality import sees_later_tokens
from anyformer.spec import ModelSpec, cached_calls

LENGTH = 2048  # tokens, where no context is given
NBYTES = 2  # of a number in bfloat16


def consequences(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    """Them by subject."""
    yield from _kernels(spec)
    yield from _cache(spec)
    yield from _export(spec)
    for kind, caveat in dict.fromkeys((v.kind, caveat) for v in parts(spec) for caveat in v.caveats()):
        yield f"law of {caveat.law}", f"{kind} waives it: {caveat.reason}"
    own = own_parts(spec)
    unknown = f"not known: {', '.join(own)} {'is a part' if len(own) == 1 else 'are parts'} of your own"
    yield "torch.compile", unknown if own else "one graph without a break"


def _kernels(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    said: dict[str, list[Attention]] = {}
    for attention in attentions(spec):
        said.setdefault(_kernel(attention, spec), []).append(attention)
    for text, found in said.items():
        yield "kernel", f"attention in {where(found, spec)} runs on {text}"


def _kernel(attention: Attention, spec: ModelSpec) -> str:
    taken = choose(None, attention.spec).name
    faster = list(takewhile(lambda name: name != taken, KERNELS))
    if faster:
        return f"{taken}: {', '.join(filter(None, (KERNELS[name].refuses(attention.spec) for name in faster)))}"
    if taken != "sdpa":
        return taken
    if attention.spec.scores:
        kinds = ", ".join(score.kind for score in attention.spec.scores)
        return f"sdpa with a table of scores [heads, query, key] ({kinds})"
    length = spec.context or LENGTH
    left = attention.spec.mask.within((0, length), (0, length))
    if attention.spec.reads == "memory" or left in (Causal(), Everything()):
        return "sdpa without a mask's tensor"
    n = masks_by_head(attention)
    shape = "[query, key]" if n == 1 else f"[{n} heads, query, key]"
    return f"sdpa with a dense mask {shape}, {n * length * length / 2**20:,.0f} MiB at {length:,} tokens"


def _cache(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    own = (a for a in attentions(spec) if a.stack != "encoder" and a.spec.reads != "memory")
    if ahead := [a for a in own if sees_later_tokens(a.spec.mask, after_prefix=True)]:
        yield "cache", f"tokens are not decoded one by one: attention in {where(ahead, spec)} sees what comes after"
        return
    calls = list(cached_calls(spec))
    kept = [(mixer.reach(), shapes) for mixer, shapes in calls if not mixer.keeps_memory()]
    full = [shapes for reach, shapes in kept if reach is None]
    rings = [reach for reach, _ in kept if reach is not None]
    for reach in sorted(set(rings)):
        yield "cache", f"{rings.count(reach)} of {len(kept)} cached layers keep a ring of the last {reach:,} tokens"
    if full:
        nbytes = NBYTES * sum(math.prod(shape) for shapes in full for shape in shapes.values())
        reason = "" if rings else "no ring cache: no mask has a limited reach; "
        each = f"{len(full)} of {len(kept)} cached layers keep every token"
        yield "cache", f"{reason}{each}: {nbytes:,} bytes a token in bfloat16"
    elif rings:
        yield "cache", f"the cache stops growing at {max(rings):,} tokens"
    if len(kept) < len(calls):
        yield "cache", f"keys and values of the encoder's output are made once, in {len(calls) - len(kept)} layers"
    for projection in dict.fromkeys(attention.spec.projection for attention in attentions(spec)):
        if isinstance(projection, MLASpec):
            latent = f"{projection.kv_rank + projection.turning:,} numbers"
            heads = projection.n_heads * (projection.head_dim + projection.turning + projection.value_width)
            yield (
                "cache",
                f"a layer keeps one latent of {latent} a token; keys and values of all heads would be {heads:,}",
            )


def _export(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    try:
        yield "export", f"saved as a Hugging Face directory for {fitting(FAMILIES.values(), spec)[0].architecture}"
    except SpecError as error:
        yield "export", f"saved in our own format: {error}"
