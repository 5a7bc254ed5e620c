"""What is said of configurations whose class is not read."""

import re
from typing import Any

import pytest
import transformers
from transformers.models.auto import modeling_auto as auto

from anyformer.errors import CheckpointError
from anyformer.families import FAMILIES
from anyformer.families.hf.mapping import spec_of


def said(config: dict[str, Any]) -> str:
    with pytest.raises(CheckpointError) as caught:
        spec_of(FAMILIES, config, "config.json")
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("Whisper", "num_mel_bins"),
        ("ViT", "image_size"),
        ("Qwen2VL", "vision_config"),
        ("Wav2Vec2", "feat_extract_norm"),
    ],
)
def test_what_sees_or_hears_is_out_of_scope(name: str, setting: str) -> None:
    config = getattr(transformers, f"{name}Config")().to_dict()
    assert f"has {setting}: audio and images are out of scope" in said(config)


def test_its_name_alone_says_that_it_sees_or_hears() -> None:
    known = ("CAUSAL_LM", "MASKED_LM", "AUDIO_CLASSIFICATION", "IMAGE_CLASSIFICATION", "SPEECH_SEQ_2_SEQ")
    text, masked, heard, seen, spoken = (set(getattr(auto, f"MODEL_FOR_{name}_MAPPING_NAMES")) for name in known)
    others = {
        "whisper",
        "vit",
        "clip",
        "siglip2",
        "qwen2_vl",
        "qwen2_5_omni",
        "llava_next",
        "detr",
        "sam2",
        "mobilevit",
    }
    senses = {name for name in heard | seen | spoken | others if "out of scope" in said({"model_type": name})}
    assert heard <= senses
    assert others <= senses
    assert len(seen - senses) <= len(seen) / 2  # not all can be told by their names
    plain = (text | masked) - heard - spoken - {*FAMILIES}
    wrong = {name for name in plain if "out of scope" in said({"model_type": name})}
    assert wrong <= {"got_ocr2", "mllama", "qwen2_audio", "musicgen", "musicgen_melody"} | {
        name for name in wrong if re.search("speech|music|audio|asr|voxtral|moshi", name)
    }


@pytest.mark.parametrize(
    ("name", "settings", "nearest"),
    [
        ("Funnel", ["block_sizes", "block_repeats", "pooling_type"], "xlnet"),
        ("Zamba", ["hidden_mamba_act"], "zamba2"),
        ("ProphetNet", ["ngram"], "bart"),
    ],
)
def test_the_settings_are_named_that_no_class_has(name: str, settings: list[str], nearest: str) -> None:
    told = said(getattr(transformers, f"{name}Config")().to_dict())
    lacking = told.partition("; no class that is has ")[2].partition("; the nearest")[0].split(" and ")[0].split(", ")
    assert set(settings) <= set(lacking)
    assert "hidden_size" not in lacking  # others have it
    assert f"the nearest by its settings is {nearest!r}" in told


def test_one_that_differs_in_its_name_alone() -> None:
    config = transformers.LlamaConfig(hidden_size=64, num_attention_heads=4).to_dict() | {"model_type": "mine"}
    told = said(config)
    assert "all its settings are those of 'llama': if it computes the same, give --as llama; " in told
    assert "a family of your own is known by --import FILE" in told


@pytest.mark.parametrize("hf_type", ["mine", None])
def test_one_that_goes_by_its_class(hf_type: str | None) -> None:
    """A copy with a name of its own, or none, is what its class is; a known type is not doubted."""
    llama, own = transformers.LlamaConfig(hidden_size=64, num_attention_heads=4).to_dict(), {"model_type": hf_type}
    family, spec = spec_of(FAMILIES, llama | own | {"architectures": ["LlamaForCausalLM"]}, "config.json")
    assert (family.hf_type, spec) == ("llama", spec_of(FAMILIES, llama, "config.json")[1])
    assert "'mine' is not read here" in said(llama | {"model_type": "mine", "architectures": ["MineForCausalLM"]})
    mistral = {"model_type": "mistral", "architectures": ["LlamaForCausalLM"], "sliding_window": 8}
    assert spec_of(FAMILIES, llama | mistral, "config.json")[0].hf_type == "mistral"


def test_one_that_says_nothing() -> None:
    assert said({"model_type": "bamba2"}).endswith(
        "'bamba2' is not read here; docs/parity.md lists the classes that are, and a family of your own is known by --import FILE"
    )
