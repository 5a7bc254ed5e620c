"""What a training pass really keeps for its backward pass, counted by hooks of PyTorch's autograd."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from anyformer.layers.context import Dropout
from anyformer.layers.cross_entropy import cross_entropy
from anyformer.model import Transformer, build
from anyformer.recipe import DropoutSpec
from anyformer.spec import ModelSpec
from anyformer.training.step.device import autocast
from anyformer.training.step.trainer import rates
from tests.laws.models import ids_for

CPU = torch.device("cpu")


def losses_of(model: Transformer, ids: Tensor, labels: Tensor, **options: Any) -> list[Tensor]:
    """The losses of a pass, the first of the next token, the others of further ones."""
    more: dict[str, Any] = {} if model.spec.encoder is None else {"decoder_input_ids": labels}
    out, head = model(ids, **more, **options, output_logits=False, output_ahead=bool(model.spec.ahead)), model.head()
    labels = labels % len(head.table.weight)
    further = [cross_entropy(head, hidden, labels[:, k:])[0] for k, hidden in enumerate(out.ahead, 1)]
    return [cross_entropy(head, out.read_by(head), labels)[0], *further]


def kept(model: Transformer, call: Any) -> int:
    """Return the bytes of the storages, each once, that autograd keeps of losses; parameters are not counted."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages: dict[int, Any] = {}  # held, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        losses = call()
    made_early = sum(grad.nbytes for loss in losses for grad in loss.grad_fn.grads if grad is not None)
    return sum(storage.nbytes() for storage in storages.values()) + made_early


def counted(
    spec: ModelSpec,
    batch: int,
    seq_len: int,
    *,
    precision: Any = "float32",
    recompute: Any = "none",
    dropout: DropoutSpec | None = None,
    device: torch.device = CPU,
) -> int:
    """Return the bytes that one training pass over random rows keeps."""
    model = build(spec, device=device)
    model.recompute = recompute
    ids, labels = (ids_for(spec, batch, seq_len, seed=seed).to(device) for seed in (1, 2))
    options: dict[str, Dropout | None] = {"dropout": rates(dropout) if dropout else None}

    def call() -> list[Tensor]:
        with autocast(precision, device):
            return losses_of(model, ids, labels, **options)

    return kept(model, call)


class Alive(TorchDispatchMode):
    """Counts the bytes of all storages that a pass makes, from birth to end; `peak` is the most at once."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: dict[int, Any] = {p.untyped_storage()._cdata: None for p in model.parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is not None and storage._cdata not in self.known:
                key, nbytes = storage._cdata, storage.nbytes()
                self.known[key] = weakref.ref(storage, lambda _, key=key, nbytes=nbytes: self.end(key, nbytes))
                self.now += nbytes
        self.peak = max(self.peak, self.now)
        return out

    def end(self, key: int, nbytes: int) -> None:
        del self.known[key]
        self.now -= nbytes


def peak(spec: ModelSpec, batch: int, seq_len: int, *, precision: Any, recompute: Any) -> int:
    """Return the most bytes at once of a training pass over random rows; gradients of weights are let go when they are made."""
    model = build(spec)
    model.recompute = recompute
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    with Alive(model) as alive:
        ids = ids_for(spec, batch, seq_len).clone()
        with autocast(precision, CPU):
            loss = torch.stack(losses_of(model, ids, ids)).sum()
        loss.backward()
    return alive.peak


# Each keeps something that the others don't: see docs/memory.md, written by tests.laws.memory_table.
TWELVE = (
    "transformer-base",
    "gpt2",
    "opt-125m",
    "pythia-70m",
    "bloom-560m",
    "falcon-7b",
    "llama2-7b",
    "gemma2-2b",
    "gemma3-1b",
    "mixtral-8x7b",
    "deepseek-v3",
    "gpt-oss-20b",
)
