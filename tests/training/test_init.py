"""A run starts from published weights, whatever lineage they are of, and what it leaves is exported again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from anyformer.errors import CheckpointError
from anyformer.families import FAMILIES, PRESETS
from anyformer.hub import convert, load, load_spec, save
from anyformer.layers import EngramSpec, RMSNormSpec, RouterSpec
from anyformer.recipe import AdamW, Constant, Recipe
from anyformer.spec import ModelSpec, TableSpec, Vocab
from anyformer.text.packing import NOT_PREDICTED
from anyformer.training.run import RunOptions, train
from tests.laws.models import DECODERS, randomised
from tests.laws.references import COMPARED
from tests.laws.weights import edited
from tests.training.crashing import crashed
from tests.training.models import VOCAB
from tests.training.texts import text_data

# The first preset of each lineage of decoders that has a class in transformers.
FIRST: dict[str, tuple[str, ModelSpec]] = {}
for names, spec in COMPARED.items():
    if names in DECODERS:
        FIRST.setdefault(PRESETS[names.split(" = ")[0]].family, (names.split(" = ")[0], spec))
RECIPE = Recipe(tokens=2 * 64, batch_tokens=64, seq_len=8, optimizer=AdamW(lr=1e-3), schedule=(Constant(),))
HOW = RunOptions(device=torch.device("cpu"), validations=0, plan=False)


def small(spec: ModelSpec) -> ModelSpec:
    """With rows for the text's vocabulary."""
    spec = edited(spec, EngramSpec, lambda engram: engram.but(vocab=Vocab(VOCAB)))
    return edited(spec, TableSpec, lambda table: table.but(rows=Vocab(VOCAB)))


def first_loss(directory: Path) -> float:
    """The loss of the weights in a directory on the run's first batch, from logits."""
    rows, model = next(text_data().feed(RECIPE)), load(directory)[0]
    ids, documents, positions, labels = (
        torch.as_tensor(array).long() for array in (rows.input_ids, rows.document, rows.positions, rows.labels)
    )
    with torch.no_grad():
        logits: Tensor = model(ids, attention_mask=documents, position_ids=positions).logits
    return cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NOT_PREDICTED).item()


def test_every_lineage_is_tried() -> None:
    known = {PRESETS[names.split(" = ")[0]].family for names in COMPARED if names in DECODERS}
    assert set(FIRST) == known
    assert len(known) >= 20


@pytest.mark.in_turn
@pytest.mark.parametrize("lineage", FIRST)
def test_a_run_starts_where_the_weights_are_and_is_exported(lineage: str, tmp_path: Path) -> None:
    spec = small(FIRST[lineage][1])
    save(randomised(spec), tmp_path / "given", form="hf")
    # By the directory's own specification, and by the preset's, which spells the same otherwise.
    found = train(load_spec(tmp_path / "given"), RECIPE, text_data(), init=tmp_path / "given", options=HOW)
    result = train(spec, RECIPE, text_data(), init=tmp_path / "given", out=tmp_path / "run", options=HOW)
    expected = first_loss(tmp_path / "given")
    # A router that draws its experts in training does not choose as it does without: both runs must draw alike.
    draws = any(isinstance(part, RouterSpec) and part.draws for part in spec.nested())
    expected = found.steps[0].loss if draws else expected
    assert result.steps[0].loss == pytest.approx(expected, rel=1e-5)
    assert found.steps[0].loss == pytest.approx(expected, rel=1e-5)
    assert len(result.steps) == 2
    assert abs(result.steps[1].loss - result.steps[0].loss) > 1e-5
    saved = convert(tmp_path / "run", tmp_path / "hf", form="hf")
    assert json.loads((saved.path / "config.json").read_text())["model_type"] in FAMILIES
    back, kept = load(saved.path)[0].state_dict(), result.model.state_dict()
    before = load(tmp_path / "given")[0].state_dict()
    assert list(back) == list(kept)
    assert all(torch.equal(back[name], kept[name]) for name in kept)
    assert any(not torch.equal(back[name], before[name]) for name in kept)


def test_shared_parts_may_have_other_names(tmp_path: Path) -> None:
    spec = small(FIRST["gpt2"][1])
    save(randomised(spec), tmp_path / "given")
    other = edited(spec, TableSpec, lambda table: table.but(shared=table.shared and "rows"))
    result = train(other, RECIPE, text_data(), init=tmp_path / "given", options=HOW)
    assert result.steps[0].loss == pytest.approx(first_loss(tmp_path / "given"), rel=1e-5)


def test_weights_of_another_model_are_refused_naming_the_field(tmp_path: Path) -> None:
    spec = small(FIRST["llama"][1])
    save(randomised(spec), tmp_path / "given")
    other = edited(spec, RMSNormSpec, lambda norm: norm.but(eps=1e-3))
    with pytest.raises(CheckpointError, match=r"the weights in .*given are of another architecture: .*eps is 1e-0"):
        train(other, RECIPE, text_data(), init=tmp_path / "given", options=HOW)


def test_a_run_with_a_checkpoint_needs_what_it_began_from_no_more(tmp_path: Path) -> None:
    """One without any begins again from what is there now, under the same name alone."""
    spec, given, how = (
        small(FIRST["llama"][1]),
        tmp_path / "given",
        RunOptions(device=HOW.device, plan=False, save_every=1),
    )
    save(randomised(spec), given)
    whole = train(spec, RECIPE, text_data(), init=given, options=how)
    for name, at in (("none", 1), ("one", 2)):
        crashed(at, spec, RECIPE, text_data(), init=given, out=tmp_path / name, options=how)
    given.rename(tmp_path / "moved")
    again = train(spec, RECIPE, text_data(), init=given, out=tmp_path / "one", options=how)
    assert [step.loss for step in again.steps] == [step.loss for step in whole.steps]
    with pytest.raises(CheckpointError, match=r"there is nothing at .*given"):
        train(spec, RECIPE, text_data(), init=given, out=tmp_path / "none", options=how)
    with pytest.raises(CheckpointError, match=r"a run on another init: .*given there and .*moved here"):
        train(spec, RECIPE, text_data(), init=tmp_path / "moved", out=tmp_path / "none", options=how)
    save(randomised(spec, 5), given)
    anew = train(spec, RECIPE, text_data(), init=given, out=tmp_path / "none", options=how)
    assert anew.steps[0].loss == pytest.approx(first_loss(given), rel=1e-5)
    assert anew.steps[0].loss != whole.steps[0].loss
