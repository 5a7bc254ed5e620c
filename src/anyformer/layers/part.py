"""How a part's specification becomes a module: one declaration of weights and parts serves building and counting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar, get_args, get_origin

import torch
from torch import nn

from anyformer.errors import SpecError
from anyformer.spec import PartSpec, Place
from anyformer.spec import part as parts

parts.is_tracing = torch.compiler.is_compiling
S = TypeVar("S", bound=PartSpec)


class Part(nn.Module, Generic[S]):
    """The module of a PartSpec: its weights and parts are attributes by their names; a subclass writes `forward`.

    `class RMSNorm(Part[RMSNormSpec])` makes RMSNorm the module of RMSNormSpec. Weights are unset (layers.init sets them).
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in getattr(cls, "__orig_bases__", ()):
            origin, arguments = get_origin(base), get_args(base)
            if isinstance(origin, type) and issubclass(origin, Part) and isinstance(arguments[0], type):
                arguments[0].module = cls

    def __init__(self, spec: S, place: Place) -> None:
        super().__init__()
        self.spec: S = spec
        self.place = place
        self.digest = spec.key  # equal for equal specs: what a pass memoises by
        for name, weight in spec.weights(place).items():
            value = weight and nn.Parameter(torch.empty(weight.shape), requires_grad=weight.trainable)
            self.register_parameter(name, value)
        for name, placed in spec.parts(place).items():
            if placed is None:
                self.register_module(name, None)
            elif isinstance(placed, list):
                setattr(self, name, Parts([assemble(part, inner_place) for part, inner_place in placed]))
            else:
                attach(self, name, assemble(*placed))


class Parts(nn.Module):
    """Parts in order. Like a ModuleList, but shared ones are not registered here: the model holds them once."""

    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.__dict__["each"] = parts
        for i, part in enumerate(parts):
            attach(self, str(i), part)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__dict__["each"])

    def __getitem__(self, i: int) -> Any:
        return self.__dict__["each"][i]

    def __len__(self) -> int:
        return len(self.__dict__["each"])


def attach(owner: nn.Module, name: str, part: nn.Module) -> None:
    """Make `part` an attribute; register it as a child unless it is shared, when the model owns it."""
    if isinstance(part, Part) and part.spec.shared is not None:
        owner.__dict__[name] = part
    else:
        owner.add_module(name, part)


def assemble(spec: PartSpec, place: Place) -> nn.Module:
    """The module of a part, or the one there is of its shared name. Raises SpecError for parts of one name that differ."""
    if spec.shared is None:
        return spec.build(place)
    if spec.shared not in place.modules:
        place.modules[spec.shared] = spec.build(place)
    module = place.modules[spec.shared]
    if module.spec != spec or dict(spec.weights(module.place)) != dict(spec.weights(place)):
        raise SpecError(f"two different {spec.kind} parts share the name {spec.shared!r}; make them equal")
    return module
