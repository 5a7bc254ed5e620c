"""What the tokens of a text make of the logits of its next one, before that is chosen.

Repetition: Keskar et al. 2019 (CTRL), arXiv:1909.05858, section 4.1. N-grams: Paulus et al. 2017, arXiv:1705.04304,
section 2.5. Presence and frequency: as OpenAI's interface has them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.errors import InputError
from anyformer.generation.grammar import Parsers
from anyformer.generation.sampling import Sampling

ABSENT = -1  # in the place of a token that pads a prompt


class Penalties:
    """The tokens that rows hold, and what that makes of their next logits; idle where these stay as they are."""

    def __init__(
        self,
        how: Sampling,
        ids: Tensor,
        mask: Tensor | None,
        vocab_size: int,
        closing_ids: Collection[int],
        max_new_tokens: int,
    ) -> None:
        """`ids` [row, token] are the prompts, where `mask` of that shape is not 0; those beyond the vocabulary are never written.

        Rows are to have `max_new_tokens`, and end before with one of the `closing_ids`. Raises InputError for a bias of no
        token, and for no token that is to be the last.
        """
        named = {
            "bias": [token for token, _ in how.bias],
            "last_token": () if how.last_token is None else [how.last_token],
        }
        for name, tokens in named.items():
            if wrong := [token for token in tokens if not 0 <= token < vocab_size]:
                raise InputError(
                    f"{name}: there is no token {wrong[0]}; this model has those from 0 to {vocab_size - 1}"
                )
        self.how, self.parsers = how, None
        self.idle = how == Sampling(how.temperature, how.top_k, how.top_p, how.min_p)
        if self.idle:
            return
        self.n_written, self.max_new_tokens = 0, max_new_tokens
        if how.grammar is not None:
            self.parsers = Parsers(how.grammar, len(ids))
        self.biased = ids.new_tensor(named["bias"])
        self.bias = torch.tensor([more for _, more in how.bias], dtype=torch.float64, device=ids.device)
        self.suppressed, self.closing = (
            ids.new_tensor([token for token in tokens if token < vocab_size])
            for tokens in (how.suppressed, closing_ids)
        )
        self.text = ids if mask is None else ids.masked_fill(mask <= 0, ABSENT)  # grows where n-grams are looked at
        counted = (self.text >= 0) & (ids < vocab_size)
        self.written = ids.new_zeros(len(ids), vocab_size)  # how often each token is behind the prompt
        self.prompt = self.written.scatter_add(1, ids.clamp(max=vocab_size - 1), counted.to(ids.dtype)) > 0

    def add(self, ids: Tensor | Sequence[Sequence[int]]) -> None:
        """Count tokens that rows have chosen [row, token]."""
        if self.idle:
            return
        new = torch.as_tensor(ids, device=self.written.device)
        self.n_written += new.shape[1]
        self.written.scatter_add_(1, new, torch.ones_like(new))
        if self.how.no_repeat_ngram_size:
            self.text = torch.cat((self.text, new), 1)
        if self.parsers is not None:
            self.parsers.add(new.tolist())

    def select(self, rows: list[int]) -> None:
        """Take these rows, in this order; one may be taken several times."""
        if self.idle:
            return
        self.written, self.prompt, self.text = self.written[rows], self.prompt[rows], self.text[rows]
        if self.parsers is not None:
            self.parsers.select(rows)

    @property
    def forced(self) -> bool:
        """Whether each row's next token is the only one that a grammar allows, whatever its logits."""
        return self.parsers is not None and bool(((~self.parsers.forbidden()).sum(-1) == 1).all())

    def applied(self, logits: Tensor, guesses: Sequence[int] = ()) -> Tensor:
        """Logits [row, vocab], float64 if changed; of one row and guesses [1 + guess, vocab]: behind none, behind the first …"""
        if self.idle:
            return logits
        how, written = self.how, self.written
        if guesses:
            each = F.one_hot(torch.tensor(guesses, device=written.device), written.shape[1])
            written = written + F.pad(each.cumsum(0), (0, 0, 1, 0))
        logits = logits.double()
        if how.repetition_penalty != 1:
            lower = torch.where(logits > 0, logits / how.repetition_penalty, logits * how.repetition_penalty)
            logits = torch.where(self.prompt | (written > 0), lower, logits)
        logits = logits - how.presence_penalty * (written > 0) - how.frequency_penalty * written
        logits = logits.index_add_(1, self.biased, self.bias.expand(len(logits), -1))
        n_written = torch.arange(self.n_written, self.n_written + 1 + len(guesses), device=written.device)[:, None]
        outside = None if self.parsers is None else self.parsers.forbidden(guesses).to(written.device)
        if outside is not None:
            logits = logits.masked_fill(outside, -math.inf)
        if how.no_repeat_ngram_size or how.suppressed or how.min_new_tokens:
            forbidden = repeating(self._texts(guesses), how.no_repeat_ngram_size, logits.shape[1])
            forbidden[:, self.suppressed] = True
            forbidden[:, self.closing] |= n_written < min(how.min_new_tokens, self.max_new_tokens)
            # Where nothing else is left, nothing is forbidden: something has to be written.
            left_out = forbidden if outside is None else forbidden | outside
            logits = logits.masked_fill(forbidden & ~left_out.all(-1, keepdim=True), -math.inf)
        if how.last_token is None:
            return logits
        last = torch.full_like(logits, -math.inf)
        last[:, how.last_token] = 0.0
        at_limit = n_written == self.max_new_tokens - 1
        if outside is not None:
            at_limit = at_limit & ~outside[:, how.last_token, None]
        return torch.where(at_limit, last, logits)

    def _texts(self, guesses: Sequence[int]) -> Tensor:
        """The tokens before each row of logits [row, token]: with no guess, with the first …, absent ones in front."""
        if not guesses:
            return self.text
        guessed, absent = self.text.new_tensor(guesses), self.text.new_full((len(guesses),), ABSENT)
        each = [torch.cat((absent[i:], self.text[0], guessed[:i])) for i in range(len(guesses) + 1)]
        return torch.stack(each)


def repeating(text: Tensor, n: int, vocab_size: int) -> Tensor:
    """The tokens that would complete n of them that `text` [row, token] has already, bool [row, vocab]; n = 0: none."""
    again = text.new_zeros(len(text), vocab_size + 1, dtype=torch.bool)
    if 0 < n <= text.shape[1]:
        grams = text.unfold(1, n, 1)  # [row, place, n]
        same = (grams[..., :-1] == text[:, None, text.shape[1] - n + 1 :]).all(-1)
        last = grams[..., -1]
        again.scatter_(1, last.where(same & (last >= 0) & (last < vocab_size), vocab_size), True)
    return again[:, :vocab_size]
