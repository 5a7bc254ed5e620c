"""Configurations of encoders: what their classes take where nothing is said, names that share a class, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from anyformer.errors import CheckpointError
from anyformer.families import FAMILIES, preset
from anyformer.families.hf.mapping import misfits, spec_of
from anyformer.hub import convert, load
from anyformer.layers import RotarySpec
from anyformer.layers.embedding import n_segments
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, parameters
from tests.laws.inputs import inputs
from tests.laws.parity import InDouble, differences, pair, rounding

SIZES = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
UNMARKED = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None, "cls_token_id": None, "sep_token_id": None}
MODERN = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 3e5},
}
DISTANCES = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}  # beside absolute positions at the input
GIVEN: list[tuple[str, dict[str, Any]]] = [
    ("xlm-roberta", {"type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    ("camembert", {}),
    ("data2vec-text", {}),
    ("data2vec-text", {"type_vocab_size": 1, "layer_norm_eps": 1e-5, "hidden_act": "relu"}),
    ("bert-generation", {"hidden_act": "relu"}),
    ("bert-generation", {"is_decoder": True, "layer_norm_eps": 1e-3}),
    ("ibert", {}),
    ("ibert", {"type_vocab_size": 1, "layer_norm_eps": 1e-3, "force_dequant": "gelu"}),
    ("rembert", {}),
    (
        "rembert",
        {
            "input_embedding_size": 16,
            "output_embedding_size": 40,
            "hidden_act": "relu",
            "type_vocab_size": 3,
            "layer_norm_eps": 1e-3,
        },
    ),
    ("jina_embeddings_v3", {}),
    (
        "jina_embeddings_v3",
        {
            "hidden_act": "relu",
            "type_vocab_size": 2,
            "layer_norm_eps": 1e-3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e3},
        },
    ),
    ("megatron-bert", {"hidden_act": "relu", "type_vocab_size": 3, "layer_norm_eps": 1e-3}),
    ("xlm-roberta-xl", {"hidden_act": "relu", "type_vocab_size": 2, "layer_norm_eps": 1e-3}),
    ("xlm-roberta-xl", {}),
    ("roberta-prelayernorm", {"hidden_act": "relu", "type_vocab_size": 1, "layer_norm_eps": 1e-3}),
    ("ernie", {}),
    ("ernie", {"hidden_act": "relu", "type_vocab_size": 3, "layer_norm_eps": 1e-3}),
    ("roformer", {}),
    ("roformer", {"embedding_size": 16, "hidden_act": "relu"}),
    ("nomic_bert", {"rope_theta": 5e3}),
    ("gte", {}),
    ("gte", {"type_vocab_size": 0}),
    ("gte", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e4}}),
    ("deberta", {**UNMARKED, **DISTANCES}),
    ("deberta", {**UNMARKED, **DISTANCES, "position_biased_input": False}),
    ("deberta-v2", {**UNMARKED, **DISTANCES, "position_buckets": 8, "max_relative_positions": 24}),
    ("eurobert", {"pad_token_id": 0, "num_key_value_heads": 2, "attention_bias": True}),
    ("eurobert", {"pad_token_id": 0, "classifier_pooling": "bos"}),
    ("mpnet", {}),
    ("modernbert", {**UNMARKED, "local_attention": 12}),
    (
        "modernbert",
        {
            **UNMARKED,
            "norm_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "norm_eps": 1e-3,
            "layer_types": ["sliding_attention", "full_attention"],
            "local_attention": 6,
            "rope_parameters": MODERN,
        },
    ),
    (
        "modernbert",
        {**UNMARKED, "global_attn_every_n_layers": 1, "global_rope_theta": 5e4, "hidden_activation": "silu"},
    ),
]
each_given = pytest.mark.parametrize(("hf_type", "settings"), GIVEN, ids=[f"{t} {i}" for i, (t, _) in enumerate(GIVEN)])


def read(hf_type: str, settings: dict[str, Any]) -> ModelSpec:
    return spec_of(FAMILIES, {"model_type": hf_type, **SIZES, **settings}, "config.json")[1]


@each_given
def test_what_is_read_is_what_the_class_makes_of_it(hf_type: str, settings: dict[str, Any]) -> None:
    """Every default spelled out means the same, our writing fits, and the class has as many parameters."""
    config = transformers.AutoConfig.for_model(hf_type, **SIZES, **settings)
    ours = read(hf_type, settings)
    assert ours == spec_of(FAMILIES, config.to_dict(), "theirs")[1]
    assert not misfits(FAMILIES[hf_type], ours)[1]
    built: Any = getattr(transformers, FAMILIES[hf_type].architecture)
    with torch.device("meta"):
        theirs = sum(p.numel() for p in built(config).parameters() if p.requires_grad)
    assert parameters(ours).total == theirs


@each_given
@pytest.mark.parametrize("kind", ["right", "left"])
def test_its_own_class_computes_alike(
    hf_type: str, settings: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The laws compare a model with the first class that computes it, which need not be its own."""
    monkeypatch.setattr("tests.laws.parity.FAMILIES", {hf_type: FAMILIES[hf_type]})
    spec = read(hf_type, settings)
    with InDouble():
        both = pair(spec)
        both.ours.double()
        both.theirs.double()
        found = differences(both, inputs(kind, 101))
    assert both.family.hf_type == hf_type
    assert max(found.logits, found.hidden, found.gradients) < rounding(spec)


def test_thetas_and_segments() -> None:
    def theta(hf_type: str) -> float:
        return next(v for v in read(hf_type, {}).nested() if isinstance(v, RotarySpec)).theta

    assert (theta("roformer"), theta("nomic_bert"), theta("gte"), theta("eurobert")) == (1e4, 1e3, 1.6e5, 1e4)
    assert [n_segments(read("gte", {"type_vocab_size": n})) for n in (0, 1, 2)] == [0, 1, 2]


def test_tables_of_angles_are_the_classs() -> None:
    """Sines and cosines as its own file holds them, to the bit."""
    spec = shrink(preset("roformer-base").spec)
    (row,) = (row for row in FAMILIES["roformer"].rows(spec) if not row.ours and row.theirs)
    config: Any = transformers.AutoConfig.for_model("roformer", **FAMILIES["roformer"].to_config(spec))
    assert torch.equal(row.save(())[0], transformers.RoFormerForMaskedLM(config).state_dict()[row.theirs[0]])


@pytest.mark.parametrize(
    ("hf_type", "changes", "says"),
    [
        ("roformer", {"rotary_value": True}, "rotary_value = True is not computed here"),
        ("nomic_bert", {"head_dim": 16}, "head_dim = 16 is not computed here; only 8 is"),
        ("nomic_bert", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is not computed here"),
        ("gte", {"type_vocab_size": -1}, "type_vocab_size = -1 is no number"),
        ("eurobert", {"mlp_bias": True}, "mlp_bias = True is not computed here"),
        ("eurobert", {"tie_word_embeddings": True}, "tie_word_embeddings = True is not computed here"),
        ("eurobert", {"architectures": ["EuroBertForSequenceClassification"]}, "has no class that is read here"),
        ("mpnet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets = 16 is not computed here"),
        ("modernbert", {"classifier_bias": True}, "classifier_bias = True is not computed here"),
        ("modernbert", {"layer_types": ["windowed"] * 2}, "layer_types = .* must be 2 times"),
        ("modernbert", {"global_attn_every_n_layers": 0}, "global_attn_every_n_layers = 0 must be above 0"),
        ("ibert", {"quant_mode": True}, "quant_mode = True is not computed here; only False is"),
        ("rembert", {"tie_word_embeddings": True}, "tie_word_embeddings = True is not computed here; only False is"),
        ("rembert", {"output_embedding_size": 0}, "output_embedding_size = 0 must be above 0"),
        ("jina_embeddings_v3", {"lora_adaptations": ["retrieval.query"]}, "lora_adaptations"),
        ("mpnet", {"pad_token_id": 0}, "pad_token_id = 0 is not computed here; only 1 is"),
    ],
)
def test_refused_in_a_line(hf_type: str, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError, match=says) as error:
        read(hf_type, changes)
    assert "\n" not in str(error.value)


def test_what_integers_are_made_with_is_read_over(tmp_path: Path) -> None:
    """I-BERT's own files hold it; those that we write do not, and its class computes the same from them."""
    sizes: dict[str, Any] = {**SIZES}
    config: Any = transformers.IBertConfig(**sizes)
    model = transformers.IBertForMaskedLM(config).eval()
    extra = {name for name, _ in model.named_buffers() if name in model.state_dict()}
    model.save_pretrained(tmp_path / "theirs")
    ours, _ = load(tmp_path / "theirs")
    passed_over = {name for row in FAMILIES["ibert"].rows(ours.spec) if not row.ours for name in row.also}
    assert extra <= passed_over
    convert(tmp_path / "theirs", tmp_path / "ours", hf_type="ibert")
    again, ids = transformers.IBertForMaskedLM.from_pretrained(tmp_path / "ours").eval(), torch.arange(3, 12)[None]
    with torch.no_grad():
        expected = model(ids).logits
        assert torch.allclose(ours(ids).logits, expected, atol=1e-5)
        assert torch.equal(again(ids).logits, expected)
