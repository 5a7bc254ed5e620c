"""Adapters of models whatever their heads: PEFT opens them on the class of ours in transformers, and we read them alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from anyformer.disk.run_layout import ADAPTER, ADAPTER_CONFIG
from anyformer.errors import CheckpointError
from anyformer.families.classifier import with_classifier
from anyformer.families.heads import sentence_embedding
from anyformer.hub import load, save
from anyformer.hub.adapted import AdaptedWeights
from anyformer.layers import LastTokenSpec
from anyformer.recipe import LoRA
from anyformer.spec import ModelSpec
from anyformer.training.step.adapter import Adapter
from tests.laws.models import randomised
from tests.laws.tolerance import close
from tests.training.models import VOCAB
from tests.training.test_lora import small


def of_head(kind: str) -> ModelSpec:
    """A shrunk model with the one head that a run of that kind gives it."""
    if kind == "hidden words":
        return small("bert-base")
    if kind == "translations":
        return small("t5-small")
    decoder = small("gemma3-1b")
    if kind == "vectors":
        return decoder.but(heads=(sentence_embedding(LastTokenSpec()),))
    return with_classifier(decoder, 3, "classes" if kind == "classes" else "token_classes")


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("hidden words", "AnyformerForMaskedLM"),
        ("translations", "AnyformerForSeq2SeqLM"),
        ("classes", "AnyformerForSequenceClassification"),
        ("labels of words", "AnyformerModel"),
        ("vectors", "AnyformerModel"),
    ],
)
def test_peft_puts_an_adapter_on_the_class_of_any_model(kind: str, named: str, tmp_path: Path) -> None:
    from peft import PeftModel

    from anyformer.integrations import transformers as ours

    spec = of_head(kind)
    model = randomised(spec)
    save(model, tmp_path / "base", form="transformers")
    save(model, tmp_path / "given", form="anyformer")
    adapter = Adapter(model, LoRA(r=2, alpha=8.0, targets=("all",)), seed=0)
    (folder := tmp_path / "adapter").mkdir()
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.normal_(std=0.3)
    save_file(adapter.state_dict(), folder / ADAPTER)
    (folder / ADAPTER_CONFIG).write_bytes(adapter.described("base"))

    assert json.loads((tmp_path / "base" / "config.json").read_text())["architectures"] == [named]
    base: Any = getattr(ours, named).from_pretrained(tmp_path / "base")
    ids = torch.arange(40).reshape(2, 20) % VOCAB
    given = {"input_ids": ids} | ({"decoder_input_ids": ids[:, :9]} if spec.encoder is not None else {})
    bare = base(**given)[0]
    adapted: Any = PeftModel.from_pretrained(base, str(folder)).eval()
    out = model.eval()(**given)
    close(adapted(**given)[0], out.last_hidden_state if named == "AnyformerModel" else out.logits)
    assert not torch.allclose(bare, adapted(**given)[0], atol=1e-2)
    with pytest.raises(
        CheckpointError, match="adapter is an adapter without the weights that it is put on; give the run"
    ):
        load(folder)
    read = AdaptedWeights(tmp_path / "given", folder)
    adapter.merge()
    assert all(torch.equal(read.read(name), parameter) for name, parameter in model.named_parameters())
