"""Distillation as data: a trained model whose probabilities are learnt, beside what the text says. Hinton et al. 2015,
arXiv:1503.02531."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anyformer.errors import UsageError, did_you_mean
from anyformer.spec import Positive, Share, Spec

_OPTIONS = ("weight", "temperature")


class Distillation(Spec):
    """weight · T² · KL(teacher ‖ student) + (1 - weight) · the objective's loss, at the places that have a label.

    The divergence is of softmax(logits / T), T the temperature, whose square keeps gradients of one size (section 2). By
    default the teacher alone is learnt from, as Gemma 2's small models do (arXiv:2408.00118, section 3.2).
    """

    teacher: str  # the directory of its weights, or its GGUF file
    weight: Share = 1.0
    temperature: Positive = 1.0

    @property
    def path(self) -> Path:
        """Where the teacher lies."""
        return Path(self.teacher)


def distillation_of(text: str, begun: Distillation | None = None) -> Distillation:
    """The distillation that "runs/large,weight=0.5,temperature=2" says; options left out are as in the one begun with.

    Raises UsageError, SpecError.
    """
    teacher, *items = text.split(",")
    while items and ("=" not in items[0] or Path(f"{teacher},{items[0]}").exists()):
        teacher = f"{teacher},{items.pop(0)}"  # a comma of the path
    options: dict[str, Any] = {}
    for name, equals, value in (item.partition("=") for item in items):
        if name not in _OPTIONS or not equals or name in options:
            near = "" if name in _OPTIONS else did_you_mean(name, _OPTIONS)
            raise UsageError(
                f"--teacher {text}: {name!r} is none of its options{near}; write {teacher},weight=0.5,temperature=2"
            )
        try:
            options[name] = float(value)
        except ValueError:
            raise UsageError(f"--teacher {text}: {name} = {value!r} is no number; write {name}=0.5") from None
    return (begun or Distillation(teacher=teacher)).but(teacher=teacher, **options)
