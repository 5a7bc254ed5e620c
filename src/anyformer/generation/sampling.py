"""Which token comes next: pure functions on logits [batch, vocab].

Top-k: Fan et al. 2018, arXiv:1805.04833. Top-p (nucleus): Holtzman et al. 2019, arXiv:1904.09751. Min-p: Nguyen et al. 2024,
arXiv:2407.01082.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.errors import InputError, RunFailed
from anyformer.generation.grammar import Grammar

FEW = 1024  # tokens among which a nucleus is looked for first
PART = 128  # tokens among which a block of a GPU finds the likeliest

NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)  # of Sampling
WHOLE = ("top_k", "no_repeat_ngram_size", "min_new_tokens")
MAY_BE_NONE = ("top_k", "top_p", "min_p")


@dataclass(frozen=True)
class Sampling:
    """How to choose: penalties first, then temperature, top_k, top_p, min_p. Temperature 0 takes the likeliest token (greedy).

    Penalties, `bias` and all below them change logits before any of them is chosen (`Penalties`). Raises InputError for
    numbers that leave nothing to choose from.
    """

    temperature: float = 0.0
    top_k: int | None = None  # keep the k likeliest
    top_p: float | None = None  # keep the likeliest, as few as have this probability together
    min_p: float | None = None  # keep those that are at least this share as likely as the likeliest
    repetition_penalty: float = 1.0  # divides logits of tokens in prompt and text; negative ones are multiplied by it
    presence_penalty: float = 0.0  # taken off the logit of each token written
    frequency_penalty: float = 0.0  # the same, once for each time that it was written
    bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)
    no_repeat_ngram_size: int = 0  # so many tokens never follow each other twice in prompt and text; 0: any may
    min_new_tokens: int = 0  # no token that ends a text is written before so many others
    suppressed: tuple[int, ...] = ()  # tokens that are never written
    last_token: int | None = None  # which alone is written where a text reaches its limit
    grammar: Grammar | None = None  # outside of which no text grows

    def __post_init__(self) -> None:
        for names, kind, wanted in ((NUMBERS, Real, "a number"), (WHOLE, Integral, "a whole number")):
            for name in names:
                if not isinstance(value := getattr(self, name), kind) and (
                    value is not None or name not in MAY_BE_NONE
                ):
                    raise InputError(f"{name} = {value!r} must be {wanted}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature = {self.temperature} must be 0 (greedy) or more")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k = {self.top_k} keeps no token; it must be at least 1, or None")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p = {self.top_p} must be above 0 and at most 1, or None")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise InputError(f"min_p = {self.min_p} must be from 0 to 1, or None")
        if not 0 < self.repetition_penalty < math.inf:
            raise InputError(f"repetition_penalty = {self.repetition_penalty} must be above 0; 1 changes nothing")
        for name in ("presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise InputError(f"{name} = {getattr(self, name)} must be a number; 0 changes nothing")
        for name in ("no_repeat_ngram_size", "min_new_tokens"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} = {getattr(self, name)} must be 0, which changes nothing, or more")
        if wrong := [each for each in self.bias if not math.isfinite(each[1])]:
            raise InputError(f"bias of token {wrong[0][0]} = {wrong[0][1]} must be a number; 0 changes nothing")

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn, or drawn among some, so that no search can take the likeliest text."""
        return self != replace(self, temperature=0.0, top_k=None, top_p=None, min_p=None)

    def __call__(self, logits: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Token ids [batch] for logits [batch, vocab]; row b draws from generators[b]. Raises what `numbers` does."""
        ids, finite = self.unchecked(logits, generators)
        check_numbers(bool(finite.all()))
        return ids

    def unchecked(self, logits: Tensor, generators: Sequence[torch.Generator]) -> tuple[Tensor, Tensor]:
        """(the same ids, whether a row's likeliest logit is a finite number [batch]), without waiting for a device."""
        if self.temperature == 0:
            ids = likeliest(logits)
            return ids, logits.gather(-1, ids[:, None])[:, 0].isfinite()
        return pick(self._probabilities(logits), generators), logits.amax(-1).isfinite()

    def probabilities(self, logits: Tensor) -> Tensor:
        """How likely each token is to be taken, float64 [batch, vocab], for logits of that shape. Raises what `numbers` does."""
        return self._probabilities(numbers(logits))

    def _probabilities(self, logits: Tensor) -> Tensor:
        if self.temperature == 0:
            return F.one_hot(logits.argmax(-1), logits.shape[-1]).double()
        logits = logits.double()
        logits = (logits - logits.amax(-1, keepdim=True)) / self.temperature  # the likeliest is 0 at any temperature
        if self.top_k is not None:
            logits = top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = top_p(logits, self.top_p)
        if self.min_p:
            logits = logits.masked_fill(logits < math.log(self.min_p), -math.inf)
        return logits.softmax(-1)


GREEDY = Sampling()


def likeliest(logits: Tensor) -> Tensor:
    """The first of the largest of each row [batch]: `argmax`, which a GPU finds in a fourth of the time if first of parts."""
    if not logits.is_cuda or logits.shape[-1] % PART:
        return logits.argmax(-1)
    largest, at = logits.unflatten(-1, (-1, PART)).max(-1)
    part = largest.argmax(-1, keepdim=True)
    return (part * PART + at.gather(-1, part))[:, 0]


def numbers(logits: Tensor) -> Tensor:
    """Logits [batch, vocab] as they are. Raises RunFailed where the largest of a row is no finite number: none is likeliest."""
    check_numbers(bool(logits.amax(-1).isfinite().all()))
    return logits


def check_numbers(finite: bool) -> None:
    """Raise RunFailed for logits whose largest is no finite number."""
    if not finite:
        raise RunFailed(
            "the model's logits are no numbers: its weights hold NaN or infinity, or half precision overflowed; "
            "load it in float32"
        )


def top_k(logits: Tensor, k: int) -> Tensor:
    """Logits [batch, vocab] with all but the k largest of each row at -inf; equals of the k-th stay."""
    least = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < least, -math.inf)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Logits [batch, vocab] with -inf outside the fewest likeliest tokens that have probability p together.

    Of equals the first are taken. A CPU looks among few tokens and then among more, since all would take longer to order than
    all else; another device would have to be waited for.
    """
    vocab, whole = logits.shape[-1], logits.logsumexp(-1, keepdim=True)
    looked_at = min(FEW, vocab) if logits.device.type == "cpu" else vocab
    while True:
        likeliest = logits.topk(looked_at).values
        probabilities = (likeliest - whole).exp()
        # Of all likelier tokens; the likeliest has none, so it always stays.
        kept = (probabilities.cumsum(-1) - probabilities < p).sum(-1, keepdim=True)
        if looked_at == vocab or bool((kept < looked_at).all()):
            break
        looked_at = min(8 * looked_at, vocab)
    least = likeliest.gather(-1, (kept - 1).clamp(min=0))
    above, equal = logits > least, logits == least
    first = equal & (equal.cumsum(-1) <= kept - above.sum(-1, keepdim=True))
    return logits.masked_fill(~(above | first), -math.inf)


def pick(weights: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Ids [batch] drawn in proportion to `weights`, float64 [batch, vocab], one number of each row's own generator.

    The number is looked up in the cumulative distribution, so a row's draw depends on nothing else in the batch.
    """
    cumulative = weights.cumsum(-1)
    numbers = torch.cat([torch.rand(1, generator=g, device=g.device, dtype=torch.float64) for g in generators])
    levels = numbers.to(weights.device, non_blocking=True)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, levels, right=True)[:, 0].clamp(max=weights.shape[-1] - 1)


def generators(seed: int | Sequence[int], n_rows: int) -> list[torch.Generator]:
    """A generator for each row; row i has that of seed + i, so alone with that seed it draws the same, or of seeds its own.

    Raises InputError.
    """
    if not isinstance(seed, int):
        if len(seed) != n_rows:
            raise InputError(f"{len(seed)} seeds were given for {n_rows} rows; give one for each, or one for all")
        return [torch.Generator().manual_seed(each) for each in seed]
    if not -(2**63) <= seed <= 2**64 - n_rows:
        raise InputError(f"seed = {seed} of {n_rows} rows is beyond 64 bits; take a number nearer 0")
    return [torch.Generator().manual_seed(seed + row) for row in range(n_rows)]
