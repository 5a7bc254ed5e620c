"""Pools read real tokens, wherever they stand; heads of rows beside heads of tokens, of encoders and decoders alike."""

from __future__ import annotations

import pytest
import torch

from anyformer.cache import KVCache
from anyformer.errors import InputError, SpecError
from anyformer.families import preset
from anyformer.families.heads import pooler, row_classes, sentence_embedding, token_classes
from anyformer.layers import FirstTokenSpec, LastTokenSpec, MeanTokensSpec, Tokens
from anyformer.layers.tokens import plain_tokens
from anyformer.resizing import shrink
from anyformer.spec import HeadSpec, ModelSpec, Place, PoolSpec, Workload, dumps, loads
from tests.laws.models import ids_for, randomised

POOLS = {"first": FirstTokenSpec(), "last": LastTokenSpec(), "mean": MeanTokensSpec()}
MASK = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0], [0, 3, 3, 0, 0], [0, 1, 0, 0, 1]])


@pytest.mark.parametrize("name", POOLS)
def test_pools_by_the_definition(name: str) -> None:
    """Row by row, with nothing but its real tokens."""
    pool, x = POOLS[name].build(Place(4, (4,))), torch.randn(len(MASK), 5, 4)
    found = pool(x, Tokens(torch.arange(5)[None], MASK))
    for row, mask in enumerate(MASK):
        real = [x[row, i] for i in range(5) if mask[i]]
        expected = {"first": real[0], "last": real[-1], "mean": sum(real[1:], real[0]) / len(real)}[name]
        torch.testing.assert_close(found[row], expected)
    torch.testing.assert_close(pool(x, plain_tokens(5, x.device)), pool(x, Tokens(torch.arange(5)[None], MASK[:1])))


def test_a_mean_in_float16_is_no_larger_than_its_terms() -> None:
    pool, x = MeanTokensSpec().build(Place(4, (4,))), torch.full((2, 100, 4), 1000.0, dtype=torch.float16)
    mask = torch.ones(2, 100, dtype=torch.long)
    mask[0, :20] = 0
    assert torch.equal(pool(x, Tokens(torch.arange(100)[None], mask)), x[:, 0])


def test_the_mean_of_no_token_is_zero() -> None:
    pool, x = MeanTokensSpec().build(Place(4, (4,))), torch.randn(1, 3, 4, requires_grad=True)
    mean = pool(x, Tokens(torch.arange(3)[None], torch.zeros(1, 3, dtype=torch.long)))
    assert mean.abs().max() == 0
    mean.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def classifier(pool: PoolSpec, name: str = "gpt2") -> ModelSpec:
    """Return a decoder that classifies rows beside writing them."""
    spec = shrink(preset(name).spec)
    return spec.but(heads=(*spec.heads, row_classes(3, pool=pool), token_classes(5), sentence_embedding(pool)))


@pytest.mark.parametrize("name", ["gpt2", "llama2-7b", "bert-base"])
def test_heads_of_rows_beside_heads_of_tokens(name: str) -> None:
    spec = classifier(LastTokenSpec(), name)
    assert loads(dumps(spec)) == spec
    model, ids = randomised(spec), ids_for(spec, 3, 7)
    with torch.no_grad():
        out = model(ids)
        state = out.last_hidden_state[:, -1]
    assert {head: tuple(answer.shape[:-1]) for head, answer in out.outputs.items() if head != "nsp"} == {
        spec.heads[0].name: (3, 7),
        "classes": (3,),
        "token_classes": (3, 7),
        "embedding": (3,),
    }
    torch.testing.assert_close(out.outputs["embedding"], state / state.norm(dim=-1, keepdim=True))
    head = model.head("classes")
    by_hand = torch.tanh(state @ head.transform[0].weight.T + head.transform[0].bias) @ head.table.weight.T + head.bias
    torch.testing.assert_close(out.outputs["classes"], by_hand)
    with torch.no_grad():
        only = model(ids, heads=["classes"]).outputs
    assert list(only) == ["classes"]
    assert torch.equal(only["classes"], out.outputs["classes"])


def test_logits_to_keep_leaves_pooled_heads_alone() -> None:
    model = randomised(classifier(MeanTokensSpec()))
    ids = ids_for(model.spec, 2, 6)
    with torch.no_grad():
        whole, kept = model(ids), model(ids, logits_to_keep=1)
    assert kept.logits.shape[1] == 1
    assert torch.equal(whole.outputs["classes"], kept.outputs["classes"])


def test_with_a_cache_the_last_token_is_known_and_the_first_is_not() -> None:
    for pool, refused in ((LastTokenSpec(), False), (FirstTokenSpec(), True), (MeanTokensSpec(), True)):
        model = randomised(classifier(pool))
        ids, cache = ids_for(model.spec, 2, 6), KVCache(model.spec, batch=2)
        with torch.no_grad():
            whole = model(ids).outputs["classes"]
            model(ids[:, :4], cache=cache)
            if refused:
                with pytest.raises(InputError, match=r"the head 'classes' pools all tokens .* without a cache"):
                    model(ids[:, 4:], cache=cache)
            else:
                torch.testing.assert_close(model(ids[:, 4:], cache=cache).outputs["classes"], whole)


def test_a_head_that_pools_costs_one_token_a_row() -> None:
    spec, workload = shrink(preset("gpt2").spec), Workload(batch=2, query=9)
    d = spec.stack.d_model
    alone, with_head = (spec.but(heads=heads).cost(Place(), workload).flops for heads in ((), (row_classes(3),)))
    assert with_head - alone == 2 * (2 * d * d + 2 * d * 3)


def test_several_documents_in_a_row_are_refused() -> None:
    model = randomised(shrink(preset("bert-base").spec))
    ids = ids_for(model.spec, 1, 6)
    with pytest.raises(
        InputError, match="the head 'nsp' gives one answer a row, and these rows hold several documents"
    ):
        model(ids, attention_mask=torch.tensor([[1, 1, 1, 2, 2, 0]]))
    assert list(model(ids, attention_mask=torch.tensor([[1, 1, 1, 2, 2, 0]]), heads=["mlm"]).outputs) == ["mlm"]
    model(ids, attention_mask=torch.tensor([[2, 2, 2, 2, 2, 0]]))


def test_what_is_not_there_is_named() -> None:
    spec = shrink(preset("bert-base").spec)
    model = randomised(spec)
    with pytest.raises(InputError, match=r"there is no head 'nps' \(did you mean 'nsp'\?\); there are mlm, nsp"):
        model.head("nps")
    bare = randomised(spec.but(heads=()))
    with pytest.raises(InputError, match="has none; what it gives is last_hidden_state"):
        _ = bare(ids_for(spec, 1, 3)).logits
    with pytest.raises(InputError, match="this model has no head"):
        bare.head()
    with pytest.raises(SpecError, match="bias = True is added to what the table gives, and there is none"):
        HeadSpec(bias=True)
    assert pooler().table is None
