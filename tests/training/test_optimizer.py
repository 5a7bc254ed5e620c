"""The update of both optimisers, written out."""

import torch

import anyformer as af
from anyformer.generation import lay_out_for_decoding
from anyformer.model import build
from anyformer.recipe import Adam, AdamW
from anyformer.resizing import shrink
from anyformer.spec import Place, tensors
from anyformer.training.step.optimizer import optimizer_of, ways_of
from anyformer.training.step.rules import in_one_piece

RATE, STRENGTH, BETA1, BETA2, EPS, STEPS = 0.01, 0.3, 0.8, 0.9, 1e-8, 3


def test_decay_stands_in_the_gradient_or_beside_it() -> None:
    """Matrices alone have any; Loshchilov & Hutter 2017, algorithm 2, both ways."""
    spec = af.load_spec("gpt2+n_layers=1+d_model=16+n_heads=2+vocab_size=31")
    matrices = {name for name, weight in tensors(spec, Place()) if weight.role not in ("bias", "gain", "table")}
    shared = {"lr": RATE, "beta1": BETA1, "beta2": BETA2, "eps": EPS}
    found = {}
    for kind, optimizer in (("in", Adam(**shared, l2=STRENGTH)), ("beside", AdamW(**shared, weight_decay=STRENGTH))):
        model = build(spec, 0).double()
        mine = optimizer_of(optimizer, model, ways_of(model))
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        moments = {name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in weights.items()}
        generator = torch.Generator().manual_seed(1)
        for step in range(1, STEPS + 1):
            for name, parameter in model.named_parameters():
                w, strength = weights[name], STRENGTH if name in matrices else 0.0
                gradient = torch.randn(w.shape, generator=generator, dtype=w.dtype)
                parameter.grad = gradient.clone()
                gradient = gradient + strength * w if kind == "in" else gradient
                first, second = moments[name]
                first.mul_(BETA1).add_((1 - BETA1) * gradient)
                second.mul_(BETA2).add_((1 - BETA2) * gradient**2)
                update = first / (1 - BETA1**step) / ((second / (1 - BETA2**step)).sqrt() + EPS)
                w -= RATE * (update + (strength * w if kind == "beside" else 0.0))
            mine.step()
        found[kind] = dict(model.named_parameters())
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.detach(), weights[name], atol=1e-12, rtol=1e-10, msg=name)
    name = min(matrices)
    assert (found["in"][name] - found["beside"][name]).abs().max() > 1e-4


def test_what_was_laid_out_for_decoding_learns_the_same() -> None:
    """Maps that lie together have gradients that lie otherwise, of which PyTorch's fused steps read each number's neighbour."""
    found = []
    for prepare in (lambda model: model, lay_out_for_decoding):
        model = prepare(build(shrink(af.preset("llama2-7b").spec), seed=0))
        optimizer = optimizer_of(AdamW(lr=0.01), model, ways_of(model))
        model(torch.arange(20)[None]).logits.square().mean().backward()
        optimizer.step()
        found.append(dict(model.named_parameters()))
    assert any(not in_one_piece(p) for p in found[1].values())
    for name, p in found[0].items():
        torch.testing.assert_close(found[1][name], p, rtol=1e-5, atol=1e-7, msg=name)
