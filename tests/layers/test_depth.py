"""ReZero, Fixup and DeepNorm against plain torch: what they compute, forward and backward, and how they start."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.families.compose import block, language_model, post_norm, repeat
from anyformer.layers import (
    GELU,
    AddByDepthSpec,
    AttentionSpec,
    ByRole,
    Causal,
    ChainSpec,
    FeedForwardSpec,
    GainSpec,
    GQASpec,
    LayerNormSpec,
    Normal,
    RotarySpec,
    ShiftSpec,
    Xavier,
)
from anyformer.model import build
from anyformer.resizing import resize
from anyformer.spec import BranchSpec, Count, MixerSpec, ModelSpec, SublayerSpec, Width, dumps, loads
from tests.laws.tolerance import FLOAT32, distance, gradient_distance
from tests.laws.weights import filled, telling

D, HEADS, LAYERS, N = 32, 4, 3, 10


NORM = LayerNormSpec()


def rezero(*mixers: MixerSpec) -> SublayerSpec:
    """X + Σ α mixer(x), without norms; each α is one learned number that starts from 0, so that x passes unchanged."""
    return SublayerSpec(branches=tuple(BranchSpec(mixer=mixer, norm_out=GainSpec(start=0.0)) for mixer in mixers))


def fixup(mixer: MixerSpec) -> SublayerSpec:
    """X + gain · mixer(x + shift) + shift', without norms; gain starts from 1, shifts from 0 (its rule 3).

    A mixer's own biases stand for the shifts between its matrices. Start the model from `fixup_start`.
    """
    after = ChainSpec(maps=(GainSpec(), ShiftSpec()))
    return SublayerSpec(branches=(BranchSpec(mixer=mixer, norm_in=ShiftSpec(), norm_out=after),))


def fixup_start(scale: float = 0.02) -> ByRole:
    """Its rules 1 and 2: branches end in zeros, the matrix before is divided by √(number of branches).

    The rule divides by n^(1 / (2 m - 2)) for m matrices a branch: attention's values and output, a feed-forward's two.
    """
    start = Normal(scale=scale)
    return ByRole(table=start, matrix=start, inner=Normal(scale=scale, depth_power=-0.5), output=Normal(scale=0.0))


def deep_norm_start() -> ByRole:
    """Xavier's distribution, times β = (8 n_layers)^(-1/4) for values, outputs and feed-forwards (figure 2)."""
    scaled = Xavier(gain=4**-0.25, depth_power=-0.25)  # two branches a layer
    return ByRole(matrix=Xavier(), inner=scaled, output=scaled)


def model_of(sublayer: Callable[[Any], SublayerSpec], norm: LayerNormSpec | None = NORM, **options: Any) -> ModelSpec:
    attention = AttentionSpec(projection=GQASpec(n_heads=Count(HEADS)), mask=Causal())
    feed = FeedForwardSpec(d_ff=Width(48), activation=GELU())
    return language_model(
        vocab_size=29,
        d_model=D,
        blocks=repeat(block(sublayer(attention), sublayer(feed)), LAYERS),
        norm=norm,
        tied=False,
        **options,
    )


DEEP = model_of(lambda mixer: post_norm(NORM, mixer), init=deep_norm_start())
MODELS: dict[str, ModelSpec] = {
    "rezero": model_of(rezero),
    "fixup": model_of(fixup, norm=None, init=fixup_start()),
    "deepnorm": DEEP.but(stack=DEEP.stack.but(residual=AddByDepthSpec(power=0.25))),
}


def oracle(name: str, w: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Return logits [batch, token, vocab]."""
    x = F.embedding(ids, w["stack.embedding.terms.0.table.weight"])
    for i in range(LAYERS):
        for j in range(2):
            path = f"stack.blocks.{i}.sublayers.{j}"
            at = f"{path}.branches.0"

            def mixed(x: Tensor, at: str = f"{at}.mixer", j: int = j) -> Tensor:
                if j:
                    hidden = F.gelu(x @ w[f"{at}.up.weight"].T + w[f"{at}.up.bias"])
                    return hidden @ w[f"{at}.down.weight"].T + w[f"{at}.down.bias"]
                q, k, v = ((x @ w[f"{at}.projection.{n}.weight"].T).unflatten(-1, (HEADS, -1)) for n in "qkv")
                s = torch.einsum("bihd,bjhd->bhij", q, k) * (D // HEADS) ** -0.5
                s = s.masked_fill(torch.ones(N, N).triu(1).bool(), -torch.inf).softmax(-1)
                return torch.einsum("bhij,bjhd->bihd", s, v).flatten(2) @ w[f"{at}.projection.o.weight"].T

            if name == "rezero":
                x = x + w[f"{at}.norm_out.weight"] * mixed(x)
            elif name == "fixup":
                y = mixed(x + w[f"{at}.norm_in.bias"])
                x = x + y * w[f"{at}.norm_out.maps.0.weight"] + w[f"{at}.norm_out.maps.1.bias"]
            else:
                x = (2 * LAYERS) ** 0.25 * x + mixed(x)
                x = F.layer_norm(x, (D,), w[f"{path}.norm_sum.weight"], w[f"{path}.norm_sum.bias"])
    if name != "fixup":  # a norm would undo its last shift, whose gradient would be nothing but rounding
        x = F.layer_norm(x, (D,), w["stack.norm.weight"], w["stack.norm.bias"])
    return x @ w["heads.0.table.weight"].T


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_those_of_plain_torch(name: str) -> None:
    spec = MODELS[name]
    # Without norms, matrices that enlarge would drive attention into saturation, where all is rounding.
    weights = {path: weight * 0.5 if weight.dim() > 1 else weight for path, weight in telling(spec).items()}
    model, ids = filled(spec, weights), torch.arange(2 * N).view(2, N) * 7 % 29
    leaves = {path: weight.clone().requires_grad_() for path, weight in weights.items()}
    found, expected = model(ids).logits, oracle(name, leaves, ids)
    assert distance(found, expected) < FLOAT32
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0))
    (found * weight).sum().backward()
    (expected * weight).sum().backward()
    gradients = {path: parameter.grad for path, parameter in model.named_parameters()}
    assert gradient_distance(gradients, {path: leaf.grad for path, leaf in leaves.items()}) < FLOAT32


@pytest.mark.parametrize("name", ["rezero", "fixup"])
def test_at_the_start_every_layer_passes_its_input_on(name: str) -> None:
    model, ids = build(MODELS[name], seed=0), torch.arange(N)[None]
    states = model(ids, output_hidden_states=True).hidden_states
    assert all(torch.equal(state, states[0]) for state in states[:-1])
    assert states[0].std() > 0.01


def test_deepnorm_starts_as_its_paper_says() -> None:
    deep = resize(MODELS["deepnorm"], d_model=128, n_layers=8)
    model, beta = build(deep, seed=0), (8 * 8) ** -0.25
    for path, parameter in model.named_parameters():
        kind = path.split(".")[-2]
        if kind in ("q", "k", "v", "o", "up", "down") and path.endswith("weight"):
            wanted = (2 / sum(parameter.shape)) ** 0.5 * (1.0 if kind in "qk" else beta)
            assert parameter.std().item() == pytest.approx(wanted, rel=0.03), path


@pytest.mark.parametrize("n_layers", [1, 3, 8, 24])
def test_deepnorms_residual_follows_the_depth(n_layers: int) -> None:
    deep = resize(MODELS["deepnorm"], d_model=D, n_layers=n_layers)
    model, state = build(deep, seed=0), torch.ones(1, 1, D)
    written, _ = model.stack.residual.step(state, lambda x, _: (torch.zeros_like(x), []), None)
    assert written[0, 0, 0].item() == pytest.approx((2 * n_layers) ** 0.25, rel=1e-6)
    assert loads(dumps(deep)) == deep
    assert deep.stack.residual == MODELS["deepnorm"].stack.residual


def test_fixup_divides_by_the_root_of_the_branches() -> None:
    for path, parameter in build(MODELS["fixup"], seed=0).named_parameters():
        kind = path.split(".")[-2]
        if path.endswith("weight") and kind in ("v", "up"):
            assert parameter.std().item() == pytest.approx(0.02 * (2 * LAYERS) ** -0.5, rel=0.1), path
        if path.endswith("weight") and kind in ("o", "down"):
            assert not parameter.any(), path


@pytest.mark.parametrize("name", MODELS)
def test_a_short_run_lowers_the_loss(name: str) -> None:
    model, ids = build(MODELS[name], seed=0), torch.arange(4 * N).view(4, N) * 11 % 29
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_they_go_with_any_part() -> None:
    """ReZero around rotary grouped attention beside a feed-forward: parallel, in one sublayer."""
    heads = GQASpec(n_heads=Count(4), n_kv_heads=Count(2), rotary=RotarySpec())
    both = rezero(AttentionSpec(projection=heads, mask=Causal()), FeedForwardSpec(d_ff=Width(48), activation=GELU()))
    spec = language_model(vocab_size=29, d_model=D, blocks=repeat(block(both), 2), norm=NORM, tied=True)
    assert [name for name, _ in build(spec).named_parameters() if name.endswith("norm_out.weight")] == [
        f"stack.blocks.{i}.sublayers.0.branches.{j}.norm_out.weight" for i in range(2) for j in range(2)
    ]
