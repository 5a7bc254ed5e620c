"""Law 6 for Phi-3-small, which transformers has no class for: held against a slow implementation of its description."""

from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import (
    AttentionSpec,
    GatedFeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    LocalAndVertical,
    RotarySpec,
    SiLU,
    TokensSpec,
)
from anyformer.resizing import shrink
from anyformer.spec import HeadSpec, ModelSpec, ScaleSpec, Spec
from tests.laws.tolerance import FLOAT32, VISIBLE, close, distance, gradient_distance
from tests.laws.weights import filled, telling
from tests.oracles import phi3_small as oracle

N = 32
SPEC = shrink(preset("phi3-small-8k").spec)
BLOCKS = next(value for value in SPEC.nested() if isinstance(value, LocalAndVertical))
HEADS = next(value for value in SPEC.nested() if isinstance(value, GQASpec))
SIZES = {
    "n_layers": SPEC.n_layers,
    "n_heads": HEADS.n_heads,
    "n_kv_heads": HEADS.kv_heads,
    "block_size": BLOCKS.size,
    "near": BLOCKS.near,
    "stride": BLOCKS.stride,
}


def weights() -> dict[str, Tensor]:
    """Return weights that tell, with gates some of which reach the limit of 20."""
    found = telling(SPEC)
    return {name: 12 * value if ".gate." in name or ".up." in name else value for name, value in found.items()}


def theirs(name: str) -> str:
    """Return the oracle's name for a tensor of ours."""
    if not name.startswith("stack.blocks."):
        return {"shared.tokens.weight": "tokens"}.get(name, name.removeprefix("stack."))
    _, _, layer, _, sublayer, *_, module, end = name.split(".")
    return f"{layer}.{f'norm{int(sublayer) + 1}' if module == 'norm_in' else module}.{end}"


def tokens(padded: str) -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, SPEC.vocab_size, (2, N), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if padded != "none":
        mask[1, slice(0, 5) if padded == "left" else slice(N - 5, None)] = 0
    return ids, mask


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("padded", ["none", "right", "left"])
def test_logits_and_gradients_are_those_of_the_description(padded: str, kernel: str) -> None:
    ids, mask = tokens(padded)
    model, given = filled(SPEC, weights()), {theirs(n): w.clone().requires_grad_() for n, w in weights().items()}
    logits = model(ids, mask, kernel=kernel).logits[mask.bool()]
    rows = [row[real.bool()].tolist() for row, real in zip(ids, mask, strict=True)]
    expected = torch.cat([oracle.logits(row, given, **SIZES) for row in rows])
    close(logits, expected)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    for side in (logits, expected):
        (side * weight).sum().backward()
    ours = {theirs(n): p.grad for n, p in model.named_parameters()}
    assert gradient_distance(ours, {n: w.grad for n, w in given.items()}) < FLOAT32


MUTATIONS: list[tuple[type[Spec], dict[str, Any]]] = [
    (LocalAndVertical, {"size": 4}),
    (LocalAndVertical, {"near": 4}),
    (LocalAndVertical, {"near": 6}),
    (LocalAndVertical, {"stride": 6}),
    (GatedFeedForwardSpec, {"up_offset": 0.9}),
    (GatedFeedForwardSpec, {"limit": None}),
    (GatedFeedForwardSpec, {"activation": SiLU()}),
    (RotarySpec, {"theta": 1.1e6}),
    (AttentionSpec, {"scale": ScaleSpec(power=-0.5)}),
    (LayerNormSpec, {"eps": 1e-6}),
    (HeadSpec, {"scale": None}),
    (TokensSpec, {"scale": ScaleSpec(factor=9.0)}),
]


@pytest.mark.parametrize(("part", "fields"), MUTATIONS, ids=str)
def test_a_distinguishing_field_is_seen(part: type[Spec], fields: dict[str, Any]) -> None:
    ids, mask = tokens("none")
    mutated: ModelSpec = changed(SPEC, part, **fields)
    assert mutated != SPEC
    with torch.no_grad():
        before, after = (filled(spec, weights())(ids, mask).logits for spec in (SPEC, mutated))
    assert distance(after, before) > VISIBLE * FLOAT32
