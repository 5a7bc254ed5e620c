"""What follows from an architecture here: kernels, the cache, where its weights can go, and laws that it waives."""

from __future__ import annotations

import math
from collections.abc import Iterator

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
    yield from _waived(spec)
    yield from _compiled(spec)


def _kernels(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    said: dict[str, list[Attention]] = {}
    for attention in attentions(spec):
        said.setdefault(_kernel(attention, spec), []).append(attention)
    for text, found in said.items():
        yield "kernel", f"attention in {where(found, spec)} runs on {text}"


def _kernel(attention: Attention, spec: ModelSpec) -> str:
    taken = choose(None, attention.spec).name
    refused = []
    for name, kernel in KERNELS.items():
        if name == taken:
            break
        refused.append(kernel.refuses(attention.spec))
    if refused:
        return f"{taken}: {', '.join(filter(None, refused))}"
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
    ahead = [
        attention
        for attention in attentions(spec)
        if attention.stack != "encoder"
        and attention.spec.reads != "memory"
        and sees_later_tokens(attention.spec.mask, after_prefix=True)
    ]
    if ahead:
        text = f"tokens are not decoded one by one: attention in {where(ahead, spec)} sees what comes after"
        yield "cache", text
        return
    calls = list(cached_calls(spec))
    own = [(mixer, shapes) for mixer, shapes in calls if not mixer.keeps_memory()]
    full = [shapes for mixer, shapes in own if mixer.reach() is None]
    rings = [reach for mixer, _ in own if (reach := mixer.reach()) is not None]
    for reach in sorted(set(rings)):
        text = f"{rings.count(reach)} of {len(own)} cached layers keep a ring of the last {reach:,} tokens"
        yield "cache", text
    if full:
        nbytes = NBYTES * sum(math.prod(shape) for shapes in full for shape in shapes.values())
        reason = "" if rings else "no ring cache: no mask has a limited reach; "
        each = f"{len(full)} of {len(own)} cached layers keep every token"
        yield "cache", f"{reason}{each}: {nbytes:,} bytes a token in bfloat16"
    elif rings:
        yield "cache", f"the cache stops growing at {max(rings):,} tokens"
    if len(own) < len(calls):
        text = f"keys and values of the encoder's output are made once, in {len(calls) - len(own)} layers"
        yield "cache", text
    yield from _latent(spec)


def _latent(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    for projection in dict.fromkeys(
        a.spec.projection for a in attentions(spec) if isinstance(a.spec.projection, MLASpec)
    ):
        latent = projection.kv_rank + projection.turning
        heads = projection.n_heads * (projection.head_dim + projection.turning + projection.value_width)
        text = (
            f"a layer keeps one latent of {latent:,} numbers a token; keys and values of all heads would be {heads:,}"
        )
        yield "cache", text


def _export(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    try:
        text = f"saved as a Hugging Face directory for {fitting(FAMILIES.values(), spec)[0].architecture}"
    except SpecError as error:
        text = f"saved in our own format: {error}"
    yield "export", text


def _waived(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    for kind, caveat in dict.fromkeys((v.kind, caveat) for v in parts(spec) for caveat in v.caveats()):
        yield f"law of {caveat.law}", f"{kind} waives it: {caveat.reason}"


def _compiled(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    text, own = "one graph without a break", own_parts(spec)
    if own:
        text = f"not known: {', '.join(own)} {'is a part' if len(own) == 1 else 'are parts'} of your own"
    yield "torch.compile", text
