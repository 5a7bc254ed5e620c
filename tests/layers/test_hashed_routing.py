"""Experts by a table of token ids, and scores that are roots of softplus: against transformers' routers, and under Mixtral."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HashRouter, DeepseekV4TopKRouter

import anyformer as af
from anyformer.cache import KVCache
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.hub.saving import convert
from anyformer.layers import MoESpec, RouterSpec
from anyformer.layers.context import ForwardContext
from anyformer.layers.router import Router
from anyformer.layers.tokens import plain_tokens
from anyformer.resizing import resize, shrink
from anyformer.spec import Count, ModelSpec, Place, Vocab, parameters, tensors
from tests.laws.models import ids_for, randomised
from tests.laws.tolerance import close

MIXTRAL = shrink(preset("mixtral-8x7b").spec)
D, ROWS = 12, 29


def hashed(spec: ModelSpec = MIXTRAL, **fields: Any) -> ModelSpec:
    """The model whose first layer chooses by a table."""
    first, *others = spec.stack.blocks
    fields = {"hashed": Vocab(spec.vocab_size), "score": "sqrt-softplus", **fields}
    return spec.but(stack=spec.stack.but(blocks=(changed(first, RouterSpec, **fields), *others)))


def tables(spec: ModelSpec) -> list[str]:
    return [name for name, weight in tensors(spec, Place()) if weight.below is not None]


@pytest.mark.parametrize("by_table", [True, False])
def test_routers_are_those_of_transformers(by_table: bool) -> None:
    options: dict[str, Any] = {"hashed": Vocab(ROWS)} if by_table else {"correction": True}
    spec = RouterSpec(n_experts=Count(7), top_k=3, score="sqrt-softplus", renormalise=True, factor=1.7, **options)
    config = DeepseekV4Config(
        hidden_size=D, n_routed_experts=7, num_experts_per_tok=3, routed_scaling_factor=1.7, vocab_size=ROWS
    )
    ours = Router(spec, Place(d_model=D, shape=(D,)))
    theirs = DeepseekV4HashRouter(config) if by_table else DeepseekV4TopKRouter(config)
    generator = torch.Generator().manual_seed(0)
    x, ids = torch.randn(2, 9, D, generator=generator), torch.randint(0, ROWS, (2, 9), generator=generator)
    with torch.no_grad():
        ours.weight.normal_(0, 2, generator=generator)
        theirs.weight.copy_(ours.weight)
        if isinstance(theirs, DeepseekV4HashRouter):
            assert ours.table is not None
            ours.table.copy_(torch.rand(ROWS, 7, generator=generator).argsort(-1)[:, :3])
            theirs.tid2eid.copy_(ours.table)
            logits, weights, chosen = theirs(x, ids)
        else:
            assert ours.correction is not None
            ours.correction.normal_(0, 1, generator=generator)
            theirs.e_score_correction_bias.copy_(ours.correction)
            logits, weights, chosen = theirs(x)
        context = ForwardContext(plain_tokens(9, x.device), {}, ids=ids)
        found = ours(x.flatten(0, 1), context)
    close(found.logits, logits)
    sparse = torch.zeros(18, 7)
    close(sparse.scatter(1, found.chosen, found.weights), sparse.scatter(1, chosen, weights))


def test_a_table_says_who_is_chosen_and_no_score_does() -> None:
    """Under Mixtral: with other embeddings the same experts, with another id others; ids beyond the table go as the first."""
    spec = hashed()
    (name,) = tables(spec)
    model, ids = randomised(spec), ids_for(spec, 2, 11)
    table = model.get_parameter(name)
    assert table.dtype == torch.long
    with torch.no_grad():
        before = model(ids).notes[1]["chosen"]
        assert torch.equal(before, table[ids])
        model.get_parameter("stack.embedding.terms.0.table.weight").mul_(-3)
        assert torch.equal(model(ids).notes[1]["chosen"], before)
    short = randomised(hashed(hashed=Vocab(5)))
    with torch.no_grad():
        chosen = short(ids).notes[1]["chosen"]
    table = short.get_parameter(name)
    assert torch.equal(chosen, table[torch.where(ids < 5, ids, 0)])


def test_it_decodes_as_it_reads() -> None:
    model, ids = randomised(hashed()), ids_for(MIXTRAL, 2, 12)
    cache = KVCache(model.spec, batch=2, length=12)
    with torch.no_grad():
        close(torch.cat([model(part, cache=cache).logits for part in ids.split([5, 1, 6], 1)], 1), model(ids).logits)


def test_a_table_starts_with_experts_that_differ_and_never_moves() -> None:
    spec = hashed()
    (name,) = tables(spec)
    model = af.build(spec, seed=3)
    table = model.get_parameter(name).clone()
    assert ((table >= 0) & (table < 4)).all()
    assert (table.sort(-1).values.diff(dim=-1) > 0).all()
    assert torch.equal(af.build(spec, seed=3).get_parameter(name), table)
    assert not torch.equal(af.build(spec, seed=4).get_parameter(name), table)
    loads = torch.bincount(table.flatten(), minlength=4) / table.numel()
    assert (loads - 0.25).abs().max() < 0.1
    model(ids_for(spec, 2, 9)).logits.square().sum().backward()
    assert model.get_parameter(name).grad is None
    assert model.to(torch.bfloat16).get_parameter(name).dtype == torch.long
    counted = parameters(spec)
    assert counted.frozen == table.numel()
    assert counted.total == parameters(MIXTRAL).total


def test_files_keep_whole_numbers_in_any_precision(tmp_path: Path) -> None:
    spec = hashed()
    (name,) = tables(spec)
    model = randomised(spec)
    af.save(model, tmp_path / "a")
    loaded, _ = af.load(tmp_path / "a", dtype=torch.bfloat16)
    assert torch.equal(loaded.get_parameter(name), model.get_parameter(name))
    assert next(loaded.parameters()).dtype == torch.bfloat16
    convert(tmp_path / "a", tmp_path / "b", dtype=torch.float16)
    again, _ = af.load(tmp_path / "b")
    assert torch.equal(again.get_parameter(name), model.get_parameter(name))
    assert next(again.parameters()).dtype == torch.float16


def test_resized_the_table_follows_the_vocabulary() -> None:
    small = resize(hashed(), vocab_size=50)
    assert [weight.shape for _, weight in tensors(small, Place()) if weight.below] == [(50, 2)]
    fewer = shrink(hashed(preset("mixtral-8x7b").spec))
    router = next(value for value in fewer.nested() if isinstance(value, RouterSpec))
    assert router.hashed == fewer.vocab_size


@pytest.mark.parametrize("fields", [{"correction": True}, {"n_groups": 2, "top_groups": 1}, {"score": "sparsemixer"}])
def test_refused_in_a_line(fields: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"Router.hashed = 9 is a choice already") as error:
        RouterSpec(n_experts=Count(4), top_k=2, hashed=Vocab(9), **fields)
    assert "\n" not in str(error.value)
    assert any(isinstance(value, MoESpec) for value in MIXTRAL.nested())
