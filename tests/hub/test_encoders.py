"""Files of encoders as they lie about: of other classes than the configuration names, of old releases, without a pooler."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from anyformer.errors import CheckpointError
from anyformer.families import preset
from anyformer.families.heads import row_classes
from anyformer.hub import load, save
from anyformer.layers import ReLU
from anyformer.model import Transformer
from anyformer.resizing import shrink
from tests.hub.edits import say
from tests.laws.models import ids_for, randomised
from tests.laws.tolerance import close

Edit = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def saved(tmp_path: Path, name: str = "bert-base") -> tuple[Transformer, Path]:
    model = randomised(shrink(preset(name).spec))
    save(model, tmp_path / "model", form="hf")
    return model, tmp_path / "model"


def edited(folder: Path, tensors: Edit | None = None, **settings: object) -> Path:
    """Change a directory's tensors and settings in place."""
    file = folder / "model.safetensors"
    if tensors is not None:
        save_file({name: tensor.clone() for name, tensor in tensors(load_file(file)).items()}, file)
    say(folder / "config.json", **settings)
    return folder


@pytest.mark.parametrize("prefix", [True, False])
def test_files_of_the_class_with_heads_hold_the_bare_one(prefix: bool, tmp_path: Path) -> None:
    model, folder = saved(tmp_path)

    def encoder_alone(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name.removeprefix("bert."): t for name, t in tensors.items() if not name.startswith("cls.")}

    bare, _ = load(edited(folder, None if prefix else encoder_alone, architectures=["BertModel"]))
    assert [head.name for head in bare.spec.heads] == ["pooler"]
    ids = ids_for(model.spec, 2, 7)
    with torch.no_grad():
        assert torch.equal(bare(ids).last_hidden_state, model(ids).last_hidden_state)
        first = model(ids).last_hidden_state[:, 0]
        by_hand = torch.tanh(model.head("nsp").transform[0](first))
    torch.testing.assert_close(bare(ids).outputs["pooler"], by_hand)


def test_heads_that_the_configuration_does_not_name_are_left(tmp_path: Path) -> None:
    """bert-base-uncased says that it is a BertForMaskedLM, and its files hold the pooler and the second head too."""
    model, folder = saved(tmp_path)
    other, _ = load(edited(folder, architectures=["BertForMaskedLM"]))
    ids = ids_for(model.spec, 2, 7)
    with torch.no_grad():
        assert list(other(ids).outputs) == ["mlm"]
        assert torch.equal(other(ids).logits, model(ids).logits)


def test_norms_of_old_files_have_gammas_and_betas(tmp_path: Path) -> None:
    model, folder = saved(tmp_path)

    def old(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        names = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
        for new, before in names:
            tensors = {name.replace(new, before): tensor for name, tensor in tensors.items()}
        return tensors

    edited(folder, old)
    assert any(name.endswith("gamma") for name in load_file(folder / "model.safetensors"))
    ids = ids_for(model.spec, 1, 5)
    with torch.no_grad():
        assert torch.equal(load(folder)[0](ids).logits, model(ids).logits)


def test_an_encoder_without_its_pooler_has_no_head(tmp_path: Path) -> None:
    model, folder = saved(tmp_path)
    edited(folder, lambda tensors: {n: t for n, t in tensors.items() if "pooler" not in n}, architectures=["BertModel"])
    bare, _ = load(folder)
    assert bare.spec.heads == ()
    ids = ids_for(model.spec, 1, 5)
    with torch.no_grad():
        assert torch.equal(bare(ids).last_hidden_state, model(ids).last_hidden_state)
    # A BertModel always has a pooler; ELECTRA's class is the same encoder, and never has one.
    assert save(bare, tmp_path / "again").form == "hf"
    assert json.loads((tmp_path / "again" / "config.json").read_text())["architectures"] == ["ElectraModel"]
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "again").eval()
    with torch.no_grad():
        close(bare(ids).last_hidden_state, theirs(ids).last_hidden_state)


def test_heads_that_are_named_and_not_there_are_missed(tmp_path: Path) -> None:
    _, folder = saved(tmp_path, "roberta-base")
    with pytest.raises(CheckpointError, match=r"missing: classifier\.dense\.weight"):
        load(edited(folder, architectures=["RobertaForSequenceClassification"]))


def test_labels_are_counted(tmp_path: Path) -> None:
    spec = shrink(preset("distilbert-base").spec)
    model = randomised(spec.but(heads=(row_classes(5, activation=ReLU()),)))
    save(model, tmp_path / "model", form="hf")
    settings = json.loads((tmp_path / "model" / "config.json").read_text())
    assert settings["architectures"] == ["DistilBertForSequenceClassification"]
    assert len(settings["id2label"]) == 5
    table = load(tmp_path / "model")[0].spec.heads[0].table
    assert table is not None
    assert table.rows == 5
