"""The law of shared heads: attention of rows that lie in stretches is that of whole rows, under any mask; nothing is gathered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.families import PRESETS
from anyformer.kernels import choose
from anyformer.kernels.ulysses import Ulysses, over_stretches
from anyformer.layers.attention import AttentionSpec
from anyformer.layers.context import SoftmaxOptions
from anyformer.layers.gqa import GQASpec
from anyformer.layers.mask import SlidingWindow
from anyformer.layers.stretch import stretch
from anyformer.layers.tokens import Tokens, plain_tokens
from anyformer.model import Transformer
from anyformer.resizing import shrink
from anyformer.spec import Count, Window
from anyformer.training.cluster.context_parallel import GroupStretches, of_row
from anyformer.training.cluster.mesh import parse
from anyformer.training.cluster.world import World
from tests.training.cluster.processes import Processes
from tests.training.cluster.steps import ROWS, trained
from tests.training.cluster.test_ring import rows, sent
from tests.training.cluster.test_same_steps import alone, check_near

WINDOW = 3


def distances(query: Tokens, key: Tokens) -> Tensor:
    """Scores [1, head, query, key] of four heads, each another multiple of the distance, as ALiBi has them."""
    far = key.position[:, None, None, :] - query.position[:, None, :, None]
    return torch.tensor([1.0, 0.5, 0.25, 0.125], dtype=torch.float64)[:, None, None] * far


def exchanged(world: World, n: int, kv_heads: int, documents: bool, biased: bool) -> tuple[slice, list[Tensor]]:
    """(this process's stretch, its values and the gradients of its queries, keys and values) within a window."""
    stretches = GroupStretches(of_row(replace(world, mesh=parse(f"cp={world.size}", world.size))))
    here = stretch(n, world.rank, world.size)
    q, k, v, by = (x[:, :, here].clone() for x in rows(n, 4, kv_heads, torch.float64))
    mask = SlidingWindow(size=Window(WINDOW))
    spec = AttentionSpec(projection=GQASpec(n_heads=Count(4), n_kv_heads=Count(kv_heads)), mask=mask)
    whole = plain_tokens(n, q.device)
    if documents:
        whole = replace(whole, span=None, document=(torch.arange(n)[None] >= n // 2).long() + 1)
    ulysses = Ulysses(choose(None, spec, "cpu"), stretches, whole)
    assert spec.shared_by_heads(world.size)
    given = [x.requires_grad_() for x in (q, k, v)]
    seen = ulysses.prepare(mask, distances if biased else None, whole, whole, 4)
    y, _ = ulysses(q, k, v, seen, SoftmaxOptions(0.3))
    (y * by).sum().backward()
    return here, [y.detach(), *(x.grad for x in given if x.grad is not None)]


def check(processes: Processes, n: int, kv_heads: int, documents: bool, biased: bool) -> None:
    """Against PyTorch's attention of whole rows in float64, and a mask written out."""
    q, k, v, by = rows(n, 4, kv_heads, torch.float64)
    given = [x.requires_grad_() for x in (q, k, v)]
    i, j = torch.arange(n)[:, None], torch.arange(n)[None]
    seen = i - j < WINDOW
    if documents:
        seen &= (i >= n // 2) == (j >= n // 2)
    added = torch.zeros(4, n, n, dtype=torch.float64)
    if biased:
        added += torch.tensor([1.0, 0.5, 0.25, 0.125], dtype=torch.float64)[:, None, None] * (j - i)
    added = added.masked_fill(~seen, -torch.inf)[None]
    y = F.scaled_dot_product_attention(q, k, v, added, scale=0.3, enable_gqa=kv_heads != 4)
    (y * by).sum().backward()
    wanted = [y.detach(), *(x.grad for x in given)]
    # What sees itself alone has no gradient by query or key: of these nothing is there but rounding of the largest.
    most = max(float(whole.abs().max()) for whole in wanted if whole is not None)
    for here, found in processes(exchanged, n, kv_heads, documents, biased):
        assert len(found) == 4
        for mine, whole in zip(found, wanted, strict=True):
            bound = max(1e-13 * float(whole.abs().max()), 1e-15 * most)
            assert (mine - whole[:, :, here]).abs().max() <= bound


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_two_have_it_to_the_digit(two: Processes, documents: bool, biased: bool) -> None:
    """Of rows that divide and rows that do not, heads alike or in groups."""
    for n in (2, 9, 32):
        for kv_heads in (4, 2):
            check(two, n, kv_heads, documents, biased)


@pytest.mark.parametrize("n", [4, 7, 30])
def test_four_have_it_to_the_digit(four: Processes, n: int) -> None:
    check(four, n, 4, True, True)


def shared(name: str, n: int) -> list[bool]:
    """Whether each kind of attention of a shrunk preset shares out its heads over two devices, in rows of n tokens."""
    model = Transformer(shrink(PRESETS[name].spec))
    stretches: Any = type("Two", (), {"rank": 0, "size": 2})()
    whole = plain_tokens(n, torch.device("cpu"))
    found = over_stretches(model._choose(None, "cpu"), model._attentions, stretches, whole, None, "cuda")
    return [kernel.brings for kernel in found.values()]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("bert-base", (1, False)),
        ("bloom-560m", (1, False)),  # what the distance adds to each head
        ("gemma2-2b", (2, False)),  # soft-caps, windows
        ("gpt-oss-20b", (2, False)),  # sinks
        ("t5-base", (2, True)),  # the decoder's reads the encoder's tokens
        ("deepseek-v3", (0, True)),  # latents are stored
        ("falcon-7b", (0, True)),  # one head of keys
        ("deberta-base", (0, True)),  # scores of queries and keys beside theirs
        ("diff-transformer-3b", (0, True)),  # pairs of heads
    ],
)
def test_which_share_their_heads(name: str, wanted: tuple[int, bool]) -> None:
    found = shared(name, 2)
    assert (found.count(True), False in found) == wanted
    assert not any(shared(name, 1))  # a process would have none


@pytest.mark.parametrize(("name", "packed"), [("bert-base", False), ("gpt2", True)])
def test_what_is_sent(two: Processes, name: str, packed: bool) -> None:
    """Of queries, keys, values and what is seen, the other's heads of half a row; their gradients back."""
    spec = shrink(PRESETS[name].spec)
    block = 4 * 2 * 4 * 4 * spec.stack.d_model // 2  # bytes of rows · tokens · four of half the heads
    assert two(sent, name, packed) == [{("cp", "send"): 2 * block * spec.n_layers}] * 2


@pytest.mark.parametrize("recompute", ["none", pytest.param("selective", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["gpt-oss-20b", pytest.param("bloom-560m", marks=pytest.mark.slow)])
def test_two_processes_are_one(two: Processes, name: str, recompute: str) -> None:
    """Steps of packed rows: sinks, windows, and scores by distance of each head."""
    check_near(two(trained, name, "cp=2", 3, 1, ROWS, {}, recompute)[0], alone(name, n=3))
