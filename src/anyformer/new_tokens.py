"""What is known about the tokens of a pass: their positions and documents, by masks, by positions, and by what a cache holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from anyformer.cache import KVCache
from anyformer.errors import InputError
from anyformer.layers.execution import numberless, recorded, transformed
from anyformer.layers.tokens import Tokens, plain_tokens


def make_tokens(
    ids: Tensor,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    facts: Mapping[str, Tensor] | None = None,
    cache: KVCache | None = None,
    by_count: bool = False,
) -> Tokens:
    """What is known about new tokens `ids` [batch, token]. Raises InputError for facts of another name or shape.

    Without a mask, a document begins where a position is not one more than the one before. `by_count`: something that reads
    them is faster where positions of a document count by one, so that it is looked whether those given beside a mask do.
    """
    more = dict(facts or {})
    if unknown := set(more) - {"order", "mark", "language"}:
        raise InputError(f"facts has no {sorted(unknown)[0]!r}; it takes 'order', 'mark' and 'language'")
    given = {"attention_mask": attention_mask, "position_ids": position_ids, "token_type_ids": token_type_ids, **more}
    for name, fact in {"token ids": ids, **given}.items():
        if fact is not None and not isinstance(fact, Tensor):
            raise InputError(
                f"{name}: a value of the class {type(fact).__name__} is no tensor; give torch.tensor(…) of it"
            )
    if ids.dim() != 2:
        raise InputError(f"token ids have shape {tuple(ids.shape)}; they must be [batch, token]")
    n, past = ids.shape[1], cache.n if cache else 0
    if n == 0:  # whoever counts from a first token finds none; PyTorch's fused attention divides by their number
        raise InputError(f"token ids have shape {tuple(ids.shape)}, which is no token; give each row one at least")
    if attention_mask is not None and attention_mask.dim() == 2 and attention_mask.shape[1] == past + n:
        given["attention_mask"] = attention_mask = attention_mask[:, past:]
    for name, fact in given.items():
        if fact is not None and (fact.dim() != 2 or fact.shape[1] != n or fact.shape[0] not in (ids.shape[0], 1)):
            raise InputError(f"{name} has shape {tuple(fact.shape)}; token ids have {tuple(ids.shape)}")
    if attention_mask is not None and attention_mask.is_floating_point():
        _refuse_scores(attention_mask)
    if attention_mask is not None and position_ids is None and not recorded():
        attention_mask = None if bool((attention_mask == 1).all()) else attention_mask
    if attention_mask is None and position_ids is None and (cache is None or cache.plain):
        plain = plain_tokens(n, ids.device, past)
        return replace(plain, segment=token_type_ids, span=plain.span if more.keys() <= {"language"} else None, **more)
    last_position, last_document = (cache.last[0], cache.last[1]) if cache else (-1, -1)
    if attention_mask is not None:
        document = attention_mask.long()
    elif position_ids is not None:
        before, document = position_ids[:, :1] - 1, 1
        if cache is not None and past:
            position_ids = position_ids.expand(len(ids), -1)
            before, document = cache.last[0], cache.last[1].clamp(min=1)
        document = document + (position_ids != torch.cat((before, position_ids[:, :-1]), 1) + 1).cumsum(-1)
    else:
        assert cache is not None
        document = cache.last[1].clamp(min=1).expand(*ids.shape)
    leaps = False
    if position_ids is None:
        position_ids = _positions(document, last_position, last_document)
    elif attention_mask is not None and by_count:
        leaps = _leaps(position_ids, _positions(document, last_position, last_document), document)
    told = Tokens(position_ids, document, segment=token_type_ids, leaps=leaps)
    return replace(told, **more)


def _refuse_scores(mask: Tensor) -> None:
    """Raise InputError for a mask that is to be added to scores, as others have them: there 0 is what is seen."""
    if recorded() or transformed() or numberless(mask):
        return
    if len(odd := mask[(mask < 0) | (mask != mask.long())]):
        raise InputError(
            f"attention_mask has {odd[0].item():g}; give 0 for padding and 1 for tokens, or the number of each one's document"
        )


def _leaps(given: Tensor, counted: Tensor, document: Tensor) -> bool:
    """Whether positions of real tokens may be others than those that are counted; a graph cannot ask, nor torch.func."""
    if recorded() or transformed():
        return True
    alike = ((given == counted) | (document == 0)).all()
    return not numberless(alike) and not bool(alike)


def _positions(document: Tensor, last_position: Tensor | int, last_document: Tensor | int) -> Tensor:
    """Count real tokens within each document [batch, token], from 0, or on from the last one that a cache holds."""
    if document.shape[1] == 1:
        return ((document == last_document) * (last_position + 1) - (document == 0).long()).clamp(min=0)
    order = document.argsort(dim=1, stable=True)
    grouped, at = document.gather(1, order), torch.arange(document.shape[1], device=document.device)
    begins = grouped.diff(dim=1, prepend=grouped[:, :1] - 1) != 0
    rank = at - torch.where(begins, at, 0).cummax(1).values
    count = torch.empty_like(rank).scatter_(1, order, rank).masked_fill(document == 0, -1)
    return (count + (document == last_document) * (last_position + 1)).clamp(min=0)
