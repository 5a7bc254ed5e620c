"""DeepSeek sparse attention: against the attention of transformers' DeepseekV32ForCausalLM, and by hand."""

from __future__ import annotations

import pytest
import torch
from transformers.models.deepseek_v32 import DeepseekV32Config
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer

import anyformer as af
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import AttentionSpec, Causal, GQASpec, IndexerSpec, RotarySpec
from anyformer.layers.indexer import Indexer
from anyformer.layers.tokens import Tokens
from anyformer.resizing import shrink
from anyformer.spec import Count, ModelSpec, Place, Width, Window, Workload
from tests.laws.models import ids_for, randomised
from tests.laws.tolerance import close, distance

CHOICE = IndexerSpec(n_heads=Count(9), head_dim=Width(8), top_k=Window(4), rotary=RotarySpec(fraction=0.5))


def with_choice(name: str, choice: IndexerSpec | None = CHOICE) -> ModelSpec:
    return changed(shrink(preset(name).spec), AttentionSpec, indexer=choice)


@pytest.mark.parametrize("name", ["deepseek-v3", "llama3-8b"])
def test_cached_is_uncached_and_padding_changes_nothing(name: str) -> None:
    spec = with_choice(name)
    model, ids = randomised(spec), ids_for(spec, 2, 14)
    assert distance(model(ids).logits, randomised(with_choice(name, None))(ids).logits) > 0.01
    with torch.no_grad():
        whole = model(ids).logits
        cache, pieces = model.new_cache(2, 14), []
        for piece in ids.split((6, 1, 3, 1, 1, 2), 1):
            pieces.append(model(piece, cache=cache).logits)
        close(torch.cat(pieces, 1), whole)
        close(model(ids, kernel="eager").logits, model(ids, kernel="sdpa").logits)
        padded = torch.cat((ids.new_zeros(2, 3), ids), 1)
        mask = torch.ones_like(padded)
        mask[:, :3] = 0
        close(model(padded, attention_mask=mask).logits[:, 3:], whole)
