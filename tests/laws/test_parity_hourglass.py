"""Law 6 for layers on blocks of tokens, held against Hourglass in plain torch, one text at a time."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from anyformer.costs import cost
from anyformer.families import PRESETS, preset
from anyformer.layers import ShortenedSpec
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, Window
from tests.laws.elsewhere import Oracle, compare
from tests.laws.inputs import inputs
from tests.laws.models import ids_for, randomised
from tests.laws.mutations import check_seen
from tests.laws.weights import edited
from tests.oracles.hourglass import hourglass


def but(spec: ModelSpec, **changes: Any) -> ModelSpec:
    return edited(spec, ShortenedSpec, lambda found: found.but(**changes))


ENWIK8, WIKI40B = (shrink(preset(f"hourglass-linear-{name}").spec) for name in ("enwik8", "wiki40b"))
HELD: dict[str, tuple[ModelSpec, Oracle]] = {
    "enwik8": (ENWIK8, partial(hourglass, before=2, inside=2, behind=1, every=3)),
    "wiki40b": (WIKI40B, partial(hourglass, before=2, inside=2, behind=1, every=4)),
    "means": (but(ENWIK8, pool=None, spread=None), partial(hourglass, before=2, inside=2, behind=1, every=3)),
}


def test_every_preset_of_the_family_is_held_against_the_oracle() -> None:
    family = [shrink(found.spec) for found in PRESETS.values() if found.family == "hourglass"]
    assert len(family) == 2
    assert all(spec in [held for held, _ in HELD.values()] for spec in family)


@pytest.mark.parametrize("kind", ["right", "left", "packed"])
@pytest.mark.parametrize("name", HELD)
def test_logits_and_gradients_are_those_of_the_oracle(name: str, kind: str) -> None:
    spec, oracle = HELD[name]
    compare(spec, oracle, inputs(kind, spec.vocab_size), by_our_names=True)


@pytest.mark.parametrize("changes", [{"norm": None}, {"pool": None}, {"spread": None}], ids=str)
def test_a_distinguishing_field_is_seen(changes: dict[str, Any]) -> None:
    check_seen(ENWIK8, but(ENWIK8, **changes))


def test_the_length_of_blocks_is_seen() -> None:
    means = but(ENWIK8, pool=None, spread=None)
    check_seen(means, but(means, every=Window(4)))


def test_a_cache_has_a_slot_for_each_block() -> None:
    kinds = {kind.kind: kind for kind in cost("hourglass-linear-enwik8", seq_len=2048, dtype="float32").cache}
    assert (kinds["full"].calls, kinds["blocks of 3"].calls, kinds["state"].calls) == (10, 24, 1)
    assert kinds["blocks of 3"].tokens == 2048 // 3
    assert kinds["blocks of 3"].nbytes == 24 * 2 * 512 * 4 * (2048 // 3)  # layers, keys and values, d_model, float32


def test_decoding_runs_the_layers_inside_when_a_block_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids, ran = randomised(ENWIK8), ids_for(ENWIK8, 1, 9), []
    inner = model.stack.blocks[2].sublayers[0].branches[0].mixer.blocks[0]
    inner.register_forward_pre_hook(lambda _, given: ran.append(given[0].shape[1]))
    cache = model.new_cache(1, 9)
    with torch.no_grad():
        for i in range(9):
            model(ids[:, i : i + 1], cache=cache)
    assert ran == [1, 1, 1]  # of nine tokens every third ends a block
