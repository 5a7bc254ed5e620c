"""What cannot work: found where parts meet, by shapes on the meta device and by what masks and tables say."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from anyformer.descriptions.facts import every_attention, maps, own_parts, place_in, reduced, where
from anyformer.errors import AnyformerError
from anyformer.layers import LearnedPositionsSpec, TokensSpec
from anyformer.layers.causality import sees_later_tokens
from anyformer.layers.counting import counted
from anyformer.layers.mask import And, Not, Or
from anyformer.model import build
from anyformer.spec import ModelSpec, PartSpec, Place, inside, tensors
from anyformer.variants.values import text_of

FARTHEST = 8192  # tokens, the last of which is asked what it sees
N_TOKENS = 4  # of the pass without numbers


def misfits(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    """At most one error: the first place where the sizes of two parts do not fit.

    Widths are followed through the parts of this package; a model with parts of a user's own is run without numbers.
    """
    try:
        few = reduced(spec)
        for _ in tensors(few, Place()):
            pass
        for part, place in _standing(few, Place()):
            if type(part).module is None and type(part).build is PartSpec.build:
                part.build(place)
        if wrong := next(_widths(few), None):
            yield "sizes", wrong
        elif own_parts(spec):
            _run(few)
    except AnyformerError as error:
        yield "sizes", str(error)
    except Exception as error:  # a part of a user's own may raise anything
        said = " ".join(str(error).split())
        if "meta" not in said:  # what goes by the numbers themselves cannot run without them
            yield "sizes", f"a forward pass fails: {said or type(error).__name__}"


def _standing(part: PartSpec, place: Place) -> Iterator[tuple[PartSpec, Place]]:
    """The parts inside as they are built: with what follows from the depth of their stack."""
    for _, inner, there in inside(part, place):
        yield inner, there
        yield from _standing(inner, there)


def _widths(spec: ModelSpec) -> Iterator[str]:
    """Where vectors of one width meet a part for another."""
    for name, stack in spec.stacks.items():
        of, embedding, d_model = f"{name} " if name else "", stack.embedding, stack.d_model
        sum_width = embedding.width or d_model
        place = place_in(spec, stack)
        for term in embedding.terms:
            if isinstance(term, TokensSpec):
                width = term.table.width or sum_width
                width = term.projection.width_out(place.at(width)) if term.projection else width
                if width != sum_width:
                    yield f"{of}tokens are vectors of {width}, and the embedding's sum has {sum_width}; project them"
        if embedding.projection and (width := embedding.projection.width_out(place.at(sum_width))) != d_model:
            yield f"the {of}embedding's projection gives {width} numbers, and d_model is {d_model}"
        for inner, sublayer in ((block.inner(place), each) for block in stack.blocks for each in block.sublayers):
            for _, step in maps(sublayer):
                if (width := step.width_out(inner)) != inner.d_model:
                    yield f"{of}{step.kind} between the branches gives {width} numbers, and d_model is {inner.d_model}"
    for head in spec.heads:
        place = Place(spec.stack.d_model, (spec.stack.width,))
        for step in head.transform:
            place = place.at(step.width_out(place))
        if head.table is not None and not head.beside and head.table.width not in (None, place.shape[-1]):
            remedy = "make Table.width equal, or add a Linear to Head.transform"
            yield f"the head {head.name!r} has rows of {head.table.width}, and what it reads has {place.shape[-1]}; {remedy}"


def errors(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    """What fails although the sizes fit."""
    yield from _later_tokens(spec)
    yield from _no_keys(spec)
    yield from _positions(spec)
    yield from _vocabulary(spec)
    reads = any(attention.spec.reads_memory for attention in every_attention(spec) if attention.stack == "decoder")
    if spec.encoder is not None and not reads:
        remedy = "give its layers an Attention that reads 'memory', or leave the encoder out"
        yield "encoder", f"no layer of the decoder reads the encoder's output; {remedy}"


def _run(spec: ModelSpec) -> None:
    """Run the model on tensors without numbers. Raises whatever a pass raises."""
    model = build(spec, device="meta")
    ids = torch.zeros(1, N_TOKENS, dtype=torch.long, device="meta")
    target = ids if spec.encoder else None
    with torch.no_grad():
        model(ids, decoder_input_ids=target, token_type_ids=ids)


def _later_tokens(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    """A head that predicts the next token must not see it: where it is called lm, and in a decoder that writes."""
    if not any(head.name == "lm" for head in spec.heads):
        return
    main = "decoder" if spec.encoder else ""
    own = (each for each in every_attention(spec) if each.stack == main and each.spec.reads != "memory")
    if seeing := [each for each in own if sees_later_tokens(each.spec.mask, after_prefix=True)]:
        kinds = ", ".join(dict.fromkeys(attention.spec.mask.kind for attention in seeing))
        yield (
            "causality",
            f"the head 'lm' predicts the next token, which attention in {where(seeing, spec)} sees (mask {kinds}); "
            "add Causal to the mask, or name the head for what it does ('mlm')",
        )


def _no_keys(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    """A mask that leaves the last token without a key."""
    n = min(spec.context or FARTHEST, FARTHEST)
    own = [each for each in every_attention(spec) if each.spec.reads != "memory"]
    for mask in dict.fromkeys(each.spec.mask for each in own if isinstance(each.spec.mask, And | Or | Not)):
        blind = [each for each in own if each.spec.mask == mask]
        if not counted(mask, 1, n - 1, max(each.sizes[0] if each.sizes else 1 for each in blind)):
            yield (
                "mask",
                f"token {n:,} sees no key in {where(blind, spec)} (mask {text_of(mask)}); write one that shows it some",
            )


def _positions(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    for name, stack in spec.stacks.items():
        for term in stack.embedding.terms:
            n = term.positions()
            if n is not None and spec.context is not None and n < spec.context:
                field = "n_positions" if isinstance(term, LearnedPositionsSpec) else "shape"
                yield (
                    "positions",
                    f"the {f'{name} ' if name else ''}table has {n:,} learned positions, and the context is "
                    f"{spec.context:,} tokens: those beyond are refused; raise {term.kind}.{field} or lower the context",
                )


def _vocabulary(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    for head in spec.heads:
        if head.name == "lm" and head.table is not None and head.table.rows > spec.vocab_size:
            yield (
                "vocabulary",
                f"the head 'lm' gives {head.table.rows:,} logits, and the embedding takes {spec.vocab_size:,} ids; "
                "make Table.rows equal, so that what is written can be read",
            )
