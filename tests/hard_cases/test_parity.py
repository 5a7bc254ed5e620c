"""The hard cases that build compute what independent implementations compute, number for number."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyformer.layers import Everything
from anyformer.model import build
from tests.hard_cases import longformer
from tests.hard_cases.case import Case, mutated, randomise, translate

TOLERANCE = 1e-5  # of the largest logit: float32 sums in another order; measured below 3e-6 for all
CASES = [longformer.CASE]


MUTATIONS: list[tuple[Case, str, dict[str, Any]]] = [
    (longformer.CASE, "SymmetricWindow", {"radius": 2}),
    (longformer.CASE, "MarkedKeys", {}),
    (longformer.CASE, "MarkedQueries", {}),
]
REPLACED = {
    "MarkedKeys": ~Everything(),
    "MarkedQueries": ~Everything(),
}  # a part with no field to change gives way to another


def visible(kind: str) -> float:
    """Return what a mutation must move the logits by; the forms of GELU never differ by more than 5e-4."""
    return (5 if kind == "GELU" else 100) * TOLERANCE


def compared(case: Case, kernel: str, kind: str | None = None, **changes: Any) -> dict[str, float]:
    """Return the largest difference of each head's logits, relative to the largest logit, at valid positions."""
    parity = case.parity
    assert parity is not None
    spec = parity.ours()
    changed = spec if kind is None else mutated(spec, kind, REPLACED.get(kind), **changes)
    assert kind is None or changed != spec
    theirs, ours = parity.theirs().eval(), build(changed)
    randomise(theirs)
    ours.load_state_dict(translate(parity.rows, theirs.state_dict(), parity.unused))
    ids = torch.randint(3, 96, (2, parity.n_tokens), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, -5:] = 0
    more = {"attention_mask": mask}
    if parity.segments:
        more["token_type_ids"] = torch.randint(0, 2, ids.shape, generator=torch.Generator().manual_seed(2))
    if ours.encoder is not None:
        more["decoder_input_ids"] = torch.randint(3, 96, (2, 130), generator=torch.Generator().manual_seed(2))[
            :, : parity.n_tokens
        ]
        mask = torch.ones_like(more["decoder_input_ids"])
    marks = torch.zeros_like(ids)
    marks[0, 2] = marks[:, 9] = 1
    facts = {"mark": marks} if parity.marked else None
    their_output = theirs(ids, **more, **({parity.marked: marks} if parity.marked else {}))
    our_output = ours(ids, **more, facts=facts, kernel=kernel)
    errors = {}
    for head, name in parity.outputs.items():
        expected, got = getattr(their_output, name), our_output.outputs[head]
        expected, got = (expected, got[:, 0]) if expected.dim() == 2 else (expected[mask.bool()], got[mask.bool()])
        assert expected.std() > 0.1, "logits this flat would hide a fault"
        errors[head] = ((got - expected).abs().max() / expected.abs().max()).item()
    return errors


@torch.no_grad()
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_logits_are_those_of_transformers(case: Case, kernel: str) -> None:
    errors = compared(case, kernel)
    print(f"{case.name} {kernel}: {errors}")  # noqa: T201
    assert max(errors.values()) < TOLERANCE


@torch.no_grad()
@pytest.mark.parametrize(("case", "kind", "changes"), MUTATIONS, ids=lambda value: str(getattr(value, "name", value)))
def test_what_distinguishes_it_shows(case: Case, kind: str, changes: dict[str, Any]) -> None:
    assert max(compared(case, "eager", kind, **changes).values()) > visible(kind)
