"""Engram: n-grams that end where texts do, against transformers' class; primes and numbers from elsewhere; refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextPLELayer

import anyformer as af
from anyformer.errors import CheckpointError, SpecError
from anyformer.families import FAMILIES, preset
from anyformer.families.hf.settings import Settings
from anyformer.layers import CausalConvolutionSpec, EngramSpec, Steps
from anyformer.layers.context import ForwardContext, Store
from anyformer.layers.tokens import Tokens, plain_tokens
from anyformer.resizing import shrink
from anyformer.spec import Place, Vocab, Width, parameters
from tests.laws.models import randomised
from tests.laws.tolerance import close

SMALL = shrink(preset("qwen3.8-flash-next").spec)
(OF_SMALL,) = {*SMALL.nested(EngramSpec)}
END = OF_SMALL.end


def built(n: int = 2) -> Any:
    """A module of n streams with random numbers, gains of norms about 1."""
    module = OF_SMALL.build(Place(SMALL.stack.d_model, (SMALL.stack.d_model,), n_streams=n))
    generator = torch.Generator().manual_seed(0)
    for name, value in module.named_parameters():
        value.data = torch.randn(value.shape, generator=generator) * (0.2 if "norm" in name else 1.0)
    return module


def theirs_of(ours: Any) -> Any:
    """Transformers' module with the same numbers."""
    settings = FAMILIES["qwen4_exp_text"].to_config(SMALL)
    theirs = Qwen4ExpTextPLELayer(Qwen4ExpTextConfig(**settings), 1, 0).eval()
    names = {"table": "ple_embedding.ngram_embedding", "key": "key_proj", "value": "value_proj", "local": "conv1d"}
    names |= {"norm_key": "norm_key", "norm_query": "norm_query", "norm_value": "norm_conv"}
    held = dict(theirs.named_parameters())
    for name, place in names.items():
        weight = getattr(ours, name).weight
        held[f"{place}.weight"].data = weight.data.reshape(held[f"{place}.weight"].shape)
    return theirs


def run(module: Any, x: Tensor, ids: Tensor, tokens: Tokens, store: Store | None = None) -> Tensor:
    context = ForwardContext(tokens=tokens, kernels={}, ids=ids)
    with torch.no_grad():
        return module(x, context, store or Store())[0]


def test_texts_that_end_are_those_of_transformers() -> None:
    """Ends at the begin, two of them in turn, and as far from a token as the longest n-gram reaches."""
    ours = built()
    ids = torch.randint(0, END, (3, 14), generator=torch.Generator().manual_seed(1))
    ids[0, [0, 5, 6, 9]] = ids[1, [1, 3, 13]] = END
    x = torch.randn(3, 14, 2 * SMALL.stack.d_model, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = theirs_of(ours)(x, ids, None)
    close(run(ours, x, ids, plain_tokens(14, ids.device)), expected)
    assert (run(ours, x, ids.clamp(max=END - 1), plain_tokens(14, ids.device)) - expected).abs().max() > 0.1


def test_what_is_before_an_end_is_not_seen() -> None:
    """Of the rows that are looked up, by which nothing of a token's own is hidden."""
    ours, ids = built(), torch.randint(0, END, (1, 6), generator=torch.Generator().manual_seed(1))
    ids[0, 3] = END
    other = ids.clone()
    other[0, :3] = (other[0, :3] + 1) % END
    rows = [ours._rows(each, Steps(), None)[0] for each in (ids, other)]
    same = (rows[0] == rows[1]).all(-1)[0].tolist()
    assert same == [False, False, False, False, True, True]


def test_sizes_are_primes_and_no_product_is_beyond_63_bits() -> None:
    """Of the released model: primes by another way, rows as its files have them by its card's 51.2B numbers."""
    (engram,) = {*preset("qwen3.8-flash-next").spec.nested(EngramSpec)}
    assert len({*engram.sizes}) == len(engram.sizes) == 16
    sieve = bytearray([1]) * 500
    for by in range(2, math.isqrt(20_000_500) + 1):
        for i in range(-20_000_000 % by, 500, by):
            sieve[i] = 0
    primes = [20_000_000 + i for i, left in enumerate(sieve) if left]
    assert list(engram.sizes) == primes[:16]
    assert list(engram.but(number=1).sizes) == primes[16:32]
    assert engram.all_rows % 128 == 0
    assert 0 <= engram.all_rows - sum(engram.sizes) < 128
    for number in (0, 1, 7):
        factors = engram.but(number=number).factors
        assert all(factor % 2 == 1 and factor * engram.vocab < 2**63 for factor in factors)
    assert engram.factors != engram.but(seed=1235).factors


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 4])
def test_a_dilated_convolution_is_that_of_torch(size: int, dilation: int) -> None:
    spec = CausalConvolutionSpec(size=size, dilation=dilation)
    module: Any = spec.build(Place(5, (5,)))
    module.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 11, 5, generator=torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(x.mT, (spec.tail, 0))
    expected = torch.nn.functional.conv1d(padded, module.weight, groups=5, dilation=dilation).mT
    with torch.no_grad():
        close(module(x, Steps(), None)[0], expected)
        first, tail = module(x[:, :4], Steps(), None)
        second, _ = module(x[:, 4:], Steps(), tail)
    close(torch.cat((first, second), 1), expected)


def test_a_single_stream_takes_it_too() -> None:
    """In a plain decoder, as the paper has it without hyper-connections; what is looked up is no embedding of tokens."""
    plain = shrink(preset("llama3-8b").spec)
    engram = EngramSpec(vocab=Vocab(plain.vocab_size), end=3, width=Width(32), rows=Vocab(20))
    first = plain.stack.blocks[0]
    ngrams = first.sublayers[0].but(branches=(first.sublayers[0].branches[0].but(mixer=engram),), norm_in=None)
    blocks = (first.but(sublayers=(ngrams, *first.sublayers)), *plain.stack.blocks[1:])
    spec = plain.but(stack=plain.stack.but(blocks=blocks))
    d_model, rows = plain.stack.d_model, engram.all_rows
    more = parameters(spec).total - parameters(plain).total
    assert more == rows * 2 + 32 * 2 * d_model + 3 * d_model + 4 * d_model
    model, ids = randomised(spec), torch.randint(0, plain.vocab_size, (2, 12))
    with torch.no_grad():
        cache = model.new_cache(2, 12)
        pieces = [model(piece, cache=cache).logits for piece in ids.split([5, 1, 6], 1)]
        close(torch.cat(pieces, 1), model(ids).logits)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: OF_SMALL.but(longest=1), "longest = 1 makes no n-gram"),
        (lambda: OF_SMALL.but(width=Width(17)), "must be a multiple of the 16 tables"),
        (lambda: OF_SMALL.but(number=10**6), "asks for 16,000,016 primes; 4,096 are the most"),
    ],
)
def test_refusals(make: Callable[[], object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        make()


def test_files_with_other_numbers_are_refused() -> None:
    """The hashes of a file must be those that its settings make."""
    family = FAMILIES["qwen4_exp_text"]
    (row,) = (row for row in family.rows(SMALL) if "layer_multipliers" in " ".join(row.theirs))
    (numbers,) = row.save(())
    assert row.load((numbers,)) == ()
    with pytest.raises(CheckpointError, match="is not what follows from the settings of n-grams"):
        row.load((numbers + 2,))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("eos_token_id", None, "must be the id of a token"),
        ("ple_layer_ids", [4], "must be a list of layers of linear attention"),
        ("ple_layer_ids", [7], "from 1 to 6"),
        ("output_gate_type", "gelu", "must be sigmoid or silu"),
        ("indexer_budget", 6, "must be a multiple of indexer_compress_ratio = 4"),
        ("indexer_head_dim", 2, "is less than the 4 features that turn"),
        ("indexer_kv_heads", 2, "is not computed here; only 1 is"),
    ],
)
def test_settings_that_the_class_refuses(name: str, value: object, said: str) -> None:
    family = FAMILIES["qwen4_exp_text"]
    settings = family.to_config(SMALL) | {name: value}
    with pytest.raises(CheckpointError, match=said):
        family.to_spec(Settings(settings, "config.json"))


def test_the_first_of_several_ends_counts() -> None:
    family = FAMILIES["qwen4_exp_text"]
    settings = family.to_config(SMALL) | {"eos_token_id": [7, 9]}
    assert {each.end for each in family.to_spec(Settings(settings, "config.json")).nested(EngramSpec)} == {7}
    assert af.loads(af.dumps(SMALL)) == SMALL
