"""Law 6 for BigBird: blocks of a text of any length, what full attention changes, scaled embeddings, missing biases."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from anyformer.errors import CheckpointError
from anyformer.families import FAMILIES, preset
from anyformer.families.hf.mapping import fitting, spec_of, theirs_of
from anyformer.layers import GELU, AttentionSpec, Everything, FirstBlockAgainSpec, GlobalBlocks
from anyformer.layers.counting import counted
from anyformer.resizing import shrink
from anyformer.spec import Count, ModelSpec, Window
from tests.laws.inputs import inputs_for
from tests.laws.mutations import Mutation, check_mutation, each_mutation
from tests.laws.parity import differences, pair
from tests.laws.tolerance import FLOAT32, distance
from tests.laws.weights import filled, telling

NAME = "bigbird-base"
PADDING = 2


def small(size: int = 4, n_random: int = 2) -> ModelSpec:
    """Return a shrunk preset with other blocks."""
    from anyformer.families.bigbird import block_sparse

    return block_sparse(shrink(preset(NAME).spec), size, n_random)


def logits(spec: ModelSpec, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Return ours and theirs; their class fills the last block up with a token of padding."""
    family, settings = fitting(FAMILIES.values(), spec)
    weights = telling(spec)
    config = transformers.AutoConfig.for_model(family.hf_type, **settings, pad_token_id=PADDING)
    theirs: Any = transformers.BigBirdForPreTraining._from_config(config).eval()
    theirs.load_state_dict(dict(theirs_of(family.rows(spec), weights.__getitem__)), strict=False)
    with torch.no_grad():
        ours = filled(spec, weights)(ids, heads=["mlm"]).logits
        return ours, theirs(ids).prediction_logits, theirs


@pytest.mark.parametrize("n", [36, 37, 39, 40, 43, 61, 64])  # up to 4 · (5 + 2 · 2) tokens see all
def test_blocks_are_theirs(n: int) -> None:
    spec = small()
    ids = torch.randint(3, spec.vocab_size, (2, n), generator=torch.Generator().manual_seed(n))
    ours, expected, theirs = logits(spec, ids)
    assert theirs.bert.attention_type == ("original_full" if n <= 36 else "block_sparse")
    assert distance(ours, expected) < FLOAT32


@pytest.mark.parametrize(
    "change", [{"attention_type": "original_full"}, {"rescale_embeddings": True}, {"use_bias": False}]
)
def test_other_settings(change: dict[str, Any]) -> None:
    spec = shrink(preset(NAME).spec)
    family, settings = fitting(FAMILIES.values(), spec)
    _, other = spec_of(FAMILIES, {"model_type": family.hf_type, **settings, **change}, "config.json")
    assert other != spec
    for kind in ("plain", "left"):
        found = differences(pair(other), inputs_for(kind, other))
        assert max(found.logits, found.hidden, found.gradients) < FLOAT32


MUTATIONS: dict[str, list[Mutation]] = {
    NAME: [
        (AttentionSpec, {"mask": Everything()}),
        (AttentionSpec, {"scores": ()}),
        (FirstBlockAgainSpec, {"n_random": Count(2)}),
        (GlobalBlocks, {"size": Window(4)}),
        (GELU, {"form": "erf"}),
    ]
}


@each_mutation(MUTATIONS)
def test_a_distinguishing_field_is_seen(name: str, part: Any, fields: dict[str, Any]) -> None:
    check_mutation(name, part, fields)


@pytest.mark.parametrize("n", [1, 27, 28, 29, 41, 44, 60])
def test_pairs_are_those_that_the_mask_shows(n: int) -> None:
    mask = GlobalBlocks(size=Window(4), n_random=Count(1))
    assert mask.pairs(n, 0, 3) == counted(mask, n, 0, 3)


def test_an_unknown_attention_is_refused() -> None:
    config = {"model_type": "big_bird", **FAMILIES["big_bird"].to_config(shrink(preset(NAME).spec))}
    with pytest.raises(
        CheckpointError,
        match="attention_type = 'sparse' is not computed here; only 'original_full' or 'block_sparse' is",
    ):
        spec_of(FAMILIES, config | {"attention_type": "sparse"}, "config.json")
