"""Directories of models that also see or hear: of a text they compute what is read of them here, their text model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import anyformer as af
from anyformer.errors import CheckpointError
from anyformer.families import FAMILIES, preset
from anyformer.families.compose import edited
from anyformer.families.hf.composite import ALIKE, COMPOSITES, alone
from anyformer.hub.weights import FILE
from anyformer.layers import IndexerSpec
from anyformer.measure.verify import verify
from anyformer.resizing import shrink
from anyformer.spec import Count, ModelSpec
from tests.cli.running import refused, run, succeeded
from tests.laws.tolerance import close

# By the type of the text model, a preset of it.
TEXTS = {
    "muse_glimmer_text": "muse-glimmer",
    "glm5_next_text": "glm-5.3-flash",
    "apertus1p5_text": "apertus-1.5-8b",
    "deepseek_v3": "deepseek-v3",
    "exaone4": "exaone-4.0-1.2b",
    "gemma3_text": "gemma3-1b",
    "gemma3n_text": "gemma3n-e4b",
    "gemma4_text": "gemma4-e2b",
    "gemma4_unified_text": "gemma4-31b",
    "glm4": "glm4",
    "glm4_moe": "glm-4.5-air",
    "hunyuan_v1_dense": "hunyuan-7b",
    "hyperclovax": "hyperclova-x-seed",
    "inkling_text": "inkling",
    "lfm2": "lfm2-350m",
    "lfm3": "lfm3",
    "llama": "llama2",
    "llama4_text": "llama4-scout",
    "minimax_m3_vl_text": "minimax-m3",
    "mistral": "mistral",
    "mistral_large4_text": "mistral-large-4",
    "qwen2": "qwen2-7b",
    "qwen3": "qwen3-0.6b",
    "qwen3_5_moe_text": "qwen3.5-35b-a3b",
    "qwen3_5_text": "qwen3.5-9b",
    "qwen3_moe": "qwen3-30b-a3b",
    "qwen4_exp_text": "qwen3.8-flash-next",
    "step3p5": "step-3.5-flash",
}
# Settings that a class does not ask for, as it does not compute.
UNASKED: dict[str, dict[str, Any]] = {
    "gemma4_unified_text": {"hidden_size_per_layer_input": 8, "enable_moe_block": True},
    "glm4v_moe_text": {"use_qk_norm": True},
    "glm4v_text": {"attention_bias": False},
    "glm_ocr_text": {"attention_bias": True},
    "qwen3_vl_moe_text": {"norm_topk_prob": False},
}
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim")
EYES = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "projector_input_dim": 16,
    "projector_output_dim": 16,
    "vision_output_dim": 16,
}
# Eyes and ears whose codes are tokens: beside them where these begin.
CODES: dict[str, Any] = {
    "vision_config": {
        **dict.fromkeys(("embed_dim", "latent_channels", "base_channels"), 32),
        **dict.fromkeys(("codebook_size", "resolution"), 4),
        "channel_multiplier": [1],
    },
    "audio_config": {
        "model_type": "wavtokenizer_encoder",
        **dict.fromkeys(("hidden_size", "codebook_dim"), 16),
        "codebook_size": 4,
    },
    "image_token_offset": 40,
    "audio_token_offset": 44,
}


ALONE = [name for name, composite in COMPOSITES.items() if not composite.part]
# Whose class, by what it calls its eyes in files, misspells the text model's layers there.
MISSPELLED = ("kimi_k25", "qianfan_ocr")


def settings_of(hf_type: str) -> Any:
    """The class of their configurations."""
    return CONFIG_MAPPING[hf_type]


def text_of(hf_type: str) -> dict[str, Any]:
    """The settings of a tiny text model, with what those say of places that read text as another type's class does."""
    alike = ALIKE.get(hf_type)
    known = hf_type if alike is None else alike.hf_type
    # Of an indexer's few heads many pairs score 0, of which either side may take others.
    spec = edited(
        shrink(preset(TEXTS.get(hf_type) or TEXTS[known]).spec),
        IndexerSpec,
        lambda each: each if each.choices > 1 else each.but(n_heads=Count(16)),
    )
    text = {**FAMILIES[known].to_config(spec), "model_type": hf_type, "pad_token_id": 0}
    text |= UNASKED.get(hf_type, {})
    if alike is not None and "head_dim" in alike.always:
        text["head_dim"] = text["hidden_size"] // text["num_attention_heads"]
    if alike is not None and not (text.get("rope_scaling") or "rope_parameters" in text):
        width = (
            text.get("qk_rope_head_dim") or text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
        )
        n = int(width * text.get("partial_rotary_factor", 1.0)) // 2
        sections = [n - 2 * (n // 3), n // 3, n // 3]
        text["rope_scaling"] = {"rope_type": "default", "mrope_section": sections, "mrope_interleaved": True}
    return text


def theirs(hf_type: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Any:
    """A tiny model of theirs, every parameter random."""
    torch.manual_seed(0)
    composite, kind = COMPOSITES[hf_type], settings_of(hf_type)
    if hf_type == "gemma3n":  # its eyes and ears are timm's
        from transformers.models.gemma3n import modeling_gemma3n as module

        real = module.AutoModel.from_config
        monkeypatch.setattr(
            module.AutoModel,
            "from_config",
            lambda config: real(config) if config.model_type == composite.text else nn.Linear(2, 2),
        )
    text = text_of(composite.text)
    others: dict[str, Any] = {name: dict(EYES) for name in kind.sub_configs if name != "text_config"}
    others = {"gemma3n": {}, "apertus1p5": CODES}.get(hf_type, others)
    if hf_type == "ovis2":
        others |= {name: text[name] for name in ("hidden_size", "vocab_size")}
    model: Any = getattr(transformers, composite.architecture)(kind(text_config=text, **others, **settings))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def logits(model: Any, ids: Tensor) -> Tensor:
    """Llama 4's by its model of text, which has the head: in transformers 5.24 the whole asks that for what it sees."""
    text = model.language_model if model.config.model_type == "llama4" else model
    with torch.no_grad():
        return text(input_ids=ids).logits


def ids() -> Tensor:
    return torch.randint(3, 30, (2, 17), generator=torch.Generator().manual_seed(1))


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("hf_type", ALONE)
def test_a_text_is_computed_alike(hf_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = theirs(hf_type, monkeypatch)
    model.save_pretrained(tmp_path, save_original_format=hf_type not in MISSPELLED)
    found = af.load(tmp_path)[0].eval()
    assert af.load_spec(tmp_path) == found.spec
    with torch.no_grad():
        close(found(ids()).logits, logits(model, ids()))


@pytest.mark.parametrize("hf_type", ALONE)
def test_a_head_that_is_not_said_to_be_tied_is_as_in_the_class(hf_type: str) -> None:
    assert COMPOSITES[hf_type].tied == getattr(settings_of(hf_type)(), "tie_word_embeddings", False)


def spec_of(path: Path, config: dict[str, Any]) -> ModelSpec:
    (path / "config.json").write_text(json.dumps(config, default=str))
    return af.load_spec(path / "config.json")


@pytest.mark.parametrize("hf_type", [name for name in ALONE if COMPOSITES[name].text in ALIKE])
def test_where_nothing_is_said_it_is_as_in_the_class(hf_type: str, tmp_path: Path) -> None:
    """But for its sizes, which are to be said."""
    said = settings_of(hf_type)().to_dict()
    text = said["text_config"]
    if text["hidden_size"] % text["num_attention_heads"]:
        text["head_dim"] = 128
    sizes = {name: text[name] for name in SIZES if name in text}
    assert spec_of(tmp_path, {"model_type": hf_type, "text_config": sizes}) == spec_of(tmp_path, said)


@pytest.mark.parametrize("within", [True, False])
def test_the_first_files_of_qwens_are_read(within: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of text and eyes in one table and under names of their own, positions as "mrope"; later the head is tied within."""
    model = theirs("qwen2_5_vl", monkeypatch, tie_word_embeddings=True)
    model.save_pretrained(tmp_path)

    def first(config: dict[str, Any]) -> None:
        text = config.pop("text_config")
        table = text.pop("rope_parameters")
        sections = {"type": "mrope", "mrope_section": table["mrope_section"]}
        config |= {**text, "rope_theta": table["rope_theta"], "rope_scaling": sections}
        config |= {"model_type": "qwen2_5_vl", "tie_word_embeddings": True}

    def later(config: dict[str, Any]) -> None:
        config["tie_word_embeddings"] = False
        config["text_config"] |= {"tie_word_embeddings": True, "architectures": config["architectures"]}

    changed(tmp_path, later if within else first)
    held = load_file(tmp_path / FILE)
    save_file(
        {name.replace("model.language_model.", "model."): tensor for name, tensor in held.items()}, tmp_path / FILE
    )
    assert any(name.startswith("model.layers.") for name in load_file(tmp_path / FILE))
    with torch.no_grad():
        close(af.load(tmp_path)[0].eval()(ids()).logits, logits(model, ids()))


@pytest.mark.parametrize("hf_type", [name for name in COMPOSITES if name not in ALONE])
def test_what_reads_is_found_in_a_whole_that_speaks(
    hf_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is released: its settings in a table of the whole's, its tensors behind a word, beside those of the voice."""
    part = COMPOSITES[hf_type].part
    model = theirs(f"{hf_type}_{part}", monkeypatch)
    model.save_pretrained(tmp_path)
    voice = {"talker_config": {"text_config": {"hidden_size": 4}}, "enable_audio_output": True}
    whole = {"model_type": hf_type, f"{part}_config": json.loads((tmp_path / "config.json").read_text()), **voice}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    held = {f"{part}.{name}": tensor for name, tensor in load_file(tmp_path / FILE).items()}
    save_file(held | {"talker.model.layers.0.mlp.weight": torch.ones(2)}, tmp_path / FILE, {"format": "pt"})
    close(logits(type(model).from_pretrained(tmp_path), ids()), logits(model, ids()))
    with torch.no_grad():
        close(af.load(tmp_path)[0].eval()(ids()).logits, logits(model, ids()))
    assert verify(tmp_path, n_tokens=32).first_difference is None
    (tmp_path / "config.json").write_text(json.dumps({"model_type": hf_type, **voice}))
    refused(run("show", tmp_path), f"has no table {part}_config, so its text model is unknown")


def test_experts_are_read_as_released_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which are (in, out), where the class holds and writes them (out, in)."""
    model = theirs("qwen3_vl_moe", monkeypatch)
    model.save_pretrained(tmp_path)
    held = load_file(tmp_path / FILE)
    turned = {name: x.mT.contiguous() if ".mlp.experts." in name else x for name, x in held.items()}
    save_file(turned, tmp_path / FILE, metadata={"format": "pt"})
    assert any(turned[name].shape != held[name].shape for name in held)
    close(logits(type(model).from_pretrained(tmp_path), ids()), logits(model, ids()))
    with torch.no_grad():
        close(af.load(tmp_path)[0].eval()(ids()).logits, logits(model, ids()))


@pytest.mark.parametrize("hf_type", ["qwen3_5", "qwen3_5_moe"])
def test_sections_of_positions_are_of_places(hf_type: str, tmp_path: Path) -> None:
    """As their released configurations say them."""
    config = json.loads(json.dumps(settings_of(hf_type)().to_dict(), default=str))
    plain = spec_of(tmp_path, config)
    config["text_config"]["rope_parameters"] |= {"mrope_interleaved": True, "mrope_section": [11, 11, 10]}
    assert spec_of(tmp_path, config) == plain


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Any]:
    model = theirs("gemma3", monkeypatch)
    model.save_pretrained(tmp_path / "gemma")
    return tmp_path / "gemma", model


def changed(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    config = json.loads((path / "config.json").read_text())
    change(config)
    (path / "config.json").write_text(json.dumps(config))


def test_both_names_of_the_text_model_are_read(directory: tuple[Path, Any]) -> None:
    """Files that were written before 4.52 have "language_model.model.", the classes now "model.language_model."."""
    path, model = directory
    held = load_file(path / FILE)
    old = [name for name in held if name.startswith("language_model.model.")]
    new = [name for name in held if name.startswith("model.language_model.")]
    assert bool(old) != bool(new)
    a, b = ("language_model.model.", "model.language_model.")
    save_file(
        {name.replace(a, b, 1) if old else name.replace(b, a, 1): tensor for name, tensor in held.items()}, path / FILE
    )
    with torch.no_grad():
        close(af.load(path)[0](ids()).logits, logits(model, ids()))


def test_layers_for_further_tokens_of_released_files_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 3.7's, which stand behind the last layer; so are they in Step 3.5's, whose files have no other part."""
    model = theirs("step3p7", monkeypatch)
    model.save_pretrained(tmp_path)
    held = load_file(tmp_path / FILE)
    assert "model.layers.6.moe.gate_proj.weight" in held
    text = {
        name: tensor for name, tensor in held.items() if name.startswith(("model.layers", "model.e", "model.n", "lm"))
    }
    more = {"model.layers.7.enorm.weight": torch.ones(3), "model.layers.9.moe.router_bias": torch.ones(3)}
    config = json.loads((tmp_path / "config.json").read_text())
    for settings, tensors in ((config, held), (config["text_config"], text)):
        (tmp_path / "config.json").write_text(json.dumps(settings))
        save_file(tensors | more, tmp_path / FILE)
        with torch.no_grad():
            close(af.load(tmp_path)[0](ids()).logits, logits(model, ids()))


def test_names_of_tensors() -> None:
    assert alone("language_model.lm_head.weight") == alone("lm_head.weight") == "lm_head.weight"
    assert alone("model.text_model.layers.0.a") == alone("language_model.model.layers.0.a") == "layers.0.a"
    assert alone("model.layers.0.a") == alone("layers.0.a") == "layers.0.a"
    assert alone("output.weight") == "lm_head.weight"
    for other in (
        "vision_tower.layers.0.a",
        "model.visual.language.a",
        "multi_modal_projector.a",
        "mtp.layers.0.a",
        "mtp_dspark.layers.0.a",
    ):
        assert alone(other) is None


def test_a_text_model_is_known_by_its_class(directory: tuple[Path, Any]) -> None:
    path, model = directory
    changed(path, lambda config: config["text_config"].update(model_type="mine", architectures=["Gemma3ForCausalLM"]))
    with torch.no_grad():
        close(af.load(path)[0](ids()).logits, logits(model, ids()))


def test_what_predicts_further_tokens_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = theirs("inkling_mm_model", monkeypatch)
    model.save_pretrained(tmp_path)
    changed(tmp_path, lambda config: config.update(mtp_config={"num_nextn_predict_layers": 1}))
    save_file({**load_file(tmp_path / FILE), "model.mtp.norm.weight": torch.ones(3)}, tmp_path / FILE)
    with torch.no_grad():
        close(af.load(tmp_path)[0](ids()).logits, logits(model, ids()))


@pytest.mark.parametrize("said", [True, False, None])
def test_the_head_is_as_the_configuration_says_or_as_the_files_have_it(
    said: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as the text model's own configuration says, which none of theirs goes by."""
    model = theirs("mistral3", monkeypatch, tie_word_embeddings=said is True)
    model.save_pretrained(tmp_path)
    changed(tmp_path, lambda config: config["text_config"].update(tie_word_embeddings=said is not True))
    if said is None:
        changed(tmp_path, lambda config: config.pop("tie_word_embeddings"))
    found = af.load(tmp_path)[0].eval()
    assert bool(found.spec.heads[0].tied) == (said is True)
    assert af.load_spec(tmp_path) == found.spec
    with torch.no_grad():
        close(found(ids()).logits, logits(model, ids()))
    (tmp_path / FILE).unlink()
    assert bool(af.load_spec(tmp_path).heads[0].tied) == (said is not False)


def test_a_converted_directory_is_of_the_text_model(
    directory: tuple[Path, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, model = directory
    succeeded(run("convert", path, tmp_path / "text"))
    assert "tensors that see or hear are passed over; the text model is read" in caplog.text
    alike = transformers.Gemma3ForCausalLM.from_pretrained(tmp_path / "text").eval()
    close(logits(alike, ids()), logits(model, ids()))
    assert af.load_spec(path / "config.json") == af.load_spec(tmp_path / "text")


def test_it_is_verified_by_its_own_class(directory: tuple[Path, Any]) -> None:
    found = verify(directory[0], n_tokens=32)
    assert found.architecture == "Gemma3ForConditionalGeneration"
    assert found.first_difference is None


def test_what_is_not_known_is_refused(directory: tuple[Path, Any]) -> None:
    path, _ = directory
    changed(path, lambda config: config.update(logit_scale=0.5))
    refused(run("show", path), "logit_scale = 0.5 is unknown here")
    changed(path, lambda config: config.pop("logit_scale"))
    changed(path, lambda config: config.update(is_causal=False))
    refused(run("show", path), "is_causal = False is unknown here")
    changed(path, lambda config: config.pop("is_causal"))
    changed(path, lambda config: config["text_config"].update(strange=0.5))
    refused(run("show", path), "strange = 0.5 is unknown here")
    changed(path, lambda config: config.update(text_config={}))
    with pytest.raises(CheckpointError, match="has no table text_config"):
        af.load_spec(path)
    changed(path, lambda config: config.update(text_config=3))
    with pytest.raises(CheckpointError, match="text_config = 3 must be a table"):
        af.load_spec(path)
    changed(path, lambda config: config.update(model_type="paligemma"))
    refused(run("show", path), "audio and images are out of scope")
    changed(path, lambda config: config.update(model_type=["gemma3"]))
    refused(run("show", path), "model_type")
