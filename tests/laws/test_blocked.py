"""Law 10, of blocks: whatever a mask hides, `blocked` agrees with eager and computes no block that is hidden whole."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anyformer.families import preset
from anyformer.kernels import blocks, choose
from anyformer.kernels import plan as planning
from anyformer.kernels.blocked import Blocked
from anyformer.kernels.eager import Eager
from anyformer.kernels.fastest import LEAST, Fastest, Taken
from anyformer.kernels.plan import ends, plan
from anyformer.layers import (
    AttentionSpec,
    BlockEnds,
    Causal,
    Everything,
    Heads,
    LocalAndVertical,
    LookAhead,
    Mask,
    Prefix,
    SameBlock,
    SlidingWindow,
    Strided,
    SymmetricWindow,
)
from anyformer.layers.context import SoftmaxOptions
from anyformer.layers.global_blocks import GlobalBlocks
from anyformer.layers.local_global import MarkedKeys, MarkedQueries
from anyformer.layers.mask import visible
from anyformer.layers.tokens import Tokens, plain_tokens
from anyformer.observation.passes import forward_pass, training_pass
from anyformer.resizing import shrink
from anyformer.spec import Count, Window
from tests.laws.models import ids_for, randomised, runner
from tests.laws.tolerance import FLOAT32, close, distance

HEADS, KV_HEADS, WIDTH, TILE = 4, 2, 8, 8


class ByTable(Mask):
    """A user's own: looks its answer up, which nobody can do for bounds."""

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        apart = query.position - key.position
        return torch.tensor([True, False, True], device=apart.device)[apart % 3]


class WronglyOrdered(SlidingWindow):
    """Offers an order that does not help it."""

    def period(self) -> int:
        return 5


def window(size: int) -> SlidingWindow:
    return SlidingWindow(size=Window(size))


MASKS: dict[str, Mask] = {
    "causal": Causal(),
    "everything": Everything(),
    "sliding window": Causal() & window(9),
    "symmetric window": SymmetricWindow(radius=Window(5)),
    "further ahead": window(4) & LookAhead(size=Window(7)),
    "chunked": Causal() & SameBlock(size=Window(12)),
    "fixed": Causal() & (SameBlock(size=Window(10)) | BlockEnds(size=Window(10), last=Count(2))),
    "strided": Causal() & (window(7) | Strided(stride=Window(7))),
    "two strides": Causal() & (Strided(stride=Window(5)) | Strided(stride=Window(7))),
    "bigbird": GlobalBlocks(size=Window(4), n_random=Count(1)),
    "longformer": SymmetricWindow(radius=Window(3)) | MarkedKeys() | MarkedQueries(),
    "longformer by head": Heads(masks=(SymmetricWindow(radius=Window(3)) & ~MarkedQueries(), MarkedQueries())),
    "prefix": Causal() | Prefix(size=Window(6)),
    "segments": Causal() | Prefix(),
    "phi-3-small": Causal() & LocalAndVertical(size=Window(4), near=Window(2), stride=Window(3)),
    "heads": Heads(masks=(Causal(), Causal() & window(5))),
    "heads of no step": Heads(masks=(Causal(), Causal(), Causal() & window(5), Causal())),
    "heads apart": Heads(masks=(Causal() & window(5), Causal() & Strided(stride=Window(5)))),
    "heads inside": Causal()
    & (~Heads(masks=(window(3), Everything())) | Heads(masks=(window(5), window(2), window(7)))),
    "not": Causal() & ~window(3),
    "a user's own": Causal() & ByTable(),
    "a wrong order": Causal() & WronglyOrdered(size=Window(9)),
}
each_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
PACKINGS = ("plain", "documents", "padded")


def tokens(n: int, packing: str) -> Tokens:
    """Plain rows; or one of three documents and one padded on the left; or two padded on the right. Every 11th is marked."""
    at = torch.arange(n)
    segment, mark = (at >= n // 4).long()[None], (at % 11 == 3).long()[None]
    if packing == "plain":
        return replace(plain_tokens(n, torch.device("cpu")), segment=segment, mark=mark)
    if packing == "documents":
        document = torch.stack([at * 3 // n + 1, (at > 4).long()])
    else:
        document = torch.stack([(at < n - n // 8 - 1).long(), (at < n // 2).long()])
    same = (document[:, :, None] == document[:, None, :]).tril()
    return Tokens((same.sum(-1) - 1) * (document > 0), document, segment=segment, mark=mark)


def seen_of(mask: Mask, of: Tokens) -> Tensor:
    seen = visible(mask, of, of, HEADS)
    return torch.ones(1, 1, of.n, of.n, dtype=torch.bool) if seen is None else seen


@each_mask
@pytest.mark.parametrize("packing", PACKINGS)
def test_every_visible_pair_is_in_one_block(mask: Mask, packing: str) -> None:
    """And no pair of a block that is computed without a mask is hidden."""
    for n in (13, 61, 64):
        of = tokens(n, packing)
        rows = 1 if packing == "plain" else 2
        seen = seen_of(mask, of).expand(rows, HEADS, n, n).numpy()
        found = np.zeros((rows, HEADS, n, n), dtype=int)
        for section in plan(mask, of, of, HEADS, TILE):
            own = seen_of(section.mask, of).expand(rows, HEADS, n, n).numpy()
            for row, head, piece in product(
                range(rows) if section.row is None else [section.row], section.heads, section.pieces
            ):
                pairs = row, head, piece.queries[:, None], piece.keys
                found[pairs] += own[pairs] if piece.masked else 1
        assert (found == seen).all()


def both(mask: Mask, of: Tokens, cap: float | None, with_sink: bool, with_bias: bool) -> list[tuple[Tensor, ...]]:
    """(values, gradients of q, k, v, the sink, the bias) of eager and of blocks."""
    generator = torch.Generator().manual_seed(0)
    batch = 2

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    q, k, v = leaf(batch, HEADS, of.n, WIDTH), leaf(batch, KV_HEADS, of.n, WIDTH), leaf(batch, KV_HEADS, of.n, 6)
    sink, table = leaf(HEADS), leaf(HEADS, 2 * of.n)
    grad = torch.randn(batch, HEADS, of.n, 6, generator=generator, dtype=torch.float64)

    def bias(query: Tokens, key: Tokens) -> Tensor:
        distance = query.as_queries().position - key.as_keys().position
        return table[:, distance[:, 0] + of.n].transpose(0, 1)

    found = []
    inputs = [q, k, v, *([sink] if with_sink else []), *([table] if with_bias else [])]
    for kernel in (Eager(), Blocked(TILE)):
        seen: Any = kernel.prepare(mask, bias if with_bias else None, of, of, HEADS)
        given = sink if with_sink else None
        y, _ = kernel(q, k, v, seen, SoftmaxOptions(0.3, softcap=cap, sink=given))
        found.append((y, *torch.autograd.grad((y * grad).sum(), inputs, materialize_grads=True)))
    return found


@each_mask
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("cap", [None, 2.0])
def test_blocks_are_eager(mask: Mask, packing: str, cap: float | None) -> None:
    """Forward and backward, at a length that is no multiple of a block, shorter than one, and in grouped heads."""
    for n, with_sink, with_bias in ((5, True, True), (61, False, False), (61, True, False), (61, True, True)):
        expected, found = both(mask, tokens(n, packing), cap, with_sink, with_bias)
        for ours, theirs in zip(found, expected, strict=True):
            close(ours, theirs)


def test_hidden_blocks_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted are the pairs that PyTorch's operators are handed, forward and backward."""
    handed = []

    def counting(operator: Any, first: int) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            q, k = args[first : first + 2]
            handed.append(q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2])
            return operator(*args, **options)

        return call

    names = "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"
    spied = {name: counting(getattr(blocks.aten, name), first) for first, name in enumerate(names)}
    monkeypatch.setattr(blocks, "aten", SimpleNamespace(**spied))
    n = 1021
    of = plain_tokens(n, torch.device("cpu"))
    most = {
        Causal() & window(256): 1.3,
        SymmetricWindow(radius=Window(128)): 1.3,
        Causal() & SameBlock(size=Window(128)): 1.5,
        Causal() & (window(256) | Strided(stride=Window(64))): 1.6,
        Causal() & (SameBlock(size=Window(64)) | BlockEnds(size=Window(64), last=Count(8))): 1.4,
        GlobalBlocks(size=Window(64), n_random=Count(1)): 1.05,
        Heads(masks=(Causal() & window(128), Causal() & window(256))): 1.5,
    }
    for mask, limit in most.items():
        handed.clear()
        kernel = Blocked()
        seen = kernel.prepare(mask, None, of, of, HEADS)
        q, k, v = (torch.randn(1, HEADS, n, WIDTH, requires_grad=True) for _ in range(3))
        y, _ = kernel(q, k, v, seen, SoftmaxOptions(1.0))
        forward = sum(handed)
        y.sum().backward()
        assert sum(handed) == 2 * forward == 2 * seen.pairs
        shown = int(seen_of(mask, of).expand(1, HEADS, n, n).sum())
        assert forward < limit * shown, f"{mask}: {forward / shown:.2f} pairs computed for each that is seen"


@pytest.mark.parametrize("packing", PACKINGS)
def test_blocks_that_see_nearly_the_same_are_one_call(packing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of causal rows and wide windows fewer calls, of narrow ones not; never for many more pairs."""
    of = tokens(400, packing)
    fewer = {}
    for name, mask in {"causal": Causal(), "wide": Causal() & window(200), "narrow": Causal() & window(5)}.items():
        joined = plan(mask, of, of, HEADS, TILE)
        with monkeypatch.context() as patch:
            patch.setattr(planning, "JOINED", 0)
            alone = plan(mask, of, of, HEADS, TILE)
        (pairs, calls), (least, most) = (
            (sum(s.pairs for s in x), sum(len(s.pieces) for s in x)) for x in (joined, alone)
        )
        assert least <= pairs <= planning.MORE * least
        fewer[name] = calls / most
    assert fewer["causal"] < 0.5
    assert fewer["wide"] < 0.5 < fewer["narrow"]


def test_heads_of_one_mask_share_what_hides_their_pairs() -> None:
    """Written once for all heads that a pattern by head gives the same mask, not once for each."""
    near, strided, n = Causal() & window(5), Causal() & Strided(stride=Window(5)), 61
    of, kernel = tokens(n, "plain"), Blocked(TILE)

    def added(mask: Mask, n_heads: int) -> int:
        made = kernel.prepare(mask, None, of, of, n_heads).added
        return 0 if made is None else made.numel()

    together = added(near, 1) + added(strided, 1)
    assert added(Heads(masks=(near, strided)), HEADS) == added(Heads(masks=(near, strided)), 2) == together > 0


def test_weights_are_dropped_alike_in_both_passes() -> None:
    """Dropout is drawn from PyTorch's random state; of one draw the gradients are those of what was computed."""
    of, mask, kernel = tokens(40, "plain"), Causal() & window(9), Blocked(TILE)
    q, k, v = (torch.randn(1, HEADS, 40, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(3))
    seen = kernel.prepare(mask, None, of, of, HEADS)

    def run(q: Tensor, k: Tensor, v: Tensor, seed: int = 0, dropout: float = 0.3) -> Tensor:
        torch.manual_seed(seed)
        return kernel(q, k, v, seen, SoftmaxOptions(0.3, dropout=dropout))[0]

    assert torch.autograd.gradcheck(run, (q, k, v), fast_mode=True)
    with torch.no_grad():
        mean = torch.stack([run(q, k, v, seed) for seed in range(300)]).mean(0)
        assert distance(mean, run(q, k, v, dropout=0.0)) < 0.2


def test_the_end_of_each_document() -> None:
    position, document = np.array([[0, 1, 2, 0, 1, 0]]), np.array([[7, 7, 7, 2, 2, 0]])
    assert ends(position, document).tolist() == [[2, 2, 2, 1, 1, 0]]
    assert ends(position, None).tolist() == [[2] * 6]


def attention(name: str, number: int = 0) -> AttentionSpec:
    found = [value for value in preset(name).spec.nested() if isinstance(value, AttentionSpec)]
    return found[number]


def taken(spec: AttentionSpec, of: Tokens, mask: Mask | None = None) -> str:
    kernel = choose(None, spec)
    assert isinstance(kernel, Fastest)
    seen = kernel.prepare(mask or spec.mask, None, of, of, HEADS)
    assert isinstance(seen, Taken)
    return seen.kernel.name


def test_the_fastest_is_taken() -> None:
    device = torch.device("cpu")
    plain, capped, causal = attention("mistral-7b-v0.1"), attention("gemma2-2b"), attention("llama2-7b")
    narrow, n, few = Causal() & window(64), LEAST["sdpa"], LEAST["eager"]
    assert taken(plain, plain_tokens(n, device), narrow) == "blocked"
    assert taken(plain, plain_tokens(n - 1, device), narrow) == "sdpa", "short texts are not worth a plan"
    assert taken(plain, plain_tokens(n, device)) == "sdpa", "a window beyond the text hides nothing"
    assert taken(causal, plain_tokens(n, device)) == "sdpa", "PyTorch's flag needs no mask"
    assert taken(plain, plain_tokens(n, device), SymmetricWindow(radius=Window(n * 3 // 4))) == "sdpa", (
        "little is hidden"
    )
    assert taken(capped, plain_tokens(few, device)) == "blocked"
    assert taken(capped, plain_tokens(few - 1, device)) == "eager"
    packed = Tokens(torch.arange(n)[None] % 128, (torch.arange(n) // 128)[None] + 1)
    assert taken(causal, packed) == "blocked"


@pytest.mark.parametrize("name", ["gemma2-2b", "gpt-oss-20b"])
def test_caps_and_sinks_no_longer_fall_to_eager(name: str) -> None:
    model = randomised(shrink(preset(name).spec))
    ids, run = ids_for(model.spec, 1, LEAST["eager"]), runner(model)
    with torch.no_grad():
        assert distance(run(ids).logits, run(ids, kernel="eager").logits) < FLOAT32
    names = {operator.name for operator in forward_pass(model.spec, batch=1, query=LEAST["eager"], device="cpu")}
    assert "blocked_attention" in names


def test_what_is_observed_is_what_is_computed() -> None:
    """On tensors without numbers the plan is the same: observed FLOPs are those of the blocks."""
    spec, n = shrink(preset("mistral-7b-v0.1").spec), LEAST["sdpa"]
    (of,) = {value for value in spec.nested() if isinstance(value, AttentionSpec)}
    assert (of.mask.reach() or n) < n // 4
    tokens_ = plain_tokens(n, torch.device("cpu"))
    heads, width, _ = of.projection.sizes(SimpleNamespace(d_model=spec.stack.d_model))  # type: ignore[arg-type]
    pairs = sum(section.pairs for section in plan(of.mask, tokens_, tokens_, heads))
    seen = [o for o in training_pass(spec, batch=3, seq_len=n, device="cpu").operators if o.kind == "attention"]
    for phase, products in (("forward", 2), ("backward", 4)):
        found = {(o.flops, o.pairs) for o in seen if o.phase == phase}
        assert found == {(products * 3 * pairs * 2 * width, pairs // heads)}
    assert pairs < heads * n * n / 2
    gpu = training_pass(spec, batch=3, seq_len=n, device="cuda").operators
    assert not any(o.name.startswith("blocked") for o in gpu), "a GPU takes what it takes when it runs"


def test_no_tensor_on_the_wrong_device() -> None:
    """On PyTorch's meta device, where tensors of the CPU would be refused."""
    of = plain_tokens(40, torch.device("meta"))
    kernel = Blocked(TILE)
    for mask in (Causal() & window(9), MASKS["fixed"], MASKS["heads apart"]):
        seen = kernel.prepare(mask, None, of, of, HEADS)
        q, k, v = (torch.randn(1, HEADS, 40, WIDTH, device="meta", requires_grad=True) for _ in range(3))
        y, _ = kernel(q, k, v, seen, SoftmaxOptions(1.0, dropout=0.1))
        y.sum().backward()
        assert q.grad is not None
        assert q.grad.shape == q.shape
