"""The law of a ring: causal attention of rows that lie in stretches is that of whole rows, and nobody ever holds all keys."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from anyformer.families import PRESETS
from anyformer.kernels.ring import Ring, _turns
from anyformer.kernels.ulysses import over_stretches
from anyformer.layers.context import Dropout, SoftmaxOptions
from anyformer.layers.mask import Causal
from anyformer.layers.stretch import stretch
from anyformer.layers.tokens import Tokens, plain_tokens
from anyformer.model import Transformer
from anyformer.observation.passes import thinned
from anyformer.resizing import shrink
from anyformer.training.cluster.context_parallel import GroupStretches, of_row, stretch_rows
from anyformer.training.cluster.mesh import parse
from anyformer.training.cluster.simulated import TrafficCounter
from anyformer.training.cluster.world import World
from tests.laws.models import randomised
from tests.training.cluster.processes import Processes
from tests.training.cluster.steps import ROWS, trained
from tests.training.cluster.test_same_steps import alone, check_near

WIDTH, BATCH = 8, 2


def rows(n: int, heads: int, kv_heads: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """(queries, keys, values, what the values are multiplied by), of whole rows, each [batch, heads, token, width]."""
    draw = torch.Generator().manual_seed(n)
    each = [
        torch.randn(BATCH, h, n, WIDTH, generator=draw, dtype=torch.float64) for h in (heads, kv_heads, kv_heads, heads)
    ]
    return tuple(x.to(dtype) for x in each)


def round_(
    world: World, n: int, heads: int, kv_heads: int, dtype: torch.dtype, scale: float
) -> tuple[slice, list[Tensor]]:
    """(this process's stretch, its values and the gradients of its queries, keys and values)."""
    stretches = GroupStretches(of_row(replace(world, mesh=parse(f"cp={world.size}", world.size))))
    here = stretch(n, world.rank, world.size)
    q, k, v, by = (x[:, :, here].clone() for x in rows(n, heads, kv_heads, dtype))
    own = plain_tokens(len(range(n)[here]), q.device, here.start)
    given = [x.requires_grad_() for x in (q, k, v)]
    ring = Ring(stretches, n)
    seen = ring.prepare(Causal(), None, own, own, heads)
    y, _ = ring(q, k, v, seen, SoftmaxOptions(scale))
    (y * by).sum().backward()
    return here, [y.detach(), *(x.grad for x in given if x.grad is not None)]


def check_round(processes: Processes, dtype: torch.dtype, rtol: float, *how: Any) -> None:
    """Against PyTorch's attention of whole rows in float64."""
    n, heads, kv_heads = how
    q, k, v, by = (x.to(torch.float64) for x in rows(n, heads, kv_heads, dtype))
    given = [x.requires_grad_() for x in (q, k, v)]
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=heads != kv_heads)
    (y * by).sum().backward()
    wanted = [y.detach(), *(x.grad for x in given)]
    for here, found in processes(round_, *how, dtype, 0.3):
        assert len(found) == 4
        for mine, whole in zip(found, wanted, strict=True):
            assert mine.dtype == dtype
            far = (mine.double() - whole[:, :, here]).abs().max()
            assert far <= rtol * whole.abs().max()


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-13), (torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_two_have_it_to_the_digit(two: Processes, heads: int, kv_heads: int, dtype: torch.dtype, rtol: float) -> None:
    for n in (2, 9, 32):
        check_round(two, dtype, rtol, n, heads, kv_heads)


@pytest.mark.parametrize("n", [4, 7, 30])
def test_four_have_it_to_the_digit(four: Processes, n: int) -> None:
    """Of which some are sent queries, and not keys."""
    check_round(four, torch.float64, 1e-13, n, 4, 2)


@pytest.mark.parametrize("size", range(2, 12))
def test_all_have_as_much_to_do(size: int) -> None:
    """Each pair of stretches is computed once, what is sent is received, and none is a pair of blocks ahead of another."""
    each = [list(_turns(rank, size)) for rank in range(size)]
    pairs, computed = Counter(), Counter()
    for t in range(size // 2):
        for rank, turns in enumerate(each):
            assert each[turns[t].to][t].receives == turns[t].sends
            assert each[turns[t].to][t].source == rank
            if turns[t].receives:
                earlier_and_later = tuple(sorted((rank, turns[t].source)))
                assert (turns[t].receives == "keys") == (rank == earlier_and_later[1])
                pairs[earlier_and_later] += 1
                computed[rank] += 1
    assert pairs == Counter({(i, j): 1 for j in range(size) for i in range(j)})
    assert max(computed.values()) - min(computed[rank] for rank in range(size)) <= 1


class Alive(TorchDispatchMode):
    """The most elements that tensors made within, of a width of keys and values, hold at once."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.most, self.largest = 0, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.new_empty.default:
            self.held += found.numel()
            self.most, self.largest = max(self.most, self.held), max(self.largest, found.numel())
            weakref.finalize(found, self._gone, found.numel())
        return found

    def _gone(self, n: int) -> None:
        self.held -= n


def received(world: World, n: int) -> tuple[int, int]:
    """The most numbers of what others gave that are alive at once (in the forward pass, in both)."""
    stretches = GroupStretches(of_row(replace(world, mesh=parse(f"cp={world.size}", world.size))))
    here = stretch(n, world.rank, world.size)
    q, k, v = (x[:, :, here].clone().requires_grad_() for x in rows(n, 4, 4, torch.float32)[:3])
    own, ring = plain_tokens(len(range(n)[here]), torch.device("cpu"), here.start), Ring(stretches, n)
    seen = ring.prepare(Causal(), None, own, own, 4)
    with Alive() as alive:
        y, _ = ring(q, k, v, seen, SoftmaxOptions(0.3))
        forward = alive.most
        y.sum().backward()
    return forward, alive.most


def test_keys_of_two_stretches_are_held_at_once(four: Processes) -> None:
    """One's own and one that was sent; backward, another's queries with what they gave are half as many numbers again."""
    n, block = 32, 2 * BATCH * 4 * 8 * WIDTH  # keys and values of a stretch of 8
    for rank, (forward, both) in enumerate(four(received, n)):
        assert forward == (block if rank else block // 2)  # the first is sent queries alone
        assert both == (3 * block // 2 + BATCH * 4 * 8 if rank == 0 else block)


class Ringing(NamedTuple):
    """Who goes round in a pass of a preset."""

    ring: int
    others: int


def who(spec: Any, tokens: Tokens, dropout: Dropout | None = None, device: str = "cpu") -> Ringing:
    model = Transformer(spec)
    stretches: Any = type("Four", (), {"rank": 0, "size": 4})()
    found = over_stretches(model._choose(None, "cpu"), model._attentions, stretches, tokens, dropout, device)
    names = [kernel.name for kernel in found.values()]
    return Ringing(names.count("ring"), len(names) - names.count("ring"))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("llama3-8b", Ringing(1, 0)),
        ("gemma3-1b", Ringing(2, 0)),  # a window of more than there are tokens hides nothing
        ("deepseek-v3", Ringing(0, 1)),  # latents are stored
        ("bloom-560m", Ringing(0, 1)),
        ("gpt-oss-20b", Ringing(0, 2)),
        ("gemma2-2b", Ringing(0, 2)),
        ("bert-base", Ringing(0, 1)),
        ("t5-base", Ringing(0, 3)),
    ],
)
def test_plain_causal_rows_go_round(name: str, wanted: Ringing) -> None:
    spec = shrink(PRESETS[name].spec)
    tokens = plain_tokens(4, torch.device("cpu"))
    assert who(spec, tokens) == wanted
    gathered = Ringing(0, sum(wanted))
    assert who(spec, replace(tokens, span=None)) == gathered  # packed, padded
    assert who(spec, tokens, Dropout(attention=0.1)) == gathered
    assert who(spec, tokens, device="cuda") == gathered
    assert who(spec, plain_tokens(3, torch.device("cpu"))) == gathered  # a process would have none


def test_a_window_that_hides_is_gathered() -> None:
    spec = thinned(PRESETS["gemma3-1b"].spec)[0]
    with torch.device("meta"):
        assert who(spec, plain_tokens(4096, torch.device("cpu"))) == Ringing(1, 1)


def sent(world: World, name: str, packed: bool) -> dict[tuple[str, str], int]:
    world, model = replace(world, mesh=parse("cp=2", 2)), randomised(shrink(PRESETS[name].spec))
    stretch_rows(model, world)
    ids = torch.arange(2 * 8).view(2, 8) % 7
    with TrafficCounter(world) as watch:
        model(ids, attention_mask=torch.tensor([[1] * 4 + [2] * 4] * 2) if packed else None).logits.sum().backward()
    return dict(watch.sent)


def test_what_is_sent_by_either(two: Processes) -> None:
    """Forward keys and values of half a row, backward they again, and their gradients by the other; one head is gathered."""
    spec = shrink(PRESETS["gpt2"].spec)
    block = 4 * 2 * 4 * 2 * spec.stack.d_model * spec.n_layers  # bytes of rows · tokens · keys and values
    first, last = two(sent, "gpt2", False)
    assert (first, last) == ({("cp", "send"): 2 * block}, {("cp", "send"): block})
    assert [set(found) for found in two(sent, "falcon-7b", True)] == [
        {("cp", "all-gather"), ("cp", "reduce-scatter")}
    ] * 2


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["cp=4", "dp=2,cp=2", "fsdp=2,cp=2", "tp=2,cp=2", "cp=2,pp=2"])
@pytest.mark.parametrize("name", ["llama3-8b", "gpt2", "mixtral-8x7b", "falcon-7b"])
def test_four_processes_are_one(four: Processes, mesh: str, name: str) -> None:
    """Steps of plain rows, clipped, in parts and recomputed, against whole batches."""
    step = partial(alone, name, n=3, plain=True)
    for recompute in ("none", "selective", "full"):
        found: Sequence[Any] = four(trained, name, mesh, 3, 2, ROWS, {}, recompute, False, True)
        check_near(found[0], step())
