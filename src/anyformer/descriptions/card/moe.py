"""The rows of a card that describe mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anyformer.descriptions import words
from anyformer.descriptions.card.row import CardRow, joined, per_layer
from anyformer.descriptions.grouping import by_layer, places
from anyformer.layers import MoESpec, RouterSpec
from anyformer.spec import BlockSpec, StackSpec

SCORES = {
    "softmax": "softmax over all experts",
    "softmax-of-chosen": "softmax over the chosen",
    "sigmoid": "sigmoid of each",
    "sparsemixer": "sparsemixer",
}


def moe_rows(stack: StackSpec, section: str) -> Iterator[CardRow]:
    """Which layers hold experts, how many, and how they are chosen; nothing for a stack without."""
    mixtures = by_layer(stack, mixture)
    at = [i for i, found in enumerate(mixtures) if found is not None]
    if not at:
        return
    said = f"all {len(at)}" if len(at) == len(mixtures) else places(at)
    yield CardRow(section, "moe_layers", "MoE layers", said, at)

    def row(key: str, name: str, of: Any, show: Any = words.number) -> Iterator[CardRow]:
        yield from per_layer(section, key, name, [of(m) for m in mixtures if m is not None], show)

    yield from row("n_experts", "experts", lambda m: m.router.n_experts)
    yield from row("n_experts_active", "experts a token", lambda m: m.router.top_k)
    yield from row("expert_d_ff", "expert FFN dimension", lambda m: getattr(m.expert, "d_ff", None))
    yield from row(
        "shared_expert_d_ff", "shared expert FFN dimension", lambda m: getattr(m.shared_expert, "d_ff", None)
    )
    yield from row("n_shared_experts", "shared experts", shared_experts)
    yield from row("router", "router", lambda m: router(m.router), str)
    yield from row("shared_gate", "shared expert's gate", lambda m: "sigmoid" if m.shared_gate else None, str)
    yield from row("capacity", "expert capacity", lambda m: m.capacity and words.part(m.capacity), str)


def mixture(block: BlockSpec) -> MoESpec | None:
    """The mixture of a layer, or None."""
    return next((mixer for mixer in words.mixers(block) if isinstance(mixer, MoESpec)), None)


def shared_experts(mixture: MoESpec) -> int | None:
    """How many experts serve every token: a shared one that is as wide as several counts for as many."""
    one, several = getattr(mixture.expert, "d_ff", None), getattr(mixture.shared_expert, "d_ff", None)
    if mixture.shared_expert is None:
        return None
    return several // one if one and several and several % one == 0 else 1


def router(value: RouterSpec) -> str:
    """How experts are chosen and weighted."""
    groups = f"within the best {value.top_groups} of {value.n_groups} groups" if value.n_groups > 1 else None
    return (
        joined(
            (
                SCORES.get(value.score, value.score),
                groups,
                "chosen with a bias moved by the load" if value.correction else None,
                "weights divided by their sum" if value.renormalise else None,
                f"weights × {words.number(value.factor)}" if value.factor != 1 else None,
            )
        )
        or ""
    )
