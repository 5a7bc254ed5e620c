"""Streams side by side, keys that layers lend, embeddings of each layer: in a plain LLaMA, by hand, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import changed, window
from anyformer.layers import (
    AddByDepthSpec,
    AltUpSpec,
    AttentionSpec,
    GatedFeedForwardSpec,
    GQASpec,
    PerLayerEmbeddingSpec,
    StreamsSpec,
)
from anyformer.layers.feed_forward import largest
from anyformer.resizing import resize, shrink
from anyformer.spec import BranchSpec, Count, ModelSpec, SublayerSpec, TableSpec, Vocab, Width, parameters
from tests.laws.models import ids_for, randomised
from tests.laws.tolerance import close, distance

LLAMA = shrink(preset("llama3-8b").spec)
BERT = shrink(preset("bert-base").spec)


def borrowing(spec: ModelSpec = LLAMA, **fields: Any) -> ModelSpec:
    """Two layers, of which the second reads the first's keys."""
    first, *_ = spec.stack.blocks
    lender = changed(first, AttentionSpec, keys="all")
    return spec.but(
        stack=spec.stack.but(blocks=(lender, changed(lender, AttentionSpec, **{"reads": "layer", **fields})))
    )


def test_what_is_lent_is_what_equal_maps_of_the_same_stream_would_make() -> None:
    """With nothing written to the stream between them, and one norm, a layer that borrows is one whose maps are equal."""
    spec, ids = borrowing(), ids_for(LLAMA, 2, 11)
    model, twin = randomised(spec), randomised(LLAMA)
    with torch.no_grad():
        for each in (model, twin):
            first, second = each.stack.blocks
            for sublayer in first.sublayers:
                mixer = sublayer.branches[0].mixer
                (mixer.projection.o if hasattr(mixer, "projection") else mixer.down).weight.zero_()
            second.sublayers[0].norm_in.load_state_dict(first.sublayers[0].norm_in.state_dict())
        lent = model.stack.blocks[0].sublayers[0].branches[0].mixer.projection
        own = dict(twin.named_parameters())
        for name, value in model.named_parameters():
            own[name].copy_(value)
        maps = twin.stack.blocks[1].sublayers[0].branches[0].mixer.projection
        maps.k.weight.copy_(lent.k.weight)
        maps.v.weight.copy_(lent.v.weight)
        close(model(ids).logits, twin(ids).logits)
        maps.v.weight.mul_(1.01)
        assert distance(model(ids).logits, twin(ids).logits) > 1e-4
    saved = 2 * spec.stack.d_model * 2 * 16  # k and v of two heads of 16
    heads = next(v for v in LLAMA.nested() if isinstance(v, GQASpec))
    saved = 2 * spec.stack.d_model * heads.kv_heads * (heads.head_dim or spec.stack.d_model // heads.n_heads)
    assert parameters(LLAMA).total - parameters(spec).total == saved


def test_what_is_borrowed_has_its_gradient() -> None:
    model = randomised(borrowing())
    model(ids_for(LLAMA, 1, 9)).logits[:, -1].square().sum().backward()
    plain = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    model.recompute = "full"
    model(ids_for(LLAMA, 1, 9)).logits[:, -1].square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.equal(parameter.grad, plain[name]), name


@pytest.mark.parametrize("spec", [LLAMA, BERT], ids=["llama", "bert"])
def test_streams_by_hand(spec: ModelSpec) -> None:
    """Two streams around the layers of others: the formulas of the paper, stream by stream, by plain loops."""
    streams = StreamsSpec(n=Count(3))
    joined = tuple(block.but(connection=AltUpSpec()) for block in spec.stack.blocks)
    spec = spec.but(stack=spec.stack.but(blocks=joined, residual=streams))
    model, ids = randomised(spec), ids_for(spec, 2, 7)
    layers: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        for block in model.stack.blocks:
            block.sublayers[0].register_forward_pre_hook(lambda _, given: layers.append((given[0], given[0])))
            last = list(block.sublayers)[-1]
            last.register_forward_hook(lambda _, __, out: layers.append((layers.pop()[0], out[0])))
        states = model(ids, output_hidden_states=True).hidden_states
    assert states is not None
    assert len(layers) == len(model.stack.blocks)

    def long(y: Tensor, x: Tensor) -> Tensor:
        return y / y.square().mean(-1, keepdim=True).sqrt() * x.square().mean(-1, keepdim=True).sqrt()

    def says(part: Any, x: Tensor) -> Tensor:
        normed = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * part.norm.weight
        return torch.tanh(normed @ part.router.weight.T / spec.stack.d_model)

    with torch.no_grad():
        x = states[0][..., : spec.stack.d_model]
        at = [x, *(long(x @ each.weight.T, x) for each in model.stack.residual.begin)]
        for block, (read, given) in zip(model.stack.blocks, layers, strict=True):
            part = block.connection
            rows = (says(part, at[0]) @ part.predict.weight.T).unbind(-1)
            predicted = [at[j] + sum(rows[3 * j + i][..., None] * at[i] for i in range(3)) for j in range(3)]
            close(read, predicted[0])
            share = (says(part, given) @ part.correct.weight.T).unbind(-1)
            at = [predicted[j] + (1 + share[j][..., None]) * (given - predicted[0]) for j in range(3)]
        ends = [
            at[0],
            *(long(each @ m.weight.T, at[0]) for each, m in zip(at[1:], model.stack.residual.end, strict=True)),
        ]
        final = torch.stack(ends).mean(0)
        close(states[-1], model.stack.norm(final))


def test_embeddings_of_a_layer_under_bert() -> None:
    """By hand, in an encoder: tokens beyond the table's rows read the first."""
    table = TableSpec(rows=Vocab(50), width=Width(8))
    added = SublayerSpec(branches=(BranchSpec(mixer=PerLayerEmbeddingSpec(table=table)),))
    blocks = tuple(block.but(sublayers=(*block.sublayers, added)) for block in BERT.stack.blocks)
    spec = BERT.but(stack=BERT.stack.but(blocks=blocks))
    model, ids = randomised(spec), torch.tensor([[3, 49, 50, 100, 0]])
    mixer = model.stack.blocks[1].sublayers[2].branches[0].mixer
    seen: dict[str, Tensor] = {}

    def keep(_: Any, __: Any, out: Any) -> None:
        seen["input"] = out

    model.stack.embedding.register_forward_hook(keep)
    mixer.register_forward_hook(lambda _, given, out: seen.update(x=given[0], y=out[0]))
    with torch.no_grad():
        model(ids)
        rows = mixer.table.weight[torch.tensor([[3, 49, 0, 0, 0]])] * 8**0.5
        said = seen["input"] @ mixer.project.weight.T / spec.stack.d_model**0.5
        gate = torch.nn.functional.gelu(seen["x"] @ mixer.gate.weight.T, approximate="tanh")
        close(seen["y"], (gate * (rows + said) / 2**0.5) @ mixer.up.weight.T)


def test_a_share_of_normal_features_is_left_at_nothing() -> None:
    x = torch.randn(4, 100_000, generator=torch.Generator().manual_seed(0)) * 3 + 1
    for share in (0.5, 0.95):
        left = largest(x, share)
        assert (left == 0).double().mean().item() == pytest.approx(share, abs=2e-3)
        cutoff = 1 + 3 * Normal(0, 1).icdf(torch.tensor(share))
        assert (left - (x - cutoff).clamp(min=0)).abs().max() < 0.05
    gate = GatedFeedForwardSpec(d_ff=Width(8), activation=next(iter(_activations())), sparsity=0.5)
    part, between = x[:, :8], SimpleNamespace(activation=gate.activation, norm=torch.nn.Identity())
    assert gate.inner(part, 2 * part, module=between).equal(gate.activation(largest(part, 0.5)) * 2 * part)


def _activations() -> Any:
    return (v.activation for v in LLAMA.nested() if isinstance(v, GatedFeedForwardSpec))


def test_what_is_sized_anew_keeps_its_lenders_and_has_no_longer_tables() -> None:
    spec = resize(preset("gemma3n").spec, d_model=64, n_layers=17, vocab_size=300)
    tables = {value.rows for value in spec.nested() if isinstance(value, TableSpec)}
    assert tables == {300}
    attentions = [v for v in spec.nested() if isinstance(v, AttentionSpec)]
    assert {a.reads for a in attentions} == {"self", "layer"}


WINDOWED = changed(LLAMA, AttentionSpec, mask=window(4))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: borrowing(keys="some"),
            "layer 1 reads the keys called 'some', and no layer before it lends such; there are",
        ),
        (lambda: borrowing(WINDOWED, mask=window(5)), "its mask sees 5, and the last 4 tokens are kept"),
        (lambda: borrowing(keys=None), "Attention.keys = None does not say what is read"),
        (lambda: changed(LLAMA, AttentionSpec, reads="input", keys="k"), "names keys of the layer's own"),
        (lambda: changed(LLAMA, AttentionSpec, reads="layer", keys="k"), "layer 0 reads the keys called 'k'"),
        (lambda: StreamsSpec(n=Count(1)), "Streams.n = 1 is one stream"),
        (lambda: AltUpSpec(residual=StreamsSpec()), "has streams of its own"),
        (
            lambda: AltUpSpec(residual=AddByDepthSpec()),
            "AltUp.residual = AddByDepth goes by the branches of a whole stack",
        ),
        (lambda: PerLayerEmbeddingSpec(table=TableSpec(rows=Vocab(9))), "has no width"),
        (
            lambda: parameters(changed(LLAMA, type(LLAMA.stack.blocks[0]), connection=AltUpSpec())),
            "AltUp connects streams side by side, and here is one",
        ),
    ],
)
def test_refused_in_a_line(make: Any, says: str) -> None:
    with pytest.raises(SpecError, match=says) as error:
        make()
    assert "\n" not in str(error.value)


def test_keys_of_other_heads_are_refused() -> None:
    spec = borrowing()
    first, second = spec.stack.blocks
    with pytest.raises(SpecError, match=r"those are of .*, and its projection reads"):
        spec.stack.but(blocks=(first, changed(second, GQASpec, n_kv_heads=Count(1))))
