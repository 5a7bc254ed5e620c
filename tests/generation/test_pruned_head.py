"""A head over the first tokens alone: the others are read, as codes of images are, and never written (Apertus 1.5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import anyformer as af
from anyformer.errors import InputError
from anyformer.generation import Sampling, generate_ids
from anyformer.generation.guesses import PromptLookup
from anyformer.generation.penalties import Penalties
from anyformer.generation.speculative import SpeculativeDecoding
from anyformer.model import Transformer
from tests.families.test_today_hf import SIZES

WRITTEN = 40
IDS = torch.tensor([[5, 90, 7, 39, 40, 100, 3]])  # three of which are only read


@pytest.fixture
def models(tmp_path: Path) -> tuple[Transformer, Any]:
    torch.manual_seed(0)
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = transformers.Apertus1p5TextConfig(**SIZES, **ids, output_vocab_size=WRITTEN)
    theirs: Any = transformers.Apertus1p5TextForCausalLM(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    theirs.save_pretrained(tmp_path)
    return af.load(tmp_path)[0], theirs


def test_it_writes_what_transformers_writes(models: tuple[Transformer, Any]) -> None:
    ours, theirs = models
    expected = theirs.generate(IDS, max_new_tokens=12, do_sample=False, pad_token_id=0)
    found = generate_ids(ours, IDS, max_new_tokens=12)
    assert torch.equal(found, expected[:, IDS.shape[1] :])
    assert len(set(found[0].tolist())) > 2


def test_what_is_only_read_is_not_penalised() -> None:
    found = Penalties(Sampling(repetition_penalty=2.0), IDS, None, WRITTEN, (), 1).applied(torch.ones(1, WRITTEN))
    assert [i for i, value in enumerate(found[0].tolist()) if value != 1] == [3, 5, 7, 39]
    with pytest.raises(InputError, match="bias: there is no token 40; this model has those from 0 to 39"):
        Penalties(Sampling(bias=((WRITTEN, 1.0),)), IDS, None, WRITTEN, (), 1)


def test_a_penalised_text(models: tuple[Transformer, Any]) -> None:
    found = generate_ids(models[0], IDS, max_new_tokens=20, sampling=Sampling(temperature=0, frequency_penalty=100.0))
    written = found[0].tolist()
    assert len(set(written)) > 12
    assert max(written) < WRITTEN


def test_guesses_may_be_of_what_is_only_read(models: tuple[Transformer, Any]) -> None:
    with pytest.raises(InputError, match="the model reads tokens that it never writes, so no guess; generate without"):
        SpeculativeDecoding(models[0], IDS, None, PromptLookup(2), max_new_tokens=3)
