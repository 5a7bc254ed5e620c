"""Rotary frequencies that are learned: by hand, over every projection that turns. Mistral Large 4 has them too (the laws)."""

from __future__ import annotations

import pytest
import torch

from anyformer import build
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import LearnedFrequenciesSpec, RotarySpec
from anyformer.layers.rotary import LearnedFrequencies
from anyformer.layers.tokens import plain_tokens
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, Place
from tests.laws.models import ids_for, randomised
from tests.laws.tolerance import close, distance

SHARED, OWN = LearnedFrequenciesSpec(shared="waves"), LearnedFrequenciesSpec()
TURNING = ["llama3-8b", "deepseek-v3", "deepseek-v4-flash", "jetmoe-8b"]  # GQA, MLA, SharedKV, MoA


def learning(name: str, learned: LearnedFrequenciesSpec) -> tuple[ModelSpec, ModelSpec]:
    """Return a shrunk preset with frequencies that are learned, and without."""
    plain = shrink(preset(name).spec)
    return changed(plain, RotarySpec, learned=learned), plain


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_each_pair_turns_by_its_own_frequency(layout: str) -> None:
    rotary = RotarySpec(learned=OWN).but(layout=layout)
    learned = LearnedFrequencies(OWN, Place(shape=(4,)))
    alpha = torch.tensor([0.0, 0.5, -1.0, 2.0])
    with torch.no_grad():
        learned.alpha.copy_(alpha)
        x = torch.randn(1, 1, 7, 8, generator=torch.Generator().manual_seed(0))
        found = rotary.turned(x, *rotary.tables(plain_tokens(7, x.device), 8, x.dtype, learned))
    pairs = x.unflatten(-1, (2, 4)).mT if layout == "half" else x.unflatten(-1, (4, 2))
    turning = torch.view_as_complex(pairs.contiguous())
    angles = torch.arange(7)[:, None] * 10_000.0 ** (-torch.arange(4) / 4) * alpha.exp()
    turned = torch.view_as_real(turning * torch.polar(torch.ones_like(angles), angles))
    close(found, (turned.mT if layout == "half" else turned).flatten(-2))


@pytest.mark.parametrize("name", TURNING)
def test_at_first_frequencies_are_the_usual_ones_and_then_they_are_not(name: str) -> None:
    learned, plain = learning(name, SHARED)
    model, ids = randomised(learned), ids_for(plain, 2, 12)
    usual = randomised(plain)
    names = [name for name in model.state_dict() if name.endswith(".alpha")]
    assert names == ["shared.waves.alpha"]
    usual.load_state_dict({key: value for key, value in model.state_dict().items() if key not in names})
    alpha = model.get_parameter("shared.waves.alpha")
    model(ids).logits.square().sum().backward()
    assert alpha.grad is not None
    assert alpha.grad.ne(0).all()
    with torch.no_grad():
        assert distance(model(ids).logits, usual(ids).logits) > 1e-4
        alpha.zero_()
        close(model(ids).logits, usual(ids).logits)
    assert build(learned, seed=0).get_parameter("shared.waves.alpha").eq(0).all()


@pytest.mark.parametrize("name", TURNING)
def test_layers_may_have_frequencies_of_their_own(name: str) -> None:
    """With the same numbers in each it is the model that shares them; with others it is not."""
    shared, _ = learning(name, SHARED)
    own, _ = learning(name, OWN)
    one, each, ids = randomised(shared), randomised(own), ids_for(own, 2, 12)
    state = one.state_dict()
    alpha = state.pop("shared.waves.alpha")
    names = [name for name in each.state_dict() if name.endswith(".alpha")]
    assert len(names) > 1
    each.load_state_dict({**state, **dict.fromkeys(names, alpha)})
    with torch.no_grad():
        close(each(ids).logits, one(ids).logits)
        each.get_parameter(names[-1]).neg_()
        assert distance(each(ids).logits, one(ids).logits) > 1e-4
