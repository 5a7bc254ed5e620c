"""A family's way to and from Hugging Face: its configuration, and rows of tensors, each going both ways."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from anyformer.errors import AnyformerError, CheckpointError, SpecError
from anyformer.families.compose import edited
from anyformer.families.hf.settings import CAUSAL, Settings
from anyformer.layers import ByRole, GQASpec
from anyformer.spec import HeadSpec, ModelSpec, PartSpec, Place, Spec, StackSpec, tensors
from anyformer.spec.difference import Difference, differences, n_values, short

log = logging.getLogger(__name__)
Tensors = tuple[Tensor, ...]
Part = TypeVar("Part", bound=Spec)


class TensorFiles(Protocol):
    """Tensors of theirs by name, as files hold them."""

    def __contains__(self, name: str) -> bool: ...

    def read(self, name: str) -> Tensor:
        """A tensor."""
        ...


class TensorRow(NamedTuple):
    """Some of our tensors and the tensors of theirs that hold the same numbers."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    load: Callable[[Tensors], Tensors]  # theirs → ours
    save: Callable[[Tensors], Tensors]  # ours → theirs
    # Theirs that a file may hold too, or instead of the first: duplicates of a tied tensor; without `theirs`, to be dropped. What
    # is among `theirs` as well stands for the first where that is absent, and need not be the same.
    also: tuple[str, ...] = ()

    @property
    def renames(self) -> bool:
        """Whether both sides hold one tensor alike."""
        return self.load is _unchanged and len(self.ours) == len(self.theirs) == 1


class Family(NamedTuple):
    """A lineage of models for which transformers has a class."""

    hf_type: str  # model_type
    architecture: str  # the class with the language-model head
    prefix: str  # of the tensors of the model without its head; files saved from that model lack it
    to_spec: Callable[[Settings], ModelSpec]  # raises CheckpointError for a setting that our parts cannot express
    to_config: Callable[[ModelSpec], dict[str, Any]]  # the nearest configuration; `misfits` says how near it is
    rows: Callable[[ModelSpec], list[TensorRow]]
    # the rows of what it writes to files, where that is laid out otherwise
    files: Callable[[ModelSpec], list[TensorRow]] | None = None
    # The model, given the tensors that there are, where its configuration leaves something to them.
    of_files: Callable[[ModelSpec, TensorFiles], ModelSpec] | None = None
    # The head that its classes put on a model for so many labels, by its name; None where none has such a head.
    head: Callable[[ModelSpec, int, str], HeadSpec | None] | None = None
    headless: bool = False  # it knows the class without a head
    fixed_masks: bool = False  # its class makes them itself, and asks no configuration whether they hide later tokens
    # the rows of released files, where its class writes none that are laid out so
    released: Callable[[ModelSpec], list[TensorRow]] | None = None


def class_of(family: Family, config: Mapping[str, Any]) -> str:
    """The class that a configuration names, or the one that the family is known by."""
    return next(iter(config.get("architectures") or ()), family.architecture)


def same(ours: str, theirs: str, *also: str) -> TensorRow:
    """The row of a tensor that both sides hold alike."""
    return TensorRow((ours,), (theirs,), _unchanged, _unchanged, also)


def reshaped(ours: str, theirs: str, load: Callable[[Tensor], Tensor], save: Callable[[Tensor], Tensor]) -> TensorRow:
    """The row of a tensor that theirs holds in another shape."""
    return TensorRow(
        (ours,), (theirs,), lambda one: (load(one[0]).contiguous(),), lambda one: (save(one[0]).contiguous(),)
    )


def fused(
    ours: tuple[str, ...],
    theirs: str,
    *,
    shares: tuple[int, ...] = (),
    groups: int = 1,
    dim: int = 0,
    turned: bool = False,
    also: tuple[str, ...] = (),
) -> TensorRow:
    """The row of several tensors in one of theirs: `groups` times over, `shares` of each side by side in dimension `dim`.

    One group of equal shares is [q‖k‖v]; n_heads groups are (head, q k v, head_dim); n_kv_heads groups of shares
    (n_heads / n_kv_heads, 1, 1) hold each key/value head after its queries. Theirs is (in, out) if `turned`.
    """
    if len(ours) == 1:
        turn = _turned if turned else _unchanged
        return TensorRow(ours, (theirs,), turn, turn, also)
    shares = shares or (1,) * len(ours)

    def load(one: Tensors) -> Tensors:
        (whole,) = _turned(one) if turned else one
        each = whole.unflatten(dim, (groups, sum(shares), -1)).split(shares, dim + 1)
        return tuple(piece.flatten(dim, dim + 2).contiguous() for piece in each)

    def save(pieces: Tensors) -> Tensors:
        each = [p.unflatten(dim, (groups, share, -1)) for p, share in zip(pieces, shares, strict=True)]
        whole = (torch.cat(each, dim + 1).flatten(dim, dim + 2),)
        return _turned(whole) if turned else whole

    return TensorRow(ours, (theirs,), load, save, also)


def dropped(*names: str) -> TensorRow:
    """The row of tensors of theirs that old files hold and nobody needs: masks and tables of constants."""
    return TensorRow((), (), _unchanged, _unchanged, names)


def constant(theirs: str, made: Callable[[], Tensor]) -> TensorRow:
    """The row of a tensor of theirs that nothing is learned in: made where it is written, passed over where it is read."""
    return TensorRow((), (theirs,), lambda theirs: (), lambda ours: (made(),))


def waves(theirs: str, n_positions: int, frequencies: Sequence[float], blank: int | None = None) -> TensorRow:
    """The row of a table that follows from its frequencies: sines, then cosines, of each position's angles; zeros at `blank`."""
    angles = torch.arange(n_positions)[:, None] * torch.tensor(frequencies, dtype=torch.float64)
    table = torch.cat((angles.sin(), angles.cos()), -1).to(torch.get_default_dtype())
    if blank is not None:
        table[blank] = 0
    return constant(theirs, lambda: table)


def _unchanged(tensors: Tensors) -> Tensors:
    return tensors


def _turned(tensors: Tensors) -> Tensors:
    return tuple(tensor.transpose(-1, -2).contiguous() for tensor in tensors)


def ours_of(rows: Iterable[TensorRow], read: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Our tensors by name; `read` gives theirs by name, each asked for once."""
    for row in rows:
        yield from zip(row.ours, row.load(tuple(map(read, row.theirs))), strict=True)


def theirs_of(rows: Iterable[TensorRow], read: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Their tensors by name; `read` gives ours by name, each asked for once."""
    for row in rows:
        yield from zip(row.theirs, row.save(tuple(map(read, row.ours))), strict=True)


def shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The shape of each of our tensors by its name in the state dict."""
    return {name: weight.shape for name, weight in tensors(spec, Place())}


def their_shapes(rows: Iterable[TensorRow], spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The shape of each of their tensors by name. Raises SpecError where the rows do not cover the model."""
    rows, ours = list(rows), shapes(spec)
    named = [name for row in rows for name in row.ours]
    uncovered = sorted(set(named) ^ set(ours)) or sorted({name for name in named if named.count(name) > 1})
    if uncovered:
        raise SpecError(
            f"the rows of this family do not name each tensor of the model once: {', '.join(uncovered[:5])}"
        )
    return {name: tuple(t.shape) for name, t in theirs_of(rows, lambda name: torch.empty(ours[name], device="meta"))}


def one(spec: Spec, kind: type[Part]) -> Part:
    """The first value of a kind inside a specification. Raises SpecError if there is none."""
    found = next(spec.nested(kind), None)
    if found is None:
        raise SpecError(f"the model has no {kind.kind}")
    return found


def width_of_head(spec: ModelSpec, heads: GQASpec | None = None) -> int:
    """The features of one of these `heads` of queries, or of the first attention's: d_model's share where nothing is said."""
    heads = heads or one(spec, GQASpec)
    return heads.head_dim or spec.stack.d_model // heads.n_heads


def misfits(family: Family, spec: ModelSpec) -> tuple[dict[str, Any], list[Difference]]:
    """The nearest configuration and where its model differs: (path, what it would be, what it is).

    How weights start and the context are no part of what is computed. Raises SpecError where a whole part is missing.
    """
    config, nearest = _nearest(family, spec)
    return config, list(differences(nearest, computed(spec)))


def _nearest(family: Family, spec: ModelSpec) -> tuple[dict[str, Any], ModelSpec]:
    config = family.to_config(spec)
    return config, computed(family.to_spec(Settings(config, family.hf_type)))


def spec_of(families: Mapping[str, Family], config: Mapping[str, Any], where: str) -> tuple[Family, ModelSpec]:
    """The family and the model of a configuration; `where` names it in errors. Raises CheckpointError."""
    family = _family_of(families, config, where)
    try:
        return family, family.to_spec(Settings(config, where))
    except SpecError as error:
        raise CheckpointError(f"{where}: {error}") from None


def _family_of(families: Mapping[str, Family], config: Mapping[str, Any], where: str) -> Family:
    """The family that a model_type names; where none is read by that name, the one whose class is among the architectures."""
    hf_type, classes = config.get("model_type"), config.get("architectures")
    if isinstance(hf_type, str) and hf_type in families:
        return families[hf_type]
    named = classes if isinstance(classes, list) else []
    found = next((family for family in families.values() if family.architecture in named), None)
    if found is not None:
        log.info("%s: model_type %r is read as %r, whose class it names", where, hf_type, found.hf_type)
        return found
    if not isinstance(hf_type, str):
        raise CheckpointError(
            f"{where} has no model_type, nor architectures that are read here, so what it is is unknown; give --as TYPE"
        )
    from anyformer.families.hf.unread import refusal

    raise refusal(families.values(), config, where)


def fitting(families: Iterable[Family], spec: ModelSpec) -> tuple[Family, dict[str, Any]]:
    """The family whose class computes a model, and the configuration. Raises SpecError naming what misfits.

    Classes are first looked for by what is shared as it is said, then without what nothing else shares.
    """
    families = list(families)
    try:
        return _fitting(families, spec)
    except SpecError:
        users = Counter[str | None](_shared_names(spec))
        alone = edited(spec, PartSpec, lambda part: part.but(shared=None) if users[part.shared] == 1 else part)
        if alone == spec:
            raise
    return _fitting(families, alone)  # which says what misfits beside a name that is of no account


def _fitting(families: Iterable[Family], spec: ModelSpec) -> tuple[Family, dict[str, Any]]:
    wanted = computed(spec)
    # a class that sees ahead because it is told to: after one that always does
    told: tuple[Family, dict[str, Any]] | None = None
    reasons: list[tuple[float, str]] = []
    others: list[tuple[str, ModelSpec]] = []
    for family in families:
        try:
            config, nearest = _nearest(family, spec)
        except AnyformerError as error:
            reasons.append((float("inf"), f"{family.architecture}: {error}"))
            continue
        if nearest == wanted:
            if config.get(CAUSAL, True):
                return family, config
            told = told or (family, config)
        others.append((family.architecture, nearest))
    if told is not None:
        return told
    for architecture, nearest in others:
        found = list(differences(nearest, wanted))
        path, would, is_ = found[0]
        reasons.append((distance(found), f"{architecture} has {short(would)} for {path} = {short(is_)}"))
    raise SpecError(f"no class of transformers computes this model; the nearest, {min(reasons)[1]}")


def distance(found: Iterable[Difference]) -> int:
    """How many values differ in all."""
    return sum(max(n_values(a), n_values(b)) for _, a, b in found)


def _shared_names(value: Any) -> Iterator[str]:
    """The name of each shared part wherever it stands: in each layer of those that are tiled too."""
    if isinstance(value, Spec):
        if (name := getattr(value, "shared", None)) is not None:
            yield name
        value = tuple(value.values().values())
    for inner in value if isinstance(value, tuple) else ():
        yield from _shared_names(inner)


def computed(spec: ModelSpec) -> ModelSpec:
    """What a model computes, spelled in one way: without how its weights start and the context."""
    return _spelled_alike(spec, spec.stack.d_model, {}).but(init=ByRole(), context=None)


def _spelled_alike(value: Any, d_model: int, names: dict[str, str]) -> Any:
    """Write what follows from other numbers as None, and number the shared parts: two spellings become one."""
    if isinstance(value, tuple):
        each = {key: _spelled_alike(item, d_model, names) for key, item in {id(item): item for item in value}.items()}
        return tuple(each[id(item)] for item in value)
    if not isinstance(value, Spec):
        return value
    fields = {name: _spelled_alike(inner, d_model, names) for name, inner in value.values().items()}
    if fields.get("shared") is not None:
        fields["shared"] = names.setdefault(fields["shared"], f"shared {len(names)}")
    if isinstance(value, StackSpec):
        fields["residual"] = value.residual.within(value.n_branches)
    if isinstance(value, GQASpec):
        fields["n_kv_heads"] = None if value.kv_heads == value.n_heads else value.n_kv_heads
        fields["head_dim"] = None if (value.head_dim or 0) * value.n_heads == d_model else value.head_dim
    return dataclasses.replace(value, **fields)  # type: ignore[type-var]
