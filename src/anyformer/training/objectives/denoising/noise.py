"""Sources and targets of each objective that restores a text; refused where nothing would be hidden."""

from __future__ import annotations

from functools import partial

import numpy as np

from anyformer.errors import TextError, UsageError
from anyformer.text import Tokenizer
from anyformer.text import noise as noises
from anyformer.text.noise import Example
from anyformer.training.data.noise import check_hides
from anyformer.training.data.vocabulary import ends_sentence, lacking, specials, token_of_role
from anyformer.training.objectives.denoising import UL2, Denoising, PrefixLM, RestoredText, SpanCorruption
from anyformer.training.objectives.denoising.pairs import PairNoise


def noise_for(said: RestoredText, seq_len: int, tokenizer: Tokenizer) -> PairNoise:
    """The noise of each kind. Raises TextError for a tokenizer that lacks a token, UsageError where nothing would be hidden."""
    match said:
        case SpanCorruption():
            return span_corruption(said, seq_len, tokenizer)
        case PrefixLM():
            return prefix_lm(seq_len, tokenizer)
        case Denoising():
            return denoising(said, seq_len, tokenizer)
        case UL2():
            return ul2(said, seq_len, tokenizer)
        case _:
            raise UsageError(f"objective {said.kind} has no noise; give its own class a `noise`")


def span_corruption(said: SpanCorruption, n: int, tokenizer: Tokenizer) -> PairNoise:
    """T5's. Raises TextError where sentinels are missing."""
    check_hides(said, said.rate, n)
    known = sentinels(said, tokenizer, n_spans(said.rate, said.mean_length, n) + 1)
    corrupt = partial(noises.span_corrupted, sentinels=known, rate=said.rate, mean_length=said.mean_length)
    joint = partial(_joint_spans, said.rate, said.mean_length)
    return PairNoise.of(corrupt, partial(_longest_spans, said.rate), joint, tokenizer)


def prefix_lm(seq_len: int, tokenizer: Tokenizer) -> PairNoise:
    """A text cut in two. Raises UsageError for rows that cannot be."""
    if seq_len < 2:
        raise UsageError(f"rows of {seq_len} token cannot be cut in two; use a --seq-len of 2 or more")
    return PairNoise.of(noises.prefix, lambda n: n + 1, lambda n: n + 1, tokenizer)


def denoising(said: Denoising, seq_len: int, tokenizer: Tokenizer) -> PairNoise:
    """BART's. Raises TextError for a tokenizer without a mask."""
    if not said.permute_sentences and not said.rotate:
        check_hides(said, max(said.delete_rate, said.infill_rate), seq_len)
    mask, ends = token_of_role(tokenizer, "mask_token", said), ends_sentence(tokenizer)

    def corrupt(ids: np.ndarray, rng: np.random.Generator) -> Example:
        noisy = ids
        if said.permute_sentences:
            noisy = noises.permuted_sentences(noisy, rng, ends=ends[noisy])
        if said.rotate:
            noisy = noises.rotated(noisy, rng)
        if said.delete_rate:
            noisy = noises.deleted(noisy, rng, rate=said.delete_rate)
        if said.infill_rate:
            noisy = noises.infilled(noisy, rng, mask=mask, rate=said.infill_rate, mean_length=said.mean_length)
        return Example(noisy, ids)

    def longer(n: int) -> int:
        return n + round(said.infill_rate * n) + 1  # a span of no tokens inserts a mask, at most as many as were to go

    return PairNoise.of(corrupt, longer, lambda n: longer(n) + n, tokenizer)


def ul2(said: UL2, n: int, tokenizer: Tokenizer) -> PairNoise:
    """UL2's mixture. Raises TextError where sentinels or tokens for modes are missing."""
    spans = [n_spans(one.rate, one.mean_length or n, n) + 1 for one in said.denoisers]
    for one in said.denoisers:
        check_hides(said, one.rate, n)
    sentinels_, known = sentinels(said, tokenizer, max(spans)), specials(tokenizer)
    modes = {mode: known.get(f"[{mode}]") for mode in dict.fromkeys(one.mode for one in said.denoisers)}
    for mode, token in modes.items():
        if said.tell and token is None:
            raise lacking(tokenizer, said, f"[{mode}]")

    def corrupt(ids: np.ndarray, rng: np.random.Generator) -> Example:
        one = said.denoisers[int(rng.integers(len(said.denoisers)))]
        mode = modes[one.mode] if said.tell else None
        return noises.denoised(ids, rng, sentinels=sentinels_, rate=one.rate, mean_length=one.mean_length, mode=mode)

    def longer(n: int) -> int:
        return 1 + max(_longest_spans(one.rate, n) for one in said.denoisers)

    def joint(n: int) -> int:
        return 1 + max(_joint_spans(one.rate, one.mean_length or n, n) for one in said.denoisers)

    return PairNoise.of(corrupt, longer, joint, tokenizer)


def sentinels(said: RestoredText, tokenizer: Tokenizer, needed: int) -> list[int]:
    """The ids of `<extra_id_0>`, `<extra_id_1>` … as far as the tokenizer has them. Raises TextError for too few."""
    known, found = specials(tokenizer), list[int]()
    while f"<extra_id_{len(found)}>" in known:
        found.append(known[f"<extra_id_{len(found)}>"])
    if len(found) < needed:
        name = f"<extra_id_{len(found)}>"
        if not found:
            raise lacking(tokenizer, said, name)
        raise TextError(
            f"{said.kind} needs {needed} sentinels for rows of this length and the tokenizer has {len(found)}, without "
            f"{name}; use shorter rows (--seq-len), longer spans, or a tokenizer with more"
        )
    return found


def n_spans(rate: float, mean_length: float, n: int) -> int:
    """How many spans a text of n tokens has at most."""
    return max(1, round(round(rate * n) / mean_length))


def _longest_spans(rate: float, n: int) -> int:
    noisy = max(1, round(rate * n))
    return max(n, 2 * noisy + 1) + 1


def _joint_spans(rate: float, mean_length: float, n: int) -> int:
    """The tokens of a source and a target as one sequence: a sentinel for each span in both, one more in the target."""
    return n + 2 * n_spans(rate, mean_length, n) + 2
