"""What one operator of a pass is: its name, its shapes, its FLOPs, its bytes, the part it belongs to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

Kind = Literal["contraction", "attention", "normalisation", "element-wise", "movement"]
Phase = Literal["forward", "backward"]
aten, ours = torch.ops.aten, torch.ops.anyformer


class Work(NamedTuple):
    """What an operator multiplies."""

    # (m, n, k) of each of the `copies` products [m, k] · [k, n]; of attention (queries, keys, width of a head)
    shape: tuple[int, int, int]
    copies: int
    flops: int
    pairs: int = 0  # of queries and keys that an attention computes, of each of the `copies` heads


# [m, k] · [k, n], of which arguments; the rest of an operator's arguments are biases and scalars.
PRODUCTS: Mapping[Any, tuple[int, int]] = {
    aten.mm: (0, 1),
    aten.addmm: (1, 2),
    aten.addmm_: (1, 2),
    aten.bmm: (0, 1),
    aten.baddbmm: (1, 2),
    aten.addbmm: (1, 2),
    aten.mv: (0, 1),
    aten.dot: (0, 1),
    aten.linalg_solve_triangular: (0, 1),  # counted as a product of the whole squares
}
# The query's, the key's and the value's argument, and how many products of all pairs there are.
ATTENTIONS: Mapping[Any, tuple[int, int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: (0, 2),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (1, 4),
}


def _grouped(rows: int, n: int, k: int, groups: int) -> Work:
    """Of rows that go evenly to the groups, be they experts: no matrix is read that has no row."""
    touched = max(1, min(rows, groups))
    return Work((-(-rows // touched), n, k), touched, 2 * rows * n * k)


def _blocked(q: Tensor, pairs: int, products: int) -> Work:
    """Of the pairs that blocks hold, of all heads of a row; queries see so many keys on average."""
    batch, heads, queries, width = q.shape
    keys = -(-pairs // max(1, heads * queries))
    return Work((queries, keys, width), batch * heads, products * batch * pairs * 2 * width, pairs // heads)


def _recurrent(steps: Tensor, weight: Tensor, products: int) -> Work:
    """Of a map of the state at each of the steps [batch, step, …]; backward its gradient and that of the map."""
    batch, n, (rows, width) = steps.shape[0], steps.shape[1], weight.shape
    return Work((batch, rows, width), products * n, products * 2 * batch * n * rows * width)


def _hashed(qk: Tensor, buckets: Sequence[int], n_hashes: int) -> Work:
    """Of all directions, one for every two buckets, with qk [batch, head, token, width]."""
    batch, heads, tokens, width = qk.shape
    directions = n_hashes * sum(buckets) // 2
    return Work((tokens, directions, width), batch * heads, 2 * batch * heads * tokens * directions * width)


# Operators of our own that multiply, each with what its arguments say of the work.
KERNELS: dict[Any, Callable[..., Work]] = {
    ours.grouped_products: lambda rows, matrices, behind, biases=None, turned=False: _grouped(
        len(rows), matrices.shape[2 if turned else 1], rows.shape[1], len(matrices)
    ),
    ours.grouped_products_: lambda onto, rows, matrices, behind, turned=False: _grouped(
        len(rows), onto.shape[1], rows.shape[1], len(matrices)
    ),
    ours.blocked_attention: lambda *args: _blocked(args[0], args[8], 2),
    ours.blocked_attention_backward: lambda *args: _blocked(args[1], args[11], 4),
    ours.rows_attention: lambda *args: attention_work(*args[:3], causal=args[5], products=2),
    ours.rows_attention_backward: lambda *args: attention_work(*args[1:4], causal=args[6], products=4),
    ours.lstm: lambda x, weight, *_: _recurrent(x, weight, 1),
    ours.lstm_backward: lambda for_y, for_cells, weight, *_: _recurrent(for_y, weight, 2),
    ours.gru: lambda x, weight, *_: _recurrent(x, weight, 1),
    ours.gru_backward: lambda for_y, weight, *_: _recurrent(for_y, weight, 2),
    ours.sorted_by_bucket: lambda qk, document, buckets, n_hashes, seed: _hashed(qk, buckets, n_hashes),
    ours.grouped_outer: lambda left, right, behind: _grouped(len(left), right.shape[1], left.shape[1], len(behind)),
}
# What reads as much as it gives, not the whole of what it reads from.
LOOK_UPS = {aten.embedding, aten.index_select, aten.gather, aten.index, aten.embedding_bag, aten._embedding_bag}
# What moves no byte: another look at the same memory, or memory that nobody has written yet.
FREE = {
    aten._unsafe_view,
    aten.empty,
    aten.empty_like,
    aten.new_empty,
    aten.empty_strided,
    aten.new_empty_strided,
    aten.detach,
}
NORMS = ("norm", "softmax", "logsumexp")
MOVES = (
    "copy", "clone", "cat", "stack", "embedding", "index", "gather", "scatter", "sort", "topk", "fill", "zero", "ones",
    "full", "arange", "pad", "repeat", "roll", "flip", "searchsorted", "empty",
)  # fmt: skip


class Operator(NamedTuple):
    """One operator of a pass as it was observed; it runs `times` times, once for each layer that is alike."""

    name: str  # PyTorch's: "mm", "silu_backward", "_softmax"
    part: str  # "attention", "feed-forward", "norms" …
    kind: Kind
    phase: Phase
    flops: int  # of products alone, which is what papers count
    # (m, n, k) of one of the `copies` products [m, k] · [k, n]; of attention (queries, keys, width of a head)
    shape: tuple[int, int, int] | None
    copies: int
    weights: int  # bytes of parameters read
    nbytes: int  # bytes of all else, read and written
    numel: int  # numbers in the result
    pairs: int = 0  # of queries and keys that an attention computes, of each head
    times: int = 1


def observed(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any, is_weight: Callable[[Tensor], bool]
) -> dict[str, Any]:
    """The figures of one call, by the fields of `Operator`: all but its part, phase and times."""
    packet, name = func.overloadpacket, func.overloadpacket.__name__
    read, written = list(tensors_in((args, kwargs))), list(tensors_in(out))
    work = _product(packet, args, kwargs)
    kind: Kind = "element-wise"
    if work is not None:
        kind = "attention" if work.pairs else "contraction"
    elif any(word in name for word in NORMS):
        kind = "normalisation"
    elif any(word in name for word in MOVES):
        kind = "movement"
    most = sum(map(_nbytes, written)) if packet in LOOK_UPS else None  # what one input gives, for what looks up
    weights = nbytes = 0
    for tensor in read:
        size = _nbytes(tensor) if most is None else min(_nbytes(tensor), most)
        if not is_weight(tensor):
            nbytes += size
        elif work is None:
            weights += size
        else:  # no more of a weight than is multiplied
            weights += min(size, work.copies * work.shape[1] * work.shape[2] * tensor.element_size())
    nbytes += sum(map(_nbytes, written))
    numel, shape, copies, flops, pairs = sum(t.numel() for t in written), *(work or (None, 1, 0, 0))
    return {
        "name": name, "kind": kind, "flops": flops, "shape": shape, "copies": copies,
        "weights": weights, "nbytes": nbytes, "numel": numel, "pairs": pairs,
    }  # fmt: skip


def _product(packet: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Work | None:
    if packet in KERNELS:
        return KERNELS[packet](*args, **kwargs)
    if packet in PRODUCTS:
        left, right = (args[i] for i in PRODUCTS[packet])
        k, m = left.shape[-1], left.shape[-2] if left.dim() > 1 else 1
        n = right.shape[-1] if right.dim() > 1 else 1
        copies = math.prod(left.shape[:-2])
        return Work((m, n, k), copies, 2 * m * n * k * copies)
    if packet in ATTENTIONS:
        first, products = ATTENTIONS[packet]
        q, k, v = args[first : first + 3]
        causal = any(isinstance(argument, bool) and argument for argument in args)
        return attention_work(q, k, v, causal=causal, products=products)
    return None


def attention_work(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, products: int) -> Work:
    """What fused attention of q, k and v [batch, heads, token, width] multiplies.

    `products` of all pairs: 2 forward, 4 backward; that a backward pass makes the scores again (Dao et al. 2022,
    arXiv:2205.14135) is no work of the model's. A kernel that is told that attention is causal computes no hidden pair.
    """
    batch, heads, queries, width = q.shape
    keys, rows = k.shape[-2], batch * heads
    pairs = queries * (queries + 1) // 2 + queries * (keys - queries) if causal else queries * keys
    return Work((queries, keys, width), rows, products * rows * pairs * (width + v.shape[-1]), pairs)


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """The tensors in arguments or results, nested as they are."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | list):
        for each in tree:
            yield from tensors_in(each)
    elif isinstance(tree, Mapping):
        yield from tensors_in(list(tree.values()))


def _nbytes(tensor: Tensor) -> int:
    """Bytes that are touched: an expanded tensor is no larger than what it is a view of."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
