"""Weights of one architecture under another: what does the same in both is carried over, all else is drawn anew."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from anyformer.errors import CheckpointError, UsageError
from anyformer.hub.labels import judge_of
from anyformer.hub.loading import load
from anyformer.hub.source import vary
from anyformer.model import Transformer, build
from anyformer.spec import Architecture, ModelSpec, specification, split_variant
from anyformer.surgery import (
    Anatomy,
    Importance,
    Layer,
    Operation,
    Widening,
    as_they_stand,
    read_layers,
    rows_by_text,
    rows_in_order,
)
from anyformer.text import Tokenizer
from anyformer.variants.variant import key_of, parsed

NAMED = 6  # kinds of tensors that are told of one by one
TRIED = 32  # tokens that both models read, to say how far what they answer lies apart
SAME = 1e-4  # of their size: what rounding makes of answers that are the same


class Transplant(NamedTuple):
    """A model that begins with another's weights, and the tokenizer that goes with it."""

    model: Transformer
    tokenizer: Tokenizer | None
    new: tuple[str, ...]  # its tensors of which nothing is carried over
    n_carried: int  # numbers
    how: tuple[str, ...]  # what became of tensors that are not as they were, each way once
    # how far its logits are from the given model's, as a share of their size; None: they answer other things
    apart: float | None

    def __str__(self) -> str:
        n = sum(each.numel() for each in self.model.state_dict().values())
        kinds = list(dict.fromkeys(re.sub(r"^.*\.\d+\.", "", name) for name in self.new))  # the same of all layers
        more = [f"{len(kinds) - NAMED} more"] if len(kinds) > NAMED else []
        said = [f"{self.n_carried:,} of {n:,} numbers are carried over{'' if kinds or self.n_carried < n else ': all'}"]
        said += list(self.how)
        said += [f"new: {', '.join([*kinds[:NAMED], *more])}"] if kinds else []
        if self.apart is not None:
            same = f"what they were, to {self.apart:.0e}"
            said.append(f"its logits are {same if self.apart < SAME else f'{self.apart:.1%} away from what they were'}")
        return "; ".join(said)


def transplant(
    architecture: Architecture,
    path: str | Path,
    *,
    layers: str | None = None,
    encoder_layers: str | None = None,
    tokenizer: Tokenizer | str | Path | None = None,
    seed: int = 0,
    importance: Importance | None = None,
) -> Transplant:
    """What `anyformer.transplant` makes where nothing is to be chosen by data, which has the rules.

    `encoder_layers` is as `layers`, of an encoder beside a decoder; `importance` says which heads, neurons, experts and features
    of the stream stay where there are to be fewer. Raises CheckpointError where nothing is carried over and for a tokenizer with
    more tokens than the architecture, UsageError for layers that there are not, that cannot write nothing or that are not as many
    as the architecture's own words say, and what `load` does.
    """
    spec = specification(architecture)
    donor, own = load(path, dtype=torch.float32)
    chosen: dict[str, Sequence[Layer | None]] = {"stack": as_they_stand(spec.n_layers, donor.spec.n_layers)}
    if layers is not None:
        chosen["stack"] = found = read_layers(layers, donor.spec.n_layers)
        _refuse_other_depth(architecture, spec, layers, len(found))
        spec = _of_layers(spec, found, donor.spec.n_layers)
    if encoder_layers is not None and donor.spec.encoder is not None:
        chosen["encoder"] = read_layers(encoder_layers, len(donor.spec.encoder.blocks))
    rows, given = None, donor.spec.vocab_size
    if tokenizer is not None:
        if own is None:
            raise UsageError(
                f"{path} has no tokenizer, so no token has the text of one of another; leave --tokenizer out"
            )
        other = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer)
        if spec.vocab_size in range(other.vocab_size) or spec.vocab_size == given:
            spec = vary(spec, vocab_size=other.vocab_size)
        rows, own = rows_by_text(other, own, spec.vocab_size, given), other
    elif own is not None and own.vocab_size > spec.vocab_size:
        raise CheckpointError(
            f"the tokenizer of {path} has {own.vocab_size:,} tokens, that architecture only {spec.vocab_size:,}; "
            f"add +vocab_size={own.vocab_size} to it, or give --tokenizer"
        )
    elif spec.vocab_size != given:
        rows = rows_in_order(spec.vocab_size, given)
    wanted, old, weights, said = Anatomy(spec), Anatomy(donor.spec), donor.state_dict(), ()
    widths, wide = ({stack.d_model for stack in each.stacks.values()} for each in (spec, donor.spec))
    if not widths & wide:
        if len(widths) > 1 or len(wide) > 1:
            raise CheckpointError(
                f"nothing in {path} is alike in that architecture; give a variant of it, with streams that are "
                f"{' and '.join(map(str, sorted(wide)))} wide as its own are, not {' and '.join(map(str, sorted(widths)))}"
            )
        widening = Widening(wanted, old, weights, *widths, *wide)
        places, what = widening.places(importance)
        weights, said = widening.done(places, seed), (what,)
    model = build(spec, seed)
    state = model.state_dict()
    done = Operation(wanted, old, state, weights, chosen, rows, importance).done()
    n_carried = sum(each.numel for each in done.values())
    if not n_carried:
        raise CheckpointError(
            f"nothing in {path} is alike in that architecture; give a variant of it, such as {path}+norm=LayerNorm"
        )
    model.load_state_dict({name: each.tensor for name, each in done.items()}, strict=False)
    model.labels = donor.labels if judge_of(spec) == judge_of(donor.spec) else None
    new = tuple(name for name in state if name not in done or not done[name].numel)
    how = (*said, *dict.fromkeys(each.how for each in done.values() if each.how))
    return Transplant(model, own, new, n_carried, how, None if tokenizer else _apart(model, donor, seed))


def _refuse_other_depth(architecture: Architecture, spec: ModelSpec, layers: str, n: int) -> None:
    """Raise UsageError where a variant says how many layers there are, and `layers` are as many as `n`."""
    changes = split_variant(architecture)[1] if isinstance(architecture, str) else ()
    if spec.n_layers != n and any(key_of(parsed(change)[0]) == "n_layers" for change in changes):
        raise UsageError(
            f"--layers {layers} names {n} layers, and {architecture} has {spec.n_layers}; leave one of the two out"
        )


def _of_layers(spec: ModelSpec, layers: Sequence[Layer], given: int) -> ModelSpec:
    """The architecture with as many layers in its main stack, each of the kind of the one of that number if all are there."""
    blocks = spec.stack.blocks
    if len(blocks) == given:
        return spec.but(stack=spec.stack.but(blocks=tuple(blocks[each.number] for each in layers)))
    return spec if len(blocks) == len(layers) else vary(spec, n_layers=len(layers)).but(encoder=spec.encoder)


def _apart(model: Transformer, donor: Transformer, seed: int) -> float | None:
    """How far two models' logits of the same tokens are apart."""
    specs = model.spec, donor.spec
    if len({spec.encoder is None for spec in specs}) > 1 or not all(spec.heads for spec in specs):
        return None
    n = min([TRIED, *(spec.context for spec in specs if spec.context)])
    ids = torch.randint(min(spec.vocab_size for spec in specs), (1, n), generator=torch.Generator().manual_seed(seed))
    answers = {} if specs[0].encoder is None else {"decoder_input_ids": ids}
    with torch.no_grad():
        a, b = (each.eval()(ids, **answers).logits for each in (model, donor))
    model.train()  # as it was built
    if a is None or b is None or a.shape[:-1] != b.shape[:-1]:
        return None
    width = min(a.shape[-1], b.shape[-1])
    a, b = a[..., :width], b[..., :width]
    centred = b - b.mean(-1, keepdim=True) if width > 1 else b  # of several, what they have in common says nothing
    return float((a - b).norm() / centred.norm()) if centred.any() else None
