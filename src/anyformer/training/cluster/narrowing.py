"""What each of several processes has of a model: a narrower specification, and where its weights are cut.

Shoeybi et al. 2019, arXiv:1909.08053. Pure arithmetic: nothing is built, nothing is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from anyformer.errors import SpecError
from anyformer.spec import BlockSpec, BranchSpec, ModelSpec, Place, Spec, StackSpec, TableSpec, Vocab, tensors


def narrowed(spec: ModelSpec, rank: int, ranks: int) -> ModelSpec:
    """What one of so many ranks computes: mixers with its share of heads or features, tables with its share of the vocabulary.

    What cannot be split stays whole. Raises SpecError where the number of ranks does not divide what can, or nothing can be.
    """
    rows = _share(spec.vocab_size, rank, ranks)
    known: dict[tuple[int, Place], Any] = {}  # a layer that is tiled is narrowed once

    def walked(value: Any, place: Place) -> Any:
        if isinstance(value, tuple):
            return tuple(walked(item, place) for item in value)
        if not isinstance(value, Spec):
            return value
        if (id(value), place) not in known:
            known[id(value), place] = changed(value, place)
        return known[id(value), place]

    def changed(value: Spec, place: Place) -> Spec:
        if isinstance(value, BranchSpec):
            mixer = value.mixer.narrowed(place, ranks)
            return value if mixer is None else value.but(mixer=mixer)
        if isinstance(value, TableSpec):
            return value.but(rows=Vocab(len(rows))) if rows is not None and value.rows == spec.vocab_size else value
        if isinstance(value, StackSpec):
            place = Place(value.d_model, (value.d_model,), place.d_source)
        if isinstance(value, BlockSpec):
            place = value.inner(place)
        fields = {
            name: (old, walked(old, place)) for name, old in value.values().items() if isinstance(old, Spec | tuple)
        }
        return value.but(**{name: new for name, (old, new) in fields.items() if new is not old and new != old})

    d_model, d_source = spec.stack.d_model, spec.encoder.width if spec.encoder else 0
    narrow = walked(spec, Place(d_model, (d_model,), d_source))
    if narrow == spec:
        raise SpecError(
            f"tp = {ranks} has nothing to share out: no layer of this architecture can be split; use dp or fsdp"
        )
    return narrow


class TensorPart(NamedTuple):
    """The part of a weight that a rank computes with."""

    dim: int
    start: int
    length: int
    shared: bool  # other ranks have the same part (a key/value head that several read)


def cuts(spec: ModelSpec, narrow: ModelSpec, rank: int, ranks: int) -> Mapping[str, TensorPart | None]:
    """Of each tensor by its name in the state dict, the part that a rank has of it in the model that is narrowed; None: all.

    Raises SpecError for a part whose weights are cut along several axes, or not at even places.
    """
    found: dict[str, TensorPart | None] = {}
    for (name, wide), (_, own) in zip(tensors(spec, Place()), tensors(narrow, Place()), strict=True):
        changed = [dim for dim, (n, m) in enumerate(zip(wide.shape, own.shape, strict=True)) if n != m]
        found[name] = None
        if changed:
            dim, n, m = changed[0], wide.shape[changed[0]], own.shape[changed[0]]
            mine, parts = _share(n, rank, ranks), n // m
            if mine is not None and len(mine) == m:
                found[name] = TensorPart(dim, mine.start, m, shared=False)
            elif parts * m == n and ranks % parts == 0:
                found[name] = TensorPart(dim, rank * parts // ranks * m, m, shared=True)
            if found[name] is None or len(changed) > 1:
                raise SpecError(f"{name} [{', '.join(map(str, wide.shape))}] cannot be cut for tp = {ranks}")
    return found


def _share(n: int, rank: int, ranks: int) -> range | None:
    """A rank's of n, as `torch.chunk` cuts: all as long but for the last; None where one would have none."""
    size = -(-n // ranks)
    return range(rank * size, min((rank + 1) * size, n)) if size * (ranks - 1) < n else None
