"""The head that makes one vector of a text, as modules of sentence-transformers: a Pooling, Dense layers, a Normalize."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from anyformer.families.heads import EMBEDDING
from anyformer.layers import (
    GELU,
    FirstTokenSpec,
    LastTokenSpec,
    LinearSpec,
    MeanTokensSpec,
    ReLU,
    Sigmoid,
    SiLU,
    Tanh,
    UnitLengthSpec,
)
from anyformer.spec import HeadSpec, MapSpec, ModelSpec, PoolSpec

DENSE, NORMALIZE = "Dense", "Normalize"
UNIT: tuple[MapSpec, ...] = (UnitLengthSpec(),)
POOLS: Mapping[str, PoolSpec] = {
    "cls_token": FirstTokenSpec(),
    "mean_tokens": MeanTokensSpec(),
    "lasttoken": LastTokenSpec(),
}
IDENTITY = "torch.nn.modules.linear.Identity"
# What follows a Dense's linear map, by the class that its configuration names.
ACTIVATIONS: Mapping[str, tuple[MapSpec, ...]] = {
    IDENTITY: (),
    "torch.nn.modules.activation.Tanh": (Tanh(),),
    "torch.nn.modules.activation.GELU": (GELU(),),
    "torch.nn.modules.activation.ReLU": (ReLU(),),
    "torch.nn.modules.activation.SiLU": (SiLU(),),
    "torch.nn.modules.activation.Sigmoid": (Sigmoid(),),
}


class Module(NamedTuple):
    """A module behind a Pooling: a Normalize, or a Dense with the class of its activation."""

    kind: str
    at: int  # of its first part in the head's transform
    layer: LinearSpec | None = None
    activation: str = ""


def without_pooling(spec: ModelSpec) -> ModelSpec:
    """The model that a class of transformers may compute: without the head that other files speak of."""
    return spec.but(heads=spec.heads[:-1]) if head_of(spec) is not None else spec


def modules_of(spec: ModelSpec) -> list[Module]:
    """The modules behind the Pooling of a model whose last head is made by such; none of any other."""
    head = head_of(spec)
    return [] if head is None else _modules_of(head.transform) or []


def module_tensors(spec: ModelSpec) -> list[str]:
    """The names of the tensors that lie in the folders of modules, not in the model's files."""
    return [name for module in modules_of(spec) for name in tensors_of(spec, module)]


def tensors_of(spec: ModelSpec, module: Module) -> dict[str, str]:
    """The tensors of a Dense by their names in the model: which of a linear map's each is."""
    ends = () if module.layer is None else ("weight", "bias") if module.layer.bias else ("weight",)
    return {f"heads.{len(spec.heads) - 1}.transform.{module.at}.{end}": end for end in ends}


def head_of(spec: ModelSpec) -> HeadSpec | None:
    """The last head, where it is one that modules of sentence-transformers make."""
    last = spec.heads[-1] if spec.heads else None
    if last is None or last.pool not in POOLS.values() or _modules_of(last.transform) is None:
        return None
    return last if last == HeadSpec(name=EMBEDDING, pool=last.pool, transform=last.transform) else None


def _modules_of(transform: tuple[MapSpec, ...]) -> list[Module] | None:
    """The modules that compute a head's transform; None where none does."""
    found, at = list[Module](), 0
    while at < len(transform):
        part, then = transform[at], transform[at + 1 : at + 2]
        if part in UNIT:
            found.append(Module(NORMALIZE, at))
        elif isinstance(part, LinearSpec) and part == LinearSpec(d_out=part.d_out, bias=part.bias):
            activation, parts = next(((name, own) for name, own in ACTIVATIONS.items() if own == then), (IDENTITY, ()))
            found.append(Module(DENSE, at, part, activation))
            at += len(parts)
        else:
            return None
        at += 1
    return found
