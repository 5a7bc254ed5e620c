"""Law: a decoder's class without its head is read and written as that class, its vectors those of transformers' own.

So are decoders that see both ways because `is_causal` is false. A few types are tried, all of them among the slow.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from anyformer.errors import CheckpointError
from anyformer.families import FAMILIES
from anyformer.families.compose import changed
from anyformer.families.heads import sentence_embedding
from anyformer.families.hf.headings import writes_alone
from anyformer.hub import load, save
from anyformer.layers.causality import later_tokens_seen
from anyformer.model import Transformer, build
from anyformer.spec import TableSpec
from tests.hub.edits import settings
from tests.laws.parity import InDouble
from tests.laws.test_settings import WITHOUT, based, outcome, quiet, read
from tests.laws.tolerance import distance
from tests.laws.variations import attention, made

NEAR = 1e-6  # in float64, as in test_settings.py
ALWAYS = ("qwen2", "mistral", "gemma3_text", "cohere", "gpt_oss", "deepseek_v3", "llama4_text", "falcon_h1", "gpt_neox")
REMOTE = ("exaone", "step3p5")  # whose classes are none of transformers'
FAILING = {"mpt", "modernbert-decoder"}  # which take masks for granted where transformers makes none
UNTIED = {"tie_word_embeddings": False}
TYPES = [
    pytest.param(kind, marks=[] if kind in ALWAYS else pytest.mark.slow)
    for kind, family in FAMILIES.items()
    if kind not in (*WITHOUT, *REMOTE)
    and family.architecture.endswith(("ForCausalLM", "LMHeadModel", "ModelWithLMHead"))
]


def made_bare(hf_type: str) -> Any:
    """Return the model of transformers' class without a head, where the whole one would have a table for its head alone."""
    small = based(hf_type)
    whole = read(small, small.settings | UNTIED)
    if whole is None or not writes_alone(whole):
        pytest.skip(f"the head of {small.kind} has no table of its own")
    return made(small._replace(kind=MODEL_MAPPING_NAMES[hf_type]), small.settings | UNTIED)


def apart(ours: Transformer, theirs: Any) -> float:
    """Return how far the vectors of both lie apart."""
    ids = torch.randint(0, ours.spec.vocab_size, (2, 12), generator=torch.Generator().manual_seed(0))
    found = theirs(ids, attention_mask=torch.ones_like(ids), use_cache=False).last_hidden_state
    return distance(ours(ids).last_hidden_state, found)


@pytest.mark.parametrize("hf_type", TYPES)
def test_read_and_written_as_its_class(hf_type: str, tmp_path: Path) -> None:
    with InDouble(), torch.no_grad(), quiet():
        theirs = made_bare(hf_type)
        theirs.save_pretrained(tmp_path / "theirs")
        ours, _ = load(tmp_path / "theirs")
        assert ours.spec.heads == ()
        assert apart(ours, theirs) < NEAR
        saved = save(ours, tmp_path / "ours", form="hf")
        config = transformers.AutoConfig.from_pretrained(saved.path)
        assert config.architectures == [MODEL_MAPPING_NAMES[config.model_type]]
        ways = {"attn_implementation": attention(config), "experts_implementation": "eager", "dtype": torch.float64}
        back = transformers.AutoModel.from_pretrained(saved.path, **ways).eval()
        assert apart(ours, back) < NEAR


@pytest.mark.parametrize("hf_type", TYPES)
def test_tokens_see_ahead(hf_type: str) -> None:
    small = based(hf_type)
    found = outcome(small, small.settings | {"is_causal": False})
    spec = read(small, small.settings)
    assert spec is not None
    fixed = FAMILIES[hf_type].fixed_masks and later_tokens_seen(spec.stack) is None
    assert found == ("refused" if fixed else "theirs fails" if hf_type in FAILING else "equal")


@pytest.mark.parametrize(
    ("hf_type", "kind"),
    [
        ("t5", "T5EncoderModel"),
        ("mt5", "MT5EncoderModel"),
        ("umt5", "UMT5EncoderModel"),
        ("longt5", "LongT5EncoderModel"),
        ("switch_transformers", "SwitchTransformersEncoderModel"),
    ],
)
def test_an_encoder_alone(hf_type: str, kind: str, tmp_path: Path) -> None:
    """As those that make vectors of sentences are released, and that read for a model of images."""
    with InDouble(), torch.no_grad(), quiet():
        small = based(hf_type)
        theirs = made(small._replace(kind=kind), small.settings)
        theirs.save_pretrained(tmp_path / "theirs")
        ours, _ = load(tmp_path / "theirs")
        assert (ours.spec.encoder, ours.spec.heads) == (None, ())
        ids = torch.randint(0, ours.spec.vocab_size, (2, 12), generator=torch.Generator().manual_seed(0))
        mask = torch.ones_like(ids)
        mask[1, 8:] = 0

        def states(model: Any) -> Any:
            return model(ids, attention_mask=mask).last_hidden_state[mask.bool()]

        assert distance(states(ours), states(theirs)) < NEAR
        pooled = ours.spec.but(heads=(sentence_embedding(),), stack=changed(ours.spec.stack, TableSpec, shared=None))
        alone = build(pooled, seed=None)
        table = {"shared.tokens.weight": "stack.embedding.terms.0.table.weight"}
        alone.load_state_dict({table.get(name, name): each for name, each in ours.state_dict().items()})
        for model, name in ((ours, "as it is"), (alone, "with a head")):
            saved = save(model, tmp_path / name, form="hf")
            kinds = json.loads((saved.path / "config.json").read_text())["architectures"]
            back = getattr(transformers, kinds[0]).from_pretrained(saved.path, dtype=torch.float64).eval()
            assert distance(states(back), states(theirs)) < NEAR
            assert load(saved.path)[0].spec.heads == model.spec.heads


def test_a_table_that_the_class_lacks_is_passed_over(tmp_path: Path) -> None:
    """As AutoModel does; the class with a head still asks for it."""
    with quiet():
        made_bare("qwen2").save_pretrained(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    save_file(held | {"lm_head.weight": torch.ones(held["embed_tokens.weight"].shape)}, tmp_path / "model.safetensors")
    assert load(tmp_path)[0].spec.heads == ()
    save_file(held, tmp_path / "model.safetensors")
    settings(tmp_path, architectures=["Qwen2ForCausalLM"])
    with pytest.raises(CheckpointError, match=r"missing: lm_head\.weight"):
        load(tmp_path)
