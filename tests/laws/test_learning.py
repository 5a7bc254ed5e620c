"""Law 9: one step reaches every parameter with a finite gradient, and a short run lowers the loss."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from torch.nn import functional as F

from anyformer.layers.causality import later_tokens_seen
from anyformer.model import Transformer, build
from anyformer.spec import ModelSpec
from tests.laws.combinations import decoders
from tests.laws.models import every_preset, ids_for, randomised, runner, told, waiving
from tests.sample import combinations


def loss_of(model: Transformer, ids: torch.Tensor) -> torch.Tensor:
    """Predict the next token, or every third, hidden, where tokens see what comes after; further heads predict random labels."""
    writes = model.encoder is not None or later_tokens_seen(model.spec.stack) is None
    hidden = torch.zeros_like(ids).bool()
    hidden[:, ::3] = not writes
    read = ids.masked_fill(hidden, 0)
    out = runner(model)(read, output_ahead=bool(model.spec.ahead), **told(model.spec, ids))
    outputs = out.outputs
    name, logits = next(iter(outputs.items()))
    if writes:
        losses = [F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())]
        for k, state in enumerate(out.ahead, 1):
            losses.append(F.cross_entropy(model.head()(state[:, :-1]).flatten(0, 1), ids[:, k + 1 :].flatten()))
    else:
        losses = [answered(logits[hidden], ids[hidden])]
    losses += [answered(answer, None) for head, answer in outputs.items() if head != name]
    return torch.stack(losses).sum()


def answered(answer: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
    """Return the loss of a head's answers [..., rows]: of labels, random if not given, or of two classes where there is a row."""
    flat = answer.flatten(0, -2)
    drawn = torch.randint(0, max(2, flat.shape[1]), (len(flat),), generator=torch.Generator().manual_seed(4))
    if flat.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(flat[:, 0], drawn.float())
    return F.cross_entropy(flat, drawn if labels is None else labels)


def check_reach(spec: ModelSpec) -> None:
    """A key's bias adds the same to all scores of a query where nothing else tells keys apart: softmax hides it.

    What a part says no gradient reaches (an indexer, behind its choice) has none.
    """
    model = randomised(spec)
    loss_of(model, ids_for(spec, 3, 24)).backward()
    waived = waiving(model, "gradients")
    for name, parameter in model.named_parameters():
        if name in waived:
            assert parameter.grad is None, f"{name} has a gradient, and its part says otherwise"
            continue
        if not parameter.requires_grad:
            continue  # moved by other means: the biases of a router's choice
        assert parameter.grad is not None, f"{name} has no gradient"
        assert parameter.grad.isfinite().all(), f"{name} has a gradient that is not a number"
        assert parameter.grad.abs().max() > 0, f"{name} has no gradient"


@every_preset
def test_presets_are_reached(spec: ModelSpec) -> None:
    check_reach(spec)


@given(spec=decoders())
@settings(max_examples=combinations(30), deadline=None)
def test_combinations_are_finite(spec: ModelSpec) -> None:
    model = randomised(spec)
    loss_of(model, ids_for(spec, 2, 24)).backward()
    left = {name: p for name, p in model.named_parameters() if name not in waiving(model, "gradients")}
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in left.values() if p.requires_grad)


@every_preset
def test_a_short_run_lowers_the_loss(spec: ModelSpec) -> None:
    model, ids = build(spec, seed=0), ids_for(spec, 4, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    narrow = (spec.stack.embedding.width or spec.stack.d_model) < spec.stack.d_model
    around = getattr(spec.stack.residual, "scale", 1.0) != 0.0
    # Logits that are scaled down, products of a narrow table, and layers with no way around them learn slower.
    for _ in range(240 if spec.heads[0].scale or narrow or not around else 40):
        optimizer.zero_grad()
        loss = loss_of(model, ids)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
