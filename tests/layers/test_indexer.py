"""DeepSeek sparse attention: the choice against that of transformers' class and of a plain loop; choices that are lent."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.deepseek_v32 import DeepseekV32Config
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer

import anyformer as af
from anyformer.cache import KVCache
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import (
    AttentionSpec,
    Causal,
    GQASpec,
    IndexerSpec,
    LearnedFrequenciesSpec,
    Mask,
    Prefix,
    RotarySpec,
    SlidingWindow,
    SymmetricWindow,
    indexer,
)
from anyformer.layers.context import ForwardContext
from anyformer.layers.indexer import Indexer
from anyformer.layers.mask import visible
from anyformer.layers.pairs import chosen_pairs
from anyformer.layers.rotary import Rotation
from anyformer.layers.tokens import plain_tokens
from anyformer.observation.passes import thinned
from anyformer.resizing import resize, shrink
from anyformer.spec import Count, ModelSpec, Place, Width, Window, Workload, parameters
from tests.laws.models import ids_for, randomised, waiving
from tests.laws.tolerance import close, distance

CHOICE = IndexerSpec(n_heads=Count(9), head_dim=Width(8), top_k=Window(4), layout="half")
CAUSAL_WINDOW = Causal() & SlidingWindow(size=Window(6))


def with_choice(name: str, choice: IndexerSpec | None = CHOICE, mask: Mask | None = None) -> ModelSpec:
    spec = changed(shrink(preset(name).spec), AttentionSpec, indexer=choice)
    return spec if mask is None else changed(spec, AttentionSpec, mask=mask)


def lending(spec: ModelSpec, *reads: Literal["self", "layer"], **fields: Any) -> ModelSpec:
    """The model of layers like its first, each with a choice of its own or the last one's."""
    first = changed(spec.stack.blocks[0], IndexerSpec, choice="c")
    blocks = (changed(first, IndexerSpec, reads=each) for each in reads)
    blocks = tuple(changed(block, IndexerSpec, **fields) if i else block for i, block in enumerate(blocks))
    return spec.but(stack=spec.stack.but(blocks=blocks))


@pytest.mark.parametrize("mask", [None, CAUSAL_WINDOW], ids=["full", "ring"])
@pytest.mark.parametrize("name", ["deepseek-v3", "llama3-8b"])
def test_cached_is_uncached_and_padding_changes_nothing(name: str, mask: Mask | None) -> None:
    """Also where a choice is lent, and where the keys that it is of turn in a ring."""
    spec = lending(with_choice(name, mask=mask), "self", "layer", "self", "layer")
    model, ids = randomised(spec), ids_for(spec, 2, 14)
    plain = randomised(changed(spec, AttentionSpec, indexer=None))
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if ".indexer." not in k})
    assert distance(model(ids).logits, plain(ids).logits) > 0.01
    with torch.no_grad():
        whole = model(ids).logits
        cache = KVCache(spec, batch=2, length=14)
        pieces = [model(piece, cache=cache).logits for piece in ids.split((6, 1, 3, 1, 1, 2), 1)]
        close(torch.cat(pieces, 1), whole)
        close(model(ids, kernel="eager").logits, model(ids, kernel="sdpa").logits)
        padded = torch.cat((ids.new_zeros(2, 3), ids), 1)
        mask_of_rows = torch.ones_like(padded)
        mask_of_rows[:, :3] = 0
        close(model(padded, attention_mask=mask_of_rows).logits[:, 3:], whole)


@pytest.mark.parametrize("mask", [None, CAUSAL_WINDOW], ids=["full", "ring"])
@pytest.mark.parametrize("name", ["deepseek-v3", "llama3-8b"])
def test_a_layer_chooses_for_itself_among_the_keys_of_another(name: str, mask: Mask | None) -> None:
    """It caches what it scores alone. That it is what transformers computes is said of Mistral Large 4."""
    spec = with_choice(name, mask=mask)
    lends, reads = (changed(spec.stack.blocks[0], AttentionSpec, keys="k", reads=each) for each in ("self", "layer"))
    spec = spec.but(stack=spec.stack.but(blocks=(lends, reads, lends, reads)))
    model, ids = randomised(spec), ids_for(spec, 2, 14)
    with torch.no_grad():
        whole = model(ids).logits
        cache = KVCache(spec, batch=2, length=14)
        pieces = [model(piece, cache=cache).logits for piece in ids.split((6, 1, 3, 1, 1, 2), 1)]
        close(torch.cat(pieces, 1), whole)
        padded, real = (torch.cat((ids.new_zeros(2, 3), x), 1) for x in (ids, torch.ones_like(ids)))
        close(model(padded, attention_mask=real).logits[:, 3:], whole)
        model.stack.blocks[1].sublayers[0].branches[0].mixer.indexer.k.weight.mul_(-1)
        assert distance(model(ids).logits, whole) > 0.01
    assert reads.sublayers[0].branches[0].mixer.cache_shapes(Place(d_model=spec.stack.d_model)) == {"index": (8,)}


def of_theirs(n: int, some: int | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what our indexer and transformers' choose, each [batch, query, key], and the scores by a plain loop."""
    config = DeepseekV32Config(
        hidden_size=24, q_lora_rank=12, index_n_heads=9, index_head_dim=8, qk_rope_head_dim=4, index_topk=4
    )
    theirs = DeepseekV32Indexer(config, 0)
    ours = Indexer(CHOICE, Place(d_model=24, shape=(12,)))
    weigh: Any = ours.weigh
    names = {"q": theirs.wq_b, "k": theirs.wk, "norm_key": theirs.k_norm, "weigh": theirs.weights_proj}
    torch.manual_seed(0)
    for name, module in names.items():
        for key, tensor in module.state_dict().items():
            tensor.normal_()
            getattr(ours, name).state_dict()[key].copy_(tensor)
    narrow, x = torch.randn(2, n, 12), torch.randn(2, n, 24)
    seen = torch.ones(n, n, dtype=torch.bool).tril()[None]
    angles = torch.arange(n)[:, None] * 10_000.0 ** (-torch.arange(0, 4, 2) / 4)
    turned = torch.cat((angles, angles), -1)[None]
    chosen = theirs(x, narrow, (turned.cos(), turned.sin()), seen, torch.arange(n)[None])
    expected = torch.zeros(2, n, n, dtype=torch.bool).scatter(-1, chosen.long(), True) & seen
    context = ForwardContext(tokens=plain_tokens(n, x.device), kernels={})
    rotary = Rotation(CHOICE.rotation(RotarySpec(layout="interleaved"), 4), None)
    keys = ours.keys(x, rotary, context)
    got = (ours(narrow, x, keys, context.tokens, seen[:, None], rotary, context)[:, 0] == 0) & seen
    q = rotary.rotate(ours.q(narrow).unflatten(-1, (9, 8)).transpose(1, 2), context)
    scores = torch.zeros(2, n, n)
    for head in range(9):
        for i in range(n):
            for j in range(n):
                products = (q[:, head, i] * keys[:, j]).sum(-1) / 8**0.5
                scores[:, i, j] += weigh(x)[:, i, head] * products.clamp(min=0) / 3
    return got, expected, scores


def test_it_chooses_what_transformers_chooses() -> None:
    """Of an indexer of theirs with our weights, on vectors of no model: the same keys for each query, by their indices."""
    got, expected, _ = of_theirs(30)
    assert (got == expected).all()
    assert (expected.sum(-1) == torch.arange(1, 31).clamp(max=4)).all()


@pytest.mark.parametrize("at_once", [1, 2 * 12 * 12 * 4, 2**24])
def test_it_chooses_what_a_loop_chooses(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many heads are worked on at once."""
    monkeypatch.setattr(indexer, "AT_ONCE", at_once)
    got, _, scores = of_theirs(12)
    for row in range(2):
        for i in range(12):
            best = sorted(range(i + 1), key=lambda j, row=row, i=i: -scores[row, i, j].item())[:4]
            assert set(got[row, i].nonzero()[:, 0].tolist()) == set(best)


def test_equal_scores_are_chosen_together() -> None:
    """Which of them would be a matter of the order in which they lie: in a ring another than in a text."""
    ours = Indexer(CHOICE, Place(d_model=24, shape=(12,)))
    for parameter in ours.parameters():
        torch.nn.init.zeros_(parameter)
    context = ForwardContext(tokens=plain_tokens(7, torch.device("cpu")), kernels={})
    x = torch.randn(1, 7, 24)
    assert (ours(x[..., :12], x, ours.keys(x, None, context), context.tokens, None, None, context) == 0).all()


def test_its_cost_is_all_pairs_scored_and_the_chosen_attended_to() -> None:
    spec, plain = with_choice("llama3-8b"), with_choice("llama3-8b", None)
    attention = next(value for value in spec.nested() if isinstance(value, AttentionSpec))
    dense = next(value for value in plain.nested() if isinstance(value, AttentionSpec))
    place, work = Place(d_model=32), Workload(batch=1, query=10, causal_exact=True)
    terms, of_all = attention.cost(place, work), dense.cost(place, work)
    assert terms["indexer"] == 2 * 10 * (9 * 8 * 32 + 8 * 32 + 9 * 32)
    assert terms["indexer scores"] == 55 * 2 * 9 * (8 + 1)
    assert terms["scores"] * 55 == of_all["scores"] * (1 + 2 + 3 + 7 * 4)
    borrowed = attention.but(indexer=CHOICE.but(reads="layer", choice="c"))
    assert {k: v for k, v in terms.items() if "indexer" not in k} == dict(borrowed.cost(place, work))


MASKS = [Causal(), CAUSAL_WINDOW, SymmetricWindow(radius=Window(3)), Causal() | Prefix(size=Window(5)), ~CAUSAL_WINDOW]


@given(mask=st.sampled_from(MASKS), query=st.integers(1, 20), past=st.integers(0, 20), most=st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_pairs_are_counted(mask: Mask, query: int, past: int, most: int) -> None:
    cpu = torch.device("cpu")
    seen = visible(mask, plain_tokens(query, cpu, past), plain_tokens(past + query, cpu), 1)
    each = torch.full((query,), past + query) if seen is None else seen.expand(1, 1, query, -1).sum(-1)
    assert chosen_pairs(mask, query, past, most) == sum(min(n, most) for n in each.flatten().tolist())


def test_no_gradient_reaches_it() -> None:
    spec = with_choice("deepseek-v3")
    model, ids = randomised(spec), ids_for(spec, 1, 12)
    model(ids).logits.sum().backward()
    without = {name for name, weight in model.named_parameters() if weight.grad is None and "correction" not in name}
    assert without
    assert (
        without == {name for name, _ in model.named_parameters() if ".indexer." in name} == waiving(model, "gradients")
    )
    assert parameters(spec).total - parameters(with_choice("deepseek-v3", None)).total == sum(
        weight.numel() for name, weight in model.named_parameters() if ".indexer." in name
    )


def test_a_borrowed_choice_is_the_lenders() -> None:
    """With nothing written to the stream between them, a layer that borrows is one whose indexer has the same weights."""
    spec = lending(with_choice("llama3-8b"), "self", "layer")
    model, ids = randomised(spec), ids_for(spec, 2, 11)
    own = randomised(lending(with_choice("llama3-8b"), "self", "self"))
    state = dict(model.state_dict())
    state |= {k.replace("blocks.0", "blocks.1"): v for k, v in state.items() if "blocks.0" in k and ".indexer." in k}
    for name in state:
        if name.endswith(("projection.o.weight", "mixer.down.weight")) and "blocks.0" in name:
            state[name] = torch.zeros_like(state[name])
        if name.endswith("norm_in.weight") and "blocks.1.sublayers.0" in name:
            state[name] = state[name.replace("blocks.1", "blocks.0")]
    own.load_state_dict(state)
    model.load_state_dict({name: value for name, value in state.items() if name in model.state_dict()})
    assert not any(".indexer." in name for name in model.state_dict() if "blocks.1" in name)
    close(model(ids).logits, own(ids).logits)


def test_recomputed_layers_attend_to_the_choice_of_their_turn() -> None:
    """The last choice of a name is not the one that an earlier layer read."""
    spec = lending(with_choice("llama3-8b"), "self", "layer", "self", "layer")
    ids, found = ids_for(spec, 2, 12), []
    for recompute in ("none", "full", "selective"):
        model = randomised(spec)
        model.recompute = recompute
        model(ids).logits.square().mean().backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
    for again in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], again, strict=True))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: lending(with_choice("llama3-8b"), "layer", "self"),
            "layer 0 reads the choice called 'c', and no layer before",
        ),
        (
            lambda: lending(with_choice("llama3-8b"), "self", "layer", top_k=Window(5)),
            "layer 1 cannot read the choice called 'c': that is of an indexer with other fields",
        ),
        (lambda: CHOICE.but(reads="layer"), "Indexer.choice = None does not say what is read"),
        (
            lambda: AttentionSpec(projection=GQASpec(n_heads=Count(2)), indexer=CHOICE, reads="memory"),
            "Attention.indexer = .* chooses among a text's own keys, and it reads 'memory'",
        ),
        (
            lambda: af.build(changed(with_choice("llama3-8b"), RotarySpec, learned=LearnedFrequenciesSpec())),
            r"Indexer.head_dim = 8 must be \d+ at least: so many features learn how they turn",
        ),
    ],
)
def test_refused_in_a_line(make: Any, says: str) -> None:
    with pytest.raises(SpecError, match=says) as error:
        make()
    assert "\n" not in str(error.value)


def test_a_choice_of_other_keys_is_refused() -> None:
    spec = lending(with_choice("llama3-8b"), "self", "layer")
    first, second = spec.stack.blocks
    with pytest.raises(SpecError, match="layer 1 cannot read the choice called 'c': that is of other keys"):
        spec.stack.but(blocks=(first, changed(second, AttentionSpec, mask=CAUSAL_WINDOW)))


def test_a_file_holds_it_and_sizes_change() -> None:
    spec = lending(with_choice("deepseek-v3"), "self", "layer")
    assert af.loads(af.dumps(spec)) == spec
    small = resize(preset("deepseek-v3.2").spec, d_model=448, n_layers=5)
    found: IndexerSpec = next(value for value in small.nested() if isinstance(value, IndexerSpec))
    assert (found.top_k, found.layout) == (2048, "half")
    assert found.n_heads >= 16
    assert parameters(small).total > 0


def test_a_thinned_stack_keeps_who_lends() -> None:
    """Of each kind the last two are observed; what they read of an earlier layer is lent by one that stays too."""
    spec = lending(with_choice("llama3-8b"), "self", "layer", "self", "self", "self")
    few, times = thinned(spec)
    assert few.stack.blocks == tuple(spec.stack.blocks[i] for i in (0, 1, 3, 4))
    assert times == [1, 1, 1, 2]
    twice = spec.stack.blocks[0].sublayers[:1] + spec.stack.blocks[1].sublayers  # reads what the layer itself lends
    whole = spec.but(stack=spec.stack.but(blocks=(spec.stack.blocks[0].but(sublayers=twice),) * 3))
    assert thinned(whole)[1] == [1, 2]
    in_turn = ("self", "layer", "self", "layer", "self", "layer", "self", "layer")
    assert thinned(lending(spec, *in_turn))[1] == [1, 1, 3, 3]
