"""Any map may stand where a norm may, if it keeps the width of what is read there; another is refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

import anyformer as af
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import GQASpec, LinearSpec, MLASpec, S6Spec, TokensSpec
from anyformer.resizing import shrink
from anyformer.spec import AheadSpec, BranchSpec, EmbeddingSpec, StackSpec, SublayerSpec, Width
from tests.laws.models import ids_for

FIVE = "gives vectors of 5 features, and those there have {}; take a map that keeps their width"


@pytest.mark.parametrize(
    ("name", "kind", "field", "says"),
    [
        ("llama2-7b", BranchSpec, "norm_in", "Branch.norm_in = Linear " + FIVE.format(32)),
        ("llama2-7b", SublayerSpec, "skip", "Sublayer.skip = Linear " + FIVE.format(32)),
        ("llama2-7b", StackSpec, "norm", "Stack.norm = Linear " + FIVE.format(32)),
        ("llama2-7b", GQASpec, "norm_query", "GQA.norm_query = Linear " + FIVE.format(8)),
        ("deepseek-v2-lite", MLASpec, "norm_kv", "MLA.norm_kv = Linear " + FIVE.format(64)),
        ("falcon-mamba-7b", S6Spec, "norm", "S6.norm_step = Linear " + FIVE.format(2)),
        ("llama2-7b", TokensSpec, "projection", "Tokens.projection = Linear must give vectors of 32 features, as all"),
        ("albert-base", EmbeddingSpec, "projection", "Embedding.projection = Linear must give vectors of d_model = 32"),
        ("deepseek-v3-mtp", AheadSpec, "hidden", "Ahead.hidden = Linear must give vectors of d_model = 32"),
        ("deepseek-v3-mtp", AheadSpec, "token", "Ahead.token = Linear must give vectors of d_model = 32"),
    ],
)
def test_a_map_of_another_width_is_refused(name: str, kind: type[Any], field: str, says: str) -> None:
    with pytest.raises(SpecError) as told:
        af.build(changed(shrink(preset(name).spec), kind, **{field: LinearSpec(d_out=Width(5))}))
    assert says in str(told.value)


def test_one_that_keeps_it_stands_there() -> None:
    spec = changed(shrink(preset("llama2-7b").spec), BranchSpec, norm_in=LinearSpec())
    spec = changed(spec, GQASpec, norm_query=LinearSpec(d_out=Width(8)))
    assert af.build(spec, seed=0)(ids_for(spec, 1, 5)).logits.shape == (1, 5, spec.vocab_size)
