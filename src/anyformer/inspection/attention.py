"""Where heads look: shares of their weights by what a key is to the query, and what a head does in a text said twice.

The kinds: Clark et al. 2019, arXiv:1906.04341, section 3; the first token as a sink: Xiao et al. 2023, arXiv:2309.17453; random
tokens said twice, and the token behind the last occurrence: Olsson et al. 2022, arXiv:2209.11895.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from anyformer.capacity import refuse_beyond_memory
from anyformer.inference.judging import Judging
from anyformer.inspection.effects import passes
from anyformer.inspection.results import HeadFigures
from anyformer.inspection.sites import Site, Sites, watched
from anyformer.layers.block import Branch
from anyformer.layers.causality import has_prefix
from anyformer.layers.tokens import Tokens
from anyformer.model import Transformer
from anyformer.surgery import Anatomy, Importance
from anyformer.training.data.feed import Rows

FIGURES = ("entropy", "itself", "previous", "first", "distance")
MAPS = 5  # of all heads of a layer, that lie in memory at once
SAID_TWICE, ROWS = 32, 4  # tokens at most that are said twice, and of how many texts


def refuse_wide_maps(model: Transformer, judging: Judging, sites: Sites, tokens: int) -> None:
    """Raise UsageError where memory has no room for the weights of all pairs of a row, by which is told where heads look."""
    looking = tuple(f"{site.path}." for site in sites.branches if site.kind == "attention")
    maps = [each.n for path, each in Anatomy(model.spec).maps if each.makes == "output" and path.startswith(looking)]
    shapes = ((len(rows.labels), _longest(rows)) for _, rows in passes(model, judging, tokens, apart=True))
    n_rows, n = max(shapes, key=lambda shape: shape[0] * shape[1] ** 2)
    nbytes = MAPS * max(maps, default=0) * n_rows * n**2 * torch.float32.itemsize
    what, device = f"where heads look in rows of {n:,} tokens", next(model.parameters()).device
    refuse_beyond_memory(nbytes, device, what, "give a smaller --seq-len, or a shorter text")


def _longest(rows: Rows) -> int:
    """How many tokens its rows have, those of an encoder or of a decoder."""
    return max(each.shape[1] for each in rows if each.ndim > 1)


def of_heads(
    model: Transformer, judging: Judging, sites: Sites, tokens: int, importance: Importance
) -> tuple[HeadFigures, ...]:
    """Where each head looks on about so many tokens; of mixers that have no weights of pairs, none."""
    watch = AttentionSums(sites)
    with torch.no_grad(), watched(model, Branch, watch):
        for by, rows in passes(model, judging, tokens, apart=True):
            judging.objective(by._replace(forward=partial(model, output_attentions=True)), rows)
    anatomy, twice, found = Anatomy(model.spec), _in_a_text_said_twice(model, sites), []
    for number, figures in watch.means().items():
        site = sites.branches[number]
        assert site.branch is not None
        matters = _of_branch(site, anatomy, importance)
        of_heads = [None] * len(figures) if matters is None or len(matters) != len(figures) else matters.tolist()
        for head, (each, own) in enumerate(zip(figures, of_heads, strict=True)):
            entropy = each.pop("entropy") or 0.0
            again = twice[number][head] if number in twice else None
            found.append(HeadFigures(site.stack, site.layer, site.kind, head, own, entropy, **each, induction=again))
    return tuple(found)


def _of_branch(site: Site, anatomy: Anatomy, importance: Importance) -> Tensor | None:
    """How much each head of a branch matters [head]."""
    for path, heads in anatomy.maps:
        if heads.makes == "output" and path.startswith(f"{site.path}."):
            return importance.get(anatomy.tensors[f"{path}weight"].name, {}).get("heads")
    return None


class AttentionSums:
    """Sums over queries of where the heads of each branch look, by its number in a pass."""

    def __init__(self, sites: Sites) -> None:
        self.own = [not site.reads_memory for site in sites.branches]  # whose keys are the row's own tokens
        self.sums: dict[int, Tensor] = {}  # [2, figure, head]: of figures, and of queries that have them

    def __call__(self, number: int, given: tuple[Any, ...], made: Any) -> Any:
        y, notes = made
        if (weights := notes[0].get("attention")) is not None:
            sums = _summed(weights, given[1].tokens, own=self.own[number])
            self.sums[number] = sums + self.sums.get(number, 0)
        without = ({name: each for name, each in note.items() if name != "attention"} for note in notes)
        return y, list(without)  # so that they are not kept for all layers

    def means(self) -> dict[int, list[dict[str, float | None]]]:
        """By branch, of each head the mean of each figure; None where no query had one."""
        means = {number: (sums / n).T.tolist() for number, (sums, n) in sorted(self.sums.items())}
        return {
            number: [{name: None if x != x else x for name, x in zip(FIGURES, each, strict=True)} for each in heads]
            for number, heads in means.items()
        }


def _summed(weights: Tensor, tokens: Tokens, *, own: bool) -> Tensor:
    """Of weights [batch, head, query, key] the figures, summed over real queries, and how many those are [2, figure, head].

    `own`: keys are the row's own tokens, one each.
    """
    shape = weights.shape[0], 1, weights.shape[2]
    real = (tokens.documents[:, None].expand(shape) > 0).expand(weights.shape[:3])
    shares = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)  # a sink takes some
    n_seen = (weights > 0).sum(-1)
    several = real & (n_seen > 1)
    each = [(torch.special.entr(shares).sum(-1) / n_seen.clamp(min=2).log(), several)]
    position = tokens.position
    apart = (position[:, :, None] - position[:, None, :]).abs()
    own = own and weights.shape[3] == tokens.n
    kinds = (apart == 0, apart == 1, (position == 0)[:, None, :] & (apart > 0), apart)
    for kind in kinds:
        share = (weights * kind[:, None]).sum(-1) if own else weights.new_zeros(weights.shape[:3])
        each.append((share, real if own else torch.zeros_like(real)))
    sums = torch.stack([(share * of).double().sum((0, 2)).cpu() for share, of in each])
    return torch.stack((sums, torch.stack([of.double().sum((0, 2)).cpu() for _, of in each])))


def _in_a_text_said_twice(model: Transformer, sites: Sites) -> dict[int, list[float]]:
    """By branch, of each head its share of weight on the token behind the last occurrence of the one that is read.

    Of decoders alone, whose texts have room for one said twice.
    """
    n = min(SAID_TWICE, (model.spec.context or 2 * SAID_TWICE) // 2)
    if not model.predicts_next or n < 2:
        return {}
    once = torch.randint(model.spec.vocab_size, (ROWS, n), generator=torch.Generator().manual_seed(0))
    found: dict[int, list[float]] = {}

    def see(number: int, given: tuple[Any, ...], made: Any) -> None:
        weights = made[1][0].get("attention")
        if weights is not None and weights.shape[-2:] == (2 * n, 2 * n):
            again = weights[:, :, n:].diagonal(1, -2, -1)  # query n + i, key i + 1
            found[number] = again.double().mean((0, 2)).tolist()

    twice = torch.cat((once, once), 1).to(next(model.parameters()).device)
    types = torch.ones_like(twice) if has_prefix(model.spec) else None  # nothing of it is a prefix
    with torch.no_grad(), watched(model, Branch, see):
        model(twice, token_type_ids=types, output_attentions=True)
    return found
