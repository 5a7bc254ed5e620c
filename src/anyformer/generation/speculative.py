"""Speculative decoding: a pass checks several guesses at once, and what is written is what would be written without them.

Leviathan et al. 2023, arXiv:2211.17192, algorithm 1; Chen et al. 2023, arXiv:2302.01318.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from anyformer.cache import KVCache
from anyformer.errors import InputError
from anyformer.generation.guesses import Guessed, Guessing, Prompt, Reader, check_can_forget, check_one_rotation
from anyformer.generation.penalties import Penalties
from anyformer.generation.prompt import check_begun, check_prompts
from anyformer.generation.sampling import GREEDY, Sampling, generators, pick
from anyformer.model import Transformer


class SpeculativeDecoding(Iterator[dict[int, int]]):
    """The rows of a batch, one after the other: each step gives {row: its next token id}, as `Decoding` does.

    Greedy, the tokens are those of `Decoding`, to within rounding of passes over several tokens; drawn, they have the same
    distribution, but are other draws of it. `passes` counts the model's passes by row. The arguments are those of
    `Decoding`, and a way to guess. `begun`: a cache that holds the beginning of the one prompt. Raises InputError for what
    `Decoding` refuses, for models that cannot take tokens back or rotate these texts by their length, and for a way to guess
    that does not fit the model.
    """

    def __init__(
        self,
        model: Transformer,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        guessing: Guessing,
        *,
        max_new_tokens: int,
        decoder_input_ids: Tensor | None = None,
        sampling: Sampling = GREEDY,
        seed: int = 0,
        closing_ids: Collection[int] = (),
        begun: KVCache | None = None,
    ) -> None:
        check_prompts(model, input_ids, attention_mask, decoder_input_ids, max_new_tokens)
        check_can_forget(model.spec)
        if begun is not None:
            check_begun(model.spec, begun, input_ids)
            if guessing.follows:
                raise InputError(
                    "the model's own modules read what it makes of every token; give no cache that holds some"
                )
        self.model, self.guessing, self.sampling, self.closing_ids = model, guessing, sampling, closing_ids
        self.passes = [0] * len(input_ids)
        self.ended: set[int] = set()
        self.generators = generators(seed, len(input_ids))
        self.prompts: list[Prompt] = []
        for i, row in enumerate(input_ids):
            read = (row if attention_mask is None else row[attention_mask[i] > 0])[None]
            texts = (read, None) if decoder_input_ids is None else (decoder_input_ids[i : i + 1], read)
            self.prompts.append(Prompt(*texts, max_new_tokens))
            check_one_rotation(model.spec, self.prompts[-1])
        self.first = [guessing.begin(model, prompt) for prompt in self.prompts[:1]]  # what does not fit is refused now
        self.reader = Reader(model, self.prompts[0], guessing.most, begun)  # of the row at hand
        self.tokens = self._all()

    @torch.inference_mode()
    def __next__(self) -> dict[int, int]:
        return next(self.tokens)

    def stop(self, row: int) -> None:
        """Let a row grow no more."""
        self.ended.add(row)

    def read(self) -> KVCache:
        """The cache of what was read of the last row, no guess and never the last token; no step follows."""
        return self.reader.cache

    def _all(self) -> Iterator[dict[int, int]]:
        for row in range(len(self.prompts)):
            for token in self._row(row):
                yield {row: token}
                if token in self.closing_ids or row in self.ended:
                    break

    def _row(self, row: int) -> Iterator[int]:
        """The new tokens of a row, a pass's at a time."""
        prompt, generator = self.prompts[row], self.generators[row]
        if row:
            self.reader = Reader(self.model, prompt, self.guessing.most)
        reader = self.reader
        guesser = self.first.pop() if self.first else self.guessing.begin(self.model, prompt)
        text, hidden, left = prompt.ids[0].tolist(), None, prompt.max_new_tokens
        penalties = Penalties(self.sampling, prompt.ids, None, self.model.spec.n_scored, self.closing_ids, left)
        while left:
            guessed = guesser(text, hidden, min(self.guessing.most, left - 1), self.sampling, generator)
            n = len(guessed.token_ids)
            known = reader.cache.n
            out = reader.read([*text, *guessed.token_ids], n + 1)
            self.passes[row] += 1
            logits = penalties.applied(out.logits[0], guessed.token_ids)
            new = checked(guessed, self.sampling.probabilities(logits), generator)
            penalties.add([new])
            text += new
            reader.keep(len(text) - 1)
            hidden = out.last_hidden_state[:, : len(text) - 1 - known]
            left -= len(new)
            yield from new


def checked(guessed: Guessed, wanted: Tensor, generator: torch.Generator) -> list[int]:
    """The guesses that stand and one token more, for the model's probabilities [guess + 1, vocab].

    A guess x drawn by q stands with probability min(1, p(x) / q(x)); where it falls, the token is drawn in proportion to
    max(0, p - q). One that was not drawn is one of q(x) = 1. So each token has probability p.
    """
    for i, token in enumerate(guessed.token_ids):
        p = wanted[i]
        q = torch.zeros_like(p) if guessed.probabilities is None else guessed.probabilities[i].to(p.device)
        if guessed.probabilities is None:
            q[token] = 1.0
        number = torch.rand(1, generator=generator, dtype=torch.float64, device=generator.device)
        if float(number) * float(q[token]) < float(p[token]):
            continue
        rest = (p - q).clamp(min=0)
        # Nothing is left only where p and q are equal but for rounding.
        return [*guessed.token_ids[:i], _one(rest if bool(rest.any()) else p, generator)]
    return [*guessed.token_ids, _one(wanted[-1], generator)]


def _one(weights: Tensor, generator: torch.Generator) -> int:
    return int(pick(weights[None], [generator]))
