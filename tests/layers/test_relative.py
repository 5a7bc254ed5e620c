"""Relative positions against slow loops: every pair of tokens by itself, forward and backward, plain, padded and cached."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from anyformer.cache import KVCache
from anyformer.errors import KernelError, SpecError
from anyformer.families import preset
from anyformer.families.compose import changed, edited
from anyformer.generation.static_cache import StaticCache
from anyformer.layers import (
    ALiBiSpec,
    AttentionSpec,
    Causal,
    ConvolvedHeadsSpec,
    Everything,
    GQASpec,
    Mask,
    Prefix,
    RelativeSinusoidSpec,
    ShawKeysSpec,
    ShawValuesSpec,
    SymmetricWindow,
)
from anyformer.layers.relative import RelativeSinusoid
from anyformer.layers.tokens import Tokens, plain_tokens
from anyformer.model import build
from anyformer.new_tokens import make_tokens
from anyformer.resizing import shrink
from anyformer.spec import Count, ModelSpec, Place, ScaleSpec, Width, Window, Workload
from tests.laws.models import ids_for, randomised
from tests.laws.tolerance import FLOAT32, close, distance, gradient_distance
from tests.laws.weights import filled, telling

HEADS, WIDTH, D, N = 4, 8, 32, 11


def attention(**options: Any) -> AttentionSpec:
    heads = GQASpec(n_heads=Count(HEADS), n_kv_heads=Count(2), head_dim=Width(WIDTH))
    return AttentionSpec(projection=heads, **{"mask": Causal(), **options})


def model_of(attention: AttentionSpec) -> ModelSpec:
    """Return a decoder of one layer without another trace of position."""
    spec = shrink(preset("llama-7b").spec)
    sublayer, feed = spec.stack.blocks[0].sublayers
    branch = sublayer.branches[0].but(mixer=attention)
    layer = spec.stack.blocks[0].but(sublayers=(sublayer.but(branches=(branch,)), feed))
    return spec.but(stack=spec.stack.but(blocks=(layer,)))


def pairwise(
    x: Tensor,
    w: dict[str, Tensor],
    sees: Callable[[int, int], bool],
    extra: Callable[..., Tensor],
    farthest: int | None,
) -> Tensor:
    """Return attention's output [token, d_model] of x, pair by pair; `extra`(q, k, i, j, head) is added before scaling."""
    q, k, v = ((x @ w[f"projection.{name}.weight"].T).view(len(x), -1, WIDTH) for name in "qkv")
    rows = []
    for i in range(len(x)):
        heads = []
        for h in range(HEADS):
            g = h // 2
            seen = [j for j in range(len(x)) if sees(i, j)]
            scores = torch.stack([q[i, h] @ k[j, g] + extra(q[i, h], k[j, g], i, j, h) for j in seen]) / WIDTH**0.5
            weights = scores.softmax(0)
            y = torch.zeros(WIDTH)
            for a, j in zip(weights, seen, strict=True):
                value = v[j, g]
                if farthest is not None:
                    value = value + w["relative_values.weight"][max(-farthest, min(farthest, j - i)) + farthest]
                y = y + a * value
            heads.append(y)
        rows.append(torch.cat(heads))
    return torch.stack(rows) @ w["projection.o.weight"].T


def shaw(w: dict[str, Tensor], farthest: int) -> Callable[..., Tensor]:
    return lambda q, k, i, j, h: q @ w["scores.0.weight"][max(-farthest, min(farthest, j - i)) + farthest]


def sinusoidal(w: dict[str, Tensor]) -> Callable[..., Tensor]:
    def term(q: Tensor, k: Tensor, i: int, j: int, h: int) -> Tensor:
        angles = (i - j) * 10_000.0 ** (-torch.arange(0, D, 2) / D)
        r = (w["scores.0.r"] @ torch.cat((angles.sin(), angles.cos()))).view(HEADS, WIDTH)[h]
        return w["scores.0.bias_key"][h] @ k + (q + w["scores.0.bias_position"][h]) @ r

    return term


CASES: dict[str, tuple[AttentionSpec, bool, int | None]] = {
    "shaw, causal": (attention(scores=(ShawKeysSpec(farthest=Window(3)),)), True, None),
    "shaw with values, causal": (
        attention(scores=(ShawKeysSpec(farthest=Window(3)),), relative_values=ShawValuesSpec(farthest=Window(2))),
        True,
        2,
    ),
    "shaw with values, both ways": (
        attention(
            scores=(ShawKeysSpec(farthest=Window(3)),),
            relative_values=ShawValuesSpec(farthest=Window(3)),
            mask=Everything(),
        ),
        False,
        3,
    ),
    "sinusoid, causal": (attention(scores=(RelativeSinusoidSpec(),)), True, None),
    "sinusoid told apart, causal": (attention(scores=(RelativeSinusoidSpec(bidirectional=True),)), True, None),
    "sinusoid, both ways": (
        attention(scores=(RelativeSinusoidSpec(bidirectional=True),), mask=Everything()),
        False,
        None,
    ),
}


@pytest.mark.parametrize("kind", ["plain", "left", "packed"])
@pytest.mark.parametrize("name", CASES)
def test_each_pair_is_as_in_the_paper(name: str, kind: str) -> None:
    """The model's attention, seen through the whole model, and pair by pair within it."""
    spec, causal, farthest = CASES[name]
    whole = model_of(spec)
    weights = telling(whole, least_row=1.0)
    model, ids = filled(whole, weights), torch.arange(2 * N).view(2, N) * 7 % 101
    mask = {"plain": None, "left": torch.ones(2, N).long(), "packed": torch.tensor([[1] * 4 + [2] * 7] * 2)}[kind]
    if kind == "left" and mask is not None:
        mask[1, :3] = 0
    caught: dict[str, Tensor] = {}
    mixer = model.stack.blocks[0].sublayers[0].branches[0].mixer
    mixer.register_forward_hook(lambda module, given, out: caught.update(x=given[0].detach(), y=out[0]))
    model(ids, mask)
    leaves = {name: parameter.detach().clone().requires_grad_() for name, parameter in mixer.named_parameters()}
    extra = sinusoidal(leaves) if "sinusoid" in name else shaw(leaves, 3)
    generator, ours, theirs = torch.Generator().manual_seed(0), torch.zeros(()), torch.zeros(())
    for row in range(2):
        for document in {1} if mask is None else set(mask[row].tolist()) - {0}:
            real = torch.arange(N) if mask is None else (mask[row] == document).nonzero()[:, 0]
            expected = pairwise(caught["x"][row, real], leaves, lambda i, j: j <= i or not causal, extra, farthest)
            found = caught["y"][row, real]
            assert distance(found, expected) < FLOAT32
            weight = torch.randn(expected.shape, generator=generator)
            ours, theirs = ours + (found * weight).sum(), theirs + (expected * weight).sum()
    ours.backward()
    theirs.backward()
    found_gradients = {name: parameter.grad for name, parameter in mixer.named_parameters()}
    assert gradient_distance(found_gradients, {name: leaf.grad for name, leaf in leaves.items()}) < FLOAT32


@pytest.mark.parametrize("past", [0, 5])
def test_the_shifted_rows_are_the_gathered_ones(past: int) -> None:
    """The fast way for plain tokens against the way for any positions, forward and backward."""
    spec, place = RelativeSinusoidSpec(), Place(D, (HEADS, WIDTH))
    part = RelativeSinusoid(spec, place)
    for parameter in part.parameters():
        torch.nn.init.normal_(parameter)
    keys = plain_tokens(past + 6, torch.device("cpu"))
    query = plain_tokens(6, torch.device("cpu"), past)
    seen = query.as_queries().position >= keys.as_keys().position
    results = []
    for strip in (False, True):
        q = torch.randn(2, HEADS, 6, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()
        given = [tokens if not strip else Tokens(tokens.position) for tokens in (query, keys)]
        part.zero_grad()
        y = torch.where(seen, part.by_distance(q, given[0].as_queries(), given[1].as_keys()), 0.0)
        (y * torch.arange(y.numel()).view(y.shape).sin()).sum().backward()
        assert q.grad is not None
        assert part.r.grad is not None
        results.append((y.detach(), q.grad, part.r.grad.clone()))
    assert all(distance(a, b) < FLOAT32 for a, b in zip(*results, strict=True))
    assert results[0][0].abs().max() > 1


@pytest.mark.parametrize("mask", [Everything(), Causal() | Prefix(size=Window(4)), SymmetricWindow(radius=Window(2))])
def test_later_keys_that_a_mask_shows_are_all_at_no_distance(mask: Mask) -> None:
    """Whether or not the tokens are plain, and whatever other rows say."""
    spec = changed(shrink(preset("gopher-44m").spec), AttentionSpec, mask=mask)
    model, ids = randomised(spec), ids_for(spec, 2, 9)
    both = model(ids).logits
    close(model(ids, position_ids=torch.arange(9).expand(2, -1)).logits, both)
    close(model(ids[1:]).logits, both[1:])


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("batch", "n", "past"), [(1, 1, 6), (2, 1, 7), (1, 1, 8), (1, 2, 15), (3, 2, 30), (1, 5, 0)])
def test_projected_queries_give_what_projected_distances_do(
    batch: int, n: int, past: int, bidirectional: bool, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward with and without gradients (tables are kept only without), gradients, and the products that are counted."""
    spec, place, keys = RelativeSinusoidSpec(bidirectional=bidirectional), Place(D, (HEADS, WIDTH)), past + n
    part = RelativeSinusoid(spec, place)
    for i, parameter in enumerate(part.parameters()):
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(i))
    tokens = plain_tokens(n, torch.device("cpu"), past), plain_tokens(keys, torch.device("cpu"))
    query, key = tokens if plain else (Tokens(given.position) for given in tokens)
    seen = query.as_queries().position >= key.as_keys().position
    results, by_rule = [], spec.folds(place, batch, n, keys, keys + n - 1 if bidirectional else keys)
    assert by_rule == (n <= 2 and past > 0)
    with FlopCounterMode(display=False) as counter:
        part.by_distance(torch.zeros(batch, HEADS, n, WIDTH), query.as_queries(), key.as_keys())
    assert counter.get_total_flops() == spec.cost(place, Workload(batch=batch, query=n, past=past)).flops
    for folds in (True, False):
        monkeypatch.setattr(RelativeSinusoidSpec, "folds", lambda *sizes, folds=folds: folds)
        part.zero_grad()
        q = torch.randn(batch, HEADS, n, WIDTH, generator=torch.Generator().manual_seed(9)).requires_grad_()
        y = torch.where(seen, part.by_distance(q, query.as_queries(), key.as_keys()), 0.0)
        (y * torch.arange(y.numel()).view(y.shape).sin()).sum().backward()
        with torch.no_grad():
            again = torch.where(seen, part.by_distance(q, query.as_queries(), key.as_keys()), 0.0)
        assert q.grad is not None
        assert part.r.grad is not None
        results.append((y.detach(), again, q.grad, part.r.grad.clone()))
    assert all(distance(a, b) < FLOAT32 for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[1]])
def test_cached_is_uncached(name: str) -> None:
    spec = model_of(CASES[name][0])
    model, ids = filled(spec, telling(spec, least_row=1.0)), torch.arange(14)[None] * 5 % 101
    with torch.no_grad():
        whole = model(ids).logits
        cache = KVCache(spec, length=14)
        parts = [model(chunk, cache=cache).logits for chunk in ids.split([6, 1, 3, 1, 3], 1)]
    assert distance(torch.cat(parts, 1), whole) < FLOAT32


def between(part: RelativeSinusoid, q: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """q·(W r) [batch, heads, query, key], pair by pair, for positions [batch, token]."""
    out, width = torch.zeros(*q.shape[:3], key.shape[1]), part.place.d_model
    for b, i, j in itertools.product(range(len(q)), range(q.shape[2]), range(key.shape[1])):
        d = int(query[b, i] - key[b, j])
        d = d if part.spec.bidirectional else max(0, d)
        angles = d * 10_000.0 ** (-torch.arange(0, width, 2) / width)
        r = part.r @ torch.cat((angles.sin(), angles.cos()))
        out[b, :, i, j] = (q[b, :, i] * r.view(q.shape[1], -1)).sum(-1)
    return out


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("start", "n", "source"), [(0, 6, 4), (9, 1, 4), (9, 3, 4), (0, 1, 7), (2, 3, 9), (0, 9, 9)])
def test_distances_to_the_tokens_of_another_text(start: int, n: int, source: int, bidirectional: bool) -> None:
    """Plain, and where only tensors say the positions; and the products that are counted, against those that are done."""
    spec, place = RelativeSinusoidSpec(bidirectional=bidirectional), Place(D, (HEADS, WIDTH))
    part = RelativeSinusoid(spec, place)
    for i, parameter in enumerate(part.parameters()):
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(i))
    q = torch.randn(2, HEADS, n, WIDTH, generator=torch.Generator().manual_seed(9))
    query, key = plain_tokens(n, torch.device("cpu"), start), plain_tokens(source, torch.device("cpu"))
    expected = between(part, q, query.position.expand(2, -1), key.position.expand(2, -1))
    unknown = Tokens(query.position), Tokens(key.position, leaps=True)
    for a, b in ((query, key), unknown, (query, unknown[1])):
        assert distance(part.by_distance(q, a.as_queries(), b.as_keys(), hides_later=False), expected) < FLOAT32
        with torch.no_grad():
            assert distance(part.by_distance(q, a.as_queries(), b.as_keys(), False), expected) < FLOAT32
    with FlopCounterMode(display=False) as counter:
        part.by_distance(q, query.as_queries(), key.as_keys(), hides_later=False)
    work = Workload(batch=2, query=n, past=start, memory=source, own=False)
    assert counter.get_total_flops() == spec.cost(place, work).flops


def reader(bidirectional: bool, mask: Mask) -> ModelSpec:
    """An encoder–decoder whose cross-attention alone reads distances."""
    spec, scores = shrink(preset("t5-small").spec), (RelativeSinusoidSpec(bidirectional=bidirectional),)
    return edited(
        spec, AttentionSpec, lambda a: a.but(scores=scores, mask=mask) if a.reads == "memory" else a.but(scores=())
    )


@pytest.mark.parametrize("mask", [Everything(), Causal()])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_text_that_goes_on_behind_its_source(bidirectional: bool, mask: Mask) -> None:
    """Cached in pieces, padded on the left, decoded by a static cache: each as the whole text, which begins as its beginning."""
    spec = reader(bidirectional, mask)
    model, source, ids = randomised(spec), ids_for(spec, 1, 4), ids_for(spec, 1, 12, seed=3)
    with torch.no_grad():
        whole = model(source, decoder_input_ids=ids).logits
        for n in (1, 3, 8):
            close(model(source, decoder_input_ids=ids[:, :n]).logits, whole[:, :n])
        for sizes in ([1] * 12, [5, 7], [11, 1]):
            cache = model.new_cache(1, 12)
            parts = [model(source, decoder_input_ids=part, cache=cache).logits for part in ids.split(sizes, 1)]
            close(torch.cat(parts, 1), whole)
        padded, seen = torch.cat((ids[:, :2], ids), 1), torch.tensor([[0, 0] + [1] * 12])
        given = {"decoder_input_ids": padded, "decoder_attention_mask": seen}
        close(model(source, **given).logits[:, 2:], whole)
        close(model(torch.cat((source, source), 1), torch.tensor([[0] * 4 + [1] * 4]), **given).logits[:, 2:], whole)
        cache = model.new_cache(1, 16)
        model(source, decoder_input_ids=padded[:, :3], decoder_attention_mask=seen[:, :3], cache=cache)
        static = StaticCache(cache)
        parts = [model(decoder_input_ids=one, cache=static).logits for one in ids[:, 1:].split(1, 1)]
        close(torch.cat(parts, 1), whole[:, 1:])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_positions_that_leave_numbers_out(bidirectional: bool) -> None:
    """Within a document: distances are those of the positions, at once, in pieces, and in a graph."""
    spec = changed(shrink(preset("gopher-44m").spec), RelativeSinusoidSpec, bidirectional=bidirectional)
    model, ids, at = randomised(spec), ids_for(spec, 2, 10), torch.arange(10)[None] * 3
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    caught: dict[str, Any] = {}
    part = model.stack.blocks[0].sublayers[0].branches[0].mixer.scores[0]
    part.register_forward_hook(lambda module, given, out: caught.update(content=given[0], out=out))
    with torch.no_grad():
        whole = model(ids, mask, at).logits
        content = caught["content"]
        expected = between(part, content.q + part.bias_position[:, None], at.expand(2, -1), at.expand(2, -1))
        expected = (expected + (part.bias_key[:, None] * content.keys).sum(-1)[:, :, None]) * content.scale
        seen = (at[0, :, None] >= at[0]) & (mask[:, None, None] > 0)
        close(torch.where(seen, caught["out"], 0.0), torch.where(seen, expected, 0.0))
        for n in (1, 4):
            close(model(ids[:1, :n], mask[:1, :n], at[:, :n]).logits, whole[:1, :n])
        for sizes in ([4, 6], [9, 1], [1, 1, 8]):
            cache, start, parts = model.new_cache(2, 10), 0, []
            for size in sizes:
                here = slice(start, start := start + size)
                parts.append(model(ids[:, here], mask[:, here], at[:, here], cache=cache).logits)
            close(torch.cat(parts, 1)[mask > 0], whole[mask > 0])
        cache = model.new_cache(2, 10)
        model(ids[:, :5], mask[:, :5], at[:, :5], cache=cache)
        close(model(ids[:, 5:9], mask[:, 5:9], at[:, 5:9], cache=cache).logits, whole[:, 5:9])
        torch._dynamo.reset()
        close(torch.compile(model, backend="eager")(ids, mask, at).logits[mask > 0], whole[mask > 0])


def test_positions_that_count_by_one_keep_the_table() -> None:
    """As training on packed rows gives them: whether they do is looked at once a pass, and only where something asks."""
    spec = shrink(preset("gopher-44m").spec)
    ids, documents = ids_for(spec, 1, 7), torch.tensor([[1, 1, 1, 2, 2, 2, 0]])
    counted, given = torch.tensor([[0, 1, 2, 0, 1, 2, 0]]), torch.tensor([[0, 1, 2, 0, 1, 2, 9]])
    for positions, leaps in ((counted, False), (given, False), (counted + (documents == 2) * counted, True)):
        assert make_tokens(ids, documents, positions, by_count=True).leaps == leaps
    assert not make_tokens(ids, documents, counted * 2).leaps


def test_what_cannot_be_is_refused() -> None:
    spec = model_of(CASES["shaw with values, causal"][0])
    with pytest.raises(KernelError, match=r"sdpa gives no weights, which ShawValues are made of; use kernel='eager'"):
        build(spec)(torch.zeros(1, 3).long(), kernel="sdpa")
    with pytest.raises(SpecError, match=r"ShawKeys\.farthest = 0 must be at least 1"):
        changed(CASES["shaw, causal"][0], ShawKeysSpec, farthest=Window(0))


@pytest.mark.parametrize(
    "fields",
    [{"n_kv_heads": Count(1)}, {"with_input": True}, {"adapter": Width(2)}, {"convolved": ConvolvedHeadsSpec()}],
)
def test_distances_are_projected_as_tokens_are_only_where_these_are_so(fields: dict[str, Any]) -> None:
    """DeBERTa's: one line where the specification is made; in a pass maps of other widths met, or other numbers."""
    spec = shrink(preset("deberta-v3-base").spec)
    with pytest.raises(
        SpecError, match=r"Attention.scores = .* projects distances as the layer projects its tokens"
    ) as error:
        changed(spec, GQASpec, **fields)
    assert "\n" not in str(error.value)
    attention = next(spec.nested(AttentionSpec))
    with pytest.raises(SpecError, match="give it a projection of its own"):
        attention.but(reads="layer", keys="k")


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_heads_of_two_widths_have_their_own_alibi(kernel: str) -> None:
    """What layers add alike is prepared once; scaled by the width of a head it is the same as with the number at that width."""
    one = changed(shrink(preset("llama2-7b").spec), GQASpec, rotary=None, head_dim=Width(8))

    def wide(scale: ScaleSpec) -> ModelSpec:
        narrow = changed(one, AttentionSpec, scores=(ALiBiSpec(scale=ScaleSpec(power=-0.5)),))
        other = changed(changed(one, GQASpec, head_dim=Width(32)), AttentionSpec, scores=(ALiBiSpec(scale=scale),))
        blocks = (narrow.stack.blocks[0], other.stack.blocks[1])
        return narrow.but(stack=narrow.stack.but(blocks=blocks))

    by_width, by_number = wide(ScaleSpec(power=-0.5)), wide(ScaleSpec(factor=32**-0.5))
    ids = ids_for(by_width, 1, 9)
    found, expected = (build(spec, seed=0)(ids, kernel=kernel).logits for spec in (by_width, by_number))
    close(found, expected)
