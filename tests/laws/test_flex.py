"""Law 10, of FlexAttention: whatever a mask hides and distances add, `flex` agrees with eager; forward alone, as on a CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from anyformer.costs import activations
from anyformer.errors import KernelError
from anyformer.families import preset
from anyformer.kernels import KERNELS, choose, fastest
from anyformer.kernels.eager import Eager
from anyformer.kernels.fastest import FastestOnGPU
from anyformer.kernels.flex import TILE, Flex
from anyformer.layers import AttentionSpec, Causal, Mask
from anyformer.layers.context import SoftmaxOptions
from anyformer.layers.tokens import Bias, Tokens, plain_tokens
from anyformer.resizing import shrink
from tests.laws.models import ids_for, randomised, runner
from tests.laws.test_blocked import HEADS, KV_HEADS, MASKS, PACKINGS, WIDTH, each_mask, seen_of, tokens, window
from tests.laws.tolerance import close

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def check(kernel: Flex, mask: Mask, of: Tokens, cap: float | None, with_sink: bool, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    q, k, v = leaf(2, HEADS, of.n, WIDTH), leaf(2, KV_HEADS, of.n, WIDTH), leaf(2, KV_HEADS, of.n, WIDTH)
    table = leaf(HEADS, 2 * of.n)

    def bias(query: Tokens, key: Tokens) -> Tensor:
        distance = query.as_queries().position - key.as_keys().position
        return table[:, distance[:, 0] + of.n].transpose(0, 1)

    how = SoftmaxOptions(0.3, softcap=cap, sink=leaf(HEADS) if with_sink else None)
    with torch.no_grad():
        expected, found = (
            each(q, k, v, each.prepare(mask, bias if with_bias else None, of, of, HEADS), how)[0]  # type: ignore[attr-defined]
            for each in (Eager(), kernel)
        )
    close(found, expected)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize(
    "name", ["everything", "longformer by head", "phi-3-small", "bigbird", "segments", "a user's own"]
)
def test_masks(name: str, packing: str) -> None:
    """Written out by PyTorch, the predicate asked of each pair."""
    check(Flex(compiled=False), MASKS[name], tokens(23, packing), None, with_sink=True, with_bias=False)


@pytest.mark.parametrize("with_sink", [False, True])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_scores(cap: float | None, with_sink: bool) -> None:
    check(Flex(compiled=False), Causal() & window(9), tokens(23, "documents"), cap, with_sink, with_bias=True)


@each_mask
@pytest.mark.parametrize("packing", PACKINGS)
def test_a_block_is_left_out_only_where_all_is_hidden(mask: Mask, packing: str) -> None:
    """And is computed without its mask only where nothing is; a window computes few."""
    n = 3 * TILE + 5
    of = tokens(n, packing)
    blocks = Flex().prepare(mask, None, of, of, HEADS).blocks
    if blocks is None:
        assert bool(seen_of(mask, of).all())
        return
    edge = -n % TILE
    seen = torch.nn.functional.pad(seen_of(mask, of).expand(-1, HEADS, -1, -1), (0, edge, 0, edge))
    each = seen.unflatten(-1, (-1, TILE)).unflatten(-3, (-1, TILE))  # [row, head, block, query, block, key]
    some, every = each.any(-1).any(-2), each.all(-1).all(-2)
    partly, fully = (
        _listed(number, index).expand_as(some)
        for number, index in (
            (blocks.kv_num_blocks, blocks.kv_indices),
            (blocks.full_kv_num_blocks, blocks.full_kv_indices),
        )
    )
    assert not (some & ~(partly | fully)).any(), "a visible pair is left out"
    assert not (fully & ~every).any(), "a hidden pair is computed"
    assert not (partly & fully).any()


def _listed(number: Tensor, index: Tensor) -> Tensor:
    """Whether each block of keys is among the first `number` of those listed."""
    counted = torch.arange(index.shape[-1]) < number[..., None]
    return torch.zeros_like(counted).scatter(-1, index.long(), counted)


def test_blocks_of_a_window_are_few() -> None:
    of = plain_tokens(16 * TILE, torch.device("cpu"))
    blocks = Flex().prepare(Causal() & window(TILE), None, of, of, HEADS).blocks
    assert int((blocks.kv_num_blocks + blocks.full_kv_num_blocks).max()) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("cap", "with_sink", "with_bias"), [(None, False, False), (2.0, False, True)])
@pytest.mark.parametrize("packing", ["plain", "documents"])
@pytest.mark.parametrize("name", ["sliding window", "strided", "longformer by head", "phi-3-small"])
def test_compiled(name: str, packing: str, cap: float | None, with_sink: bool, with_bias: bool) -> None:
    """As it is run, blocks left out, by the C++ that PyTorch makes of it."""
    check(Flex(), MASKS[name], tokens(2 * TILE + 61, packing), cap, with_sink, with_bias)


@pytest.mark.slow
def test_documents_packed_otherwise_find_the_same_kernel() -> None:
    """And tables of distances have the same length, whatever the distances are; a kernel takes seconds to compile."""
    graphs, flex = counters["stats"], Flex()
    table, q = torch.randn(HEADS, 255), torch.randn(2, HEADS, 128, 16)

    def bias(query: Tokens, key: Tokens) -> Tensor:
        return table[:, (query.as_queries().position - key.as_keys().position)[:, 0] + 127].transpose(0, 1)

    for ends in (40, 55, 100):
        document = torch.ones(2, 128, dtype=torch.long)
        document[:, ends:], document[1, : ends // 8] = 2, 0
        same = (document[:, :, None] == document[:, None, :]).tril()
        of = Tokens((same.sum(-1) - 1) * (document > 0), document)
        with torch.no_grad():
            flex(q, q, q, flex.prepare(Causal() & window(30), bias, of, of, HEADS), SoftmaxOptions(1.0, softcap=5.0))
        assert graphs["unique_graphs"] == 1


@pytest.mark.parametrize("name", ["gemma2-2b", "gpt-oss-20b", "bloom-560m", "t5-small"])
def test_models(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Soft-caps, sinks, ALiBi, buckets; one row padded on the left, one on the right."""
    monkeypatch.setitem(KERNELS, "flex", Flex(compiled=False))  # type: ignore[arg-type]
    model = randomised(shrink(preset(name).spec))
    ids = ids_for(model.spec, 2, 13)
    mask = torch.ones_like(ids)
    mask[0, :4], mask[1, -3:] = 0, 0
    with torch.no_grad():
        expected, found = (runner(model)(ids, mask, kernel=kernel).logits for kernel in ("eager", "flex"))
    close(found[mask.bool()], expected[mask.bool()])


def of(name: str) -> AttentionSpec:
    return next(value for value in preset(name).spec.nested() if isinstance(value, AttentionSpec))


def test_a_gpu_takes_it_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what benchmarks/gpu.py measured; never in decoding, for biases, or where no kernel can be made."""

    def taken(spec: AttentionSpec, n: int, mask: Mask | None = None, bias: Bias | None = None) -> str:
        kernel, tokens = choose(None, spec, "cuda"), plain_tokens(n, torch.device("cpu"))
        assert isinstance(kernel, FastestOnGPU)
        return kernel.prepare(mask or spec.mask, bias, tokens, tokens, HEADS).kernel.name

    monkeypatch.setattr(fastest, "can_compile", lambda: True)
    plain, capped, narrow = of("llama2-7b"), of("gemma2-2b"), Causal() & window(64)
    assert taken(plain, 4096, narrow) == "flex"
    assert taken(plain, 4095, narrow) == "sdpa"
    assert taken(plain, 4096) == "sdpa", "PyTorch's flag needs no mask"
    assert taken(capped, 1024) == "flex"
    assert taken(capped, 1023) == "eager"
    assert taken(plain, 4096, narrow, bias=lambda query, key: None) == "sdpa"
    with torch.inference_mode():
        assert taken(capped, 1024) == "eager"
    monkeypatch.setattr(fastest, "can_compile", lambda: False)
    assert taken(capped, 1024) == "eager"


def test_what_it_cannot_the_other_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fastest.LEAST_ON_GPU, "eager", 1)
    monkeypatch.setattr(fastest, "can_compile", lambda: True)
    kernel, tokens_ = FastestOnGPU(Flex(compiled=False), Eager()), tokens(23, "documents")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 23, WIDTH, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS))
    seen = kernel.prepare(Causal(), None, tokens_, tokens_, HEADS)
    assert seen.kernel.name == "flex"
    expected = Eager()(q, k, v, Eager().prepare(Causal(), None, tokens_, tokens_, HEADS), SoftmaxOptions(0.3))[0]
    with torch.no_grad():
        y, weights = kernel(q, k, v, seen, SoftmaxOptions(0.3))
        assert weights is None
        close(y, expected)
    q.requires_grad_()  # on a CPU it has no backward pass
    y, weights = kernel(q, k, v, seen, SoftmaxOptions(0.3))
    assert weights is not None
    close(y, expected)


def test_what_is_foreseen_of_a_gpu_keeps_no_scores() -> None:
    spec = shrink(preset("gpt-oss-20b").spec)
    short, long = (activations(spec, batch=1, seq_len=n).saved["attention"] for n in (1024, 4096))
    assert long == pytest.approx(4 * short, rel=0.01)
    assert activations(spec, batch=1, seq_len=1023).saved["attention"] > 10 * short


def test_refusals() -> None:
    model = randomised(shrink(preset("llama2").spec))
    ids = ids_for(model.spec, 1, 5)
    with pytest.raises(KernelError, match="no backward pass on a CPU; use kernel='blocked'"):
        model(ids, kernel="flex")
    attention = next(value for value in model.spec.nested() if isinstance(value, AttentionSpec))
    assert "flex" not in choose(None, attention).name
    for name, why in (
        ("gopher-44m", "RelativeSinusoid"),
        ("falcon-rw-1b", "ALiBi"),
        ("bigbird-base", "FirstBlockAgain"),
    ):
        refused = randomised(shrink(preset(name).spec))
        with pytest.raises(KernelError, match=rf"flex has no scores of anything but distance \({why}\); use kernel="):
            runner(refused)(ids_for(refused.spec, 1, 5), kernel="flex")
