"""The calls of PyTorch that a function makes, recorded once and made again without the Python between them."""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from anyformer.generation.reading import HostReads
from anyformer.layers.held import ANSWERED, HeldWeight

READING = {"tolist", "numpy", "__array__", "__dlpack__"}  # what gives a CPU's numbers past PyTorch's dispatcher
# Arguments that hold no tensor of a step, as others might.
PLAIN = (int, float, str, type(None), EllipsisType, torch.dtype, torch.device, torch.layout, torch.memory_format)
WORDS = {int, bool, str, type(None)}  # which Python has words for
CASTS = {"to", "float", "contiguous"}  # which give the same tensor where there is nothing to do


def taped(function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], Tensor] | None]:
    """(what the function gives, what makes its calls again on the tensors that were there before it).

    Sizes, and all else that Python said, stay as they were. Nothing can be made again (None) where numbers of a tensor are read,
    or one is made by other means than calls that PyTorch shows.
    """
    with TapedOperators() as made, Tape(made) as tape:
        result = function()
    return result, tape.again(result)


class TapedOperators(HostReads):
    """Which tensors operators have made."""

    def __init__(self) -> None:
        super().__init__()
        self.found = dict[int, Tensor]()  # by id, which is no other's while it is held

    def see(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        super().see(func, args, kwargs, made)
        given = {id(each) for each in (*args, *kwargs.values())}  # what is written to is no new one
        for each in made if isinstance(made, tuple | list) else (made,):
            if isinstance(each, Tensor) and id(each) not in given:
                self.found[id(each)] = each


class Tape(TorchFunctionMode):
    """Writes down calls as they are made, as a function in Python; of weights in few bits what their kind makes of one."""

    def __init__(self, made: TapedOperators) -> None:
        super().__init__()
        self.made = made
        self.lines = list[tuple[str, set[str]]]()  # and the names that each reads
        self.names = dict[int, str]()  # of tensors, by id
        self.held = list[Any]()  # whose ids these are
        self.found = dict[str, Any]()  # what the function found: its own functions, tensors, dtypes
        self.called = dict[int, str]()  # the names of these, by id
        self.unseen = False  # whether a tensor came of what is not written down

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in ANSWERED and any(issubclass(kind, HeldWeight) for kind in types):
            with self:
                return HeldWeight.__torch_function__(func, types, args, kwargs)
        made = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        self.made.reads |= name in READING
        kept = name in CASTS and made is args[0]
        if not kept and (made is None or _holds_tensors(made)):
            reads = set[str]()
            given = [self._said(each, reads) for each in args]
            given += [f"{key}={self._said(each, reads)}" for key, each in kwargs.items()]
            call = f"{self._found(func)}({', '.join(given)})"
            self.lines.append((f"{self._target(made)} = {call}", reads))
        return made

    def _said(self, given: Any, reads: set[str]) -> str:
        """An argument in Python's words."""
        if isinstance(given, Tensor) and id(given) in self.names:
            reads.add(name := self.names[id(given)])
            return name
        if isinstance(given, tuple | list):
            each = "".join(f"{self._said(one, reads)}, " for one in given)
            return f"[{each}]" if isinstance(given, list) else f"({each})"
        if type(given) in WORDS:
            return repr(given)
        if isinstance(given, slice) and not any(
            isinstance(one, Tensor) for one in (given.start, given.stop, given.step)
        ):
            return self._found(given)
        self.unseen |= id(given) in self.made.found if isinstance(given, Tensor) else not isinstance(given, PLAIN)
        return self._found(given)

    def _found(self, what: Any) -> str:
        name = self.called.get(id(what))
        if name is None:
            self.called[id(what)] = name = f"found_{len(self.found)}"
            self.found[name] = what
        return name

    def _target(self, made: Any) -> str:
        """Names for what a call gives."""
        if isinstance(made, tuple | list):
            return f"({''.join(f'{self._target(each)}, ' for each in made)})"
        if not isinstance(made, Tensor):
            return "_"
        self.held.append(made)
        self.names[id(made)] = name = f"made_{len(self.held)}"
        return name

    def again(self, result: Tensor) -> Callable[[], Tensor] | None:
        """What gives the result anew, if anything can."""
        last = {self._said(result, set())}
        if self.unseen or self.made.reads:
            return None
        lines = [f"return {next(iter(last))}"]
        for line, reads in reversed(self.lines):
            done = "".join(f"{name} = " for name in reads - last)
            lines.append(f"{line}; {done}None")
            last |= reads
        exec("\n    ".join(["def again():", *reversed(lines)]), self.found)
        return self.found["again"]


def _holds_tensors(made: Any) -> bool:
    return isinstance(made, Tensor) or (isinstance(made, tuple | list) and any(map(_holds_tensors, made)))
