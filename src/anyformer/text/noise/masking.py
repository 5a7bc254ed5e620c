"""Masked language modelling: Devlin et al. 2019 (BERT), arXiv:1810.04805, section 3.1; masks drawn anew each time, as in
Liu et al. 2019 (RoBERTa), arXiv:1907.11692, section 4.1; n-grams, as in Lan et al. 2019 (ALBERT), arXiv:1909.11942, section 4.1.
"""

from __future__ import annotations

import numpy as np

from anyformer.text.packing import NOT_PREDICTED


def masked(
    ids: np.ndarray,
    rng: np.random.Generator,
    *,
    mask: int,
    replacements: np.ndarray,
    rate: float = 0.15,
    mask_share: float = 0.8,
    random_share: float = 0.1,
    groups: np.ndarray | None = None,
    spared: np.ndarray | None = None,
    max_ngram: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """(inputs, labels): of the chosen tokens, some masked, some random, the rest left, and all to be predicted.

    round(rate · n) tokens are chosen, at least one where there is any to choose: single ones, or whole groups (`groups`
    numbers them in order, see `whole_words`) until no further group fits. `spared` tokens, special ones, are never chosen.
    A random token is one of `replacements`. With a `max_ngram` above 1, as many neighbours as drawn go together, n of them
    with a probability in proportion to 1 / n, fewer where one is spared, chosen already, or one too many.
    """
    free = np.ones(len(ids), dtype=bool) if spared is None else ~spared
    numbers = np.arange(len(ids)) if groups is None else groups
    wanted = min(int(free.sum()), max(1, round(rate * free.sum())))
    chosen = np.zeros(len(ids), dtype=bool)
    candidates = np.unique(numbers[free])
    sizes = dict(zip(candidates.tolist(), np.bincount(numbers[free])[candidates].tolist(), strict=True))
    fenced = set(numbers[~free].tolist())  # neighbours of what is spared; nothing goes together across it
    left = wanted
    for first in rng.permutation(candidates).tolist():
        if left <= 0:
            break
        for number in range(first, first + (_drawn_length(rng, max_ngram) if max_ngram > 1 else 1)):
            size = sizes.get(number)
            if size is None or (size > left and left < wanted) or (number > first and number in fenced):
                break
            chosen |= free & (numbers == number)
            left -= size
            del sizes[number]
    inputs, labels = ids.copy(), np.where(chosen, ids, NOT_PREDICTED)
    fate = rng.random(len(ids))
    inputs[chosen & (fate < mask_share)] = mask
    swapped = chosen & (fate >= mask_share) & (fate < mask_share + random_share)
    inputs[swapped] = rng.choice(replacements, int(swapped.sum()))
    return inputs, labels


def _drawn_length(rng: np.random.Generator, most: int) -> int:
    """Return n from 1 to `most`, with a probability in proportion to 1 / n."""
    upto = np.cumsum(1 / np.arange(1, most + 1))
    return 1 + int(np.searchsorted(upto, rng.random() * upto[-1], side="right"))


def whole_words(ids: np.ndarray, begins_word: np.ndarray) -> np.ndarray:
    """The number of the word that each token is of; `begins_word` says of every id whether it begins one."""
    starts = begins_word[ids].copy()
    starts[:1] = True
    return np.cumsum(starts)
