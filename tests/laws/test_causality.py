"""Law 3: in a decoder what comes later never changes what came before; an encoder sees all; relative positions can be shifted."""

from __future__ import annotations

import torch
from hypothesis import given, settings

from anyformer.layers import (
    AdjacentBlocks,
    ALiBiSpec,
    AttentionSpec,
    AxialPositionsSpec,
    BlockEnds,
    BlockIndexerSpec,
    Everything,
    FactorisedPositionsSpec,
    GQASpec,
    LearnedPositionsSpec,
    RMSNormSpec,
    SameBlock,
    SinusoidSpec,
    SSMaxSpec,
)
from anyformer.spec import ModelSpec
from tests.laws.combinations import decoders
from tests.laws.models import (
    every_encoder,
    every_of_one_stack,
    every_writer,
    ids_for,
    one_chunk,
    randomised,
    runner,
    same,
    told,
)
from tests.laws.parity import single
from tests.laws.tolerance import FLOAT32
from tests.sample import combinations

N = 20
ABSOLUTE = (
    LearnedPositionsSpec
    | AxialPositionsSpec
    | AdjacentBlocks
    | FactorisedPositionsSpec
    | SinusoidSpec
    | SameBlock
    | BlockEnds
    | BlockIndexerSpec
    | SSMaxSpec
)


def changed(ids: torch.Tensor, at: int) -> torch.Tensor:
    other = ids.clone()
    other[:, at] = (other[:, at] + 1) % 29
    return other


def check_causal(spec: ModelSpec) -> None:
    model, ids, at = randomised(spec), ids_for(spec, 2, N), 11
    run = runner(model)
    with torch.no_grad():
        before, after = run(ids).logits, run(changed(ids, at)).logits
    assert same(spec, before[:, :at], after[:, :at])
    assert (before[:, at] - after[:, at]).abs().max() > 1e-3, "the changed token itself must matter"


@every_writer
def test_presets_are_causal(spec: ModelSpec) -> None:
    check_causal(one_chunk(spec))


@given(spec=decoders())
@settings(max_examples=combinations(40), deadline=None)
def test_combinations_are_causal(spec: ModelSpec) -> None:
    check_causal(spec)


@every_encoder
def test_encoders_see_all(spec: ModelSpec) -> None:
    """The last token changes every state and every head's answer, if by way of those that are told to see all."""
    model, ids = randomised(spec), ids_for(spec, 2, N)
    with torch.no_grad():
        before, after = (model(x, **told(spec, x)) for x in (ids, changed(ids, N - 1)))
    for head, answer in before.outputs.items():
        assert ((answer - after.outputs[head]).abs().amax(-1) > 1e-4).all(), head
    assert ((before.last_hidden_state - after.last_hidden_state).abs().amax(-1) > 1e-4).all()


def test_an_encoder_beside_a_decoder_sees_all() -> None:
    from anyformer.families import preset
    from anyformer.resizing import shrink

    model = randomised(shrink(preset("transformer-base").spec))
    ids, target = ids_for(model.spec, 1, N), ids_for(model.spec, 1, 3)
    with torch.no_grad():
        runs = [model(x, decoder_input_ids=target).encoder_last_hidden_state for x in (ids, changed(ids, N - 1))]
    assert ((runs[0] - runs[1]).abs().amax(-1) > 1e-4).all(), "the last token changes every state of the encoder"


@every_of_one_stack
def test_relative_positions_can_be_shifted(spec: ModelSpec) -> None:
    # A gain of each feature of what has turned tells where it has turned to.
    heads = (value for value in spec.nested() if isinstance(value, GQASpec) and value.norm_last)
    last = any(isinstance(each.norm_query, RMSNormSpec) and each.norm_query.weight for each in heads)
    absolute = last or any(isinstance(value, ABSOLUTE) for value in spec.nested())
    model, ids = randomised(spec), ids_for(spec, 1, N)
    positions = torch.arange(N)[None]
    with torch.no_grad():
        here, there = (model(ids, position_ids=positions + shift).logits for shift in (0, 7))
    difference = (here - there).abs().max().item()
    assert difference > 100 * FLOAT32 if absolute else difference < single(spec) * here.abs().max().item()


def test_rotary_and_alibi_know_distance() -> None:
    """A relative scheme must not be none at all: swapping two earlier tokens changes a later one."""
    for name, spec in (("rotary", None), ("alibi", ALiBiSpec())):
        from anyformer.families import preset
        from anyformer.resizing import shrink

        model_spec = shrink(preset("llama2").spec)
        if spec is not None:
            layer = model_spec.stack.blocks[0]
            attention = layer.sublayers[0].branches[0].mixer
            assert isinstance(attention, AttentionSpec)
            plain = attention.but(scores=(spec,), projection=attention.projection.but(rotary=None))
            branch = layer.sublayers[0].branches[0].but(mixer=plain)
            layer = layer.but(sublayers=(layer.sublayers[0].but(branches=(branch,)), layer.sublayers[1]))
            model_spec = model_spec.but(stack=model_spec.stack.but(blocks=(layer,)))
        model, ids = randomised(model_spec), ids_for(model_spec, 1, 9)
        swapped = ids[:, [1, 0, 2, 3, 4, 5, 6, 7, 8]]
        with torch.no_grad():
            assert (model(ids).logits[:, -1] - model(swapped).logits[:, -1]).abs().max() > 1e-3, name
    assert Everything().band() is not None
