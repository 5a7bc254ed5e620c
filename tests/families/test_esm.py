"""ESM: masked tokens dropped and made up for, and contacts read off attention, as transformers' classes have them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import anyformer as af
from anyformer.errors import InputError, SpecError, UsageError
from anyformer.families import preset
from anyformer.families.bert import bert, pretraining
from anyformer.families.compose import changed
from anyformer.families.esm import MASK, PADDING, esm2
from anyformer.families.heads import contacts
from anyformer.families.mamba import mamba
from anyformer.hub import load
from anyformer.layers import TokenDropoutSpec, TokensSpec
from anyformer.layers.causality import later_tokens_seen
from anyformer.layers.tokens import Tokens, plain_tokens
from anyformer.model import build
from anyformer.recipe import MaskedLM, Recipe
from anyformer.resizing import shrink
from anyformer.spec import Place, Workload, parameters
from anyformer.spec.part import inside
from anyformer.training.objectives.objective import objective_of
from anyformer.training.prepare import with_head
from tests.laws.models import flop_counter, ids_for, randomised
from tests.laws.parity import pair
from tests.laws.tolerance import FLOAT32, close, distance
from tests.training.noisy import text_data, tokenizer

KINDS = ("esm2-650m", "esm1b-650m")
FIRST, LAST = 0, 2  # what frames a protein


def proteins(masked: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Two framed rows, the second padded, every third residue of them hidden; and their mask."""
    ids = torch.randint(4, 30, (2, 14), generator=torch.Generator().manual_seed(3))
    if masked:
        ids[0, 2::3], ids[1, 3:5] = MASK, MASK
    ids[:, 0], ids[0, -1], ids[1, 9], ids[1, 10:] = FIRST, LAST, LAST, PADDING
    return ids, (torch.arange(14) < torch.tensor([[14], [10]])).long()


def test_the_total_is_the_classes() -> None:
    """All tensors of the class at full size, the head for contacts among them (33 layers of 20 heads, and a bias)."""
    config = transformers.EsmConfig(
        vocab_size=33, hidden_size=1280, num_hidden_layers=33, num_attention_heads=20, intermediate_size=5120,
        position_embedding_type="rotary", emb_layer_norm_before=False,
    )  # fmt: skip
    with torch.device("meta"):
        theirs = transformers.EsmForMaskedLM(config)
    total = sum(p.numel() for p in theirs.parameters())
    assert parameters(preset("esm2-650m").spec).total == total == 651_043_254
    assert sum(p.numel() for p in theirs.esm.contact_head.parameters()) == 661


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_masked_tokens_are_dropped_as_theirs(name: str, mask: bool) -> None:
    both, (ids, real) = pair(shrink(preset(name).spec)), proteins(masked=True)
    given = {"attention_mask": real} if mask else {}
    with torch.no_grad():
        ours, theirs = (each(ids, **given, output_hidden_states=True) for each in (both.ours, both.theirs))
        plain = both.ours(ids.where(ids != MASK, 5), **given).logits
    close(ours.hidden_states[0], theirs.hidden_states[0])  # padding enters as zero
    if mask:
        close(ours.logits[real > 0], theirs.logits[real > 0])
    else:
        close(ours.logits, theirs.logits)
    assert distance(plain, ours.logits) > 0.01


def test_each_text_of_a_packed_row_makes_up_for_its_own_masks() -> None:
    spec = TokenDropoutSpec(token=3, share=0.2)
    ids = torch.tensor([[1, 3, 3, 5, 3, 6, 7, 8], [3, 3, 4, 4, 4, 3, 0, 0]])
    document = torch.tensor([[1, 1, 1, 1, 2, 2, 2, 2], [7, 7, 9, 9, 9, 9, 0, 0]])
    found = spec.factors(ids, Tokens(torch.arange(8)[None], document), torch.float32)[..., 0]
    expected = torch.zeros(2, 8)
    for row in range(2):
        for at in range(8):
            text = [int(i) for i, d in zip(ids[row], document[row], strict=True) if d == document[row, at] and d]
            if ids[row, at] != 3 and text:
                expected[row, at] = 0.8 / (1 - text.count(3) / len(text))
    torch.testing.assert_close(found[document > 0], expected[document > 0])
    assert found.isfinite().all()
    alone = spec.factors(ids[:1, :4], plain_tokens(4, ids.device), torch.float32)[..., 0]
    torch.testing.assert_close(alone, found[:1, :4])


def test_any_model_of_masked_words_may_drop_them() -> None:
    """In BERT the tokens' vectors are dropped, those of positions and segments are not; and it is no decoder any more."""
    spec = shrink(pretraining(bert(n_layers=2, d_model=32, n_heads=4)))
    dropping = changed(spec, TokensSpec, dropout=TokenDropoutSpec(token=3))
    ids = ids_for(spec, 2, 9).clamp(min=4)
    ids[:, 2:5] = 3
    model, plain = randomised(dropping), randomised(spec)
    with torch.no_grad():
        table: Any = plain.get_parameter("shared.tokens.weight")
        table *= 0.88 / (1 - 3 / 9)
        table[3] = 0
        found, expected = (each(ids, output_logits=False).last_hidden_state for each in (model, plain))
    close(found, expected)
    decoder = changed(shrink(preset("gpt2").spec), TokensSpec, dropout=TokenDropoutSpec(token=3))
    assert later_tokens_seen(decoder.stack) == "TokenDropout"
    assert af.loads(af.dumps(dropping)) == dropping


@pytest.mark.parametrize("name", KINDS)
def test_contacts_are_theirs(name: str) -> None:
    """Probabilities and gradients; theirs leaves out the first place and the last, ours scores 0 features there."""
    both, (ids, real) = pair(shrink(preset(name).spec)), proteins()
    scores = both.ours(ids, real, heads=["contacts"]).outputs["contacts"][..., 0]
    theirs = both.theirs.predict_contacts(ids, real)
    close(scores.sigmoid()[:, 1:-1, 1:-1], theirs)
    weights = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(1))
    (scores.sigmoid()[:, 1:-1, 1:-1] * weights).sum().backward()
    (theirs * weights).sum().backward()
    ours, known = both.our_gradients(), both.gradients()
    for ending in ("heads.1.table.weight", "stack.blocks.0.sublayers.0.branches.0.mixer.projection.q.weight"):
        assert distance(ours[ending], known[ending]) < FLOAT32
    assert "contacts" not in both.ours(ids, real).outputs


def test_contacts_ask_for_weights() -> None:
    model, ids = randomised(shrink(esm2(2, 32, 4))), proteins()[0]
    with pytest.raises(InputError, match="the head 'contacts' reads attention's weights; take kernel='eager'"):
        model(ids, heads=["contacts"], kernel="sdpa")
    with pytest.raises(InputError, match="several documents"):
        model(ids, torch.tensor([[1] * 7 + [2] * 7] * 2), heads=["contacts"])
    assert set(model(ids, heads=["mlm", "contacts"]).outputs) == {"mlm", "contacts"}
    assert set(model(ids, output_attentions=True).outputs) == {"mlm"}
    with pytest.raises(SpecError, match="the head 'contacts' reads attention's weights, and no layer has any"):
        parameters(mamba(2, 32).but(heads=(contacts(),)))


def test_contacts_of_a_row_without_residues_are_finite() -> None:
    spec = shrink(esm2(2, 32, 4))
    scores = randomised(spec)(torch.tensor([[0, 2]]), heads=["contacts"]).outputs["contacts"]
    assert scores.isfinite().all()


def test_the_cost_of_contacts_is_what_pytorch_counts() -> None:
    spec = shrink(esm2(2, 32, 4))
    model, maps = build(spec), torch.rand(3, 8, 9, 9)
    head, place = next((part, place) for name, part, place in inside(spec, Place()) if name == "heads.1")
    with flop_counter() as counter:
        model.heads[1](maps, plain_tokens(9, maps.device))
    assert head.cost(place, Workload(batch=3, query=9)).flops == counter.get_total_flops() == 2 * 3 * 81 * 8
    assert "contacts" not in spec.cost(Place(), Workload(batch=3, query=9))


def test_every_other_class_comes_back_with_its_heads(tmp_path: Any) -> None:
    """A bare model without a pooler, as EsmForMaskedLM holds one, too."""
    config = transformers.EsmConfig(
        vocab_size=33, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, pad_token_id=1,
        mask_token_id=32, token_dropout=True, position_embedding_type="rotary", layer_norm_eps=1e-5,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs: Any = transformers.EsmModel(config, add_pooling_layer=False).eval()
    theirs.save_pretrained(tmp_path / "bare")
    model, _ = load(tmp_path / "bare")
    assert [head.name for head in model.spec.heads] == ["contacts"]
    ids, real = proteins()
    with torch.no_grad():
        close(model(ids, real).last_hidden_state[real > 0], theirs(ids, real).last_hidden_state[real > 0])


def test_training_drops_the_tokenizers_mask() -> None:
    own, data = tokenizer(), text_data(tokenizer())
    (mask,) = own.encode("<mask>", specials=True)
    spec = changed(shrink(esm2(2, 32, 4)), TokenDropoutSpec, token=mask + 1)
    recipe = Recipe(objective=MaskedLM(), tokens=1000, batch_tokens=100, seq_len=20)
    with pytest.raises(UsageError, match=rf"TokenDropout.token = {mask + 1} .* the tokenizer's is {mask}"):
        objective_of(recipe.objective, spec).check(recipe, data)
    fitted, _ = with_head(spec, recipe, data)
    assert next(part for part in fitted.nested() if isinstance(part, TokenDropoutSpec)).token == mask
    objective_of(recipe.objective, fitted).check(recipe, data)
