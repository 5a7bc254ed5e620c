"""A faithful checkpoint agrees; one whose configuration lies differs, and the first place is named."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from anyformer.errors import UsageError
from anyformer.families import preset
from anyformer.families.heads import sentence_embedding
from anyformer.hub import convert, save
from anyformer.layers import Llama3Scaling
from anyformer.measure.verify import verify
from anyformer.resizing import shrink
from tests.cli.running import refused, run, succeeded
from tests.laws.weights import filled, telling
from tests.test_docs import keys_of


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    spec = shrink(preset("llama3.1-8b").spec)
    save(filled(spec, telling(spec)), tmp_path / "model")
    return tmp_path / "model"


def test_a_faithful_checkpoint_agrees(directory: Path) -> None:
    found = verify(directory, n_tokens=64)
    assert found.first_difference is None
    assert [p.name for p in found.places] == ["embedding", "layer 0", "layer 1 and final norm", "logits"]
    assert found.architecture == "LlamaForCausalLM"
    assert found.same_next_tokens == 1.0
    assert 0 < max(p.ours for p in found.places) < 1e-5
    assert 0 < max(p.theirs for p in found.places) < 1e-5


@pytest.mark.parametrize(
    ("name", "kind"),
    [("embeddinggemma-300m", "Gemma3TextModel"), ("mistral", "MistralModel"), ("distilbert-base", "DistilBertModel")],
)
def test_models_that_make_vectors_agree_up_to_the_last_state(name: str, kind: str, tmp_path: Path) -> None:
    """What makes one vector of their tokens is no part of the class."""
    spec = shrink(preset(name).spec).but(heads=(sentence_embedding(),))
    save(filled(spec, telling(spec)), tmp_path / "model", form="hf")
    found = verify(tmp_path / "model", n_tokens=48)
    assert found.architecture == kind
    assert found.places[-1].name.endswith("and final norm")
    assert found.first_difference is None
    assert max(place.ours for place in found.places) < 1e-5


@pytest.mark.parametrize("name", ["t5-base", "bart-base", "long-t5-tglobal-base"])
def test_an_encoder_decoder_writes_what_it_reads(name: str, tmp_path: Path) -> None:
    spec = shrink(preset(name).spec)
    save(filled(spec, telling(spec)), tmp_path / "model", form="hf")
    found = verify(tmp_path / "model", n_tokens=48)
    layers = [f"layer {i}" for i in range(spec.n_layers - 1)]
    ended = f"layer {spec.n_layers - 1} and final norm"
    assert [p.name for p in found.places] == ["encoder", "embedding", *layers, ended, "logits"]
    assert found.first_difference is None


@pytest.mark.parametrize("name", ["xlnet-base", "deberta-v3-base"])
def test_a_class_with_one_kernel_is_compared(name: str, tmp_path: Path) -> None:
    """Transformers' sdpa says what rounding does; where there is none, our own float64 does."""
    spec = shrink(preset(name).spec)
    save(filled(spec, telling(spec)), tmp_path / "model", form="hf")
    found = verify(tmp_path / "model", n_tokens=48)
    assert found.first_difference is None
    assert 0 < max(p.theirs for p in found.places) < 1e-5


@pytest.mark.parametrize("name", ["jamba-v0.1", "qwen3-next-80b-a3b", "zamba2-1.2b"])
def test_layers_without_attention_are_rounded_too(name: str, tmp_path: Path) -> None:
    """Of a recurrence transformers has one form, behind which its sdpa is its eager attention to the bit."""
    spec = shrink(preset(name).spec)
    save(filled(spec, telling(spec)), tmp_path / "model", form="hf")
    found = verify(tmp_path / "model", n_tokens=96)
    assert found.first_difference is None
    assert all(0 < place.theirs < 1e-4 for place in found.places[1:])


@pytest.mark.parametrize("name", ["mamba-130m", "rwkv-4-169m", "reformer-enwik8"])
def test_states_of_other_places_are_refused(name: str, tmp_path: Path) -> None:
    spec = shrink(preset(name).spec)
    save(filled(spec, telling(spec)), tmp_path / "model", form="hf")
    with pytest.raises(UsageError, match="gives other states than those behind each layer"):
        verify(tmp_path / "model")


def test_a_text_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xff\xfe")
    refused(run("verify", "nowhere", "--text", tmp_path / "text"), "text is not UTF-8 text: byte 0xff at offset 0")


def test_the_first_place_that_differs_is_named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the scaling of rotary positions is computed wrongly, so the first layer is the first to differ."""
    monkeypatch.setattr(Llama3Scaling, "scaled", lambda self, frequencies: frequencies)
    found = verify(directory, n_tokens=64)
    assert found.first_difference is not None
    assert found.first_difference.name == "layer 0"


def test_the_command_says_it(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = succeeded(run("verify", directory, "--tokens", "40"))
    assert "they agree" in said.stdout
    assert said.stderr == ""
    monkeypatch.setattr(Llama3Scaling, "scaled", lambda self, frequencies: frequencies)
    said = run("verify", directory, "--tokens", "40", "--json")
    answer = json.loads(said.stdout)
    assert set(answer) | set(answer["places"][0]) == keys_of("verify")
    assert said.exit_code == 1
    assert (answer["agrees"], answer["first_difference"]) == (False, "layer 0")


def test_what_transformers_does_not_open_is_refused(tmp_path: Path) -> None:
    """Its reader of GGUF files knows no `head_dim` of Qwen3, and takes 128."""
    spec = shrink(preset("qwen3-0.6b").spec)
    save(filled(spec, telling(spec)), tmp_path / "model", form="hf")
    convert(tmp_path / "model", tmp_path / "model.gguf")
    said = "model.gguf cannot be compared: transformers does not open it, RuntimeError: "
    refused(run("verify", tmp_path / "model.gguf"), said)


def test_what_cannot_be_compared_is_refused(tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = shrink(preset("transformer-lm").spec)
    save(filled(spec, telling(spec)), tmp_path / "ours", form="anyformer")
    with pytest.raises(UsageError, match="is a directory of ours"):
        verify(tmp_path / "ours")
    for number in (0, -1):
        with pytest.raises(UsageError, match=f"n_tokens {number} is nothing; give 1 or more"):
            verify(directory, n_tokens=number)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match="pip install transformers"):
        verify(directory)
