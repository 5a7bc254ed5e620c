"""Hyper-connections around the layers of others, against transformers' classes of them; what no connection runs on; refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HyperConnection, DeepseekV4HyperHead

from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.layers import HyperConnectionSpec, HyperStreamsSpec, RMSNormSpec
from anyformer.layers.hyper_connections import doubly_stochastic
from anyformer.resizing import shrink
from anyformer.spec import Count, ModelSpec, parameters
from tests.laws.models import ids_for, randomised
from tests.laws.tolerance import close

LLAMA, BERT = (shrink(preset(name).spec) for name in ("llama3-8b", "bert-base"))
OLMO2 = shrink(preset("olmo2-7b").spec)  # norms of what branches write, and none of what they read
LEAST, EPS = 1e-3, 1e-2


def streamed(spec: ModelSpec, connection: HyperConnectionSpec | None, n: int = 3, **fields: Any) -> ModelSpec:
    """The model on streams side by side."""
    blocks = tuple(block.but(connection=connection) for block in spec.stack.blocks)
    return spec.but(stack=spec.stack.but(blocks=blocks, residual=HyperStreamsSpec(n=Count(n), **fields)))


@pytest.mark.parametrize("spec", [LLAMA, OLMO2], ids=["llama", "olmo2"])
def test_connections_are_those_of_transformers(spec: ModelSpec) -> None:
    """What each sublayer reads and what becomes of the streams, with transformers' classes around what it wrote."""
    norm = RMSNormSpec(weight=False, eps=EPS)
    hyper = HyperConnectionSpec(iterations=Count(3), norm=norm, least=LEAST)
    spec = streamed(spec, hyper, norm=norm, least=LEAST)
    width = spec.stack.d_model
    config = DeepseekV4Config(hidden_size=width, hc_mult=3, hc_eps=LEAST, hc_sinkhorn_iters=3, rms_norm_eps=EPS)
    model, ids = randomised(spec), ids_for(spec, 2, 7)
    passed: list[tuple[Tensor, Tensor]] = []
    for block in model.stack.blocks:
        for sublayer in block.sublayers:
            sublayer.branches[0].register_forward_hook(lambda _, given, out: passed.append((given[0], out[0])))
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
        assert states is not None
        streams = states[0][..., :width].unsqueeze(2).expand(-1, -1, 3, -1).contiguous()
        through = iter(passed)
        for block, state in zip(model.stack.blocks, states, strict=False):
            close(state, streams.flatten(-2))
            for ours, sublayer in zip(block.connection.sublayers, block.sublayers, strict=True):
                theirs = DeepseekV4HyperConnection(config)
                theirs.fn.copy_(ours.coefficients.weight)
                theirs.base.copy_(ours.coefficients.bias)
                theirs.scale.copy_(ours.coefficients.scale)
                post, mixing, read = theirs(streams)
                given, y = next(through)
                close(given, sublayer.norm_in(read))
                streams = post[..., None] * y[..., None, :] + mixing.mT @ streams
        end = DeepseekV4HyperHead(config)
        end.hc_fn.copy_(model.stack.residual.end.weight)
        end.hc_base.copy_(model.stack.residual.end.bias)
        end.hc_scale.copy_(model.stack.residual.end.scale)
        close(states[-1], model.stack.norm(end(streams)))


def test_rows_and_columns_sum_to_one() -> None:
    """The constraint, whatever the logits are, after the twenty iterations of the paper."""
    mixing = doubly_stochastic(torch.randn(50, 4, 4, generator=torch.Generator().manual_seed(0)), 20, 1e-9)
    assert (mixing > 0).all()
    for axis in (-1, -2):
        assert (mixing.sum(axis) - 1).abs().max() < 1e-3


@pytest.mark.parametrize("norm_sum", [True, False], ids=["bert", "llama"])
def test_without_connections_equal_streams_are_one(norm_sum: bool) -> None:
    """Layers that read the mean and write to all are those of Add, times the sum of what the end weighs the streams by."""
    if norm_sum:
        with pytest.raises(SpecError, match="takes no norms of sums"):
            streamed(BERT, None)
        return
    model, twin = randomised(streamed(LLAMA, None)), randomised(LLAMA)
    with torch.no_grad():
        own = dict(model.named_parameters())
        for name, value in twin.named_parameters():
            value.copy_(own[name])
        ids = ids_for(LLAMA, 2, 9)
        close(model(ids).logits, twin(ids).logits, 1e-3)  # but for the eps of the final norm, of a longer vector


def test_three_numbers_are_counted() -> None:
    """Of 2 layers of 2 sublayers: n² + 2 n coefficients of n · d_model features, as many biases, 3 scales; at the end n."""
    n, d = 3, LLAMA.stack.d_model
    each = (n * n + 2 * n) * (n * d + 1) + 3
    layers = len(LLAMA.stack.blocks)
    more = parameters(streamed(LLAMA, HyperConnectionSpec())).total - parameters(LLAMA).total
    assert more == 2 * layers * each + n * (n * d + 1) + 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: HyperStreamsSpec(n=Count(1)), "HyperStreams.n = 1 is one stream"),
        (
            lambda: parameters(
                LLAMA.but(stack=streamed(LLAMA, HyperConnectionSpec()).stack.but(residual=LLAMA.stack.residual))
            ),
            "HyperConnection connects streams side by side, and here is one",
        ),
        (lambda: streamed(BERT, HyperConnectionSpec()), "takes no norms of sums"),
    ],
)
def test_refused_in_a_line(make: Any, says: str) -> None:
    with pytest.raises(SpecError, match=says) as error:
        make()
    assert "\n" not in str(error.value)
