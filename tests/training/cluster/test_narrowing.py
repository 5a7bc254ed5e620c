"""The law of a model that several ranks share: what they compute of it adds up to the whole, loss and every gradient.

The ranks are threads here (`simulated`), so that every preset can be asked; over gloo see `test_tensor_parallel`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyformer.errors import SpecError, UsageError
from anyformer.families import PRESETS
from anyformer.families.compose import changed
from anyformer.layers import FeedForwardSpec, GQASpec, MLASpec, MoESpec, ReLU, RouterSpec
from anyformer.model import Transformer, build
from anyformer.resizing import shrink
from anyformer.spec import BranchSpec, Count, MixerSpec, ModelSpec, Place, Weight, Width
from anyformer.training.cluster.meeting import meet
from anyformer.training.cluster.mesh import Mesh
from anyformer.training.cluster.narrowing import TensorPart, cuts, narrowed
from anyformer.training.cluster.refusals import refuse_on_mesh
from anyformer.training.cluster.world import ALONE, World
from anyformer.training.objectives.objective import objective_of
from anyformer.training.step import Trainer
from tests.laws.tolerance import in_float64
from tests.training.cluster.simulated import Simulated, together
from tests.training.cluster.steps import batch_for, objective_for, recipe_for, trainer_for

# Grouped queries; sinks, windows, biased experts; an encoder, relative buckets, tied tables; ALiBi; disentangled scores and
# layers of a head's; one key/value head beside a parallel feed-forward.
FAST = ("llama3-8b", "gpt-oss-20b", "t5-base", "bloom-560m", "deberta-v3-base-generator", "falcon-7b")
# Sums of float32 in another order: as of several processes, `test_same_steps`.
LOSS, GRADIENT, EPSILON = 1e-6, 1e-5, 2.0**-20
# Whose layers enlarge that rounding: in float64, but for what is float32 in any model (cross-entropy).
IN_DOUBLE = ("gemma3n-e4b", "gemma4-e2b", "gemma4-e4b", "ling-3.0-flash", "olmo-hybrid-7b")
LEAST = {"LOSS": 1e-7, "GRADIENT": 2e-7, "EPSILON": 5e-8}


def part_of(tensor: Tensor, cut: TensorPart | None) -> Tensor:
    return tensor if cut is None else tensor.narrow(cut.dim, cut.start, cut.length)


def names(model: Transformer) -> dict[tuple[nn.Module, str], str]:
    owners = ((name.rpartition("."), name) for name, _ in model.named_parameters())
    return {(model.get_submodule(owner), last): name for (owner, _, last), name in owners}


def gradients(trainer: Trainer) -> dict[str, Tensor]:
    return {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}


def check(spec: ModelSpec, ranks: int) -> None:
    """Loss, loads, losses of routers and gradients of one batch, by ranks and by one process of the whole."""
    recipe = recipe_for(spec, clip=None)
    whole, batch = trainer_for(spec, recipe, ALONE), batch_for(spec, 1)
    weights = {name: p.detach().clone() for name, p in whole.model.named_parameters()}

    def one(rank: Simulated) -> tuple[Any, dict[str, Tensor], Mapping[str, TensorPart | None]]:
        narrow = narrowed(spec, rank.rank, ranks)
        cut = cuts(spec, narrow, rank.rank, ranks)
        model = build(narrow, None)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(part_of(weights[name], cut[name]))
        added = {names(model)[owned] for owned in meet(model, cut, spec.vocab_size, rank)}
        trainer = Trainer(model, recipe, type(whole.objective)(recipe.objective, spec))
        result = trainer.gradients(1, batch)
        found = gradients(trainer)
        for name in sorted(added & gradients(whole).keys()):  # as what holds a part of the whole adds it up
            part = torch.zeros_like(weights[name])
            part_of(part, cut[name]).copy_(found.get(name, torch.zeros(())))
            found[name] = part_of(rank.reduce(part), cut[name])
        return result, found, cut

    wanted = whole.gradients(1, batch)
    of_whole = gradients(whole)
    largest = max(float(gradient.abs().max()) for gradient in of_whole.values())
    for result, found, cut in together(ranks, one):
        assert result.loss == pytest.approx(wanted.loss, rel=LOSS)
        assert (result.load and result.load.numbers().tolist()) == (wanted.load and wanted.load.numbers().tolist())
        assert result.router_loss == (
            None if wanted.router_loss is None else pytest.approx(wanted.router_loss, rel=1e-5)
        )
        assert found.keys() == of_whole.keys()
        far = {name: float((found[name] - part_of(g, cut[name])).abs().max()) for name, g in of_whole.items()}
        limit = {name: GRADIENT * float(g.abs().max()) + EPSILON * largest for name, g in of_whole.items()}
        assert {name: (far[name], limit[name]) for name in far if far[name] > limit[name]} == {}


def refusal(spec: ModelSpec, ranks: int) -> str | None:
    """Why the architecture is not trained by so many ranks."""
    try:
        narrowed(spec, 0, ranks)
        if objective_of(objective_for(spec), spec).auxiliary() is not None:
            refuse_on_mesh(spec, recipe_for(spec), World(0, ranks, mesh=Mesh(tp=ranks)), beside=True)
    except (SpecError, UsageError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in PRESETS]
)
def test_ranks_add_up_to_the_whole(name: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the architecture is refused by name. Four ranks are more than there are key/value heads of some."""
    spec = shrink(PRESETS[name].spec)
    if said := refusal(spec, ranks):
        assert re.search(f"tp ?= ?{ranks}|does not predict tokens", said)
        assert name not in FAST
    elif any(isinstance(part, RouterSpec) and part.draws for part in spec.nested()):
        pytest.skip("threads draw from one stream of random numbers; over gloo: test_tensor_parallel")
    elif name in IN_DOUBLE:
        for limit, value in LEAST.items():
            monkeypatch.setattr(f"{__name__}.{limit}", value)
        with in_float64():
            check(spec, ranks)
    else:
        check(spec, ranks)


@pytest.mark.parametrize("ranks", [2, 4])
def test_experts_in_a_latent_are_shared_out(ranks: int) -> None:
    """The maps there and back are whole on every rank, and each has its part of their gradients."""
    spec = changed(shrink(PRESETS["mixtral-8x7b"].spec), MoESpec, latent=Width(12))
    assert any(cut for name, cut in cuts(spec, narrowed(spec, 0, ranks), 0, ranks).items() if ".experts." in name)
    check(spec, ranks)


@pytest.mark.parametrize(
    ("mixer", "says"),
    [
        (GQASpec(n_heads=Count(25)), "GQA.n_heads = 25 is no multiple of tp = 2; take a tp that divides it"),
        (GQASpec(n_heads=Count(6), n_kv_heads=Count(3)), "GQA.n_kv_heads = 3 is no multiple of tp = 2"),
        (MLASpec(n_heads=Count(3), kv_rank=Width(4), head_dim=Width(4)), "MLA.n_heads = 3 is no multiple"),
        (FeedForwardSpec(d_ff=Width(7), activation=ReLU()), "FeedForward.d_ff = 7 is no multiple of tp = 2"),
    ],
)
def test_what_ranks_do_not_divide(mixer: Any, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        mixer.narrowed(Place(150, (150,), 150), 2)


def test_one_key_value_head_is_read_by_several_ranks() -> None:
    """Two heads of keys, of 16 features, on four ranks: each of two ranks has one of them whole."""
    spec = shrink(PRESETS["llama3-8b"].spec)
    projection = GQASpec(n_heads=Count(4), n_kv_heads=Count(2), head_dim=Width(16))
    place = Place(32, (32,), 32)
    narrow = projection.narrowed(place, 4)
    assert narrow is not None
    assert (narrow.n_heads, narrow.n_kv_heads, narrow.head_dim) == (1, 1, 16)
    name = "stack.blocks.0.sublayers.0.branches.0.mixer.projection.k.weight"
    found = [cuts(spec, narrowed(spec, rank, 4), rank, 4)[name] for rank in range(4)]
    assert len({each and each.length for each in found}) == 1
    length = found[0].length if found[0] else 0
    assert found == [TensorPart(0, length * (rank // 2), length, shared=True) for rank in range(4)]


class OfEvenWidthSpec(MixerSpec):
    """A user's own part, which says nothing of ranks."""


def test_what_says_nothing_is_computed_whole() -> None:
    spec = shrink(PRESETS["llama3-8b"].spec)
    (block, *_), own = spec.stack.blocks, BranchSpec(mixer=OfEvenWidthSpec())
    first, *others = block.sublayers
    own_block = block.but(sublayers=(first.but(branches=(own,)), *others))
    narrow = narrowed(spec.but(stack=spec.stack.but(blocks=(own_block,))), 1, 2)
    assert narrow.stack.blocks[0].sublayers[0] == own_block.sublayers[0]
    assert narrow.stack.blocks[0].sublayers[1] != own_block.sublayers[1]


class SquareSpec(MixerSpec):
    """A user's own part, which gives a rank fewer rows and fewer columns of one matrix."""

    size: int = 8

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"weight": Weight((self.size, self.size), ("d_ff", "d_model"), "matrix")}

    def narrowed(self, place: Place, ranks: int) -> SquareSpec:
        return self.but(size=self.size // ranks)


def test_what_is_cut_along_two_axes_is_refused() -> None:
    """A rank would have a stretch of whole rows, of another shape than it computes with."""
    spec = shrink(PRESETS["llama3-8b"].spec)
    (block, *_), own = spec.stack.blocks, BranchSpec(mixer=SquareSpec())
    first, *others = block.sublayers
    own_block = block.but(sublayers=(first.but(branches=(own,)), *others))
    whole = spec.but(stack=spec.stack.but(blocks=(own_block,)))
    with pytest.raises(SpecError, match=r"branches\.0\.mixer\.weight \[8, 8\] cannot be cut for tp = 2"):
        cuts(whole, narrowed(whole, 0, 2), 0, 2)


def test_a_row_has_one_reader() -> None:
    """Processes that compute together read the same rows, and are counted once."""
    worlds = [World(rank, 4, mesh=Mesh(dp=2, tp=2)) for rank in range(4)]
    assert [world.share(5) for world in worlds] == [slice(0, 3), slice(0, 3), slice(3, 5), slice(3, 5)]
    assert [[item for item, _ in world.dealt("abc")] for world in worlds] == [
        ["a", "c"],
        ["a", "c"],
        ["b", "c"],
        ["b", "c"],
    ]
    assert len({world.seed(1, 2) for world in worlds}) == 2
