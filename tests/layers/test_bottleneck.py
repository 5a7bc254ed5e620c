"""Bottlenecks: layers on a narrow stream, against PyTorch by hand; what they cost; what they do not go with."""

from __future__ import annotations

import pytest
import torch

from anyformer.costs import cost
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import BottleneckSpec, GQASpec, LinearSpec, TokensSpec
from anyformer.layers.causality import later_tokens_seen
from anyformer.model import build
from anyformer.resizing import resize, shrink
from anyformer.spec import HeadSpec, Place, TableSpec, Vocab, Width
from tests.laws.models import ids_for, randomised
from tests.laws.tolerance import close

FULL = preset("mobilebert-uncased").spec
SPEC = shrink(FULL)
TABLE, BESIDE = "shared.tokens.weight", "heads.0.beside"


def test_its_flops_are_those_of_its_maps() -> None:
    """By the sizes of the paper's table 1: a layer's bottlenecks, four feed-forwards, and attention whose values are wide."""
    n, d, w, layers = 128, 512, 128, 24
    found = cost(FULL, seq_len=n).forward_flops
    assert found["bottlenecks"] == 2 * n * (3 * d * w) * layers
    assert found["projections"] == 2 * n * (2 * w * w + d * w + w * w) * layers
    assert found["feed-forward"] == 2 * n * (4 * 2 * w * d) * layers
    assert found["linear"] == 2 * n * 3 * w * d
    assert found["scores"] == found["values"] == 2 * n * n * w * layers


def test_a_vector_is_of_three_tokens_of_a_text() -> None:
    """None is read across the ends of a text, nor padding."""
    ids, texts = ids_for(SPEC, 1, 9), torch.tensor([[1, 1, 1, 2, 2, 0, 0, 3, 3]])
    model = randomised(SPEC)
    with torch.no_grad():
        packed = model(ids, texts, heads=["mlm"]).logits
        for one in (1, 2, 3):
            close(packed[:, texts[0] == one], model(ids[:, texts[0] == one], heads=["mlm"]).logits)
    of_map = "stack.embedding.terms.0.projection.weight"
    assert model.get_parameter(of_map).shape == (SPEC.stack.d_model, 3 * model.get_parameter(TABLE).shape[1])
    assert later_tokens_seen(SPEC.stack.embedding) == "Tokens"


def test_logits_are_of_the_table_and_of_features_beside_it() -> None:
    model = randomised(SPEC)
    head, table, beside = model.heads[0], model.get_parameter(TABLE), model.get_parameter(BESIDE)
    x = torch.randn(1, 3, SPEC.stack.d_model, generator=torch.Generator().manual_seed(0))
    n = table.shape[1]
    with torch.no_grad():
        by_hand = x[..., :n] @ table.T + x[..., n:] @ beside.T + head.bias
        close(head.logits(x), by_hand)


def test_a_loss_reaches_both_tables() -> None:
    model, ids = build(SPEC, seed=0), ids_for(SPEC, 2, 8)
    loss = model(ids, labels=ids).loss
    assert loss is not None
    loss.backward()
    for name in (TABLE, BESIDE):
        gradient = model.get_parameter(name).grad
        assert gradient is not None
        assert gradient.abs().sum() > 0


def test_a_larger_one_has_larger_bottlenecks() -> None:
    wide = resize(FULL, d_model=1024)
    bottleneck = next(wide.nested(BottleneckSpec))
    assert bottleneck.into.width_out(Place(1024, (1024,))) == 256
    build(shrink(wide))


def test_what_they_do_not_go_with_is_refused() -> None:
    bottleneck = next(SPEC.nested(BottleneckSpec))
    assert bottleneck.reads is not None
    narrower = changed(bottleneck.reads, LinearSpec, d_out=Width(4))
    with pytest.raises(SpecError, match=r"Bottleneck\.reads = .* another width than into, which is 8"):
        build(changed(SPEC, BottleneckSpec, reads=narrower))
    with pytest.raises(SpecError, match="Bottleneck reads one stream"):
        bottleneck.parts(Place(32, (32,), n_streams=4))
    with pytest.raises(SpecError, match=r"GQA\.values_read = 'outer' needs a stream around"):
        build(changed(shrink(preset("bert-base").spec), GQASpec, values_read="outer"))
    with pytest.raises(SpecError, match=r"GQA\.values_read = 'outer' are of a map of their own"):
        changed(next(SPEC.nested(GQASpec)), GQASpec, values_are_keys=True, bias_value=False)
    with pytest.raises(SpecError, match=r"Tokens\.span = 2 must be odd"):
        changed(SPEC.stack, TokensSpec, span=2)
    with pytest.raises(SpecError, match=r"Tokens\.span = 3 is projected"):
        changed(SPEC.stack, TokensSpec, projection=None)
    with pytest.raises(SpecError, match=r"Head\.beside = True is of the features that a tied table"):
        HeadSpec(table=TableSpec(rows=Vocab(9)), beside=True)
