"""Training of routers: losses that even out the experts' load, corrections moved by it, and what the load was."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.errors import UsageError
from anyformer.layers.context import Notes
from anyformer.layers.router import Router
from anyformer.model import Transformer
from anyformer.recipe import LoadBalance, Recipe, RouterLossSpec, RouterTraining, RouterZLoss, SequenceBalance
from anyformer.spec import ModelSpec, branches_of
from anyformer.training.cluster.world import ALONE, World


@dataclass(frozen=True)
class ExpertLoad:
    """The load of the experts of each call of a mixture, in the order of the calls; loads of parts of a batch add up."""

    counts: tuple[Tensor, ...]  # [experts, then identities], choices by real tokens
    tokens: tuple[float, ...]  # real ones
    dropped: float = 0.0  # choices that no expert had a place for
    rows: int = 0

    def __add__(self, other: ExpertLoad) -> ExpertLoad:
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        tokens = tuple(a + b for a, b in zip(self.tokens, other.tokens, strict=True))
        return ExpertLoad(counts, tokens, self.dropped + other.dropped, self.rows + other.rows)

    def numbers(self) -> Tensor:
        """All of it in a row, float64."""
        return torch.cat([*self.counts, torch.tensor([*self.tokens, self.dropped, self.rows], dtype=torch.float64)])

    def of(self, numbers: Tensor) -> ExpertLoad:
        """The load of as many calls and experts whose `numbers` these are."""
        sizes = [len(count) for count in self.counts]
        *counts, rest = numbers.split([*sizes, len(numbers) - sum(sizes)])
        *tokens, dropped, rows = rest.tolist()
        return ExpertLoad(tuple(counts), tuple(tokens), dropped, int(rows))

    @property
    def busiest(self) -> float:
        """The largest load of an expert, as a multiple of the mean of its layer."""
        return max(float(c.max() / c.sum().clamp(min=1) * len(c)) for c in self.counts)

    @property
    def entropy(self) -> float:
        """Of the load of a layer, as a share of that of an even load; the mean over layers."""
        shares = [count / count.sum().clamp(min=1) for count in self.counts]
        each = [float(-(s * s.clamp(min=1e-30).log()).sum()) / math.log(max(len(s), 2)) for s in shares]
        return sum(each) / len(each)

    @property
    def dropped_share(self) -> float:
        """Of all choices."""
        return self.dropped / max(1.0, float(sum(c.sum() for c in self.counts)))


class Mixtures(NamedTuple):
    """The calls of mixtures in a pass: how many choices each has, which of them are this process's, and the router of each."""

    n_choices: tuple[int, ...]
    here: slice
    routers: tuple[Router, ...]  # of the calls that are here


class Routed:
    """The calls of mixtures in one forward pass: each with its router and its notes, which may be of stretches of rows."""

    def __init__(self, mixtures: Mixtures, notes: Iterable[Notes], world: World = ALONE) -> None:
        noted = (note for note in notes if "router_logits" in note)
        self.mixtures, self.world = mixtures, world
        self.calls = list(zip(mixtures.routers, noted, strict=True))

    def load(self) -> ExpertLoad:
        """That of its own calls; the others have 0."""
        counts = [torch.zeros(n, dtype=torch.float64) for n in self.mixtures.n_choices]
        tokens, dropped, rows, first = [0.0] * len(counts), 0.0, 0, self.mixtures.here.start
        for i, (router, note) in enumerate(self.calls, first):
            real = note["real"]
            counts[i] = torch.bincount(note["chosen"][real].flatten(), minlength=router.spec.n_choices).double().cpu()
            tokens[i] = float(real.sum())
            rows = len(real) if first == 0 else 0  # once, where several processes have calls
            if "served" in note:
                dropped += float((~note["served"][real]).sum())
        load = ExpertLoad(tuple(counts), tuple(tokens), dropped)
        return replace(load.of(self.world.whole(load.numbers())), rows=rows)

    def loss(self, losses: Iterable[RouterLossSpec], whole: ExpertLoad) -> Tensor:
        """The part that these tokens have in the losses of a batch, of which `whole` is the load."""
        if not self.calls:
            return torch.zeros(())
        return torch.stack([loss.weight * self._of_kind(loss, whole) for loss in losses]).sum()

    def _of_kind(self, loss: RouterLossSpec, whole: ExpertLoad) -> Tensor:
        match loss:
            case LoadBalance(over=over):
                return _load_balance(over, self.calls, whole, self.mixtures.here)
            case SequenceBalance():
                return _sequence_balance(self.calls, whole.rows, self.world)
            case RouterZLoss():
                return _z_loss(self.calls) / sum(whole.tokens)
        raise TypeError(f"{loss.kind} has no loss")


def routers_of(model: Transformer) -> list[Router]:
    """The router of each call of a mixture, in the order of the notes; a shared one as often as it is called."""
    blocks = [stack.blocks for stack in (model.encoder, model.stack) if stack is not None]
    own = (head.layers.blocks for head in model.heads if head.layers is not None)
    every = (*chain(*blocks), *(module.block for module in model.ahead), *chain(*own))
    mixers = (mixer for block in every for mixer in _mixers_in(block))
    return [router for mixer in mixers if (router := _router_of(mixer)) is not None]


def _mixers_in(block: Any) -> Iterator[Any]:
    """The mixers of a layer, each followed by those of layers inside it."""
    for mixer in (branch.mixer for sublayer in block.sublayers for branch in sublayer.branches):
        yield mixer
        for inner in mixer.blocks if mixer.spec.layers() else ():
            yield from _mixers_in(inner)


def mixtures_of(model: Transformer) -> Mixtures:
    """All calls of a model, of which this process may have some of the layers."""
    each, stage = _choices(model.spec), model.stack.stage
    begin = 0 if stage is None else stage.layers.start
    end = len(each) if stage is None or stage.last else stage.layers.stop
    before, behind = (len([*chain(*each[:n])]) for n in (begin, end))
    return Mixtures(tuple(chain(*each)), slice(before, behind), tuple(routers_of(model)))


def _choices(spec: ModelSpec) -> list[list[int]]:
    """How many choices each mixture has, layer by layer."""
    stacks = [stack.layers for stack in spec.stacks.values()]
    own = (head.layers.blocks for head in spec.heads if head.layers is not None)
    blocks = [*chain(*stacks), *(module.block for module in spec.ahead), *chain(*own)]
    routers = ([_router_of(branch.mixer) for branch in branches_of((block,))] for block in blocks)
    return [[router.n_choices for router in each if router is not None] for each in routers]


def _router_of(mixer: Any) -> Any:
    """The router of a mixture, or of attention whose maps are experts', or its specification; None without one."""
    return getattr(getattr(mixer, "projection", mixer), "router", None)


def check_router_losses(spec: ModelSpec, recipe: Recipe) -> None:
    """Raise UsageError for a loss over layers together whose experts are not as many in all of them."""
    sizes = sorted({*chain(*_choices(spec))})
    if len(sizes) > 1 and any(isinstance(loss, LoadBalance) and loss.over == "layers" for loss in recipe.router.losses):
        raise UsageError(
            "LoadBalance.over = 'layers' adds up the loads of experts over layers, and these have "
            f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]} of them; give the loss `over: layer`"
        )


def correct(mixtures: Mixtures, load: ExpertLoad, training: RouterTraining) -> None:
    """Raise the corrections of experts with less than the mean load, lower those of the others, by the speed.

    DeepSeek-V3: arXiv:2412.19437, section 2.1.2. Those of identities stay (LongCat-Flash: arXiv:2509.01322, section 2.1.2).
    """
    together: dict[Router, Any] = {}
    for router, counts in zip(mixtures.routers, load.counts[mixtures.here], strict=True):
        if router.correction is not None:
            together[router] = together.get(router, 0) + counts
    with torch.no_grad():
        for router, counts in together.items():
            assert router.correction is not None
            step = training.correction_speed * torch.sign(counts.mean() - counts)
            step[router.spec.n_experts :] = 0
            router.correction += step.to(router.correction)


Calls = list[tuple[Router, Notes]]


def _probabilities(router: Router, note: Notes) -> Tensor:
    """Probabilities [batch, token, experts], summing to 1; 0 for padding."""
    logits = note["router_logits"]
    if router.spec.score == "sigmoid":
        scores = logits.sigmoid()
        found = scores / scores.sum(-1, keepdim=True)
    else:
        found = logits.softmax(-1)
    return found * note["real"][..., None]


def _load_balance(over: str, calls: Calls, whole: ExpertLoad, here: slice) -> Tensor:
    sums = [_probabilities(*call).sum((0, 1)) for call in calls]
    if over == "layers":  # the counts, which have no gradient, are of all layers
        tokens, n = sum(whole.tokens), len(sums[0])
        counts = sum(count.to(sums[0]) for count in whole.counts)
        return n * (counts / tokens * (sum(sums) / tokens)).sum()  # type: ignore[operator]
    counts = [count.to(total) for count, total in zip(whole.counts[here], sums, strict=True)]
    each = zip(counts, sums, whole.tokens[here], strict=True)
    return torch.stack([len(total) * (count / n * (total / n)).sum() for count, total, n in each]).sum()


def _sequence_balance(calls: Calls, rows: int, world: World) -> Tensor:
    each = []
    for router, note in calls:
        real, chosen, spec = note["real"], note["chosen"], router.spec
        tokens = world.whole(real.sum(1, keepdim=True)).clamp(min=1)
        counts = real.new_zeros(len(real), spec.n_choices, dtype=torch.float32)
        counts = counts.scatter_add_(1, chosen.flatten(1), real.float().repeat_interleave(spec.top_k, 1))
        counts = world.whole(counts) / tokens
        means = _probabilities(router, note).sum(1) / tokens
        each.append(spec.n_choices / spec.top_k * (counts * means).sum() / rows)
    return torch.stack(each).sum()


def _z_loss(calls: Calls) -> Tensor:
    squares = [(note["router_logits"].logsumexp(-1).square() * note["real"]).sum() for _, note in calls]
    return torch.stack(squares).sum()
