"""Beam search: several continuations of each row grow side by side, and the likeliest whole one is taken.

Sutskever et al. 2014, arXiv:1409.3215, section 3.2; hypotheses are compared by Σ log p / length ** length_penalty, as
transformers compares them (not by Wu et al.'s ((5 + length) / 6) ** α, arXiv:1609.08144, equation 14).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.compiled import next_logits
from anyformer.generation.decode import cache_for
from anyformer.generation.penalties import Penalties
from anyformer.generation.prompt import check_prompts, prompt_types
from anyformer.generation.sampling import GREEDY, Sampling, numbers
from anyformer.model import Transformer

Stopping = Literal["estimate", "first", "bound"]
MOST_BEAMS = 10_000
MOST_WEIGHT = 600.0  # log of n ** length_penalty, which a float and what is divided by it hold


@dataclass(frozen=True)
class BeamSearch:
    """How wide to search, how to weigh length, and when a row is done.

    A hypothesis of n new tokens, its closing one included, scores Σ log p / n ** length_penalty: 0 compares sums, which
    favours short ones; 1 means. A row has ended when `beams` hypotheses have, and: "first": at once; "estimate": the best
    one that grows would, ended now, not be among them; "bound": nor could it be at any length allowed (with
    length_penalty ≤ 0 the same). Of transformers' early_stopping they are True, False and "never". Raises InputError.
    """

    beams: int
    length_penalty: float = 1.0
    stopping: Stopping = "estimate"
    renormalised: bool = False  # probabilities of what penalties and bans leave add up to 1 again

    def __post_init__(self) -> None:
        if not isinstance(self.beams, Integral) or not 1 <= self.beams <= MOST_BEAMS:
            raise InputError(f"beams = {self.beams!r} must be from 1, which is greedy, to {MOST_BEAMS:,}, and whole")
        if not math.isfinite(self.length_penalty):
            raise InputError(f"length_penalty = {self.length_penalty} must be a number; 1 compares means, 0 sums")
        if self.stopping not in get_args(Stopping):
            raise InputError(f"stopping = {self.stopping!r} must be one of {', '.join(get_args(Stopping))}")

    def score(self, total: float, n: int) -> float:
        """The score of n tokens whose log-probabilities have this sum."""
        return total / n**self.length_penalty


class Hypothesis(NamedTuple):
    """What a row may go on with."""

    score: float
    token_ids: tuple[int, ...]  # the closing one included
    ended: bool  # by a closing token, not by the limit


class _Grown(NamedTuple):
    """A continuation of one of a row's beams by a token."""

    total: float
    beam: int
    token: int


@dataclass
class _Row:
    """One prompt: the hypotheses that have ended, the best first, and those that grow."""

    growing: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    ended: list[Hypothesis] = field(default_factory=list)

    def done(self, how: BeamSearch, best: float, n: int, limit: int) -> bool:
        """Whether nothing more can be won, or be expected to be, where the best that grows has this sum."""
        if len(self.ended) < how.beams:
            return False
        hoped = limit if how.stopping == "bound" and how.length_penalty > 0 else n
        return how.stopping == "first" or how.score(best, hoped) <= self.ended[-1].score


@torch.inference_mode()
def search_ids(
    model: Transformer,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    max_new_tokens: int,
    how: BeamSearch,
    sampling: Sampling = GREEDY,
    decoder_input_ids: Tensor | None = None,
    closing_ids: Collection[int] = (),
    counted: int = 0,
) -> list[list[Hypothesis]]:
    """Up to `how.beams` hypotheses for each row, the best first.

    `input_ids` [batch, token] are the encoder's where the model has one, padded on either side, and `decoder_input_ids`
    [batch, token] start its answer; else prompts padded on the left. A hypothesis ends with any of the `closing_ids`, or
    after `max_new_tokens`. Its length is that of its new tokens and of `counted` before them, which every answer begins with.
    Only what is among the `beams` likeliest of a step may end there. The penalties of `sampling`, and what it forbids, change
    log-probabilities, as in transformers. Raises InputError for prompts that the model cannot continue, for a length penalty
    that no number holds, and for a `sampling` that draws.
    """
    refuse_drawn(sampling)
    check_prompts(model, input_ids, attention_mask, decoder_input_ids, max_new_tokens)
    if not max_new_tokens:
        return [[Hypothesis(0.0, (), ended=False)] for _ in input_ids]
    if abs(how.length_penalty) * math.log(max_new_tokens) > MOST_WEIGHT:
        raise InputError(
            f"length_penalty = {how.length_penalty} of {max_new_tokens} new tokens weighs more than a number holds; "
            "take one nearer 0"
        )
    start = input_ids if decoder_input_ids is None else decoder_input_ids
    cache, types = cache_for(model, start, max_new_tokens), prompt_types(model.spec, start)
    logits = next_logits(model, start, types, cache, attention_mask, input_ids)
    mask = attention_mask if model.encoder is None else None
    penalties = Penalties(sampling, start, mask, model.spec.n_scored, closing_ids, max_new_tokens)
    all_rows = rows = [_Row() for _ in input_ids]
    totals, n_candidates = logits.new_zeros(len(rows), 1, dtype=torch.float32), how.beams * max(2, 1 + len(closing_ids))
    for n in range(1, max_new_tokens + 1):
        logs = penalties.applied(numbers(logits).float().log_softmax(-1))
        each = _likeliest(logs.log_softmax(-1) if how.renormalised else logs, totals, n_candidates)
        width, kept, chosen = totals.shape[1], [], []
        for place, (row, candidates) in enumerate(zip(rows, each, strict=True)):
            last = n == max_new_tokens
            grown = _advance(row, candidates, how, closing_ids, last=last, n=counted + n)
            if last or not grown or row.done(how, grown[0].total, counted + n, counted + max_new_tokens):
                continue
            row.growing = [(*row.growing[beam], token) for _, beam, token in grown]
            kept.append(row)
            chosen += [_Grown(total, place * width + beam, token) for total, beam, token in _filled(grown, how.beams)]
        rows = kept
        if not rows:
            break
        beams = [beam for _, beam, _ in chosen]
        cache.select(beams)
        penalties.select(beams)
        totals = totals.new_tensor([total for total, _, _ in chosen]).view(len(rows), -1)
        ids = input_ids.new_tensor([token for _, _, token in chosen])[:, None]
        penalties.add(ids)
        logits = next_logits(model, ids, None if types is None else torch.ones_like(ids), cache)
    return [row.ended for row in all_rows]


def refuse_drawn(sampling: Sampling) -> None:
    """Raise InputError for tokens that are to be drawn while beams are searched."""
    if sampling.draws:
        raise InputError(
            "beams search for the likeliest text, and draw none; leave temperature, top_k, top_p and min_p out"
        )


def _likeliest(logs: Tensor, totals: Tensor, n: int) -> list[list[_Grown]]:
    """The n likeliest continuations of each row, for log-probabilities [rows · beams, vocab] and sums [rows, beams]."""
    sums = logs.float().unflatten(0, totals.shape) + totals[..., None]
    vocab = sums.shape[-1]
    found = sums.flatten(1).topk(min(n, sums.shape[1] * vocab))
    return [
        [_Grown(total, *divmod(index, vocab)) for total, index in zip(values, places, strict=True) if total > -math.inf]
        for values, places in zip(found.values.tolist(), found.indices.tolist(), strict=True)
    ]


def _advance(
    row: _Row, candidates: list[_Grown], how: BeamSearch, closing: Collection[int], *, last: bool, n: int
) -> list[_Grown]:
    """End what ends here, and return what grows on."""
    grown: list[_Grown] = []
    for rank, candidate in enumerate(candidates):
        ended = candidate.token in closing
        if not ended and not last:
            grown.append(candidate)
        elif rank < how.beams:
            tokens = (*row.growing[candidate.beam], candidate.token)
            hypotheses = [*row.ended, Hypothesis(how.score(candidate.total, n), tokens, ended)]
            row.ended = sorted(hypotheses, key=lambda each: -each.score)[: how.beams]
    return grown[: how.beams]


def _filled(grown: list[_Grown], beams: int) -> list[_Grown]:
    """As many as there are beams: where a vocabulary is tiny, some that can never be chosen."""
    return [*grown, *(_Grown(-math.inf, grown[0].beam, grown[0].token) for _ in range(beams - len(grown)))]
