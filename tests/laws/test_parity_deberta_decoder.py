"""Law 6 for DeBERTa's enhanced mask decoder, which transformers lacks, held against a slow one of plain torch."""

from typing import Any

import pytest
import torch

from anyformer.errors import SpecError
from anyformer.families import FAMILIES, PRESETS, preset
from anyformer.families.hf.mapping import fitting
from anyformer.layers import AttentionSpec, ReversibleSpec
from anyformer.resizing import shrink
from anyformer.spec import HeadLayersSpec, ModelSpec
from tests.laws.elsewhere import texts
from tests.laws.inputs import inputs
from tests.laws.mutations import check_seen
from tests.laws.references import DECODED, elsewhere
from tests.laws.tolerance import FLOAT32, close, distance, gradient_distance
from tests.laws.weights import edited, filled, telling
from tests.oracles import deberta as oracle

ORACLES = {
    "deberta-base-emd": oracle.Sizes(n_layers=2, n_heads=4, farthest=64, buckets=None),
    "deberta-v2-xlarge-emd": oracle.Sizes(n_layers=3, n_heads=4, farthest=64, buckets=16),
    "deberta-v3-base-generator": oracle.Sizes(n_layers=2, n_heads=4, farthest=64, buckets=16),
}


def test_every_such_preset_is_held_against_an_oracle() -> None:
    held = {shrink(preset(name).spec) for name in ORACLES}
    with_layers = [record for record in PRESETS.values() if elsewhere(record) == DECODED]
    assert len(with_layers) >= 6
    assert {shrink(record.spec) for record in with_layers} == held


@pytest.mark.parametrize("kind", ["plain", "right", "left", "packed"])
@pytest.mark.parametrize("name", ORACLES)
def test_logits_and_gradients_are_those_of_the_oracle(name: str, kind: str) -> None:
    spec = shrink(preset(name).spec)
    given, weights = inputs(kind, spec.vocab_size), telling(spec)
    model, leaves = filled(spec, weights), {n: weight.clone().requires_grad_() for n, weight in weights.items()}
    logits = model(given.input_ids, **given.ours).logits
    generator, totals = torch.Generator().manual_seed(1), [torch.zeros(()), torch.zeros(())]
    for row, columns in texts(given):
        ours, theirs = logits[row, columns], oracle.masked_words(leaves, given.input_ids[row, columns], ORACLES[name])
        close(ours, theirs)
        assert theirs.std(-1).mean() > 0.5
        weight = torch.randn(theirs.shape, generator=generator)
        totals = [total + (side * weight).sum() for total, side in zip(totals, (ours, theirs), strict=True)]
    for total in totals:
        total.backward()
    found, expected = ({n: p.grad for n, p in named} for named in (model.named_parameters(), leaves.items()))
    assert gradient_distance(found, expected) < FLOAT32


def edit(part: type[Any], **changes: Any) -> Any:
    return lambda spec: edited(spec, part, lambda value: value.but(**changes))


def layers_of(spec: ModelSpec) -> HeadLayersSpec:
    found = spec.heads[0].layers
    assert found is not None
    return found


def with_layers(spec: ModelSpec, **changes: Any) -> ModelSpec:
    return spec.but(heads=(spec.heads[0].but(layers=layers_of(spec).but(**changes)),))


MUTATIONS: dict[str, Any] = {
    "where it begins": lambda spec: with_layers(spec, before=0),
    "how often": lambda spec: with_layers(spec, blocks=layers_of(spec).blocks[:1]),
    "what it reads": lambda spec: with_layers(
        spec, blocks=tuple(edit(AttentionSpec, reads="self")(block) for block in layers_of(spec).blocks)
    ),
}


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_distinguishing_field_is_seen(name: str, mutation: str) -> None:
    spec = shrink(preset(name).spec)
    check_seen(spec, MUTATIONS[mutation](spec))


def test_positions_are_seen() -> None:
    """Equal tokens in a row differ for the decoder by their positions alone."""
    spec = shrink(preset("deberta-base-emd").spec)
    weights = telling(spec)
    still = {**weights, "heads.0.layers.terms.0.weight": torch.zeros_like(weights["heads.0.layers.terms.0.weight"])}
    ids = inputs("plain", spec.vocab_size).input_ids
    with torch.no_grad():
        told, untold = (filled(spec, each)(ids).logits for each in (weights, still))
    assert distance(told, untold) > 100 * FLOAT32


def test_the_last_layer_is_the_decoders() -> None:
    """The decoder has no weights of its own but positions, and the layer that the kept encoder ends with learns from it."""
    for name in ORACLES:
        spec, bare = shrink(preset(name).spec), shrink(preset(name).spec.but(heads=()))
        own = set(telling(spec)) - set(telling(bare))
        assert {n for n in own if ".layers." in n} == {"heads.0.layers.terms.0.weight"}
        model = filled(spec, telling(spec))
        out = model(torch.arange(20)[None], output_logits=False)
        out.read_by(model.head()).square().sum().backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for n, p in model.named_parameters() if "last_" in n)


def test_what_cannot_be_is_refused() -> None:
    spec = shrink(preset("deberta-base-emd").spec)
    with pytest.raises(SpecError, match=r"the head 'mlm' reads 3 layers before the last, and the stack has 2"):
        with_layers(spec, before=3)
    with pytest.raises(SpecError, match=r"HeadLayers.before = -1 must be at least 0"):
        with_layers(spec, before=-1)
    with pytest.raises(SpecError, match=r"HeadLayers.blocks = \(\) is empty"):
        with_layers(spec, blocks=())
    pre_norm = shrink(preset("llama2-7b").spec)
    layered = (pre_norm.heads[0].but(layers=HeadLayersSpec(blocks=pre_norm.stack.blocks)),)
    with pytest.raises(SpecError, match="Reversible gives another width; take Add"):
        pre_norm.but(stack=pre_norm.stack.but(residual=ReversibleSpec(output="both")), heads=layered)
    with pytest.raises(SpecError, match="no class of transformers computes this model"):
        fitting(FAMILIES.values(), spec)


def test_the_stack_alone_gives_what_it_would_have_given() -> None:
    """A head that begins at the last layer but one reads what a stack of one layer fewer gives, its norm and all."""
    spec = shrink(preset("llama2-7b").spec)
    layers = HeadLayersSpec(blocks=(spec.stack.blocks[0],), before=1)
    early = spec.but(heads=(spec.heads[0].but(layers=layers),))
    short = spec.but(stack=spec.stack.but(blocks=spec.stack.blocks[:-1]), heads=early.heads)
    short = with_layers(short, before=0)
    weights, ids = telling(early), torch.arange(30)[None]
    with torch.no_grad():
        expected = filled(short, {n: weights[n] for n in telling(short)})(ids).logits
        close(filled(early, weights)(ids).logits, expected)
