"""Law: a decoder's class that labels texts, or words, is read and written as that class, its scores those of transformers' own.

Which types have one transformers says. A few types are tried, all of them among the slow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto import modeling_auto

from anyformer.families import FAMILIES
from anyformer.hub import load, save
from anyformer.model import Transformer
from tests.laws.parity import InDouble
from tests.laws.test_settings import WITHOUT, based, quiet
from tests.laws.tolerance import distance
from tests.laws.variations import attention, made

NEAR = 1e-6  # in float64, as in test_settings.py
ALWAYS = ("qwen3", "gemma3_text", "mixtral", "gpt2", "falcon")
# Whose classes put more than a matrix on a model, or read another token than the last.
OTHERWISE = {"xlm", "flaubert", "reformer", "modernbert-decoder", "xlnet"}
CLASSES = {
    "classes": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "token_classes": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
}
DECODERS = [
    kind
    for kind, family in FAMILIES.items()
    if kind not in {*WITHOUT, *OTHERWISE} and family.architecture.endswith(("ForCausalLM", "LMHeadModel"))
]
EACH = [
    pytest.param(head, kind, marks=[] if kind in ALWAYS else pytest.mark.slow)
    for head, named in CLASSES.items()
    for kind in DECODERS
    if kind in named
]


def apart(ours: Transformer, theirs: Any) -> float:
    """How far the scores of both lie apart, of two texts of which one is padded behind its end."""
    (head,) = ours.spec.heads
    ids = torch.randint(1, ours.spec.vocab_size, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    ids[1, 9:], mask[1, 9:] = 0, 0  # what the class takes for padding
    found = ours(ids, attention_mask=mask, heads=[head.name]).outputs[head.name]
    expected = theirs(ids, attention_mask=mask).logits
    real = mask.bool() if head.pool is None else slice(None)
    return distance(found[real], expected[real])


@pytest.mark.parametrize(("head", "hf_type"), EACH)
def test_read_and_written_as_its_class(head: str, hf_type: str, tmp_path: Path) -> None:
    kind = CLASSES[head][hf_type]
    with InDouble(), torch.no_grad(), quiet():
        small = based(hf_type)._replace(kind=kind)
        made(small, small.settings | {"num_labels": 3, "pad_token_id": 0}).save_pretrained(tmp_path / "theirs")
        ours, _ = load(tmp_path / "theirs")
        assert [(each.name, each.table and each.table.rows) for each in ours.spec.heads] == [(head, 3)]
        saved = save(ours, tmp_path / "ours", form="hf")
        for path in (tmp_path / "theirs", saved.path):
            config = transformers.AutoConfig.from_pretrained(path)
            config.pad_token_id = 0
            assert config.architectures == [CLASSES[head][config.model_type]]
            ways = {"attn_implementation": attention(config), "experts_implementation": "eager"}
            named = getattr(transformers, CLASSES[head][config.model_type])
            theirs = named.from_pretrained(path, config=config, dtype=torch.float64, **ways)
            assert apart(ours, theirs.eval()) < NEAR
