"""What a model is run on beside transformers': rows that are plain, padded on one side, or packed documents."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.layers import (
    AttentionSpec,
    BlockIndexerSpec,
    CompressorSpec,
    FirstTokenSpec,
    FourierSpec,
    GlobalBlocks,
    LastTokenSpec,
    LogSteps,
    MLSTMSpec,
    RGLRUSpec,
    SpanConvolutionSpec,
    TokensSpec,
    TransientGlobalSpec,
    ValueConvolutionSpec,
    WKVSpec,
)
from anyformer.model import Output, Transformer
from anyformer.spec import HeadSpec, ModelSpec
from tests.laws.models import waives

LENGTH = 40  # beyond the context (32) from which a shrunk llama3 scaling was stretched
SOURCE = 36  # tokens that an encoder reads beside them
PADDED, SOURCE_PADDED = 7, 5  # tokens of padding, in a row each
DOCUMENT, SOURCE_DOCUMENT = 15, 20  # tokens of the first of two packed documents


class Piece(NamedTuple):
    """A part of the rows that their class is given by itself."""

    rows: slice
    tokens: slice
    source: slice = slice(None)


WHOLE = Piece(slice(None), slice(None))


@dataclass
class Inputs:
    """Arguments of a forward pass, alike on both sides, and which tokens are real.

    Theirs is given piece by piece: packed documents one after the other, since not all of its classes keep them apart.
    """

    input_ids: Tensor  # the main stack's
    real: Tensor  # [batch, token]
    ours: dict[str, Any] = field(default_factory=dict)
    theirs: dict[str, Tensor] = field(default_factory=dict)
    pieces: tuple[Piece, ...] = (WHOLE,)
    source: Tensor | None = None  # the encoder's
    source_real: Tensor | None = None

    def run(self, model: Transformer, **options: Any) -> Output:
        """Return what our model makes of them."""
        if self.source is None:
            return model(self.input_ids, **self.ours, **options)
        return model(self.source, decoder_input_ids=self.input_ids, **self.ours, **options)

    def begun(self, ids: Tensor, mask: Tensor) -> Inputs:
        """Return other tokens of the main stack, beside the same source."""
        if self.source is None or self.source_real is None:
            masks = {"attention_mask": mask}
        else:
            masks = {"attention_mask": self.source_real.long(), "decoder_attention_mask": mask}
        return Inputs(ids, mask.bool(), masks, masks, (WHOLE,), self.source, self.source_real)

    def references(self, theirs: Any) -> Iterator[tuple[Piece, Any]]:
        """Yield what their model makes of each piece."""
        known = inspect.signature(theirs.forward).parameters  # BLOOM's and others' go by the mask alone
        options = {"output_hidden_states": True, "use_cache": False}
        for piece in self.pieces:
            rows, tokens, source = piece
            ids, given = self.input_ids[rows, tokens], {}
            forget(theirs)
            for name, value in self.theirs.items():
                if name in known:
                    of_source = self.source is not None and not name.startswith("decoder_")
                    given[name] = value[rows, source if of_source else tokens]
            if self.source is None:
                yield piece, theirs(ids, **given, **options)
            else:
                yield piece, theirs(self.source[rows, source], decoder_input_ids=ids, **given, **options)

    def assembled(self, pieces: list[tuple[Piece, Any]], get: Callable[[Any], Tensor]) -> Tensor:
        """Return a tensor of every token, [batch, token, …], from that of each piece; zero where there was none."""
        first = get(pieces[0][1])
        whole = first.new_zeros(*self.input_ids.shape, *first.shape[2:])
        for (rows, tokens, _), out in pieces:
            whole[rows, tokens] = get(out)
        return whole

    def comparable(self, spec: ModelSpec) -> list[HeadSpec]:
        """Return the heads whose answers theirs gives too: it pools padding like any token, and one document a row."""
        ends = ((FirstTokenSpec, 0), (LastTokenSpec, -1)) if self.pieces == (WHOLE,) else ()
        alike = tuple(pool for pool, at in ends if bool(self.real[:, at].all()))
        return [head for head in spec.heads if head.pool is None or isinstance(head.pool, alike)]

    def answers(self, pieces: list[tuple[Piece, Any]], head: HeadSpec) -> Tensor:
        """Return what their model answers to a head of ours."""
        if head.pool is None:
            return self.assembled(pieces, lambda part: answer(head, part))
        return answer(head, pieces[0][1])

    def without(self, pad: int) -> Inputs:
        """Return the same for a class that knows padding by its id."""
        ids = self.input_ids.where(self.input_ids != pad, pad + 1).masked_fill(~self.real, pad)
        return replace(self, input_ids=ids)

    def uncounted(self) -> Inputs:
        """Return the same for a class that counts positions itself."""
        return replace(self, theirs={name: value for name, value in self.theirs.items() if name != "position_ids"})

    def row_by_row(self) -> Inputs:
        """Return the same for a class that must not see padding: each row by itself, without."""
        sources = [slice(None)] * len(self.real) if self.source_real is None else _spans(self.source_real)
        spans = zip(_spans(self.real), sources, strict=True)
        pieces = (Piece(slice(i, i + 1), tokens, source) for i, (tokens, source) in enumerate(spans))
        return replace(self, pieces=tuple(pieces), theirs={})

    def fit_for(self, theirs: Any, spec: ModelSpec) -> Inputs:
        """Return them as their class can be given them.

        Some count padding among the positions, or among the tokens that compete for an expert.
        """
        pad = theirs.config.pad_token_id
        if pad is not None and spec.encoder is None:
            given = self.without(pad)
            if getattr(theirs.config, "causal", False) and self.pieces == (WHOLE,):
                return given.row_by_row()  # XLM's then hides what comes later, and no padding
            return given if theirs.config.model_type in ("xlm", "flaubert") else given.uncounted()
        reals = [self.real, *([] if self.source_real is None else [self.source_real])]
        padded = self.pieces == (WHOLE,) and not all(bool(real.all()) for real in reals)
        kinds = (
            TransientGlobalSpec
            | GlobalBlocks
            | FourierSpec
            | SpanConvolutionSpec
            | ValueConvolutionSpec
            | RGLRUSpec
            | WKVSpec
            | MLSTMSpec
            | CompressorSpec
        )
        counted = any(
            isinstance(v, kinds | BlockIndexerSpec)
            or (isinstance(v, LogSteps) and v.start)
            or (isinstance(v, TokensSpec) and v.span > 1)
            for v in spec.nested()
        )
        if padded and counted:
            # There, padding takes places in the blocks, or positions that queries grow by (Llama 4), or is read (ConvBERT,
            # Nyströmformer, MobileBERT, FNet, Griffin, RWKV, xLSTM).
            return self.row_by_row()
        positions = (
            len(spec.stack.embedding.terms) > 1 and "position_ids" not in inspect.signature(theirs.forward).parameters
        )
        if pad is not None:  # a class that fills rows up with it must not find it among the tokens (LED)
            assert self.source is not None
            kept = [ids.where(ids != pad, pad + 1) for ids in (self.input_ids, self.source)]
            self = replace(self, input_ids=kept[0], source=kept[1])
        turned = any(
            v.memory for v in spec.stack.nested(AttentionSpec)
        )  # queries do by their places, and such keys do not
        unseen = spec.encoder is not None and (positions or turned or waives(spec, "padding"))
        return self.row_by_row() if unseen and self.pieces == (WHOLE,) else self


def forget(theirs: Any) -> None:
    """Have a class that sees all of a short text, and of every text from then on, begin anew (BigBird's)."""
    for module in list(theirs.modules()):
        if hasattr(module, "set_attention_type"):
            module.set_attention_type(theirs.config.attention_type)


# What a class calls the answers of a head that is not alone; others are called logits.
ANSWERS = {"mlm": "prediction_logits", "nsp": "seq_relationship_logits", "sop": "sop_logits", "pooler": "pooler_output"}


def answer(head: HeadSpec, theirs: Any) -> Tensor:
    """Return their answer for a head of ours: [batch, token, rows], or [batch, rows] where it pools."""
    if head.name == "span":
        return torch.stack((theirs.start_logits, theirs.end_logits), -1)
    found = getattr(theirs, ANSWERS.get(head.name, "logits"), None)
    found = theirs.logits if found is None else found
    return found[..., None] if head.table and head.table.rows == 1 and head.pool is None else found


def _spans(real: Tensor) -> list[slice]:
    """Return where each row's real tokens, which lie side by side, begin and end."""
    found = [row.nonzero()[:, 0] for row in real]
    return [slice(int(at[0]), int(at[-1]) + 1) for at in found]


def inputs(kind: str, vocab_size: int, seed: int = 0) -> Inputs:
    """Return two rows of tokens for a model of one stack: plain, padded on the right or left, or packed documents."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocab_size, (2, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    if kind == "plain":
        return Inputs(ids, mask.bool())
    if kind == "packed":
        positions = torch.cat((torch.arange(DOCUMENT), torch.arange(LENGTH - DOCUMENT))).expand(2, -1)
        pieces = tuple(Piece(slice(None), tokens) for tokens in _halves(DOCUMENT))
        return Inputs(ids, mask.bool(), {"position_ids": positions}, {}, pieces)
    padding = slice(LENGTH - PADDED, None) if kind == "right" else slice(0, PADDED)
    mask[1, padding] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    theirs = {"attention_mask": mask} | ({"position_ids": positions} if kind == "left" else {})
    return Inputs(ids, mask.bool(), {"attention_mask": mask}, theirs)


def inputs_for(kind: str, spec: ModelSpec, seed: int = 0) -> Inputs:
    """Return two rows as `inputs` does, and the encoder's where the model has one: row 1's target, row 0's source is padded."""
    given = inputs(kind, spec.vocab_size, seed)
    if spec.encoder is None:
        return given
    ids = torch.randint(0, spec.vocab_size, (2, SOURCE), generator=torch.Generator().manual_seed(seed + 1))
    mask, of_target = torch.ones_like(ids), given.real.long()
    if kind == "packed":  # tokens of equal numbers see each other, in the source too
        mask[:, SOURCE_DOCUMENT:], of_target[:, DOCUMENT:] = 2, 2
        ours = {"attention_mask": mask, "decoder_attention_mask": of_target}
        halves = zip(_halves(DOCUMENT), _halves(SOURCE_DOCUMENT), strict=True)
        pieces = tuple(Piece(slice(None), tokens, source) for tokens, source in halves)
        return Inputs(given.input_ids, given.real, ours, {}, pieces, ids, mask > 0)
    if kind != "plain":
        mask[0, slice(SOURCE - SOURCE_PADDED, None) if kind == "right" else slice(0, SOURCE_PADDED)] = 0
    masks = {} if kind == "plain" else {"attention_mask": mask, "decoder_attention_mask": of_target}
    return Inputs(given.input_ids, given.real, masks, masks, (WHOLE,), ids, mask.bool())


def _halves(at: int) -> tuple[slice, slice]:
    return slice(0, at), slice(at, None)
