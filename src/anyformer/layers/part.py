"""How a part's specification becomes a module: one declaration of weights and parts serves building and counting."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Generic, TypeVar, get_args, get_origin

import torch
from torch import Tensor, nn

from anyformer.errors import SpecError
from anyformer.layers.context import ForwardContext
from anyformer.spec import MapSpec, PartSpec, Place
from anyformer.spec import part as parts
from anyformer.spec.difference import unlike

parts.is_tracing = torch.compiler.is_compiling
# What maps are called that keep a vector's width. Where a specification has none, the vector is passed on: nn.Identity, which is
# no part of the model and bears no name in it.
AROUND = ("norm", "skip")
S = TypeVar("S", bound=PartSpec)


class Part(nn.Module, Generic[S]):
    """The module of a PartSpec: its weights and parts are attributes by their names; a subclass writes `forward`.

    `class RMSNorm(Part[RMSNormSpec])` makes RMSNorm the module of RMSNormSpec. Weights are unset (layers.init sets them).
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Its own alone: a class that torch or an adapter derives from a part's while it runs is no module of the specification.
        for base in cls.__dict__.get("__orig_bases__", ()):
            origin, arguments = get_origin(base), get_args(base)
            if isinstance(origin, type) and issubclass(origin, Part) and isinstance(arguments[0], type):
                arguments[0].module = cls

    def __init__(self, spec: S, place: Place) -> None:
        # Not what comes next: a part that is also a layer of PyTorch's makes its weights here, and has its name for sizes.
        nn.Module.__init__(self)
        self.spec: S = spec
        self.place = dataclasses.replace(place, modules={})  # the model alone holds what is shared
        self.digest = spec.key  # equal for equal specs: what a pass memoises by
        for name, weight in spec.weights(place).items():
            kind = torch.long if weight and weight.below else None
            value = weight and nn.Parameter(torch.empty(weight.shape, dtype=kind), requires_grad=weight.trainable)
            self.register_parameter(name, value)
        for name, placed in spec.parts(place).items():
            if placed is None:
                self.register_module(name, None)
                if name.startswith(AROUND):
                    self.__dict__[name] = nn.Identity()
            elif isinstance(placed, list):
                setattr(self, name, Parts([assemble(*each) for each in placed], place.modules))
            else:
                _keeps_width(spec, name, *placed)
                attach(self, name, assemble(*placed), place.modules)

    def prepare(self, x: Tensor, context: ForwardContext) -> None:
        """Have made what parts share in a pass over x [batch, token, …], which a compiler would make in the first of them."""


def _keeps_width(spec: PartSpec, name: str, part: PartSpec, place: Place) -> None:
    """Raise SpecError where a map that stands as a norm, or on the way around a sublayer, gives vectors of another width."""
    if isinstance(part, MapSpec) and name.startswith(AROUND):
        width, wanted = part.width_out(place), place.shape[-1]
        if width != wanted:
            said = (
                f"gives vectors of {width} features, and those there have {wanted}; take a map that keeps their width"
            )
            raise SpecError(f"{spec.kind}.{name} = {part.kind} {said}")


class Parts(nn.Module):
    """Parts in order. Like a ModuleList, but shared ones are not registered here: the model holds them once."""

    def __init__(self, parts: list[nn.Module], shared: Any) -> None:
        super().__init__()
        self.n = len(parts)
        self.here = range(self.n)  # those that this process has, of a model of which others have the rest
        for i, part in enumerate(parts):
            attach(self, str(i), part, shared)

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, str(i)) for i in self.here)

    def __getitem__(self, i: int) -> Any:
        return getattr(self, str(range(self.n)[i]))

    def __len__(self) -> int:
        return self.n

    def keep(self, here: range) -> None:
        """Leave these alone, by the numbers that they keep."""
        for i in set(range(self.n)) - set(here):
            delattr(self, str(i))
        self.here = here


class SharedParts(nn.ModuleDict):
    """The shared parts of a model by name, registered here alone: what replaces one here replaces it wherever it stands."""

    stands: list[tuple[str, nn.Module, str]]  # (the name of one, an owner, the attribute of the owner that it is)

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["stands"] = []

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self._stand(name, value)

    def add_module(self, name: str, module: nn.Module | None) -> None:
        super().add_module(name, module)
        self._stand(name, module)

    def _stand(self, name: str, value: Any) -> None:
        for shared, owner, attribute in self.__dict__["stands"]:
            if shared == name:
                owner.__dict__[attribute] = value


def attach(owner: nn.Module, name: str, part: nn.Module, shared: Any) -> None:
    """Make `part` an attribute; register it as a child unless it is shared, when the model owns it."""
    if isinstance(part, Part) and part.spec.shared is not None:
        owner.__dict__[name] = part
        if isinstance(shared, SharedParts):
            shared.stands.append((part.spec.shared, owner, name))
    else:
        owner.add_module(name, part)


def is_plain(module: Any, kind: type[nn.Module]) -> bool:
    """Whether a module is of this very class and nobody changes or watches what it gives, so that who calls it may as well
    read its weights: no adapter, no parametrization, no hook, no `forward` of its own (as offloading gives it)."""
    return (
        type(module) is kind
        and "forward" not in module.__dict__
        and not (
            module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        )
    )


def assemble(spec: PartSpec, place: Place) -> nn.Module:
    """The module of a part, or the one there is of its shared name. Raises SpecError for parts of one name that differ."""
    if spec.shared is None:
        return spec.build(place)
    if spec.shared not in place.modules:
        place.modules[spec.shared] = spec.build(place)
    module = place.modules[spec.shared]
    if module.spec != spec or dict(spec.weights(module.place)) != dict(spec.weights(place)):
        raise unlike(module.spec, spec)
    return module
