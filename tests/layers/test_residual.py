"""How branches write to the stream: by hand, and through a whole model whose every branch is multiplied."""

from __future__ import annotations

import pytest
import torch

from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import AddSpec
from anyformer.layers.tokens import ForwardContext, Notes, plain_tokens
from anyformer.resizing import shrink
from anyformer.spec import Place
from tests.laws.models import ids_for, randomised
from tests.laws.tolerance import close, distance


@pytest.mark.parametrize(("scale", "branch"), [(1.0, 1.0), (0.7, 1.0), (1.0, 0.22), (0.7, 0.22)])
def test_a_sum_of_two_products(scale: float, branch: float) -> None:
    state, y = torch.arange(12.0).view(1, 3, 4), torch.full((1, 3, 4), 10.0)
    module = AddSpec(scale=scale, branch=branch).build(Place(d_model=4))
    expected = [[[scale * (4 * i + j) + branch * 10 for j in range(4)] for i in range(3)]]
    context = ForwardContext(plain_tokens(3, state.device), {})

    def branches(x: torch.Tensor, context: ForwardContext) -> tuple[torch.Tensor, list[Notes]]:
        assert x is state
        return y, []

    close(module.step(state, branches, context)[0], torch.tensor(expected))
    assert module.open(state, context) is module.close(state)[0] is state


def test_the_factor_is_of_what_each_branch_writes() -> None:
    """A model whose output maps are smaller by the factor computes the same without it."""
    spec = shrink(preset("llama2-7b").spec)
    multiplied = changed(spec, AddSpec, branch=0.22)
    plain, factored = randomised(spec), randomised(multiplied)
    ids = ids_for(spec, 2, 9)
    with torch.no_grad():
        assert distance(plain(ids).logits, factored(ids).logits) > 0.01
        for block in plain.stack.blocks:
            block.sublayers[0].branches[0].mixer.projection.o.weight.mul_(0.22)
            block.sublayers[1].branches[0].mixer.down.weight.mul_(0.22)
        close(plain(ids).logits, factored(ids).logits)
