"""What a longer or shorter axis of a tensor begins as: which of the given places stands where.

Heads: Ainslie et al. 2023, arXiv:2305.13245, section 2.1. Neurons: what is new writes nothing, so that the function stays
(what Chen et al. 2016, arXiv:1511.05641, ask of a wider network); of fewer, those of the largest norms stay (Li et al. 2017,
arXiv:1608.08710). Positions: the first ones again and again (Beltagy et al. 2020, arXiv:2004.05150, section 5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.spec import HeadMap

NEW = -1  # no given place
MATTER_MOST = "that matter most"  # said of what is chosen by its importance

# How much single heads, neurons or experts matter, in units of a loss: by the name of the tensor, in the state dict, by which
# they write to the stream, then by its axis, "heads", "d_ff" or "experts", each [heads] and so on; and how much features of a
# stream do, by its name, "stack" or "encoder", under "d_model".
Importance = Mapping[str, Mapping[str, Tensor]]


class AxisPlan(NamedTuple):
    """Of each place of an axis the given one that it begins as."""

    places: Tensor  # [n]; NEW: none
    given: int  # how many there are
    how: str
    means: Mapping[int, Tensor] = {}  # by place, the given ones whose mean it begins as

    @property
    def sizes(self) -> tuple[int, int]:
        """How long the axis is, and was."""
        return len(self.places), self.given


def again(n: int, given: int, of: str, *, fresh: bool = False) -> AxisPlan:
    """The first ones; where there are more, the same ones again and again, or new ones if they are to be `fresh`."""
    how = f"the first {n:,} of {given:,} {of}" if n < given else f"{n:,} {of}, the given {given:,} again and again"
    places = torch.arange(n)
    return AxisPlan(places.where(places < given, NEW) if fresh else places % given, given, how)


def neurons(n: int, given: int, weighs: Tensor | None) -> AxisPlan | None:
    """All, and new ones that write nothing; of fewer those that weigh most [given], in order; None where nothing says which."""
    if n >= given:
        return again(n, given, "", fresh=True)._replace(how=f"{n - given:,} more neurons, which write nothing at first")
    if weighs is None:
        return None
    return AxisPlan(weighs.topk(n).indices.sort().values, given, f"the {n:,} of {given:,} neurons that weigh most")


def those_that_matter(n: int, matters: Tensor, what: str) -> AxisPlan:
    """Of fewer those that matter most [given], in order."""
    return AxisPlan(matters.topk(n).indices.sort().values, len(matters), chosen(n, len(matters), what))


def chosen(n: int, given: int, what: str) -> str:
    return f"the {n:,} of {given:,} {what} {MATTER_MOST}"


def stretch(n: int, given: int, number: int) -> AxisPlan:
    """Those of the expert with this number where each has some neurons of a network: one stretch after the other, around."""
    return AxisPlan((torch.arange(n) + number * n) % given, given, f"experts that each have {n:,} of {given:,} neurons")


def each_head(n: int, given: int) -> AxisPlan | None:
    """The numbers of each head, as `regrouped` has its maps; None where neither number of heads divides the other."""
    if n % given == 0:
        return AxisPlan(torch.arange(n) // (n // given), given, repeated(n, given))
    if given % n == 0:
        means = dict(enumerate(torch.arange(given).split(given // n)))
        return AxisPlan(torch.full((n,), NEW), given, averaged(n, given), means)
    return None


def weights_of(maps: Sequence[tuple[Tensor, int]]) -> Tensor | None:
    """How much neurons weigh [neuron]: the product of their norms in several maps, given with the axis of neurons."""
    norms = [each.movedim(dim, 0).flatten(1).norm(dim=1) for each, dim in maps if each.dim() == 2]
    return torch.stack(norms).prod(0) if norms else None


def taken(given: Tensor, begun: Tensor, plans: Mapping[int, AxisPlan], *, zero: bool) -> tuple[Tensor, int]:
    """(a tensor as it begins, how many of its numbers are given ones), by the plan of each axis that has one.

    Where nothing is given it is as it was `begun`, or `zero`.
    """
    known = torch.ones(begun.shape, dtype=torch.bool)
    for dim, plan in plans.items():
        made = given.index_select(dim, plan.places.clamp(min=0))
        several_of = plan.means if given.is_floating_point() else {}  # experts by token have no mean: such stay drawn
        means = {id(each): given.index_select(dim, each).mean(dim) for each in several_of.values()}
        for place, several in several_of.items():
            made.select(dim, place).copy_(means[id(several)])
        has = plan.places != NEW
        has[list(several_of)] = True
        known &= has.view(-1, *[1] * (given.dim() - 1 - dim))
        given = made
    made = torch.where(known, given, 0 if zero else begun)
    return made, int(known.sum())


def heads_that_matter(matters: Tensor, n: tuple[int, int], given: tuple[int, int]) -> tuple[Tensor, Tensor] | None:
    """Which heads of queries, and which of keys, stay in order, by how much those of queries matter [given[0]].

    `n`, `given`: how many of queries and of keys. Whole groups of queries that share keys go first, then single ones of each.
    None where no queries go, or fewer keys would serve more queries each, which single heads of queries cannot be chosen for.
    """
    (queries, keys), (of_queries, of_keys) = n, given
    each, before = queries // keys, of_queries // of_keys
    if queries >= of_queries or keys > of_keys or queries % keys or of_queries % of_keys or each > before:
        return None
    groups = matters.unflatten(0, (of_keys, before))
    of_group = groups.topk(each).indices.sort(-1).values  # within each group
    stay = groups.gather(1, of_group).sum(1).topk(keys).indices.sort().values
    return (stay[:, None] * before + of_group[stay]).flatten(), stay


def regrouped(heads: Tensor, n: int, reads: bool, kept: Tensor | None = None) -> tuple[Tensor, str] | None:
    """Maps of heads [heads, …] for n heads, and what became of them; None where neither number divides the other.

    Those that are `kept`. Else of more heads each is several alike, and what `reads` them is shared out among these; of fewer
    each is the mean of several, and what reads them is added up.
    """
    given = len(heads)
    if kept is not None:
        return heads[kept], chosen(n, given, "heads") if n < given else repeated(n, given)
    if n % given == 0:
        made = heads.repeat_interleave(n // given, 0)
        return (made / (n // given) if reads else made), repeated(n, given)
    if given % n == 0:
        groups = heads.unflatten(0, (n, given // n))
        return (groups.sum(1) if reads else groups.mean(1)), averaged(n, given)
    return None


def repeated(n: int, given: int) -> str:
    return f"{given} heads made {n}, by repetition" if n > given else "heads as they were"


def averaged(n: int, given: int) -> str:
    return f"{given} heads made {n}, by their means"


def reread(heads: HeadMap, given: HeadMap) -> str:
    """What became of numbers that are as they were, and are of other heads."""
    return (
        f"{given.n} heads of width {given.width} read as {heads.n} of {heads.width} "
        f"(to have heads that are what they were, add +head_dim={given.width})"
    )
