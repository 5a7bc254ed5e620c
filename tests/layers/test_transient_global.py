"""Sums of blocks as keys: which token belongs to which, against a loop; padding and packing; what it does not go with."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import AttentionSpec, CompressorSpec, RotarySpec, ShawKeysSpec, TransientGlobalSpec
from anyformer.layers.causality import later_tokens_seen
from anyformer.layers.tokens import Tokens
from anyformer.layers.transient_global import summed
from anyformer.model import build
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, Spec, Window

EVERY = 4
SPEC = shrink(preset("long-t5-tglobal-base").spec)
assert SPEC.encoder is not None
ATTENTION = next(SPEC.encoder.nested(AttentionSpec))


def by_hand(document: list[int]) -> list[tuple[int, ...]]:
    """Return which tokens of a row each block is of: whole blocks of a text, its last tokens with the last of them."""
    found: list[tuple[int, ...]] = []
    for one in sorted({*document} - {0}):
        own = [i for i, each in enumerate(document) if each == one]
        n = len(own) // EVERY
        found += [tuple(own[EVERY * i : EVERY * (i + 1) if i < n - 1 else len(own)]) for i in range(n)]
    return found


def facts(document: Tensor) -> Tokens:
    """Return tokens whose positions begin at 0 in each text of [row, token]."""
    begun = [[sum(row[j] == row[i] for j in range(i)) for i in range(len(row))] for row in document.tolist()]
    return Tokens(torch.tensor(begun), document)


@pytest.mark.parametrize(
    "document",
    [
        [1] * 11,
        [1] * 12,
        [1] * 3,
        [0, 0, 0, *[1] * 10],
        [*[1] * 9, 0, 0, 0],
        [*[1] * 6, *[2] * 9, *[3] * 2],
        [*[1] * 3, *[2] * 8],
    ],
)
def test_tokens_are_summed_with_their_block(document: list[int]) -> None:
    blocks, of = summed(facts(torch.tensor([document])), EVERY)
    assert blocks.document is not None
    real = [i for i, whose in enumerate(blocks.document[0].tolist()) if whose]
    found = [tuple(i for i, block in enumerate(of[0].tolist()) if block == one) for one in real]
    assert found == by_hand(document)
    elsewhere = {i for i, block in enumerate(of[0].tolist()) if block == blocks.n}
    assert elsewhere == {*range(len(document))} - {i for block in found for i in block}


@pytest.mark.parametrize("n", [3, 4, 9, 23])
def test_padding_changes_nothing(n: int) -> None:
    """Of a text too short for a block as well; by every kernel that takes it."""
    model = build(SPEC, seed=0)
    ids = torch.randint(0, SPEC.vocab_size, (1, n), generator=torch.Generator().manual_seed(0))
    begun = torch.zeros(1, 2, dtype=torch.long)

    def logits(before: int, behind: int, kernel: str) -> Tensor:
        padded = torch.nn.functional.pad(ids, (before, behind))
        mask = torch.nn.functional.pad(torch.ones_like(ids), (before, behind))
        with torch.no_grad():
            return model(padded, mask, decoder_input_ids=begun, kernel=kernel).logits

    plain = logits(0, 0, "eager")
    for before, behind in ((0, 5), (5, 0), (3, 2)):
        for kernel in ("eager", "sdpa", "rows"):
            assert torch.allclose(logits(before, behind, kernel), plain, atol=1e-5)


def test_it_sees_later_tokens() -> None:
    assert later_tokens_seen(ATTENTION) == "TransientGlobal"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"compressor": CompressorSpec(every=Window(4))}, "compressor or indexer"),
        ({"projection": ATTENTION.projection.but(rotary=RotarySpec())}, "which do not turn"),
        ({"keys": "k"}, "on its own tokens"),
        ({"scores": (ShawKeysSpec(farthest=Window(3)),)}, "have no place for ShawKeys"),
    ],
)
def test_what_it_does_not_go_with_is_refused(fields: dict[str, Spec], said: str) -> None:
    with pytest.raises(SpecError, match=rf"Attention\.transient = .*{said}"):
        ATTENTION.but(**fields)


def test_blocks_of_a_power_of_two_stay_so() -> None:
    def least(every: int) -> ModelSpec:
        return shrink(changed(preset("long-t5-tglobal-base").spec, TransientGlobalSpec, every=Window(every)))

    assert [next(least(every).nested(TransientGlobalSpec)).every for every in (16, 12)] == [4, 5]
