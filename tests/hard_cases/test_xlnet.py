"""XLNet's two streams, run as one stream of n + m tokens, compute what transformers computes with two."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.layers import Causal
from anyformer.model import Transformer, build
from tests.hard_cases.case import mutated, randomise, translate
from tests.hard_cases.xlnet import theirs, xlnet

N, TARGETS = 13, [[11, 3, 7, 12], [0, 5, 6, 1]]
LAYER, SUBLAYERS = "transformer.layer.{i}", "stack.blocks.{i}.sublayers"
SCORES = f"{SUBLAYERS}.0.branches.0.mixer.scores"


def rows() -> dict[str, Any]:
    """Return the table; their matrices are [d_model, heads, head_dim], o too."""
    table: dict[str, Any] = {
        "transformer.mask_emb": (("stack.embedding.terms.0.weight",), lambda t: (t[0, 0],)),
        "transformer.word_embedding.weight": "shared.tokens.weight",
        "lm_loss.bias": "heads.0.bias",
        f"{LAYER}.rel_attn.r": ((f"{SCORES}.0.r",), lambda t: (t.flatten(1).T,)),
        f"{LAYER}.rel_attn.r_w_bias": f"{SCORES}.0.bias_key",
        f"{LAYER}.rel_attn.r_r_bias": f"{SCORES}.0.bias_position",
        f"{LAYER}.rel_attn.r_s_bias": f"{SCORES}.1.bias",
        f"{LAYER}.rel_attn.seg_embed": f"{SCORES}.1.weight",
    }
    for n in "qkvo":
        ours = f"{SUBLAYERS}.0.branches.0.mixer.projection.{n}.weight"
        table[f"{LAYER}.rel_attn.{n}"] = ((ours,), lambda t, out=n == "o": (t.flatten(1) if out else t.flatten(1).T,))
    for w in ("weight", "bias"):
        table[f"{LAYER}.rel_attn.layer_norm.{w}"] = f"{SUBLAYERS}.0.norm_sum.{w}"
        table[f"{LAYER}.ff.layer_1.{w}"] = f"{SUBLAYERS}.1.branches.0.mixer.up.{w}"
        table[f"{LAYER}.ff.layer_2.{w}"] = f"{SUBLAYERS}.1.branches.0.mixer.down.{w}"
        table[f"{LAYER}.ff.layer_norm.{w}"] = f"{SUBLAYERS}.1.norm_sum.{w}"
    return table


@pytest.fixture(scope="module")
def models() -> tuple[Any, Transformer]:
    other = theirs(vocab_size=96, d_model=40, n_layer=2, n_head=4, d_inner=56).eval()
    randomise(other)
    ours = build(xlnet(vocab_size=96, d_model=40, n_layers=2, n_heads=4, d_ff=56))
    ours.load_state_dict(translate(rows(), other.state_dict(), ("lm_loss.weight",)))
    return other, ours


def both(other: Any, ours: Transformer, kernel: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Return (theirs, ours) for the content stream and the query stream."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, 96, (2, N), generator=generator)
    segments = torch.randint(0, 2, (2, N), generator=generator)
    order = torch.stack([torch.randperm(N, generator=generator) for _ in range(2)])
    targets = torch.tensor(TARGETS)
    hidden = (order[:, None, :] >= order[:, :, None]).float()
    chosen = torch.nn.functional.one_hot(targets, N).float()
    positions = torch.arange(N).expand(2, N)

    def twice(fact: Tensor) -> Tensor:
        return torch.cat((fact, fact.gather(1, targets)), 1)

    marks = torch.cat((torch.zeros_like(ids), torch.ones_like(targets)), 1)
    got = ours(
        twice(ids),
        torch.ones_like(marks),
        twice(positions),
        twice(segments),
        facts={"order": twice(order), "mark": marks},
        kernel=kernel,
    ).logits
    content = other(ids, perm_mask=hidden, token_type_ids=segments).logits
    query = other(ids, perm_mask=hidden, token_type_ids=segments, target_mapping=chosen).logits
    sees = order.gather(1, targets) > 0  # the first in the order sees no key: theirs averages all values, ours is 0
    return {"content": (content, got[:, :N]), "query": (query[sees], got[:, N:][sees])}


def apart(pairs: dict[str, tuple[Tensor, Tensor]]) -> dict[str, float]:
    return {name: ((a - b).abs().max() / a.abs().max()).item() for name, (a, b) in pairs.items()}


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_both_streams_are_those_of_transformers(models: tuple[Any, Transformer], kernel: str) -> None:
    errors = apart(both(*models, kernel))
    print(f"xlnet {kernel}: {errors}")  # noqa: T201
    assert max(errors.values()) < 1e-5


@torch.no_grad()
def test_another_mask_shows(models: tuple[Any, Transformer]) -> None:
    other, ours = models
    changed = build(mutated(ours.spec, "TwoStreams", Causal()))
    changed.load_state_dict(ours.state_dict())
    assert min(apart(both(other, changed, "eager")).values()) > 1e-3
