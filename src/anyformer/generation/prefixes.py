"""Prefix caching: what was read stays for a while, and a text that begins as it does reads only what follows.

Zheng et al. 2024 (SGLang), arXiv:2312.07104, section 3: texts are found by their longest common beginning, and those used least
recently leave.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anyformer.cache import KVCache
from anyformer.capacity import free_nbytes
from anyformer.errors import out_of_memory
from anyformer.generation.prompt import parting
from anyformer.model import Transformer

SHARE = 0.25  # of free memory


@dataclass(frozen=True, eq=False)
class Read:
    """A text that was read, all of it in a cache of its own."""

    token_ids: tuple[int, ...]
    cache: KVCache

    def beginning(self, token_ids: Sequence[int]) -> int:
        """How many first tokens of another text this one holds and can go back to; 0: none."""
        pairs = enumerate(zip(self.token_ids, token_ids, strict=False))
        shorter = min(len(self.token_ids), len(token_ids))
        n = next((i for i, (ours, theirs) in pairs if ours != theirs), shorter)
        return n if self.cache.gone(len(self.token_ids) - n) is None else 0


class Prefixes:
    """Texts that a model read, in caches that take `most_nbytes` together at most; one that takes more alone is not kept.

    What can take no token back, a state or a window's ring, serves texts that begin with all of it. `most_nbytes` is by default
    a share of the memory that is free now.
    """

    def __init__(self, model: Transformer, most_nbytes: float | None = None) -> None:
        if most_nbytes is None:
            free = free_nbytes(next(model.parameters()).device)
            most_nbytes = math.inf if free is None else SHARE * free
        self.model, self.most_nbytes = model, most_nbytes
        self.texts: list[Read] = []  # those used last at the end

    def copied(self, token_ids: Sequence[int]) -> KVCache | None:
        """A cache of the longest known beginning of a text, its last token never; None where nothing of it is known."""
        found, n = self._found(token_ids)
        if found is None:
            return None
        self.texts.remove(found)
        self.texts.append(found)
        return found.cache.alone(0, len(found.token_ids), len(found.token_ids) - n)

    def taken(self, token_ids: Sequence[int], slack: int = 0) -> KVCache | None:
        """As `copied`, but the text's own cache, of that slack at least, so that the text is known no more."""
        found, n = self._found(token_ids, slack)
        if found is None:
            return None
        self.texts.remove(found)
        found.cache.rewind(len(found.token_ids) - n)
        return found.cache

    def keep(self, token_ids: Sequence[int], cache: KVCache, row: int | None = None) -> None:
        """Keep a text, which a cache begins with: in a copy of that row, or in the cache of one row, which nobody else uses.

        Where memory has no room for a copy, nothing stays.
        """
        n = len(token_ids)
        if parting(self.model.spec, n) or any(each.beginning(token_ids) == n for each in self.texts):
            return
        if row is None:
            if cache.gone(cache.n - n) is not None:
                return
            cache.rewind(cache.n - n)
        try:
            read = Read(tuple(token_ids), cache if row is None else cache.alone(row, n))
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            self.texts.clear()  # whoever writes needs the memory more
            return
        if read.cache.nbytes > self.most_nbytes:
            return
        # What the longer text can go back to needs no cache of its own.
        self.texts = [each for each in self.texts if read.beginning(each.token_ids) < len(each.token_ids)]
        self.texts.append(read)
        while sum(each.cache.nbytes for each in self.texts) > self.most_nbytes:
            del self.texts[0]

    def keep_prompt(self, token_ids: Sequence[int], cache: KVCache | None, more: int) -> None:
        """Keep a prompt, where a cache holds no more than it, that could not be gone back to once so many tokens are written."""
        if cache is not None and cache.n == len(token_ids) and cache.gone(more, more) is not None:
            self.keep(token_ids, cache, 0)

    def _found(self, token_ids: Sequence[int], slack: int = 0) -> tuple[Read | None, int]:
        if parting(self.model.spec, len(token_ids)):
            return None, 0
        lengths = {each: each.beginning(token_ids[:-1]) for each in self.texts if each.cache.slack >= slack}
        best = max(lengths, key=lambda each: lengths[each], default=None)
        return (best, lengths[best]) if best is not None and lengths[best] else (None, 0)
