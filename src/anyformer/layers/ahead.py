"""Multi-token prediction: what predicts tokens further ahead, in training and as guesses. DeepSeek-V3: arXiv:2412.19437, 2.2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from anyformer.errors import InputError
from anyformer.layers.block import Block, mapped
from anyformer.layers.context import ForwardContext, KeepNothing, Memo, Notes, Store
from anyformer.layers.part import Part
from anyformer.layers.tokens import Tokens
from anyformer.spec import AheadSpec


class Ahead(Part[AheadSpec]):
    hidden: nn.Module
    token: nn.Module
    block: Block
    norm_hidden: nn.Module
    norm_token: nn.Module
    norm: nn.Module

    def forward(
        self, x: Tensor, token: Tensor, context: ForwardContext, residual: Any, stores: Iterator[Store]
    ) -> tuple[Tensor, list[Notes]]:
        """What its block makes of x [batch, token, width] and the embeddings of later tokens [batch, token, d_model]."""
        spec = self.spec
        x = mapped(spec.hidden, self.hidden, mapped(spec.norm_hidden, self.norm_hidden, x, context), context)
        token = mapped(spec.norm_token, self.norm_token, token, context)
        context.input = x + mapped(spec.token, self.token, token, context)
        state, notes = self.block(residual.open(context.input, context), residual, context, stores)
        return residual.close(state)[0], notes


def run_ahead(
    modules: Iterable[Ahead], x: Tensor, context: ForwardContext, residual: Any
) -> tuple[list[Tensor], list[Notes]]:
    """What the head reads of each module [batch, token - k, width], k from 1, and their mixers' notes.

    `x` is the stack's last hidden state; what it knows of the tokens, and their embeddings, stand in `context`. A token whose
    document has ended k tokens later is padding to the k-th module. Raises InputError for rows too short to look ahead.
    """
    each, notes, embedded = [], [], context.given("input")
    for k, module in enumerate(modules, 1):
        if embedded.shape[1] <= k:
            raise InputError(f"rows of {embedded.shape[1]} tokens have nothing {k} further ahead; give longer rows")
        here = replace(
            context,
            tokens=_with_successor(context.tokens, k),
            memo=Memo(),
            ids=context.ids if context.ids is None else context.ids[:, k:],
        )
        x, more = module(x[:, :-1], embedded[:, k:], here, residual, KeepNothing())
        each.append(mapped(module.spec.norm, module.norm, x, here))  # what the head reads
        notes += more
    return each, notes


def _with_successor(tokens: Tokens, k: int) -> Tokens:
    """The facts about tokens that have one k places later; those whose document ends before it are padding."""
    first = tokens.each(lambda fact: fact[:, :-k])
    if first.document is None or tokens.document is None:
        return replace(first, span=tokens.span and (tokens.span[0], tokens.span[1] - k))
    same = first.document == tokens.document[:, k:]
    return replace(first, document=first.document.masked_fill(~same, 0), span=None)
