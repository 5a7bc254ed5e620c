"""An adapter (LoRA, by PEFT) on given weights: what a run trains in their place, and what its checkpoints hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.errors import UsageError, among, of_extra
from anyformer.hub.adapted import WRAPPED, A, B, merged
from anyformer.hub.wrapped import class_of, names_before
from anyformer.layers.batch_norm import BatchNormSpec
from anyformer.layers.experts import StackedLinear
from anyformer.layers.held import row_by_row
from anyformer.model import Transformer
from anyformer.recipe import LoRA
from anyformer.spec import PartSpec

# Words that parts are counted by whose maps are no target: PEFT's all-linear leaves the head out too.
UNTOUCHED = {"embedding", "heads", "multi-token prediction"}
# PEFT's words for what a class generates; it wraps any other as it is.
TASKS = {"AnyformerForCausalLM": "CAUSAL_LM", "AnyformerForSeq2SeqLM": "SEQ_2_SEQ_LM"}


class Adapter(nn.Module):
    """The low-rank matrices on a model's maps. Its state dict has the names that PEFT's files have, for our classes there.

    Nothing else of the model is trained from then on. Raises UsageError where PEFT is missing, for targets that the model does
    not have, and for a model that learns otherwise than by gradients.
    """

    model: Transformer
    layers: dict[str, Any]  # PEFT's, by the names of the maps that they stand for

    def __init__(self, model: Transformer, lora: LoRA, seed: int) -> None:
        super().__init__()
        self.lora, targets = lora, targeted(model, lora.targets)
        if any(model.spec.nested(BatchNormSpec)):
            raise UsageError(
                "--lora: the statistics of BatchNorm move with each step, and an adapter has no place for them"
            )
        with of_extra("peft", "--lora", "package peft"):
            from peft import LoraConfig, inject_adapter_in_model
        config = LoraConfig(
            r=lora.r,
            lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType] — annotated as a whole number, and divided
            target_modules=targets,
            task_type=TASKS.get(class_of(model.spec)),
        )
        self.trained_before = [p for p in model.parameters() if p.requires_grad]
        with torch.random.fork_rng(devices=[]):  # as built alone: what a run draws later is as without an adapter
            torch.manual_seed(int(np.random.SeedSequence((seed, 2)).generate_state(1)[0]))
            inject_adapter_in_model(config, model)
        self.config = config.to_dict() | {"target_modules": targets, "inference_mode": True}  # as PEFT saves it
        # Not registered: they are the model's.
        self.__dict__["model"] = model
        self.__dict__["layers"] = {name: model.get_submodule(name) for name in targets}

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Tensor]:
        """The trained matrices [r, in] and [out, r], by PEFT's names."""
        before = WRAPPED + names_before(self.model.spec)
        return {
            f"{before}{name}{end}": getattr(layer, side)["default"].weight
            for name, layer in self.layers.items()
            for side, end in (("lora_A", A), ("lora_B", B))
        }

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return iter(self.state_dict().values())  # type: ignore[arg-type]

    def base(self) -> dict[str, nn.Parameter]:
        """The model's own parameters, which stay as they are, by our names; each once."""
        adapted = {id(p) for p in self.parameters()}
        return {
            name.replace(".base_layer.", "."): p for name, p in self.model.named_parameters() if id(p) not in adapted
        }

    def base_numbers(self) -> Iterator[tuple[str, Tensor]]:
        """The numbers of `base`, in float32 where they are held in few bits."""
        for name, p in self.base().items():
            yield name, row_by_row(p).detach()

    def left_out(self) -> tuple[str, ...]:
        """What the targets mean beside maps: stacks of matrices, one of each expert, which stay as they are."""
        asked = {"all", "experts"} & set(self.lora.targets)
        return ("stacked experts",) if asked and any(isinstance(m, StackedLinear) for m in self.model.modules()) else ()

    def described(self, init: str) -> bytes:
        """PEFT's description of the adapter, `init` being where its base came from."""
        return json.dumps(self.config | {"base_model_name_or_path": init}, indent=1).encode()

    def merge(self) -> None:
        """Make the model one without an adapter, whose weights are what both made; it computes the same up to rounding.

        Not where they are held in few bits, which have no room for what was learnt: there the adapter stays on.
        """
        if self.lora.packing is not None:
            return
        with torch.no_grad():
            for name, layer in self.layers.items():
                plain, a, b = layer.get_base_layer(), layer.lora_A["default"], layer.lora_B["default"]
                plain.weight.copy_(merged(plain.weight, a.weight, b.weight, self.lora.scale))
                self.model.set_submodule(name, plain)
        for parameter in self.trained_before:
            parameter.requires_grad_()
        delattr(self.model, "peft_config")


def targeted(model: Transformer, targets: tuple[str, ...]) -> list[str]:
    """The names of the maps that are meant. Raises UsageError for a target without any."""
    maps = dict(_maps(model, ""))
    for target in targets:
        if not any(_meant(target, name, word) for name, word in maps.items()):
            words = ["all", *dict.fromkeys(maps.values())]
            known = [*words, *dict.fromkeys(name.rpartition(".")[2] for name in maps)]
            raise UsageError(f"--lora: no linear map is meant by targets={target}{among(target, known)}")
    return [name for name, word in maps.items() if any(_meant(target, name, word) for target in targets)]


def _meant(target: str, name: str, word: str) -> bool:
    return target in ("all", word) or f".{name}".endswith(f".{target}")


def _maps(module: nn.Module, name: str, word: str | None = None) -> Iterator[tuple[str, str]]:
    """(name, the word that reports count it by) of each linear map of the layers, those of a model at hand."""
    spec = getattr(module, "spec", None)
    word = word or (type(spec).counted_as if isinstance(spec, PartSpec) else None)
    if isinstance(module, nn.Linear) and word not in UNTOUCHED and word is not None:
        yield name, word
    for child, part in module.named_children():
        yield from _maps(part, f"{name}.{child}" if name else child, word)
