"""The encoder's tokens beside a layer's own in one softmax: against plain sums, cached, counted; what it does not go with."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.cache import cache_kinds
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import (
    AttentionSpec,
    Causal,
    CompressorSpec,
    LookAhead,
    MarkedKeys,
    RelativeBucketsSpec,
    SlidingWindow,
    SSMaxSpec,
)
from anyformer.layers.tokens import plain_tokens
from anyformer.model import build
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, Place, Spec, TableSpec, Width, Window, Workload

SPEC = shrink(preset("t5gemma2-270m-270m").spec)
ATTENTION: Any = next(SPEC.stack.nested(AttentionSpec))


def turned(x: Tensor, theta: float) -> Tensor:
    """Each [token, head, width] by its position: halves of a head are the two axes of planes (RoFormer, equation 34)."""
    half = x.shape[-1] // 2
    angles = torch.arange(len(x))[:, None, None] * theta ** (-torch.arange(half) / half)
    one, other = x[..., :half], x[..., half:]
    return torch.cat((one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin()), -1)


def normed(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain


def slowly(module: Any, x: Tensor, memory: Tensor) -> Tensor:
    """[query, d_model] of one row, a query and a head at a time; keys of the memory do not turn, and all are seen."""
    p, spec = module.projection, module.spec
    n, own, width = spec.projection.n_heads, spec.projection.kv_heads, len(p.norm_key.weight)
    eps, theta = spec.projection.norm_key.eps, spec.projection.rotary.theta
    gains = [spec.projection.norm_key.weight_offset + each.weight for each in (p.norm_query, p.norm_key)]
    q = turned(normed((x @ p.q.weight.T).view(len(x), n, width), gains[0], eps), theta)
    k = turned(normed((x @ p.k.weight.T).view(len(x), own, width), gains[1], eps), theta)
    v = (x @ p.v.weight.T).view(len(x), own, width)
    more_k = normed((memory @ p.k.weight.T).view(len(memory), own, width), gains[1], eps)
    more_v = (memory @ p.v.weight.T).view(len(memory), own, width)
    reach, rows = spec.mask.reach() or len(x), []
    for i in range(len(x)):
        heads = []
        for h in range(n):
            first, g = max(0, i - reach + 1), h * own // n
            keys = torch.cat((k[first : i + 1, g], more_k[:, g]))
            values = torch.cat((v[first : i + 1, g], more_v[:, g]))
            weights = (keys @ q[i, h] * module.scale).exp()
            heads.append((weights[:, None] * values).sum(0) / weights.sum())
        rows.append(torch.cat(heads))
    return torch.stack(rows) @ p.o.weight.T


def made(spec: ModelSpec = SPEC) -> Any:
    model = build(spec, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    return model.double()


def given(n: int = 9, n_source: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randint(0, SPEC.vocab_size, (2, each), generator=generator) for each in (n, n_source))  # type: ignore[return-value]


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "rows"])
def test_it_is_one_softmax_over_both(kernel: str) -> None:
    """Of every layer, windows and full ones, forward, and backward into what both were made of."""
    model, (ids, source), seen = made(), given(), []

    def keep(module: Any, args: Any, result: Any) -> None:
        seen.append((module, args[0], args[1].memory, result[0]))

    own = [module for module in model.stack.modules() if isinstance(getattr(module, "spec", None), AttentionSpec)]
    for module in own:
        module.register_forward_hook(keep)
    model(source, decoder_input_ids=ids, kernel=kernel)
    assert len(seen) == len(own) > 1
    assert len({module.spec.mask for module, *_ in seen}) == 2
    for module, x, memory, y in seen:
        slow = torch.stack([slowly(module, x[row], memory[row]) for row in range(2)])
        torch.testing.assert_close(y, slow, rtol=1e-9, atol=1e-9)
        fast_of, slow_of = (
            torch.autograd.grad(each.square().sum(), (x, memory), retain_graph=True) for each in (y, slow)
        )
        for mine, theirs in zip(fast_of, slow_of, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-8)


def test_the_memory_is_kept_once_beside_what_grows() -> None:
    """A token at a time, where the encoder's text is padded; the cache's bytes are those that are foreseen."""
    model, (ids, source) = made().float(), given()
    mask = torch.ones_like(source)
    mask[1, -3:] = 0
    with torch.no_grad():
        whole = model(source, mask, decoder_input_ids=ids).logits
        cache = model.new_cache(2, ids.shape[1])
        parts = [model(source, mask, decoder_input_ids=ids[:, :2], cache=cache).logits]
        parts += [model(decoder_input_ids=ids[:, i : i + 1], cache=cache).logits for i in range(2, ids.shape[1])]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-4)
    kinds = {kind.kind: kind for kind in cache_kinds(SPEC, batch=2, seq_len=9, source_len=7, dtype=torch.float32)}
    assert kinds["memory"].calls == len(SPEC.stack.blocks)
    assert sum(kind.nbytes for kind in kinds.values()) == cache.nbytes


def test_pairs_of_both_are_counted() -> None:
    """Of n queries, n (n + 1) / 2 within windows that hide nothing, and n for each token of the encoder."""
    wide: Any = ATTENTION.but(mask=Causal())
    n_heads, width = wide.projection.n_heads, wide.projection.head_dim
    place = Place(d_model=SPEC.stack.d_model, d_source=SPEC.stack.d_model)
    for past, query, memory in ((0, 9, 7), (5, 4, 7)):
        found = wide.cost(place, Workload(batch=1, query=query, past=past, memory=memory))
        pairs = sum(i + 1 for i in range(past, past + query)) + query * memory
        assert found["scores"] == found["values"] == 2 * n_heads * width * pairs
        made_of = query + (0 if past else memory)
        d, kv = SPEC.stack.d_model, wide.projection.kv_heads * width
        assert found["projections"] == 4 * d * (query * n_heads * width + made_of * kv)


def test_a_window_may_look_ahead_alone() -> None:
    back, ahead = SlidingWindow(size=Window(3)), LookAhead(size=Window(2))
    both = back & ahead
    assert both.band() == (2, 2)
    assert (back & LookAhead(size=Window(5))).band() == (2, 5)
    assert ahead.band() == (math.inf, 2)
    places = plain_tokens(9, torch.device("cpu"))
    seen = both(places.as_queries(), places.as_keys(), torch.zeros(1, 1, 1, dtype=torch.long)).squeeze()
    assert seen.tolist() == [[i - 3 < j <= i + 2 for j in range(9)] for i in range(9)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"compressor": CompressorSpec(every=Window(4))}, "has no place for compressor"),
        ({"scores": (RelativeBucketsSpec(),)}, "has no place for scores"),
        ({"query_scale": SSMaxSpec()}, "has no place for query_scale"),
        ({"mask": Causal() & ~MarkedKeys()}, "has no place for marks"),
        ({"keys": "k"}, "take GQA that reads 'self'"),
        ({"reads": "input"}, "take GQA that reads 'self'"),
    ],
)
def test_what_it_does_not_go_with_is_refused(fields: dict[str, Spec], said: str) -> None:
    with pytest.raises(SpecError, match=rf"Attention\.memory = True .*{said}"):
        ATTENTION.but(**fields)


def test_it_needs_an_encoder_as_wide() -> None:
    with pytest.raises(SpecError, match=r"Attention.memory = true needs an encoder to read from; give the model one"):
        build(SPEC.but(encoder=None))
    narrow = shrink(preset("t5gemma2-270m-270m").spec)
    assert narrow.encoder is not None
    narrow = changed(narrow, TableSpec, shared=None)
    assert narrow.encoder is not None
    other = narrow.but(encoder=narrow.encoder.but(d_model=Width(2 * narrow.stack.d_model)))
    with pytest.raises(SpecError, match=r"Attention.memory = True .* make both as wide"):
        build(other)


def test_a_decoder_alone_reads_itself() -> None:
    alone = af.load_spec("t5gemma2-270m-270m+stacks=gemma3-1b")
    assert alone.encoder is None
    assert not any(attention.memory for attention in alone.nested(AttentionSpec))
    assert af.cost(alone)
