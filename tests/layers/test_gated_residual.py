"""Gated residual streams around the layers of others, against transformers' class; what no connection runs on; refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextGatedResidual

from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.layers import EngramSpec, GatedResidualSpec, GatedStreamsSpec, RMSNormSpec
from anyformer.resizing import shrink
from anyformer.spec import BranchSpec, Count, ModelSpec, SublayerSpec, Vocab, Width, parameters
from tests.laws.models import ids_for, randomised
from tests.laws.tolerance import close

LLAMA, BERT = (shrink(preset(name).spec) for name in ("llama3-8b", "bert-base"))
OLMO2 = shrink(preset("olmo2-7b").spec)  # norms of what branches write, and none of what they read
NORM = RMSNormSpec(eps=1e-2, weight_offset=1.0, cast="after")
N, RANK = 3, Width(5)


def streamed(spec: ModelSpec, connection: GatedResidualSpec | None) -> ModelSpec:
    """The model on streams side by side."""
    blocks = tuple(block.but(connection=connection) for block in spec.stack.blocks)
    residual = GatedStreamsSpec(n=Count(N), rank=RANK, norm=NORM)
    return spec.but(stack=spec.stack.but(blocks=blocks, residual=residual))


def theirs_of(read: Any, write: Any, width: int) -> Any:
    """Transformers' module with the numbers of ours."""
    config = Qwen4ExpTextConfig(hidden_size=width, hc_count=N, hc_lowrank=RANK, rms_norm_eps=1e-2)
    theirs: Any = Qwen4ExpTextGatedResidual(config, use_combine=write is not None)
    theirs.hc_norm.weight.copy_(read.norm.weight.flatten())
    theirs.input_mix_weight_down.weight.copy_(read.down.weight)
    theirs.input_mix_weight_up.weight.copy_(read.up.weight)
    if write is not None:
        theirs.block_inject_weight.weight.copy_(write.weight)
    return theirs


def reading_all(**fields: Any) -> ModelSpec:
    """LLaMA with n-grams before each layer, in a sublayer with these fields."""
    grams = EngramSpec(vocab=Vocab(LLAMA.vocab_size), end=1, width=Width(16), rows=Vocab(20), n_tables=2)
    first = SublayerSpec(branches=(BranchSpec(mixer=grams),), **fields)
    blocks = (block.but(sublayers=(first, *block.sublayers)) for block in LLAMA.stack.blocks)
    return LLAMA.but(stack=LLAMA.stack.but(blocks=tuple(blocks)))


@pytest.mark.parametrize("spec", [LLAMA, OLMO2], ids=["llama", "olmo2"])
def test_connections_are_those_of_transformers(spec: ModelSpec) -> None:
    """What each sublayer reads and what becomes of the streams, with transformers' classes around what it wrote."""
    spec = streamed(spec, GatedResidualSpec(rank=RANK, norm=NORM))
    width = spec.stack.d_model
    model, ids = randomised(spec), ids_for(spec, 2, 7)
    passed: list[tuple[Tensor, Tensor]] = []
    for block in model.stack.blocks:
        for sublayer in block.sublayers:
            sublayer.branches[0].register_forward_hook(lambda _, given, out: passed.append((given[0], out[0])))
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
        assert states is not None
        streams = states[0][..., :width].repeat(1, 1, N)
        through = iter(passed)
        for block, state in zip(model.stack.blocks, states, strict=False):
            close(state, streams)
            for ours, sublayer in zip(block.connection.sublayers, block.sublayers, strict=True):
                read, _, share = theirs_of(ours.read, ours.write, width)(streams)
                given, y = next(through)
                close(given, sublayer.norm_in(read))
                streams = streams + (share[..., None] * y[..., None, :]).flatten(-2)
        close(states[-1], model.stack.norm(theirs_of(model.stack.residual.end, None, width)(streams)))


def test_a_first_sublayer_reads_and_writes_all_streams() -> None:
    """Streams part where it writes to each what is for it; those that are left to connections read one."""
    engram = EngramSpec(vocab=Vocab(LLAMA.vocab_size), end=0, width=Width(16), rows=Vocab(20), norm=NORM)
    first = SublayerSpec(branches=(BranchSpec(mixer=engram),))
    blocks = tuple(block.but(sublayers=(first, *block.sublayers)) for block in LLAMA.stack.blocks)
    spec = LLAMA.but(stack=LLAMA.stack.but(blocks=blocks))
    model = randomised(streamed(spec, GatedResidualSpec(rank=RANK, norm=NORM, whole=1)))
    given: list[int] = []
    for sublayer in model.stack.blocks[0].sublayers:
        sublayer.branches[0].register_forward_hook(lambda _, x, y: given.extend((x[0].shape[-1], y[0].shape[-1])))
    with torch.no_grad():
        model(ids_for(LLAMA, 2, 7))
    d_model = LLAMA.stack.d_model
    assert given == [N * d_model] * 2 + [d_model] * 4


def test_without_connections_equal_streams_are_one() -> None:
    """Layers that read the mean and write to all are those of Add; these norm nothing of what they read."""
    model, twin = randomised(streamed(OLMO2, None)), randomised(OLMO2)
    with torch.no_grad():
        own = dict(model.named_parameters())
        for name, value in twin.named_parameters():
            value.copy_(own[name])
        ids = ids_for(OLMO2, 2, 9)
        ours, its = (each(ids, output_hidden_states=True).hidden_states for each in (model, twin))
        assert ours is not None
        assert its is not None
        for streams, state in zip(ours[:-1], its[:-1], strict=True):
            close(streams, state.repeat(1, 1, N))


def test_what_is_learned_is_counted() -> None:
    """Of each sublayer: a gain for each feature of each stream, two maps of low rank, a share for each stream."""
    d = LLAMA.stack.d_model
    read = N * d + 2 * RANK * N * d
    more = parameters(streamed(LLAMA, GatedResidualSpec(rank=RANK))).total - parameters(LLAMA).total
    assert more == 2 * LLAMA.n_layers * (read + N * N * d) + read


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: GatedStreamsSpec(n=Count(1), rank=RANK), "GatedStreams.n = 1 is one stream"),
        (
            lambda: parameters(
                LLAMA.but(stack=streamed(LLAMA, GatedResidualSpec(rank=RANK)).stack.but(residual=LLAMA.stack.residual))
            ),
            "GatedResidual connects streams side by side, and here is one",
        ),
        (lambda: streamed(BERT, GatedResidualSpec(rank=RANK)), "takes no norms of sums"),
        (lambda: streamed(LLAMA, GatedResidualSpec(rank=RANK, whole=3)), "has 3 of 2 sublayers read all streams"),
        (lambda: streamed(LLAMA, GatedResidualSpec(rank=RANK, whole=1)), r"takes mixers that do \(Engram\)"),
        (lambda: streamed(reading_all(norm_in=NORM), GatedResidualSpec(rank=RANK, whole=1)), "no norm, none late"),
    ],
)
def test_refusals(make: Callable[[], object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        make()
