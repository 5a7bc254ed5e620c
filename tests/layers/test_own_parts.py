"""A user's own parts, defined outside the package, work everywhere without touching it."""

from __future__ import annotations

import pytest
import torch

from anyformer.cache import KVCache
from anyformer.errors import SpecError
from anyformer.families.compose import block, language_model, pre_norm, repeat
from anyformer.layers import AttentionSpec, Causal, FeedForwardSpec, GQASpec, NormSpec, ReLU, RMSNormSpec, ShawKeysSpec
from anyformer.model import build
from anyformer.resizing import shrink
from anyformer.spec import (
    BlockSpec,
    BranchSpec,
    Count,
    ModelSpec,
    Place,
    SublayerSpec,
    Width,
    Window,
    decode,
    dumps,
    encode,
    loads,
    parameters,
    tensors,
)
from tests.laws.models import randomised
from tests.layers.own_parts import (
    ByProjectedDistanceSpec,
    Dilated,
    LookBackSpec,
    ManhattanNormSpec,
    PlacesSpec,
)

LENGTH = 17


def model_of_own_parts() -> ModelSpec:
    norm = ManhattanNormSpec()
    places = PlacesSpec(farthest=Window(6), shared="places")

    def layer(dilated: bool) -> BlockSpec:
        mask = Causal() & Dilated(rate=Window(2)) if dilated else Causal()
        scores = ShawKeysSpec(farthest=Window(3)), ByProjectedDistanceSpec(places=places)
        attend = AttentionSpec(
            projection=GQASpec(n_heads=Count(4), n_kv_heads=Count(2), head_dim=Width(10)), mask=mask, scores=scores
        )
        feed = FeedForwardSpec(d_ff=Width(40), activation=ReLU())
        return block(pre_norm(norm, attend), pre_norm(norm, LookBackSpec(), feed))

    blocks = repeat([layer(True), layer(False)], 3)
    return language_model(vocab_size=50, d_model=24, blocks=blocks, norm=norm, tied=True)


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return model_of_own_parts()


@pytest.fixture
def model(spec: ModelSpec) -> torch.nn.Module:
    return randomised(spec)


def ids() -> torch.Tensor:
    return torch.randint(0, 50, (2, LENGTH), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_they_are_written_and_read(spec: ModelSpec, form: str) -> None:
    text = dumps(spec, "json" if form == "json" else "yaml")
    assert loads(text) == spec
    assert "ManhattanNorm" in text
    assert "Dilated" in text
    with pytest.raises(SpecError, match=r"Dilated has no field 'rat' \(did you mean 'rate'\?\)"):
        loads(text.replace('"rate":', '"rat":').replace("rate:", "rat:"))


def test_they_are_counted_and_shrunk(spec: ModelSpec) -> None:
    attention = 24 * 40 * 2 + 24 * 20 * 2 + 7 * 10
    back, feed, norms = 24 * 24 + 24, 24 * 40 * 2 + 40 + 24, 2 * 24
    assert parameters(spec).total == 3 * (attention + back + feed + norms) + 24 + 50 * 24 + 6 * 24
    assert next(part.farthest for part in shrink(spec).nested() if isinstance(part, PlacesSpec)) == 5


def test_they_are_built_once_where_they_are_shared(spec: ModelSpec, model: torch.nn.Module) -> None:
    names = {n: tuple(p.shape) for n, p in model.named_parameters()}
    assert names == {n: w.shape for n, w in tensors(spec, Place())}
    assert [n for n in names if "places" in n] == ["shared.places.weight"]


@torch.no_grad()
@pytest.mark.parametrize("padded", [False, True])
def test_kernels_agree(model: torch.nn.Module, padded: bool) -> None:
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    if padded:
        mask[0, :4] = 0
    eager, fused = (model(ids(), mask, kernel=name).logits[mask.bool()] for name in ("eager", "sdpa"))
    assert eager.std() > 0.3
    torch.testing.assert_close(fused, eager, rtol=0, atol=1e-5 * eager.abs().max().item())


@torch.no_grad()
@pytest.mark.parametrize("chunks", [[1] * LENGTH, [5, 1, 3, 8]])
def test_decoding_is_the_full_pass(spec: ModelSpec, model: torch.nn.Module, chunks: list[int]) -> None:
    full = model(ids()).logits
    cache = KVCache(spec, batch=2, length=8)
    steps = [model(chunk, cache=cache).logits for chunk in ids().split(chunks, 1)]
    torch.testing.assert_close(torch.cat(steps, 1), full, rtol=0, atol=1e-5 * full.abs().max().item())


@torch.no_grad()
def test_padding_changes_nothing(model: torch.nn.Module) -> None:
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, :4] = 0
    alone, padded = model(ids()[:1, 4:]).logits[0], model(ids(), mask).logits[0, 4:]
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-5 * alone.abs().max().item())


@torch.no_grad()
@pytest.mark.parametrize("kind", ["ShawKeys", "ByProjectedDistance", "Dilated", "LookBack"])
def test_each_of_them_matters(spec: ModelSpec, model: torch.nn.Module, kind: str) -> None:
    before = model(ids()).logits
    if kind == "Dilated":
        other = build(loads(dumps(spec).replace("rate: 2", "rate: 3")))
        other.load_state_dict(model.state_dict())
        after = other(ids()).logits
    else:
        for module in model.modules():
            if type(module).__name__ in (kind, "Places" if kind == "ByProjectedDistance" else kind):
                for parameter in module.parameters():
                    parameter.zero_()
        after = model(ids()).logits
    assert (after - before).abs().max() > 1e-2


def test_a_step_of_training_reaches_them(model: torch.nn.Module) -> None:
    tokens = ids()

    def loss() -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten())

    optimiser = torch.optim.SGD(model.parameters(), lr=1e-2)
    before = loss()
    before.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    optimiser.step()
    assert loss() < before


def test_a_norm_that_is_left_out_passes_on_what_it_is_given_and_is_no_part_of_the_model() -> None:
    attend = AttentionSpec(projection=GQASpec(n_heads=Count(2)), mask=Causal())
    blocks = repeat(block(SublayerSpec(branches=(BranchSpec(mixer=attend),))), 1)
    model = build(language_model(vocab_size=9, d_model=8, blocks=blocks, norm=None, tied=False), seed=0)
    assert not [name for name, _ in (*model.named_modules(), *model.named_parameters()) if "norm" in name]
    x = torch.randn(2, 3)
    sublayer = model.stack.blocks[0].sublayers[0]
    assert all(norm(x) is x for norm in (sublayer.norm_in, sublayer.branches[0].mixer.projection.norm_key))


def test_a_name_that_exists_is_refused() -> None:
    with pytest.raises(SpecError, match="a part called 'RMSNorm' exists already"):
        type("RMSNormSpec", (NormSpec,), {"__module__": __name__, "__annotations__": {}})
    assert decode(encode(RMSNormSpec(eps=1e-3)), NormSpec) == RMSNormSpec(eps=1e-3)
