"""Latent attention is what its paper writes; expanded and absorbed are one function; what is cached and computed is as stated."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from anyformer.cache import KVCache
from anyformer.errors import SpecError
from anyformer.families.compose import block, language_model, pre_norm, repeat
from anyformer.kernels import choose
from anyformer.layers import (
    ALiBiSpec,
    AttentionSpec,
    Causal,
    Everything,
    FeedForwardSpec,
    LogN,
    MLASpec,
    RMSNormSpec,
    RotarySpec,
    ShawKeysSpec,
    SiLU,
    SlidingWindow,
)
from anyformer.layers.context import ForwardContext
from anyformer.layers.mla import MLA
from anyformer.layers.tokens import plain_tokens
from anyformer.model import Transformer, build
from anyformer.observation.passes import forward_pass
from anyformer.resizing import resize, shrink
from anyformer.spec import Cost, Count, Length, MapSpec, ModelSpec, Place, ScaleSpec, Width, Window, Workload
from tests.laws.combinations import decoders, latent, without_blocks
from tests.laws.models import ids_for, randomised
from tests.laws.parity import InDouble
from tests.laws.test_cache import check_cached
from tests.laws.tolerance import FLOAT32, close, distance, gradient_distance
from tests.laws.weights import edited

ROUNDING = 1e-9  # float64 rounds to 1e-16; no network drawn enlarges that a million times
# DeepSeek-V3's attention: arXiv:2412.19437, section 4.2.
V3 = MLASpec(
    n_heads=Count(128),
    kv_rank=Width(512),
    query_rank=Width(1536),
    head_dim=Width(128),
    rotary_dim=Width(64),
    rotary=RotarySpec(layout="interleaved"),
)
SMALL = MLASpec(
    n_heads=Count(3),
    kv_rank=Width(10),
    query_rank=Width(14),
    head_dim=Width(6),
    rotary_dim=Width(4),
    value_dim=Width(5),
    rotary=RotarySpec(layout="interleaved"),
)


class AlwaysAbsorbed(MLASpec):
    """Reads what is stored as it is, whatever that costs."""

    def absorbs(self, query: int, keys: int) -> bool:
        return True


class NeverAbsorbed(MLASpec):
    """Expands what is stored, whatever that costs."""

    def absorbs(self, query: int, keys: int) -> bool:
        return False


@st.composite
def latent_decoders(draw: st.DrawFn) -> ModelSpec:
    """Draw a decoder with latent attention in every layer; scores of content, and pairs of heads, would forbid to absorb."""
    projection = draw(latent())

    def latent_attention(attention: AttentionSpec) -> AttentionSpec:
        scores = tuple(score for score in attention.scores if not score.reads_content)
        indexer = attention.indexer  # one whose choices are of some heads each goes by how many there are
        indexer = None if indexer is not None and projection.n_heads % indexer.choices else indexer
        turned = projection.rotary is not None and projection.rotary.learned is not None
        indexer = None if indexer is not None and turned and indexer.head_dim < projection.turning else indexer
        return attention.but(
            projection=projection, scores=scores, indexer=indexer, relative_values=None, difference=None
        )

    return edited(without_blocks(draw(decoders())), AttentionSpec, latent_attention)


def forced(spec: ModelSpec, kind: type[MLASpec]) -> ModelSpec:
    return edited(spec, MLASpec, lambda mla: kind(**mla.values()))


def decoder(projection: MLASpec = SMALL, d_model: int = 24, **attention: Any) -> ModelSpec:
    attend = AttentionSpec(projection=projection, **{"mask": Causal(), **attention})
    feed = FeedForwardSpec(d_ff=Width(d_model), activation=SiLU())
    norm = RMSNormSpec()
    layer = block(pre_norm(norm, attend), pre_norm(norm, feed))
    return language_model(vocab_size=37, d_model=d_model, blocks=repeat(layer, 2), norm=norm, tied=False)


def by_the_paper(w: dict[str, Tensor], x: Tensor, spec: MLASpec) -> Tensor:
    """Return equations 37 to 47 of arXiv:2405.04434 for one sequence x [token, d_model], a token and a head at a time."""
    n, h, d, r = len(x), spec.n_heads, spec.head_dim, spec.turning

    def rms(v: Tensor, gain: Tensor) -> Tensor:
        return v / (v.square().mean() + 1e-6).sqrt() * gain

    def rope(v: Tensor, position: int) -> Tensor:
        pairs = torch.view_as_complex(v.reshape(-1, 2))
        angles = position * 10_000.0 ** -(torch.arange(0, r, 2) / r)
        return torch.view_as_real(pairs * torch.polar(torch.ones(r // 2).double(), angles.double())).flatten()

    latents = [rms(w["kv_down.weight"] @ row, w["norm_kv.weight"]) for row in x]
    shared = [rope(w["k_rotary.weight"] @ row, t) for t, row in enumerate(x)]
    out = torch.zeros_like(x)
    for t in range(n):
        query = w["q.weight"] @ rms(w["q_down.weight"] @ x[t], w["norm_query.weight"])
        heads = []
        for i in range(h):
            q = query[i * (d + r) : (i + 1) * (d + r)]
            q = torch.cat((q[:d], rope(q[d:], t)))
            keys = [torch.cat(((w["k.weight"] @ latents[s])[i * d : (i + 1) * d], shared[s])) for s in range(t + 1)]
            v = spec.value_width
            values = [(w["v.weight"] @ latents[s])[i * v : (i + 1) * v] for s in range(t + 1)]
            weights = torch.stack([q @ k / math.sqrt(d + r) for k in keys]).softmax(0)
            heads.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
        out[t] = w["o.weight"] @ torch.cat(heads)  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize("kind", [NeverAbsorbed, AlwaysAbsorbed])
def test_it_is_what_the_paper_writes_forward_and_backward(kind: type[MLASpec]) -> None:
    projection = kind(**SMALL.values())
    model = randomised(decoder(projection)).double()
    attention = model.stack.blocks[0].sublayers[0].branches[0].mixer
    generator = torch.Generator().manual_seed(3)
    x, towards = (torch.randn(1, 9, 24, generator=generator, dtype=torch.float64) for _ in range(2))
    kernels = {spec.key: choose("eager", spec) for spec in model.spec.nested() if isinstance(spec, AttentionSpec)}
    got, _ = attention(x.requires_grad_(), ForwardContext(plain_tokens(9, x.device), kernels), _no_store())
    weights = {name: value.detach().requires_grad_() for name, value in attention.projection.named_parameters()}
    expected = by_the_paper(weights, x[0], projection)
    # Angles, and softmax in the eager kernel, are taken in float32.
    assert distance(got[0], expected) < 1e-6
    (got * towards).sum().backward()
    ours = {name: value.grad for name, value in attention.projection.named_parameters()}
    wanted = torch.autograd.grad((expected * towards[0]).sum(), list(weights.values()))
    assert gradient_distance(ours, dict(zip(weights, wanted, strict=True))) < 2e-6


def _no_store() -> Any:
    from anyformer.layers import Store

    return Store()


@given(spec=latent_decoders(), left=st.integers(0, 4), right=st.integers(0, 3), kernel=st.sampled_from([None, "eager"]))
@settings(max_examples=40, deadline=None)
def test_absorbed_is_expanded_forward_and_backward(spec: ModelSpec, left: int, right: int, kernel: str | None) -> None:
    """With any mask, sink, cap, score, norm and padding; in float64, since some random networks enlarge rounding."""
    assume(not spec.stack.residual.undoes)  # a backward pass runs layers again, outside of InDouble
    absorbed, expanded = (randomised(forced(spec, kind)).double() for kind in (AlwaysAbsorbed, NeverAbsorbed))
    ids = ids_for(spec, 2, 11)
    mask = torch.ones_like(ids)
    mask[0, :left] = 0
    if right:
        mask[1, -right:] = 0
    gradients = []
    with InDouble():
        a, b = (model(ids, mask, kernel=kernel).logits for model in (absorbed, expanded))
        assert distance(a, b) < ROUNDING
        weights = torch.randn(b.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        for model, logits in ((absorbed, a), (expanded, b)):
            (logits * weights).sum().backward()
            gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    # Where a random network's weights are all on one key, gradients of queries and keys are nothing but rounding.
    assert gradient_distance(*gradients, share=1e-6) < ROUNDING


@given(spec=latent_decoders(), kind=st.sampled_from([AlwaysAbsorbed, NeverAbsorbed]))
@settings(max_examples=20, deadline=None)
def test_a_cache_equals_the_full_pass_in_either_form(spec: ModelSpec, kind: type[MLASpec]) -> None:
    """In float64, as above."""
    with InDouble():
        check_cached(forced(spec, kind), [5, 1, 1, 4, 1, 1, 9], most=ROUNDING)


def calls(model: Transformer, run: Any) -> list[str]:
    """Return which form each call of the latent attention took."""
    taken: list[str] = []
    for module in model.modules():
        if isinstance(module, MLA):
            for name in ("absorb", "expand"):
                whole = getattr(module, name)
                module.__dict__[name] = lambda *given, whole=whole, name=name: (taken.append(name), whole(*given))[1]
    run()
    return taken


def test_a_prompt_is_expanded_and_a_token_after_it_absorbed() -> None:
    model = randomised(decoder())
    cache, ids = KVCache(model.spec), ids_for(model.spec, 1, 30)

    def run() -> None:
        with torch.no_grad():
            model(ids[:, :29], cache=cache)
            model(ids[:, 29:], cache=cache)

    assert calls(model, run) == ["expand", "expand", "absorb", "absorb"]
    assert calls(randomised(decoder()), lambda: None) == []


def test_matrices_are_read_once_for_all_rows_of_a_batch() -> None:
    spec, batch = decoder(SMALL.but(n_heads=Count(16))), 32
    seen = forward_pass(spec, batch=batch, query=1, past=1, dtype=torch.float32)
    matrix = 16 * 10 * 5
    assert max(o.numel for o in seen if o.part == "attention" and not o.pairs) < batch * matrix
    assert sum(o.times * o.weights for o in seen if o.name == "bmm") == 2 * 4 * 16 * 10 * (6 + 5)  # layers, bytes


def test_scores_of_content_see_the_heads_queries_and_keys() -> None:
    """What is added to a score for q and k of each head cannot be had of the folded ones: such attention is expanded."""
    spec = decoder(scores=(ShawKeysSpec(farthest=Window(4)),))
    model, ids = randomised(spec), ids_for(spec, 1, 20)
    cache = KVCache(spec)

    def run() -> None:
        with torch.no_grad():
            steps = torch.cat([model(ids[:, i : i + 1], cache=cache).logits for i in range(20)], 1)
            close(steps, model(ids).logits)

    assert set(calls(model, run)) == {"expand"}


def counted(spec: ModelSpec, query: int, past: int) -> int:
    """Return the FLOPs of so many new tokens after `past` cached ones, as PyTorch counts them in an execution."""
    model = build(spec, device="meta")
    cache = KVCache(spec, device=torch.device("meta"), length=past + query)
    cache.plain = True
    with torch.no_grad():
        if past:
            model(torch.zeros(1, past, dtype=torch.long, device="meta"), cache=cache)
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, query, dtype=torch.long, device="meta"), cache=cache)
    return counter.get_total_flops()


@pytest.mark.parametrize(("query", "past"), [(1, 0), (1, 40), (3, 40), (30, 9), (40, 0)])
@pytest.mark.parametrize("projection", [SMALL, SMALL.but(query_rank=None, rotary=None, rotary_dim=None)])
@pytest.mark.parametrize("window", [None, 8])
def test_the_stated_flops_are_those_executed(projection: MLASpec, query: int, past: int, window: int | None) -> None:
    mask = Causal() if window is None else Causal() & SlidingWindow(size=Window(window))
    spec = decoder(projection, mask=mask)
    stated = spec.cost(Place(), Workload(query=query, past=past, causal_exact=False))
    if window is None:
        assert stated.flops == counted(spec, query, past)
    else:  # what is expanded is what the ring holds
        term = "absorption" if "absorption" in stated else "expansion"
        numbers = query if term == "absorption" else min(past, window - 1) + query
        assert stated[term] == 2 * 2 * 3 * 10 * (6 + 5) * numbers  # layers, multiply and add, heads, rank, widths


def attention_flops(cost: Cost) -> int:
    return sum(cost.get(term, 0) for term in ("scores", "values", "absorption", "expansion"))


@pytest.mark.parametrize(("query", "keys"), [(1, 2), (1, 4096), (16, 4096), (100, 4096), (200, 4096), (4096, 4096)])
def test_the_cheaper_form_is_taken(query: int, keys: int) -> None:
    workload = Workload(query=query, past=keys - query, causal_exact=False)
    each = {
        kind: attention_flops(
            AttentionSpec(projection=kind(**V3.values()), mask=Causal()).cost(Place(7168, (7168,)), workload)
        )
        for kind in (MLASpec, AlwaysAbsorbed, NeverAbsorbed)
    }
    assert each[MLASpec] == min(each.values())
    assert V3.absorbs(query, keys) == (each[MLASpec] < each[NeverAbsorbed])
    assert V3.absorbs(query, keys) == (query < 170 and query < keys)


def test_a_whole_sequence_is_expanded_however_narrow_the_latent() -> None:
    """Even where 2 d_c < d_h + d_v, when fewer multiplications would be had of the latent."""
    narrow = SMALL.but(kv_rank=Width(4))
    assert not narrow.absorbs(9, 9)
    assert not narrow.absorbs(1, 1)
    assert narrow.absorbs(8, 9)


def test_a_decoding_step_of_v3_costs_what_the_formula_says() -> None:
    """2·h·n·(2·d_c + d_r) for scores and values, absorbed; 2·h·n²·(d_h + d_r + d_v) in a prefill, expanded."""
    attend = AttentionSpec(projection=V3, mask=Causal())
    step = attend.cost(Place(7168, (7168,)), Workload(past=8191, causal_exact=False))
    assert step["scores"] + step["values"] == 2 * 128 * 8192 * (2 * 512 + 64)
    assert step["absorption"] == 2 * 128 * 512 * 256
    whole = attend.cost(Place(7168, (7168,)), Workload(query=8192, causal_exact=False))
    assert whole["scores"] + whole["values"] == 2 * 128 * 8192**2 * (128 + 64 + 128)
    assert whole["expansion"] == 2 * 8192 * 512 * 128 * 256


def test_the_cache_holds_the_latent_and_one_rotary_key() -> None:
    spec = decoder()
    cache = KVCache(spec, batch=2, length=9)
    assert [{n: tuple(v.shape) for n, v in store.held.items()} for store in cache.stores] == [
        {"latent": (2, 9, 10 + 4)}
    ] * 2
    model, ids = randomised(spec), ids_for(spec, 2, 9)
    with torch.no_grad():
        model(ids, cache=cache)
    projection = model.stack.blocks[0].sublayers[0].branches[0].mixer.projection
    held = next(iter(cache.stores)).held["latent"]
    x = (
        model.stack.blocks[0]
        .sublayers[0]
        .norm_in(model.stack.embedding(ids, ForwardContext(plain_tokens(9, ids.device), {})))
    )
    latent = projection.norm_kv(projection.kv_down(x))
    close(held[..., :10], latent)
    close(held[:, 0, 10:], projection.k_rotary(x[:, 0]))  # nothing turns at position 0
    assert not torch.allclose(held[:, 5, 10:], projection.k_rotary(x[:, 5]))


def test_published_cache_of_v3_and_v2() -> None:
    """Bytes a token in bfloat16: 70,272 for V3 (arXiv:2505.09343, table 1), 67.5 KiB for V2."""
    for n_layers, nbytes in ((61, 70_272), (60, 67.5 * 1024)):
        each = sum(math.prod(shape) for shape in V3.cache_shapes(Place(7168, (7168,))).values())
        assert n_layers * each * 2 == nbytes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rotary_dim": None}, "MLA.rotary_dim = None must be given beside rotary, which turns so many features"),
        ({"rotary_dim": Width(3)}, "of head_dim 3 rotates 3 features; it must be an even number"),
        ({"kv_rank": Width(0)}, "MLA.kv_rank = 0 must be at least 1"),
        ({"n_heads": Count(0)}, "MLA.n_heads = 0 must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        SMALL.but(**changes)


def test_cross_attention_can_be_latent_where_nothing_rotates() -> None:
    with pytest.raises(SpecError, match="turns keys by the positions of the text itself; leave it out"):
        AttentionSpec(projection=SMALL, mask=Everything(), reads="memory")
    AttentionSpec(projection=SMALL.but(rotary=None, rotary_dim=None), mask=Everything(), reads="memory")


def test_it_is_resized_with_its_proportions() -> None:
    spec = decoder(V3, d_model=7168)
    small = next(value for value in shrink(spec).nested() if isinstance(value, MLASpec))
    assert (small.n_heads, small.head_dim, small.rotary_dim, small.kv_rank, small.query_rank) == (4, 16, 8, 64, 192)
    half = next(value for value in resize(spec, d_model=3584).nested() if isinstance(value, MLASpec))
    # d_c = 4 d_h, d_h^R = d_h / 2 (arXiv:2405.04434, section 2.1.4); d_h follows the root of the width
    assert (half.kv_rank, half.query_rank, half.rotary_dim) == (
        4 * half.head_dim,
        12 * half.head_dim,
        half.head_dim / 2,
    )
    assert half.head_dim == pytest.approx(128 / math.sqrt(2), abs=4)
    model = randomised(shrink(spec))
    model(ids_for(model.spec, 1, 5)).logits.sum().backward()


MUTATIONS: dict[str, dict[str, Any]] = {
    "layout": {"rotary": RotarySpec()},
    "theta": {"rotary": RotarySpec(theta=2e3, layout="interleaved")},
    "norm of the latent": {"norm_kv": RMSNormSpec(eps=0.1)},
    "norm of the queries": {"norm_query": RMSNormSpec(eps=0.1)},
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_field_is_seen(name: str) -> None:
    spec = decoder()
    other = edited(spec, MLASpec, lambda mla: mla.but(**MUTATIONS[name]))
    model, mutated = randomised(spec), randomised(other)
    mutated.load_state_dict(model.state_dict())
    ids = ids_for(spec, 1, 20)
    with torch.no_grad():
        assert distance(mutated(ids).logits, model(ids).logits) > 100 * FLOAT32


def test_softcaps_sinks_and_scores_do_not_pass_by() -> None:
    plain = decoder()
    norms: list[MapSpec] = [value for value in plain.nested() if isinstance(value, MapSpec)]
    assert norms
    ids = ids_for(plain, 1, 20)
    changes: list[dict[str, Any]] = [
        {"softcap": 0.5},
        {"scores": (ALiBiSpec(),)},
        {"mask": Causal() & SlidingWindow(size=Window(3))},
        {"scale": ScaleSpec(power=-1.0)},
        {"query_scale": LogN(length=Length(4))},
    ]
    with torch.no_grad():
        before = randomised(plain)(ids).logits
        for change in changes:
            assert distance(randomised(decoder(**change))(ids).logits, before) > 100 * FLOAT32, change
