"""A smaller model of a trained one, of which what matters most for a text stays: structured pruning.

Muralidharan et al. 2024, arXiv:2407.14679 (Minitron), whose further training beside the given model is `--teacher`; here neurons,
heads and experts are judged by the gradient, layers by the loss without each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from anyformer.errors import UsageError
from anyformer.hub import transplant as carried_over
from anyformer.hub.transplant import Transplant
from anyformer.inspection.effects import Change, judged
from anyformer.inspection.importance import importance
from anyformer.inspection.sites import without_layers
from anyformer.inspection.subject import TOKENS, Subject, subject
from anyformer.spec import Architecture, BlockSpec, ModelSpec, Spec, specification
from anyformer.surgery import MATTER_MOST
from anyformer.text import Tokenizer
from anyformer.training.prepare import Sources

Size = int | None  # None: as the rest of a specification says
Stack = Literal["stack", "encoder"]
STACKS: dict[Stack, str] = {"stack": "layers", "encoder": "layers of the encoder"}
SETS = 2  # of layers that are left out, from which the search for more of them goes on


def transplant(
    architecture: Architecture,
    path: str | Path,
    data: str | Path | None = None,
    *,
    source: str | Path | None = None,
    target: str | Path | None = None,
    tokens: int | None = None,
    layers: str | None = None,
    tokenizer: Tokenizer | str | Path | None = None,
    seed: int = 0,
) -> Transplant:
    """A model of the architecture in float32, drawn from the seed, with what it can have of what `load` takes from `path`.

    A tensor is carried over where both models have one that does the same and has the same axes: as it is, or heads regrouped,
    neurons, experts, positions and tokens cut or grown (docs/convert.md has the rules). `layers` says which given layer each
    begins as (`0-23,8-31`; of an encoder-decoder, the decoder's), and how many there are; `tokenizer` is another one, whose
    tokens begin as those of the same text. With data, `inspect`'s, of what is to be fewer those stay that matter most for
    the given model's loss on about so many `tokens`: layers, heads, neurons, experts. Raises CheckpointError where nothing is
    carried over and for a tokenizer with more tokens than the architecture, UsageError for layers that there are not or that
    cannot write nothing, and what `load` and `inspect` do.
    """
    if data is source is target is None:
        if tokens is not None:
            raise UsageError("tokens are those of the data by which is judged what matters; give --data too")
        return carried_over(architecture, path, layers=layers, tokenizer=tokenizer, seed=seed)
    spec, n, how = specification(architecture), tokens or TOKENS, list[str]()
    named, gone = {} if layers is None else {"stack": layers}, frozenset[int]()
    with subject(path, Sources(data, source, target), tokens=n) as one:
        matters = importance(one.model, one.judging, n)
        for stack, what in STACKS.items():
            given, wanted = (_blocks(each, stack) for each in (one.model.spec, spec))
            if stack not in named and 0 < len(wanted) < len(given):
                gone, at = least_needed(one, stack, wanted, n, gone), one.sites.within(stack)
                named[stack] = ",".join(f"{i - at.start}" for i in at if i not in gone)
                how.append(f"{what} {named[stack]} of {len(at)}, those {MATTER_MOST}")
    del one  # it is loaded anew, and need not be there twice
    chosen = {"layers": named.get("stack"), "encoder_layers": named.get("encoder")}
    made = carried_over(architecture, path, **chosen, tokenizer=tokenizer, seed=seed, importance=matters)
    if not any(MATTER_MOST in each for each in (*how, *made.how)):
        how.append("the data chose nothing, since nothing is to be fewer of which it says what matters")
    return made._replace(how=(*how, *made.how))


def least_needed(
    one: Subject, stack: Stack, wanted: Sequence[BlockSpec], tokens: int, gone: frozenset[int]
) -> frozenset[int]:
    """The layers without which the loss is lowest where a stack is to have as few as are wanted, and those `gone` before.

    One more is left out at a time, and each time the few best sets go on: layers make up for each other. Where layers are of
    several kinds, those that stay are in turn of the kinds wanted, as long as the given ones are.
    """
    at, best = one.sites.within(stack), [gone]
    given, kinds = ([_kind(block) for block in blocks] for blocks in (_blocks(one.model.spec, stack), wanted))
    own = dict(zip(at, given, strict=True))

    def fits(gone: frozenset[int]) -> bool:
        stay = iter(own[i] for i in at if i not in gone)
        return all(kind in stay for kind in kinds)  # each behind the one before

    alike = fits(gone)
    for _ in range(len(given) - len(kinds)):
        wider = {each | {i} for each in best for i in at if i not in each}
        changes = {
            each: Change(min(each), partial(without_layers, one.model, each))
            for each in wider
            if not alike or fits(each)
        }
        _, losses = judged(one.model, one.judging, tokens, changes)
        best = sorted(changes, key=losses.__getitem__)[:SETS]
    return best[0]


def _blocks(spec: ModelSpec, stack: Stack) -> Sequence[BlockSpec]:
    """The layers of the main stack, or of the encoder beside it; without one, none."""
    found = {"stack": spec.stack, "encoder": spec.encoder}[stack]
    return () if found is None else found.blocks


def _kind(value: Any) -> Any:
    """What a part is but for its sizes, which may be others."""
    if isinstance(value, Spec):
        own = value.values().items()
        return type(value), *(
            (name, _kind(each)) for name, each in own if type(each) is bool or not isinstance(each, Size)
        )
    return tuple(map(_kind, value)) if isinstance(value, tuple) else value
