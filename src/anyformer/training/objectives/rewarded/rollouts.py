"""Answers as a model writes them: those to one prompt beside each other, which is read once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.cache import KVCache
from anyformer.generation import GREEDY, Sampling
from anyformer.generation.compiled import next_logits
from anyformer.generation.decode import Decoding, growing_cache
from anyformer.generation.prompt import padded, parting
from anyformer.generation.text import GrowingText
from anyformer.model import Transformer
from anyformer.text import Tokenizer
from anyformer.training.objectives.rewarded import RewardedSpec
from anyformer.training.objectives.rewarded.data import PromptRows


@dataclass
class Rollout:
    """An answer: its tokens, with those that end it, if any do, and what they say."""

    ids: list[int]
    text: str
    ended: bool
    nats: Tensor | None = None  # -log p of each token as it was drawn; None where a step makes one update


def rollouts(model: Transformer, tokenizer: Tokenizer, rows: PromptRows, said: RewardedSpec) -> list[Rollout]:
    """The answers to some prompts, those to one behind each other; each the same alone or among others."""
    asked, group = [ids[:n].tolist() for ids, (n,) in zip(rows.ids[:, 0], rows.n, strict=True)], rows.seed.shape[1]
    device, most = next(model.parameters()).device, said.max_new_tokens
    ids, mask = padded(asked, device)
    answers: list[list[int]] = [[] for _ in rows.seed.ravel()]
    texts = [GrowingText(tokenizer, asked[i // group], said.stop, i, None) for i in range(len(answers))]
    with torch.autocast(device.type, enabled=False):  # which would cast all weights for each token
        steps = Decoding(
            model,
            ids.repeat_interleave(group, 0),
            None if mask is None else mask.repeat_interleave(group, 0),
            max_new_tokens=most,
            sampling=Sampling(temperature=1.0) if rows.drawn else GREEDY,
            seed=rows.seed.ravel().tolist() if rows.drawn else 0,
            closing_ids=tokenizer.closing_ids,
            cache=_read_once(model, ids, mask, group, ids.shape[1] + most) or True,
        )
        for step in steps:
            for row, token in step.items():
                answers[row].append(token)
                texts[row].push(token)
                if texts[row].done:
                    steps.stop(row)
    said_by = (each.finish() for each in texts)
    return [Rollout(own, each.text, each.ended_by != "length") for own, each in zip(answers, said_by, strict=True)]


def _read_once(model: Transformer, ids: Tensor, mask: Tensor | None, group: int, longest: int) -> KVCache | None:
    """A cache of `group` rows for each prompt [prompt, token], of all but its last token; None where nothing is won by it."""
    width = ids.shape[1]
    least = width if mask is None else int(mask.sum(1).min())
    if group == 1 or least == 1 or parting(model.spec, width) is not None:
        return None
    cache = growing_cache(model, len(ids), width, longest)
    before = None if mask is None else mask[:, :-1]
    with torch.inference_mode():
        next_logits(model, ids[:, :-1], None, cache, before)
        cache.select([i for i in range(len(ids)) for _ in range(group)])
    return cache
