"""The state of a model, an optimiser and all random numbers, as named tensors and plain data, and back bit for bit."""

from __future__ import annotations

import hashlib
import random
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from anyformer.errors import CheckpointError
from anyformer.hub import load
from anyformer.model import Transformer
from anyformer.training.cluster.parts import part_as, put
from anyformer.training.step.optimizer import ways


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by the state dict's names, each once: tied ones by their first name."""
    held: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            held[name] = tensor.detach()
    return held


def fingerprint_of(model: Transformer) -> str:
    """A hash of what a model computes: its specification and its numbers."""
    digest = hashlib.sha256(model.spec.key.encode())
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


@cache
def fingerprint_at(path: Path) -> str:
    """That of the model there, as it was when it was first asked for. Raises what `load` does."""
    return fingerprint_of(load(path)[0])


def check_model_tensors(model: nn.Module, saved: dict[str, Tensor]) -> None:
    """Raise CheckpointError, listing them, where names, shapes or dtypes are not those of `model`."""
    own, stage = model_tensors(model), model.stack.stage if isinstance(model, Transformer) else None
    known = {*own, *(stage.names if stage is not None else ())}  # other processes have the rest
    missing, surplus = sorted(known - saved.keys()), sorted(saved.keys() - known)
    if missing or surplus:
        raise CheckpointError(
            f"the checkpoint is of another model: it lacks {_some(missing)}, and the model lacks {_some(surplus)}"
        )
    for name, tensor in own.items():
        for what in ("shape", "dtype"):
            theirs, ours = getattr(saved[name], what), getattr(tensor, what)
            if theirs != ours:
                theirs, ours = (tuple(v) if what == "shape" else v for v in (theirs, ours))
                raise CheckpointError(
                    f"the checkpoint is of another model: {name} has {what} {theirs} there and {ours} here"
                )


def set_model_tensors(model: nn.Module, saved: dict[str, Tensor]) -> None:
    """Copy into the tensors that the model already has, so that what refers to them (ties, an optimiser) holds."""
    with torch.no_grad():
        for name, tensor in model_tensors(model).items():
            put(tensor, saved[name])


class Numbers(NamedTuple):
    """The numbers that parameters have in the state of an optimiser of the whole model, of which a process has some layers."""

    own: tuple[int, ...]  # by the number here
    groups: tuple[tuple[int, ...], ...]  # all of each group

    @classmethod
    def of(cls, model: nn.Module, optimizer: Optimizer) -> Numbers | None:
        """None where a process has all layers."""
        if not isinstance(model, Transformer) or (stage := model.stack.stage) is None:
            return None
        way = {name: how[:2] for name, how in ways(model.spec).items()}
        kinds = sorted(set(way.values()), reverse=True)
        number = {
            name: i for i, name in enumerate(name for kind in kinds for name in stage.names if way.get(name) == kind)
        }
        groups = (tuple(number[name] for name in stage.names if way.get(name) == kind) for kind in kinds)
        names = {p: name for name, p in model.named_parameters()}
        own = tuple(number[names[p]] for group in optimizer.param_groups for p in group["params"])
        return cls(own, tuple(groups))


def optimizer_tensors(optimizer: Optimizer, numbers: Numbers | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of an optimiser, such as `0.exp_avg` for the first parameter, and the rest as JSON."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any] = {"state": {}, "groups": []}
    for index, values in state["state"].items():
        number = index if numbers is None else numbers.own[index]
        rest["state"][str(number)] = _split(values, str(number), tensors)
    for i, group in enumerate(state["param_groups"]):
        every = {} if numbers is None else {"params": list(numbers.groups[i])}
        rest["groups"].append(_split({**group, **every}, f"group.{i}", tensors))
    return tensors, rest


def set_optimizer_tensors(
    optimizer: Optimizer, tensors: dict[str, Tensor], rest: dict[str, Any], numbers: Numbers | None
) -> None:
    """Give an optimiser the state that `optimizer_tensors` took. Raises CheckpointError for another optimiser's."""
    # Cloned, because what safetensors maps from disk is neither aligned nor free to be deleted.
    joined = [dict(group) for group in rest["groups"]]
    state: dict[int, dict[str, Any]] = {int(index): dict(values) for index, values in rest["state"].items()}
    for name, tensor in tensors.items():
        *owner, field = name.split(".", 2) if name.startswith("group.") else name.split(".", 1)
        held = joined[int(owner[1])] if len(owner) == 2 else state.setdefault(int(owner[0]), {})
        held[field] = tensor.clone()
    if numbers is not None:
        here = {number: index for index, number in enumerate(numbers.own)}
        state = {here[number]: values for number, values in state.items() if number in here}
        for group in joined:
            group["params"] = [here[number] for number in group["params"] if number in here]
    for group, own in zip(joined, optimizer.param_groups, strict=False):
        for field, value in group.items():  # JSON has lists only
            if isinstance(own.get(field), tuple) and isinstance(value, list):
                group[field] = tuple(value)
    try:
        optimizer.load_state_dict({"state": state, "param_groups": joined})
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"the checkpoint is of another optimiser: {error}; resume with the same recipe") from None
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    order = [index for group in joined for index in group["params"]]
    for index, parameter in zip(order, parameters, strict=True):
        for field, value in state.get(index, {}).items():
            held = optimizer.state[parameter].get(field)
            if isinstance(value, Tensor) and value.shape == parameter.shape:  # else every process has it whole
                optimizer.state[parameter][field] = held = part_as(parameter, held)
            # load_state_dict casts moments to the parameter's dtype, which loses those kept in a wider one.
            if isinstance(held, Tensor) and held.dtype != value.dtype:
                optimizer.state[parameter][field] = value.to(held.device)


def random_state() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of every generator a step may draw from (Python, NumPy, torch on each device): tensors, and the rest as JSON."""
    version, words, gauss = random.getstate()
    name, key, place, has_gauss, cached = np.random.get_state()
    tensors = {
        "python": torch.tensor(words, dtype=torch.int64),
        "numpy": torch.from_numpy(np.asarray(key).astype(np.int64)),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tensors |= {f"cuda.{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    if torch.backends.mps.is_available():
        tensors["mps"] = torch.mps.get_rng_state()
    rest = {"python": [version, gauss], "numpy": [str(name), int(place), int(has_gauss), float(cached)]}
    return tensors, rest


def set_random_state(tensors: dict[str, Tensor], rest: dict[str, Any]) -> None:
    """Make all draws go on where `random_state` was taken; states of devices that are not here are passed over."""
    version, gauss = rest["python"]
    random.setstate((version, tuple(tensors["python"].tolist()), gauss))
    name, place, has_gauss, cached = rest["numpy"]
    np.random.set_state((name, tensors["numpy"].numpy().astype(np.uint32), place, has_gauss, cached))
    torch.set_rng_state(tensors["torch"].clone())
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"cuda.{i}" in tensors:
            torch.cuda.set_rng_state(tensors[f"cuda.{i}"].clone(), i)
    if "mps" in tensors and torch.backends.mps.is_available():
        torch.mps.set_rng_state(tensors["mps"].clone())


def _split(values: dict[str, Any], prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    rest = {}
    for name, value in values.items():
        if isinstance(value, Tensor):
            tensors[f"{prefix}.{name}"] = value.detach()
        else:
            rest[name] = value
    return rest


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "nothing"
