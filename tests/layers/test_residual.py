"""How branches write to the stream: by hand, and through a whole model whose every branch is multiplied."""

from __future__ import annotations

import pytest
import torch

from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import AddByDepthSpec, AddSpec, ReversibleSpec, RMSNormSpec
from anyformer.layers.context import ForwardContext, Notes
from anyformer.layers.tokens import plain_tokens
from anyformer.resizing import shrink
from anyformer.spec import Place, ScaleSpec
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


@pytest.mark.parametrize("n_layers", [1, 2, 62])
def test_factors_follow_the_depth(n_layers: int) -> None:
    """DeepNorm's is (2 layers)^(1/4) of the stream, MiniCPM's 1.4 / √layers of what is written to it."""
    deep, mini = AddByDepthSpec(), AddByDepthSpec(power=0.0, branch=ScaleSpec(factor=1.4 * 2**0.5, power=-0.5))
    for residual, scale, branch in ((deep, (2 * n_layers) ** 0.25, 1.0), (mini, 1.0, 1.4 / n_layers**0.5)):
        spec = shrink(preset("llama2-7b").spec)
        spec = spec.but(stack=spec.stack.but(blocks=spec.stack.blocks[:1] * n_layers, residual=residual))
        found = residual.within(spec.stack.n_branches)
        assert (found.scale, found.branch) == pytest.approx((scale, branch))


def test_a_late_branch_writes_with_the_last_sublayer() -> None:
    """It reads what its sublayer reads; the sum, its scale and what is normed behind it are the last sublayer's."""
    spec = shrink(preset("transformer-lm").spec)  # post-norm
    first, last = spec.stack.blocks[0].sublayers
    more = last.branches[0].but(late=True, norm_out=RMSNormSpec())
    block = spec.stack.blocks[0].but(sublayers=(first.but(branches=(*first.branches, more)), last))
    model = randomised(spec.but(stack=spec.stack.but(blocks=(block,), residual=AddSpec(scale=0.7, branch=0.4))))
    stack = model.stack.blocks[0]
    (attention, late), (feed,) = (sublayer.branches for sublayer in stack.sublayers)
    seen: dict[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]] = {}  # what each read and wrote
    for each in (attention, late, feed, stack):
        each.register_forward_hook(lambda module, given, made: seen.update({module: (given[0], made[0])}))
    with torch.no_grad():
        model(ids_for(spec, 2, 9))
        x, y = seen[stack]
        one, two = stack.sublayers
        half = one.norm_sum(0.7 * x + 0.4 * seen[attention][1])
        assert all(torch.equal(a, b) for a, b in ((seen[attention][0], x), (seen[late][0], x), (seen[feed][0], half)))
        close(two.norm_sum(0.7 * half + 0.4 * (seen[feed][1] + seen[late][1])), y)


def test_late_branches_where_there_is_no_later_are_refused() -> None:
    spec = shrink(preset("gpt2").spec)
    block = spec.stack.blocks[0]
    first, last = block.sublayers
    late = first.branches[0].but(late=True)
    with pytest.raises(SpecError, match=r"Sublayer.branches .* are all late; one at least must write at once"):
        first.but(branches=(late,))
    with pytest.raises(SpecError, match=r"Block.sublayers .* has a late branch in the last, where nothing comes later"):
        block.but(sublayers=(first, last.but(branches=(*last.branches, late))))
    joined = block.but(sublayers=(first.but(branches=(*first.branches, last.branches[0].but(late=True))), last))
    with pytest.raises(SpecError, match=r"Reversible undoes one sublayer after the other and takes no late branch"):
        spec.stack.but(blocks=(joined,), residual=ReversibleSpec())
