"""Operations that change no answer: logits of random weights before and behind, for any architecture that has the part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.families import preset
from anyformer.layers import FeedForwardSpec, GatedFeedForwardSpec, GQASpec
from anyformer.model import Transformer
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, Place, tensors
from anyformer.surgery import Anatomy, Layer
from tests.laws.models import every_preset, ids_for, randomised
from tests.laws.tolerance import FLOAT32, close
from tests.surgery.operated import operated

# With biases, norms of queries, norms behind branches, post-norm, tied tables, parallel branches, experts, a state, two stacks.
FAMILIES = [
    "llama3-8b",
    "qwen3-4b",
    "olmo2-7b",
    "gptj-6b",
    "gemma2-2b",
    "mixtral-8x7b",
    "qwen3-next-80b-a3b",
    "t5-v1.1-small",
]
of_families = pytest.mark.parametrize("spec", [pytest.param(shrink(preset(name).spec), id=name) for name in FAMILIES])


def answers(model: Transformer, ids: Tensor) -> Tensor:
    more: dict[str, Any] = {} if model.spec.encoder is None else {"decoder_input_ids": ids}
    with torch.no_grad():
        logits = model.eval()(ids, **more).logits
    assert logits is not None
    return logits


def same(spec: ModelSpec, donor: Transformer, layers: Sequence[Layer | None] | None = None) -> Transformer:
    """Check that a model that begins with the donor's weights answers as the donor; return it."""
    model, _ = operated(spec, donor, layers)
    ids = ids_for(donor.spec, 2, 12)
    before = answers(donor, ids)
    close(answers(model, ids)[..., : before.shape[-1]], before, FLOAT32)
    return model


@every_preset
def test_into_itself(spec: ModelSpec) -> None:
    donor = randomised(spec)
    assert {each.name for each in Anatomy(spec).tensors.values()} == {name for name, _ in tensors(spec, Place())}
    _, done = operated(spec, donor)
    for name, tensor in donor.state_dict().items():
        assert torch.equal(done[name].tensor, tensor), name
        assert (done[name].numel, done[name].how) == (tensor.numel(), "")


@of_families
def test_more_neurons_write_nothing(spec: ModelSpec) -> None:
    model = same(
        af.vary(spec, d_ff=max(each.d_ff for each in spec.nested(FeedForwardSpec, GatedFeedForwardSpec)) + 24),
        randomised(spec),
    )
    new = [each for name, each in model.state_dict().items() if name.endswith("up.weight")]
    assert all((each[..., -24:, :] != 0).all() for each in new)  # they are there to be trained


@of_families
def test_more_tokens_leave_the_others_their_logits(spec: ModelSpec) -> None:
    donor = randomised(spec)
    model = same(af.vary(spec, vocab_size=spec.vocab_size + 7), donor)
    new, old = (
        each.state_dict()[Anatomy(each.spec).tensors["stack.embedding.Tokens.0.table.weight"].name]
        for each in (model, donor)
    )
    assert torch.equal(new[:-7], old)
    close(new[-7:], old.mean(0).expand(7, -1), FLOAT32)


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-4b", "gpt-oss-20b", "t5gemma-2b-2b", "qwen2.5-7b"])
def test_as_many_keys_as_queries(name: str) -> None:
    spec = shrink(preset(name).spec)
    heads = next(spec.nested(GQASpec))
    assert heads.kv_heads < heads.n_heads
    same(af.vary(spec, n_kv_heads=heads.n_heads), randomised(spec))


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-4b", "gptj-6b", "t5-v1.1-small"])
def test_more_heads(name: str) -> None:
    """Each stands twice, and what reads both halves of a pair is shared out."""
    spec = shrink(preset(name).spec)
    heads = next(spec.nested(GQASpec))
    sizes = {
        "n_heads": 2 * heads.n_heads,
        "n_kv_heads": 2 * heads.kv_heads,
        "head_dim": heads.head_dim or spec.stack.d_model // heads.n_heads,
    }
    same(af.vary(spec, **sizes), randomised(spec))


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-4b", "olmo2-7b", "gemma2-2b"])
def test_experts_that_are_each_the_network(name: str) -> None:
    spec = shrink(preset(name).spec)
    d_ff = next(spec.nested(GatedFeedForwardSpec)).d_ff
    experts = af.vary(spec, experts="mixtral")
    experts = af.vary(experts, d_ff=d_ff, activation=spec) if name != "llama3-8b" else af.vary(experts, d_ff=d_ff)
    model = same(experts, randomised(spec))
    for key, each in model.state_dict().items():
        if ".experts." in key:
            assert all(torch.equal(each[0], other) for other in each[1:]), key


def test_experts_beside_one_that_is_the_network() -> None:
    spec = shrink(preset("llama3-8b").spec)
    model = same(af.vary(spec, experts="deepseek-v2-lite", d_ff=112), randomised(spec))
    state = model.state_dict()
    routed = {key: each for key, each in state.items() if ".experts." in key}
    assert routed
    assert all(bool(each.any()) != key.endswith("down.weight") for key, each in routed.items())


@of_families
def test_layers_that_write_nothing(spec: ModelSpec) -> None:
    if spec.n_layers != 2 or spec.encoder is not None:
        pytest.skip("layers that come by kinds")
    donor = randomised(spec)
    twice = [Layer(0), Layer(0, silent=True), Layer(1), Layer(1, silent=True)]
    blocks = spec.stack.blocks
    deep = spec.but(stack=spec.stack.but(blocks=(blocks[0], blocks[0], blocks[1], blocks[1])))
    same(deep, donor, twice)


def test_untied() -> None:
    spec = shrink(preset("gemma2-2b").spec)
    same(af.vary(spec, tied=False), randomised(spec))
