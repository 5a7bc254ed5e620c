"""A model whose weights are held in few bits is the model of the numbers held, whatever its parts, cached too."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from anyformer.cache import KVCache
from anyformer.layers import MoESpec, int4, int8
from anyformer.layers.causality import later_tokens_seen
from anyformer.layers.packed import PackedWeight
from anyformer.layers.packing import Packing, packed_nbytes, packed_weights
from anyformer.model import Transformer
from anyformer.spec import ModelSpec
from tests.laws.models import SHRUNK, ids_for, one_chunk, per_token, randomised, runner
from tests.laws.tolerance import FLOAT32_READ, close
from tests.laws.weights import edited

HARD = (
    *("gpt2", "llama3-8b", "gemma3n-e4b", "t5-small", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b"),
    *("qwen3-next-80b-a3b", "mamba2-130m", "xlnet-base", "albert-base"),
)


def packed(model: Transformer, packing: Packing) -> tuple[Transformer, Transformer]:
    """Return the model with its weights packed, and one with the numbers that they then stand for."""
    held = {name: weight.detach() for name, weight in model.named_parameters()}
    schemes = packed_weights(model.spec, packing)
    few = held | {name: PackedWeight.of(held[name], scheme) for name, scheme in schemes.items()}
    plain = held | {name: few[name].plain() for name in schemes}  # type: ignore[union-attr]
    there = randomised(model.spec)
    there.load_state_dict(plain, assign=True)
    model.requires_grad_(False).load_state_dict(few, assign=True)
    return model, there


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(spec, id=name, marks=[] if set(name.split(" = ")) & set(HARD) else pytest.mark.slow)
        for name, spec in SHRUNK.items()
    ],
)
def test_every_part_multiplies_by_what_is_held(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the vectors' own dtype; without a capacity, for which a pass's tokens compete."""
    spec = edited(one_chunk(spec), MoESpec, lambda mixture: mixture.but(capacity=None))
    for module in (int4, int8):
        monkeypatch.setattr(module, "FEW", 0)
    found, there = packed(randomised(spec), "int4")
    assert sum(each.nbytes for each in found.parameters()) == packed_nbytes(spec, "int4")
    ids = ids_for(spec, 2, 9)
    heads = per_token(spec) or None
    ours, theirs = (runner(model)(ids) for model in (found, there))
    close(ours.last_hidden_state, theirs.last_hidden_state, FLOAT32_READ)
    if heads and ours.logits is not None:
        close(ours.logits, theirs.logits, FLOAT32_READ)
    if later_tokens_seen(spec.stack, after_prefix=True) is None and ours.logits is not None and heads:
        for rows, cuts in ((2, (0, 3, 6, 9)), (1, (0, 7, 8, 9))):  # of one row token by token, as text is written
            with torch.inference_mode():
                cache = KVCache(spec, batch=rows, length=9)
                parts = [runner(found)(ids[:rows, a:b], cache=cache).logits for a, b in pairwise(cuts)]
            close(torch.cat(parts, 1), theirs.logits[:rows], FLOAT32_READ)
