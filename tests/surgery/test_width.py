"""A stream of more features keeps the function; of fewer, those that matter most stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.hub import save, transplant
from anyformer.layers import GQASpec
from anyformer.model import Transformer
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec
from anyformer.surgery import Anatomy, Widening
from anyformer.surgery.width import NOISE
from tests.inspection.looked_at import TEXT, small, tokenizer
from tests.laws.models import every_preset, randomised
from tests.laws.tolerance import FLOAT32, close

# Pre-norm and post-norm, tied heads and heads of their own, transforms before tied tables, learned positions, biases,
# norms of all queries, parallel branches, latent attention, experts with a shared one, states, two stacks.
FAMILIES = [
    *("llama3-8b", "gpt2", "gpt", "bert-base", "qwen3-4b", "olmo2-7b", "gptj-6b", "mixtral-8x7b", "deepseek-v3"),
    *("albert-base", "qwen3-next-80b-a3b", "mamba2-130m", "bart-base", "t5-v1.1-small", "deberta-v2-xlarge"),
]


def wider(spec: ModelSpec, times: float) -> ModelSpec:
    """Return the architecture with a wider stream and the same heads."""
    d_model = spec.stack.d_model
    heads = next(spec.nested(GQASpec), None)
    more = {} if heads is None or heads.head_dim is not None else {"head_dim": d_model // heads.n_heads}
    return af.vary(spec, d_model=int(d_model * times), **more)


def made(spec: ModelSpec, donor: Transformer, directory: Path) -> Any:
    save(donor, directory)
    return transplant(spec, directory)


def logits(model: Transformer) -> Tensor:
    ids = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    more = {} if model.spec.encoder is None else {"decoder_input_ids": ids}
    with torch.no_grad():
        return model.eval()(ids, **more).logits


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("times", [2, 3])
def test_a_wider_stream_keeps_the_function(name: str, times: int, tmp_path: Path) -> None:
    spec = shrink(preset(name).spec)
    donor = randomised(spec)
    found = made(wider(spec, times), donor, tmp_path / "given")
    assert found.new == ()
    assert (
        found.how[0]
        == f"a stream of {times * spec.stack.d_model} features, the given {spec.stack.d_model} again and again"
    )
    close(logits(found.model), logits(donor), 4 * FLOAT32)


@pytest.mark.parametrize("norm", ["RMSNorm", "RMSNorm(weight_offset=1.0)", "LayerNorm"])
def test_a_tied_table_reads_what_the_last_norm_shares_out(norm: str, tmp_path: Path) -> None:
    """By gains around 1 or around 0, and by shifts."""
    spec = af.vary(shrink(preset("llama3.2-1b").spec), norm=norm)
    donor = randomised(spec)
    close(logits(made(wider(spec, 2), donor, tmp_path / "given").model), logits(donor), 4 * FLOAT32)


def test_copies_come_to_differ(tmp_path: Path) -> None:
    """What reads both copies is not alike, so that their gradients are not: noise of a tenth, which cancels."""
    spec = shrink(preset("llama3-8b").spec)
    d = spec.stack.d_model
    donor = randomised(spec)
    found = made(wider(spec, 2), donor, tmp_path / "given")
    name = "stack.blocks.0.sublayers.1.branches.0.mixer.up.weight"
    weight, before = found.model.state_dict()[name], donor.state_dict()[name]
    first, second = weight[:, :d], weight[:, d:]
    close(first + second, before, FLOAT32)
    assert float((first - second).std() / (before / 2).std()) == pytest.approx(2**0.5 * NOISE, rel=0.2)
    found.model.train()(torch.arange(9)[None], labels=torch.arange(9)[None]).loss.backward()
    grad = found.model.get_parameter("stack.embedding.terms.0.table.weight").grad
    assert not torch.allclose(grad[:, :d], grad[:, d:], rtol=1e-2)


def test_not_a_multiple(tmp_path: Path) -> None:
    """Some features stand twice: norms see other lengths, and the rest is as it was."""
    spec = shrink(preset("llama3-8b").spec)
    found = made(wider(spec, 1.5), randomised(spec), tmp_path / "given")
    assert found.new == ()
    assert 1e-3 < found.apart < 1


def test_heads_that_become_wider_begin_anew(tmp_path: Path) -> None:
    """Where a head is d_model / n_heads wide: its features are not the stream's, though their number is."""
    spec = shrink(preset("longformer-base-4096").spec)
    found = made(af.vary(spec, d_model=2 * spec.stack.d_model), randomised(spec), tmp_path / "given")
    kinds = {name.rsplit(".", 2)[1] for name in found.new}
    assert kinds == {"q", "k", "v", "o", "q_global", "k_global", "v_global"}


def test_a_narrower_stream_is_of_the_features_that_weigh_most(tmp_path: Path) -> None:
    spec = shrink(preset("llama3-8b").spec)
    donor = randomised(spec)
    heavy = [1, 4, 5, *range(8, 21)]
    for name, tensor in donor.named_parameters():
        if name.endswith(("o.weight", "down.weight")):
            tensor.data[heavy] *= 10
    found = made(wider(spec, 0.5), donor, tmp_path / "given")
    assert found.how[0] == "the 16 of 32 features of the stream that weigh most"
    mine, theirs = found.model.state_dict(), donor.state_dict()
    for name, tensor in mine.items():
        given = theirs[name]
        for dim in range(tensor.dim()):
            given = given if given.shape[dim] == tensor.shape[dim] else given.index_select(dim, torch.tensor(heavy))
        assert torch.equal(tensor, given), name


def test_a_narrower_stream_by_how_much_features_matter(tmp_path: Path) -> None:
    model = small("llama3-8b")
    af.save(model, tmp_path / "given", tokenizer=tokenizer())
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    found = af.transplant(af.vary(model.spec, d_model=29), tmp_path / "given", tmp_path / "text.txt")
    assert "the 29 of 32 features of the stream that matter most" in found.how
    matters = af.inspect(tmp_path / "given", tmp_path / "text.txt").importance["stack"]["d_model"].tolist()
    kept = sorted(sorted(range(32), key=lambda i: -matters[i])[:29])
    table = "stack.embedding.terms.0.table.weight"
    assert torch.equal(found.model.state_dict()[table], model.state_dict()[table][:, kept])
    by_weight = transplant(af.vary(model.spec, d_model=29), tmp_path / "given")
    assert not torch.equal(by_weight.model.state_dict()[table], found.model.state_dict()[table])


@every_preset
def test_shapes_become_those_of_the_new_architecture(spec: ModelSpec) -> None:
    """Of every tensor that changes by the stream alone: those that no head and no other width is an axis of; axial positions
    have parts of the stream's features."""
    if len({stack.d_model for stack in spec.stacks.values()}) > 1:
        pytest.skip("two widths")
    d = spec.stack.d_model
    try:
        new, old = Anatomy(af.vary(spec, d_model=2 * d)), Anatomy(spec)
    except SpecError as error:
        pytest.skip(f"its heads go by the stream's width, and do not bear another: {error}")
    before = {path: each.weight for path, each in old.tensors.items()}
    widening = Widening(new, old, randomised(spec).state_dict(), 2 * d, d)
    state = widening.done(widening.places()[0], 0)
    n = 0
    for path, (name, weight) in old.tensors.items():
        assert state[name].shape == weight.shape, path
        there = new.tensors[path].weight if path in new.tensors else None
        changes = there and {
            (axis, b) for axis, a, b in zip(there.axes, there.shape, before[path].shape, strict=True) if a != b
        }
        if there is not None and changes == {("d_model", d)}:
            n += 1
            assert weight.shape == there.shape, path
    assert n > 1
