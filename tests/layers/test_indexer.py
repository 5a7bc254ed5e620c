"""DeepSeek sparse attention: against the attention of transformers' DeepseekV32ForCausalLM, and by hand."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from transformers.models.deepseek_v32 import DeepseekV32Config
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer

import anyformer as af
from anyformer.cache import KVCache
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import AttentionSpec, Causal, GQASpec, IndexerSpec
from anyformer.layers.indexer import Indexer
from anyformer.layers.tokens import ForwardContext, plain_tokens
from anyformer.resizing import shrink
from anyformer.spec import Count, ModelSpec, Place, Width, Window, Workload
from tests.laws.models import ids_for, randomised
from tests.laws.tolerance import close, distance

CHOICE = IndexerSpec(n_heads=Count(9), head_dim=Width(8), top_k=Window(4), layout="half")


def with_choice(name: str, choice: IndexerSpec | None = CHOICE) -> ModelSpec:
    return changed(shrink(preset(name).spec), AttentionSpec, indexer=choice)


@pytest.mark.parametrize("name", ["deepseek-v3", "llama3-8b"])
def test_cached_is_uncached_and_padding_changes_nothing(name: str) -> None:
    spec = with_choice(name)
    model, ids = randomised(spec), ids_for(spec, 2, 14)
    assert distance(model(ids).logits, randomised(with_choice(name, None))(ids).logits) > 0.01
    with torch.no_grad():
        whole = model(ids).logits
        cache = KVCache(spec, batch=2, length=14)
        pieces = [model(piece, cache=cache).logits for piece in ids.split((6, 1, 3, 1, 1, 2), 1)]
        close(torch.cat(pieces, 1), whole)
        close(model(ids, kernel="eager").logits, model(ids, kernel="sdpa").logits)
        padded = torch.cat((ids.new_zeros(2, 3), ids), 1)
        mask = torch.ones_like(padded)
        mask[:, :3] = 0
        close(model(padded, attention_mask=mask).logits[:, 3:], whole)


def test_it_chooses_what_transformers_chooses() -> None:
    """Of an indexer of theirs with our weights, on vectors of no model: the same keys for each query, by their indices."""
    config = DeepseekV32Config(
        hidden_size=24, q_lora_rank=12, index_n_heads=9, index_head_dim=8, qk_rope_head_dim=4, index_topk=4
    )
    theirs = DeepseekV32Indexer(config, 0)
    ours = Indexer(CHOICE, Place(d_model=24, shape=(12,)))
    names = {"q": theirs.wq_b, "k": theirs.wk, "norm_key": theirs.k_norm, "weigh": theirs.weights_proj}
    torch.manual_seed(0)
    for name, module in names.items():
        for key, tensor in module.state_dict().items():
            tensor.normal_()
            getattr(ours, name).state_dict()[key].copy_(tensor)
    narrow, x, n = torch.randn(2, 30, 12), torch.randn(2, 30, 24), 30
    seen = torch.ones(n, n, dtype=torch.bool).tril()[None]
    angles = torch.arange(n)[:, None] * 10_000.0 ** (-torch.arange(0, 4, 2) / 4)
    turned = torch.cat((angles, angles), -1)[None]
    chosen = theirs(x, narrow, (turned.cos(), turned.sin()), seen, torch.arange(n)[None])
    expected = torch.zeros(2, n, n, dtype=torch.bool).scatter(-1, chosen.long(), True) & seen
    context = ForwardContext(tokens=plain_tokens(n, x.device), kernels={})
    got = (ours(narrow, x, ours.keys(x, context), seen[:, None], context)[:, 0] == 0) & seen
    assert (got == expected).all()
    assert (expected.sum(-1) == torch.arange(1, n + 1).clamp(max=4)).all()


def test_its_cost_is_all_pairs_scored_and_the_chosen_attended_to() -> None:
    spec, plain = with_choice("llama3-8b"), with_choice("llama3-8b", None)
    attention = next(value for value in spec.nested() if isinstance(value, AttentionSpec))
    dense = next(value for value in plain.nested() if isinstance(value, AttentionSpec))
    place, work = Place(d_model=32), Workload(batch=1, query=10, causal_exact=True)
    terms, of_all = attention.cost(place, work), dense.cost(place, work)
    assert terms["indexer"] == 2 * 10 * (9 * 8 * 32 + 8 * 32 + 9 * 32) + 55 * 2 * 9 * (8 + 1)
    assert terms["scores"] * 55 == of_all["scores"] * (1 + 2 + 3 + 7 * 4)


@pytest.mark.parametrize("reads", ["memory", "input"])
def test_keys_of_others_are_not_chosen(reads: Literal["memory", "input"]) -> None:
    with pytest.raises(SpecError, match="indexer"):
        AttentionSpec(projection=GQASpec(n_heads=Count(2)), mask=Causal(), indexer=CHOICE, reads=reads)


def test_no_gradient_reaches_it() -> None:
    spec = with_choice("deepseek-v3")
    model, ids = randomised(spec), ids_for(spec, 1, 12)
    model(ids).logits.sum().backward()
    without = {name for name, weight in model.named_parameters() if weight.grad is None and "correction" not in name}
    assert without
    assert without == {name for name, _ in model.named_parameters() if ".indexer." in name}


def test_a_file_holds_it() -> None:
    spec = with_choice("deepseek-v3")
    assert af.loads(af.dumps(spec)) == spec
