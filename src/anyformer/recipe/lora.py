"""LoRA as data: the maps that get a low-rank update, which alone is trained. Hu et al. 2021, arXiv:2106.09685; on weights
in few bits: Dettmers et al. 2023, arXiv:2305.14314 (QLoRA)."""

from __future__ import annotations

from typing import Any, Literal

from anyformer.errors import UsageError, did_you_mean
from anyformer.spec import Positive, Spec, Whole


class LoRA(Spec):
    """W + B A · alpha / r beside each map of `targets`, r the rank; B starts from 0, so that a run starts where W is.

    A target is a set of maps in the field's words, "attention", "feed-forward" or "all" (maps of embeddings, heads and routers
    are in none), or the last name of maps: "q", "up".
    """

    r: Whole = 16
    alpha: Positive = 32.0
    targets: tuple[str, ...] = ("attention",)
    base: Literal["float32", "int8", "nf4"] = "float32"

    def __post_init__(self) -> None:
        self.require(
            "targets", bool(self.targets), "are none; name attention, feed-forward, all, or maps such as q and v"
        )

    @property
    def packing(self) -> Literal["int8", "nf4"] | None:
        """The few bits that its base is held in, if it is."""
        return None if self.base == "float32" else self.base

    @property
    def scale(self) -> float:
        """What B A is multiplied by."""
        return self.alpha / self.r


def lora_of(text: str, begun: LoRA | None = None) -> LoRA:
    """The LoRA that "r=16,alpha=32,targets=q,v" says; what is left out is as in the one begun with, or as by default.

    Raises UsageError, SpecError.
    """
    given: dict[str, list[str]] = {}
    name = ""
    for item in text.split(","):
        before, equals, value = item.rpartition("=")
        name = before.strip() if equals else name
        if equals and name in given:
            raise UsageError(f"--lora {text}: {name} is given twice; give it once")
        if name not in LoRA.types() or not value.strip():
            near = did_you_mean(name, LoRA.types()) if name else ""
            raise UsageError(
                f"--lora {text}: {item!r} is none of its options{near}; write r=16,alpha=32,targets=attention"
            )
        given.setdefault(name, []).append(value.strip())
    options: dict[str, Any] = dict(given)
    for name, kind in (("r", int), ("alpha", float)):
        if name in given:
            try:
                (options[name],) = map(kind, given[name])
            except ValueError:
                said = ",".join(given[name])
                raise UsageError(f"--lora {text}: {name} = {said!r} is no number; write {name}=16") from None
    if "targets" in given:
        options["targets"] = tuple(given["targets"])
    if "base" in given:
        options["base"] = ",".join(given["base"])
    return (begun or LoRA()).but(**options)
