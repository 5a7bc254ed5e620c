"""Settings whose class, made of them, says what they mean: its files, read here, compute what it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import anyformer as af
from anyformer.families import FAMILIES
from tests.families.test_hybrids_hf import NEMOTRON
from tests.laws.parity import InDouble
from tests.laws.tolerance import FLOAT64, close

GIVEN: list[tuple[str, dict[str, Any]]] = [
    ("nemotron_h", {**NEMOTRON, "hybrid_override_pattern": "EM*M", "time_step_min": 0.8, "time_step_max": 1.2}),
]


@pytest.mark.parametrize(("hf_type", "settings"), GIVEN, ids=[f"{t} {i}" for i, (t, _) in enumerate(GIVEN)])
def test_files_of_the_class_compute_what_it_does(hf_type: str, settings: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model(hf_type, **settings)
    kind: Any = getattr(transformers, FAMILIES[hf_type].architecture)
    torch.manual_seed(0)
    ids = torch.randint(6, 101, (2, 40))
    with InDouble(), torch.no_grad():
        theirs = kind._from_config(config, attn_implementation="eager", experts_implementation="eager").eval()
        for parameter in theirs.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        theirs.save_pretrained(tmp_path)
        close(af.load(tmp_path)[0](ids).logits, theirs(ids, use_cache=False).logits, FLOAT64)
