"""Reformer's parts against transformers' Reformer, whose directions are drawn from one seed, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from anyformer.cache import KVCache
from anyformer.errors import InputError, SpecError
from anyformer.families.compose import changed
from anyformer.families.hf import FAMILIES
from anyformer.families.hf.mapping import ours_of
from anyformer.families.reformer import reformer as small
from anyformer.layers import AxialPositionsSpec, LSHAttentionSpec, sorted_chunks
from anyformer.layers.context import Dropout, ForwardContext
from anyformer.layers.lsh import lsh_attention, sorted_by_bucket
from anyformer.layers.tokens import Tokens
from anyformer.model import Transformer, build
from anyformer.spec import Count, ModelSpec, Width, Window
from tests.reformer_directions import draw_in_float32

D, HEADS, WIDTH, LOCAL, CHUNK, SHAPE, VOCAB = 24, 3, 10, 4, 8, (4, 12), 61
HASHES: list[dict[str, Any]] = [
    {"n_hashes": 1, "n_buckets": (4,)},
    {"n_hashes": 3, "n_buckets": (6,)},
    {"n_hashes": 2, "n_buckets": (4, 2), "seed": 7},
    {"n_hashes": 2},  # as many buckets as the length asks for
    {"n_hashes": 2, "n_buckets": (6,), "before": 2},
]
LENGTHS = [3, 8, 16, 29, 40, 48]


def reformer(layers: str = "local lsh lsh local", **fields: Any) -> ModelSpec:
    """A small one; `fields` are those of its hashed layers."""
    spec = small(
        layers, len(layers.split()), D, HEADS, 32, head_dim=WIDTH, vocab_size=VOCAB, shape=SHAPE, narrow=8,
        chunks=(LOCAL, CHUNK),
    )  # fmt: skip
    return changed(spec, LSHAttentionSpec, **fields).but(context=None)


def theirs(spec: ModelSpec) -> Any:
    """Their class with the sizes of ours, in float64, random."""
    mixers = [each.sublayers[0].branches[0].mixer for each in spec.stack.blocks]
    hashed = next(mixer for mixer in mixers if isinstance(mixer, LSHAttentionSpec))
    buckets = list(hashed.n_buckets)
    config = transformers.ReformerConfig(
        attn_layers=["lsh" if isinstance(mixer, LSHAttentionSpec) else "local" for mixer in mixers],
        attention_head_size=WIDTH, num_attention_heads=HEADS, hidden_size=D, feed_forward_size=32, vocab_size=VOCAB,
        axial_pos_shape=SHAPE, axial_pos_embds_dim=(8, D - 8), max_position_embeddings=48, is_decoder=True,
        local_attn_chunk_length=LOCAL, lsh_attn_chunk_length=CHUNK, lsh_num_chunks_before=hashed.before,
        lsh_num_chunks_after=hashed.after, num_hashes=hashed.n_hashes, hash_seed=hashed.seed,
        num_buckets=None if not buckets else buckets[0] if len(buckets) == 1 else buckets,
        hidden_dropout_prob=0.0, local_attention_probs_dropout_prob=0.0, lsh_attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.ReformerModelWithLMHead(config).double().eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            std = 1.5 / parameter.shape[-1] ** 0.5 if parameter.dim() == 2 else 0.7
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * std)
    return model


ROWS = FAMILIES["reformer"].rows


def ours(spec: ModelSpec, other: Any) -> Transformer:
    """Our model with their weights."""
    model, held = build(spec).double(), other.state_dict()
    model.load_state_dict(dict(ours_of(ROWS(spec), held.__getitem__)))
    return model


def ids(n: int, batch: int = 2) -> Tensor:
    return torch.randint(0, VOCAB, (batch, n), generator=torch.Generator().manual_seed(n))


@pytest.fixture(autouse=True)
def _directions(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_in_float32(monkeypatch)


@torch.no_grad()
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("fields", HASHES, ids=str)
def test_logits_are_theirs(fields: dict[str, Any], n: int) -> None:
    """Rows of whole chunks and others, shorter than a chunk and longer."""
    spec = reformer(**fields)
    other = theirs(spec)
    mine, found = ours(spec, other)(ids(n)).logits, other(ids(n)).logits
    assert found.std() > 0.3
    torch.testing.assert_close(mine, found, rtol=0, atol=1e-9 * found.abs().max().item())


@pytest.mark.parametrize("fields", HASHES[:3], ids=str)
def test_gradients_are_theirs(fields: dict[str, Any]) -> None:
    """Both go back without having kept anything."""
    spec = reformer(**fields)
    other = theirs(spec).train()
    model, rows = ours(spec, other), ids(48)
    torch.manual_seed(0)
    weight = torch.randn(2, 48, VOCAB, dtype=torch.float64)
    for each in (model, other):
        (each(rows).logits * weight).sum().backward()
    held = {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in other.named_parameters()}
    expected = dict(ours_of(ROWS(spec), held.__getitem__))
    largest = max(grad.abs().max().item() for grad in expected.values())
    for name, p in model.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(p.grad, expected[name], rtol=1e-7, atol=1e-9 * largest)


WIDER: list[dict[str, Any]] = [
    {"n_hashes": 3, "n_buckets": (6,)},
    {"n_hashes": 2, "n_buckets": (4,), "before": 0, "after": 1},
    {"n_hashes": 2, "n_buckets": (4,), "before": 2, "after": 1, "causal": False},
    {"n_hashes": 1, "n_buckets": (4,), "before": 7},  # more than there are
]


@pytest.mark.parametrize("at_once", [2**14, 60])
@pytest.mark.parametrize("mask", [None, "padded", "packed"])
@pytest.mark.parametrize("fields", WIDER, ids=str)
def test_the_fused_operator_computes_what_is_written_out(
    fields: dict[str, Any], mask: str | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients, of queries so long that other scores lie below a constant for the token itself."""
    spec, n = LSHAttentionSpec(n_heads=Count(2), chunk=Window(CHUNK), **fields), 44
    drawn = [
        torch.randn(3, 2, n, WIDTH, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in range(3)
    ]
    document = torch.ones(3, n, dtype=torch.long)
    document[0, :7] = 0
    if mask == "packed":
        document[1, 20:] = 2
    tokens = Tokens(torch.arange(n)[None], document=None if mask is None else document)
    monkeypatch.setattr(sorted_chunks, "AT_ONCE", at_once)

    def passed() -> list[Tensor]:
        qk, v = (50 * drawn[0]).requires_grad_(), drawn[1].clone().requires_grad_()
        y = lsh_attention(spec, qk, qk, v, tokens, ForwardContext(tokens, {})) * (document > 0)[:, None, :, None]
        return [y.detach(), *torch.autograd.grad((y * drawn[2]).sum(), (qk, v))]

    fused = passed()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for mine, written_out in zip(fused, passed(), strict=True):
        torch.testing.assert_close(mine, written_out, rtol=1e-9, atol=1e-9 * written_out.abs().max().item())


@torch.no_grad()
@pytest.mark.parametrize("way", ["compiled", "dropout", "cached"])
def test_every_way_has_the_digits_of_float32(way: str) -> None:
    """Of tokens that see themselves alone, more than once a round, whose sums are near e^-100000: the same in float64."""
    spec = reformer("lsh", n_hashes=3, n_buckets=(6,), before=6)
    model, rows, documents = ours(spec, theirs(spec)), ids(40), torch.ones(2, 40, dtype=torch.long)
    documents[:, 39] = 2
    expected = model(rows, documents).logits
    model.float()
    if way == "cached":
        cache = KVCache(spec, batch=2, length=40)
        found = torch.cat(
            [model(x, m, cache=cache).logits for x, m in zip(rows.split(39, 1), documents.split(39, 1), strict=True)], 1
        )
        found, expected = found[:, 39:], expected[:, 39:]
    elif way == "compiled":
        torch._dynamo.reset()
        found = torch.compile(model, backend="eager")(rows, documents).logits
    else:  # at a rate that drops nothing
        found = model(rows, documents, dropout=Dropout(attention=1e-30)).logits
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5 * expected.abs().max().item())


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_directions_are_the_same_in_every_dtype(dtype: torch.dtype) -> None:
    """Told apart by the order that vectors along single features come into: numbers that no dtype rounds."""
    axes = torch.eye(WIDTH).repeat(3, 1)[None, None].expand(2, HEADS, -1, -1)
    given = torch.ones(2, axes.shape[2], dtype=torch.long), [6], 4, 3
    orders = [sorted_by_bucket(axes.to(each), *given) for each in (torch.float32, dtype)]
    assert torch.equal(*orders)


@torch.no_grad()
@pytest.mark.parametrize(
    "fields", [{"seed": 1}, {"n_buckets": (8,)}, {"n_hashes": 1}, {"before": 0}, {"chunk": 6}], ids=str
)
def test_each_field_matters(fields: dict[str, Any]) -> None:
    spec = reformer(n_hashes=2, n_buckets=(4,))
    other = theirs(spec)
    other_spec = changed(spec, LSHAttentionSpec, **fields)
    mine, found = (ours(each, other)(ids(40)).logits for each in (spec, other_spec))
    assert (mine - found).abs().max() > 1e-2


@torch.no_grad()
def test_rows_of_one_chunk_are_decoded_as_read() -> None:
    spec = reformer(n_hashes=2)
    model = ours(spec, theirs(spec))
    cache = KVCache(spec, batch=2, length=8, dtype=torch.float64)
    steps = [model(piece, cache=cache).logits for piece in ids(8).split([3, 1, 1, 3], 1)]
    torch.testing.assert_close(torch.cat(steps, 1), model(ids(8)).logits, rtol=0, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("n_new", [1, 5])
def test_new_tokens_find_their_chunks_among_all(n_new: int) -> None:
    """One hashed layer, of which all inputs are known: what is decoded is what a pass over all gives."""
    spec = reformer("lsh", n_hashes=3, n_buckets=(6,))
    model = ours(spec, theirs(spec))
    cache = KVCache(spec, batch=2, length=40, dtype=torch.float64)
    model(ids(37)[:, : 37 - n_new], cache=cache)
    step = model(ids(37)[:, 37 - n_new :], cache=cache).logits
    torch.testing.assert_close(step, model(ids(37)).logits[:, 37 - n_new :], rtol=0, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_new_tokens_are_in_the_dtype_of_the_weights(dtype: torch.dtype) -> None:
    spec = reformer("lsh", n_hashes=2)
    model, cache = build(spec).to(dtype), KVCache(spec, batch=2, length=40, dtype=dtype)
    model(ids(37)[:, :36], cache=cache)
    assert model(ids(37)[:, 36:], cache=cache).logits.isfinite().all()


@torch.no_grad()
def test_padding_is_not_seen() -> None:
    """What padding says changes nothing, nor where it stands, but for which chunks tokens come into: with one, nothing."""
    spec = reformer(n_hashes=2, n_buckets=(4,))
    model, mask, rows = ours(spec, theirs(spec)), torch.ones(2, 40, dtype=torch.long), ids(40)
    mask[0, 29:] = 0
    other = torch.where(mask > 0, rows, (rows + 5) % VOCAB)
    first, second = (model(each, mask).logits[mask > 0] for each in (rows, other))
    torch.testing.assert_close(first, second, rtol=0, atol=1e-12)
    short, padded = model(rows[:1, :6]).logits, model(rows[:1, :8], (torch.arange(8) < 6).long()[None]).logits
    torch.testing.assert_close(padded[:, :6], short, rtol=0, atol=1e-12)


def test_whoever_sees_later_tokens_is_no_decoder() -> None:
    assert build(reformer()).predicts_next
    assert not build(reformer(causal=False)).predicts_next


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SpecError, match=r"LSHAttention.n_buckets = \(3,\) must be even"):
        reformer(n_buckets=(3,))
    with pytest.raises(SpecError, match=r"AxialPositions.widths = \(8, 8\) is one fewer than shape"):
        AxialPositionsSpec(shape=(4, 4), widths=(Width(8), Width(8)))
    with pytest.raises(InputError, match=r"a sequence of 49 tokens goes beyond the 48 positions of shape \(4, 12\)"):
        build(reformer())(ids(49))


def test_no_rows() -> None:
    spec = reformer()
    assert build(spec, seed=0)(torch.zeros(0, 29, dtype=torch.long)).logits.shape == (0, 29, VOCAB)
