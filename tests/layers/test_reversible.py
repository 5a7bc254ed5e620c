"""Reversible residuals: their gradients are those of a plain pass, and their memory does not grow with depth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.cache import KVCache
from anyformer.costs import activations, cost
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.hub import vary
from anyformer.layers import ReversibleSpec, reversible
from anyformer.layers.context import Dropout, ForwardContext
from anyformer.model import Transformer
from anyformer.observation.passes import training_pass
from anyformer.resizing import resize, shrink
from anyformer.spec import HeadLayersSpec, ModelSpec, loads
from tests.laws.memory import counted, peak
from tests.laws.models import ids_for, randomised

# A stack alone; experts and layers ahead; two stacks and a bias that all layers share; a state beside attention; a norm
# on what branches write and a window; layers of which two are one.
NAMES = ["gpt2", "deepseek-v3", "t5-v1.1-small", "qwen3-next-80b-a3b", "gemma2-2b", "mixtral-8x7b"]


def reversible_preset(name: str, **fields: Any) -> ModelSpec:
    return shrink(vary(name, residual="Reversible").but(**fields))


def gradients(model: Transformer, ids: Tensor, **options: Any) -> tuple[Tensor, list[Tensor]]:
    """The loss of all that a pass gives, and the gradients; dropout is drawn from one seed."""
    torch.manual_seed(5)
    model.zero_grad(set_to_none=True)
    more = {} if model.encoder is None else {"decoder_input_ids": ids}
    out = model(ids, **more, dropout=Dropout(0.1, 0.1, 0.1, 0.1), **options)
    every = (out.last_hidden_state, *out.outputs.values(), *out.ahead, *(out.hidden_states or ()))
    loss = torch.stack([each.square().mean() for each in every]).sum()
    loss.backward()
    return loss.detach(), [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def agree(mine: list[Tensor], other: list[Tensor]) -> None:
    """Gradients, each to twelve digits of the largest."""
    largest = max(grad.abs().max().item() for grad in other)
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12 * largest)


@pytest.mark.parametrize("options", [{}, {"output_hidden_states": True}], ids=["", "hidden"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_a_pass_that_keeps_all(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout is drawn anew as it was, of experts, layers ahead, encoders, states; to the digits of float64."""
    model = randomised(reversible_preset(name)).double()
    ids, options = ids_for(model.spec, 2, 24), {**options, "output_ahead": bool(model.spec.ahead)}
    loss, mine = gradients(model, ids, **options)
    monkeypatch.setattr(reversible, "saves_activations", lambda: False)
    plain, other = gradients(model, ids, **options)
    assert loss == plain
    agree(mine, other)


class Noisy(reversible.Rewinding):
    """Streams that come back a thousandth off, as those of many layers do by rounding."""

    def __setattr__(self, name: str, value: Any) -> None:
        noise = (1 + 1e-3 * torch.randn(each.shape, generator=torch.Generator().manual_seed(3)) for each in value)
        super().__setattr__(name, tuple(each * more for each, more in zip(value, noise, strict=True)))


@pytest.mark.parametrize("name", ["reformer-enwik8", "mixtral-8x7b", "phi3.5-moe", "deepseek-v3.2"])
def test_what_was_chosen_by_content_is_not_chosen_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets, experts, draws and keys are those of the first time, though their input is not the same to the last bit."""
    model = randomised(reversible_preset(name))
    monkeypatch.setattr(reversible, "Rewinding", Noisy)
    decided = ForwardContext.decided
    for way, kept in ((decided, True), (lambda _, make: make(), False)):
        chosen: dict[bool, dict[int, list[Tensor]]] = {False: defaultdict(list), True: defaultdict(list)}

        def noted(self: ForwardContext, make: Callable[[], Tensor], way: Any = way, chosen: Any = chosen) -> Tensor:
            assert self.decisions is not None
            chosen[self.again][id(self.decisions.made)].append(found := way(self, make))
            return found

        monkeypatch.setattr(ForwardContext, "decided", noted)
        gradients(model, ids_for(model.spec, 2, 200))
        pairs = [
            torch.equal(a, b)
            for link, first in chosen[False].items()
            for a, b in zip(first, chosen[True][link], strict=True)
        ]
        assert pairs
        assert all(pairs) == kept, "without them noise must change some"


def test_they_are_those_of_a_model_written_out() -> None:
    """A GPT-2 of two streams in PyTorch's own functions, which knows nothing of specifications."""
    model = randomised(reversible_preset("gpt2")).double()
    ids, weights = ids_for(model.spec, 2, 16), dict(model.named_parameters())
    n_heads = model.spec.stack.blocks[0].sublayers[0].branches[0].mixer.projection.n_heads  # type: ignore[attr-defined]
    model(ids).logits.square().mean().backward()
    mine = {name: p.grad for name, p in weights.items()}
    model.zero_grad(set_to_none=True)

    def normed(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-5)

    def mapped(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def attended(x: Tensor, name: str) -> Tensor:
        q, k, v = (mapped(x, f"{name}.projection.{n}").unflatten(-1, (n_heads, -1)).transpose(1, 2) for n in "qkv")
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mapped(y.transpose(1, 2).flatten(2), f"{name}.projection.o")

    table = weights["shared.tokens.weight"]
    a = b = table[ids] + weights["stack.embedding.terms.1.weight"][: ids.shape[1]]
    for i in range(model.spec.n_layers):
        at = f"stack.blocks.{i}.sublayers"
        first, second = (next(n for n in weights if n.startswith(f"{at}.{k}") and "norm" in n)[:-7] for k in (0, 1))
        a = a + attended(normed(b, first), f"{at}.0.branches.0.mixer")
        hidden = F.gelu(mapped(normed(a, second), f"{at}.1.branches.0.mixer.up"), approximate="tanh")
        b = b + mapped(hidden, f"{at}.1.branches.0.mixer.down")
    (normed((a + b) / 2, "stack.norm") @ table.T).square().mean().backward()
    agree([mine[name] for name in weights], [p.grad for p in weights.values()])  # type: ignore[misc]


def test_frozen_layers_are_gone_through() -> None:
    """Where a layer has nothing to learn, those before it still do."""
    model = randomised(reversible_preset("gpt2", context=64)).double()
    ids = ids_for(model.spec, 2, 16)
    _, every = gradients(model, ids)
    for name, p in model.named_parameters():
        p.requires_grad_("blocks.1" not in name)
    _, some = gradients(model, ids)
    kept = [p.requires_grad for p in model.parameters()]
    assert not all(kept)
    agree([g for g, k in zip(some, kept, strict=True) if k], [g for g, k in zip(every, kept, strict=True) if k])


def test_a_second_backward_pass_goes_back_again() -> None:
    model = randomised(reversible_preset("gpt2")).double()
    out = model(ids_for(model.spec, 2, 16)).logits.square().mean()
    out.backward(retain_graph=True)
    once = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    out.backward()
    twice = [p.grad for p in model.parameters() if p.grad is not None]
    agree(twice, [2 * grad for grad in once])


@pytest.mark.parametrize("name", ["llama2-7b", "t5-v1.1-small", "mixtral-8x7b"])
def test_memory_is_flat_in_depth(name: str) -> None:
    """Autograd's hooks count what is kept; the peak is of what is alive on real tensors, experts' loads too."""
    shallow, deep = (resize(reversible_preset(name), n_layers=n) for n in (6, 24))
    assert counted(deep, 2, 64) <= 1.02 * counted(shallow, 2, 64)
    options = {"precision": "float32", "recompute": "none"}
    assert peak(deep, 2, 64, **options) <= 1.15 * peak(shallow, 2, 64, **options)
    plain = [resize(shrink(preset(name).spec), n_layers=n) for n in (6, 24)]
    assert counted(plain[1], 2, 64) > 2.5 * counted(plain[0], 2, 64)


def test_costs_say_so() -> None:
    """Activations are observed; each layer is run once more, and the head is not."""
    spec = reversible_preset("llama2-7b")
    found = activations(spec, batch=2, seq_len=40, device="cpu", precision="float32").saved_nbytes
    assert found == pytest.approx(counted(spec, 2, 40), rel=0.01)
    plain, undone = (cost(each, seq_len=64, batch=2) for each in (shrink(preset("llama2-7b").spec), spec))
    assert plain.forward_flops == undone.forward_flops
    of_head = plain.forward_flops["logits"]
    assert sum(undone.training_flops.values()) == pytest.approx(
        sum(plain.training_flops.values()) + sum(plain.forward_flops.values()) - of_head
    )


AHEAD = """
anyformer: 1
stack:
  d_model: 32
  embedding: {terms: [{kind: Tokens, table: {rows: 61}}]}
  blocks:
    n: 2
    pattern: a
    a:
      sublayers:
      - branches: [{mixer: {kind: FeedForward, d_ff: 64, activation: GELU}, norm_out: LayerNorm}]
        norm_in: RMSNorm
  residual: Reversible
  norm: RMSNorm
heads: [{table: {rows: 61}}]
context: 64
ahead:
- hidden: Linear
  token: Linear
  block:
    sublayers:
    - branches: [{mixer: {kind: FeedForward, d_ff: 64, activation: GELU}, norm_in: RMSNorm, norm_out: LayerNorm}]
  norm: RMSNorm
"""


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_layer_ahead_that_is_given_half_precision_goes_back(device: Literal["cpu", "cuda"]) -> None:
    """What is made again is of the dtype that it was of: a linear map under autocast writes bfloat16."""
    assert training_pass(loads(AHEAD), batch=2, seq_len=16, half=True, device=device).operators


def test_streams_under_autocast_are_undone_without_rounding() -> None:
    """Of 24 layers gradients are those of the pass that keeps all but for the rounding of sums in float32."""
    model = randomised(loads(AHEAD.replace("n: 2", "n: 24")))
    ids, found = ids_for(model.spec, 2, 24), []
    for kept in (False, True):
        with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", torch.bfloat16):
            if kept:
                patch.setattr(reversible, "saves_activations", lambda: False)
            found.append(gradients(model, ids, output_ahead=True)[1])
    for a, b in zip(*found, strict=True):
        assert (a - b).norm() <= 0.02 * b.norm()


@torch.no_grad()
def test_a_cache_is_the_full_pass() -> None:
    model = randomised(reversible_preset("gemma2-2b"))
    ids = ids_for(model.spec, 2, 20)
    cache = KVCache(model.spec, batch=2, length=20)
    steps = [model(chunk, cache=cache).logits for chunk in ids.split([7, 1, 1, 11], 1)]
    torch.testing.assert_close(torch.cat(steps, 1), model(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("output", ["mean", "both"])
def test_an_encoder_s_memory_is_as_wide_as_what_it_gives(output: Any) -> None:
    spec = changed(reversible_preset("t5-v1.1-base"), ReversibleSpec, output=output)
    spec = spec.but(stack=changed(spec.stack, ReversibleSpec, output="mean"))
    assert spec.encoder is not None
    model, ids = randomised(spec), ids_for(spec, 2, 7)
    out = model(ids, decoder_input_ids=ids)
    assert out.encoder_last_hidden_state is not None
    assert out.encoder_last_hidden_state.shape[-1] == spec.encoder.d_model * (2 if output == "both" else 1)
    out.logits.sum().backward()


def test_what_cannot_be_undone_is_refused() -> None:
    with pytest.raises(SpecError, match=r"Stack.residual = Reversible takes no norms of sums \(post-norm\)"):
        vary("bert-base", residual="Reversible")
    gpt2, post_norm = preset("gpt2").spec, preset("bert-base").spec.stack.blocks[:1]
    head = gpt2.heads[0].but(layers=HeadLayersSpec(blocks=post_norm))
    with pytest.raises(SpecError, match="Reversible takes no norms of sums"):
        gpt2.but(stack=gpt2.stack.but(residual=ReversibleSpec()), heads=(head,))
    spec = shrink(preset("t5-v1.1-small").spec)
    with pytest.raises(SpecError, match="give both stacks one of which layers can be undone, or neither"):
        spec.but(stack=spec.stack.but(residual=ReversibleSpec()))
