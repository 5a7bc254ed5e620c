"""T5, BART, Marian and Switch beyond the laws: what distinguishes each is seen, labels, all buckets, what files decide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from anyformer.errors import CheckpointError, SpecError
from anyformer.families import FAMILIES, preset
from anyformer.families.compose import changed
from anyformer.families.hf.mapping import computed, fitting, misfits, spec_of, theirs_of
from anyformer.hub import load, save
from anyformer.layers import (
    GELU,
    AttentionSpec,
    FeedForwardSpec,
    FirstBlockAgainSpec,
    FixedCapacity,
    GlobalBlocks,
    LayerNormSpec,
    LearnedPositionsSpec,
    LookAhead,
    RelativeBucketsSpec,
    ReLU,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
    SinusoidSpec,
    SlidingWindow,
    SymmetricWindow,
    TokensSpec,
    TransientGlobalSpec,
)
from anyformer.model import build
from anyformer.recipe import Seq2Seq
from anyformer.resizing import shrink
from anyformer.spec import (
    BranchSpec,
    Count,
    EmbeddingSpec,
    HeadSpec,
    ModelSpec,
    ScaleSpec,
    Spec,
    StackSpec,
    TableSpec,
    Vocab,
    Window,
    parameters,
)
from anyformer.text.parallel import PairBatch
from anyformer.training.objectives.objective import LossContext
from anyformer.training.objectives.seq2seq.loss import Seq2SeqObjective
from tests.hub.edits import settings
from tests.laws.inputs import inputs_for
from tests.laws.mutations import check_mutation, each_mutation
from tests.laws.parity import differences, in_double, pair, rounding, theirs_on
from tests.laws.tolerance import FLOAT32, close
from tests.laws.weights import filled, telling

MUTATIONS: dict[str, list[tuple[type[Spec], dict[str, Any]]]] = {
    "t5-small": [
        (RMSNormSpec, {"eps": 1e-5}),
        (RelativeBucketsSpec, {"max_distance": Window(6)}),
        (RelativeBucketsSpec, {"bidirectional": True}),
        (AttentionSpec, {"scale": ScaleSpec(power=-0.5)}),
        (HeadSpec, {"scale": None}),
        (FeedForwardSpec, {"activation": GELU()}),
    ],
    "t5-v1.1-small": [(GELU, {"form": "erf"}), (HeadSpec, {"scale": ScaleSpec(power=-0.5)})],
    "long-t5-local-base": [(SymmetricWindow, {"radius": 4}), (SymmetricWindow, {"radius": 6})],
    "long-t5-tglobal-base": [
        (SymmetricWindow, {"radius": 4}),
        (TransientGlobalSpec, {"every": Window(8)}),
        (TransientGlobalSpec, {"norm": RMSNormSpec(eps=1e-2)}),
        (RelativeBucketsSpec, {"max_distance": Window(6)}),
    ],
    "t5gemma-9b-2b": [
        (SymmetricWindow, {"radius": 4}),
        (SymmetricWindow, {"radius": 6}),
        (SlidingWindow, {"size": 6}),
        (RotarySpec, {"theta": 1.1e4}),
        (AttentionSpec, {"softcap": None}),
        (BranchSpec, {"norm_out": None}),
        (HeadSpec, {"softcap": 31.0}),
    ],
    "t5gemma2-270m-270m": [
        (SlidingWindow, {"size": Window(9)}),
        (LookAhead, {"size": Window(9)}),
        (RotarySpec, {"theta": 1.1e4}),
        (AttentionSpec, {"scale": ScaleSpec(power=-0.4)}),
        (BranchSpec, {"norm_out": None}),
    ],
    "bart-base": [
        (TokensSpec, {"scale": ScaleSpec(power=0.5)}),
        (LearnedPositionsSpec, {"offset": 1, "n_positions": 65}),
        (LayerNormSpec, {"eps": 1e-4}),
        (GELU, {"form": "tanh"}),
    ],
    "opus-mt-en-de": [
        (SinusoidSpec, {"layout": "interleaved"}),
        (SinusoidSpec, {"frequencies": "half-1"}),
        (SinusoidSpec, {"start": 1}),
        (TokensSpec, {"scale": None}),
        (FeedForwardSpec, {"activation": ReLU()}),
    ],
    "mbart-large-50": [(TokensSpec, {"scale": None}), (LayerNormSpec, {"eps": 1e-4}), (EmbeddingSpec, {"norm": None})],
    "m2m100-418m": [
        (SinusoidSpec, {"start": 1}),
        (SinusoidSpec, {"frequencies": "d"}),
        (FeedForwardSpec, {"activation": GELU()}),
    ],
    "pegasus-large": [(SinusoidSpec, {"layout": "interleaved"}), (StackSpec, {"norm": None})],
    "bigbird-pegasus-large": [
        (GlobalBlocks, {"size": Window(4)}),
        (FirstBlockAgainSpec, {"n_random": Count(2)}),
        (TokensSpec, {"scale": None}),
        (GELU, {"form": "erf"}),
    ],
    "blenderbot-400m-distill": [(LearnedPositionsSpec, {"offset": 1, "n_positions": 63}), (GELU, {"form": "tanh"})],
    "switch-base-8": [(FixedCapacity, {"tokens": 6}), (RouterSpec, {"factor": 1.01})],
}


@each_mutation(MUTATIONS)
def test_a_distinguishing_field_is_seen(name: str, part: type[Spec], fields: dict[str, Any]) -> None:
    check_mutation(name, part, fields)


def test_all_buckets_of_distance_are_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as published, and a text that goes beyond the last one's distance."""
    monkeypatch.setattr("tests.laws.inputs.LENGTH", 170)
    monkeypatch.setattr("tests.laws.inputs.SOURCE", 160)
    full = {"n_buckets": Count(32), "max_distance": Window(128)}
    spec = changed(shrink(preset("t5-small").spec), RelativeBucketsSpec, **full)
    given = inputs_for("left", spec)
    assert given.input_ids.shape[1] == 170
    found = differences(pair(spec), given)
    assert found.largest < FLOAT32
    longer = changed(spec, RelativeBucketsSpec, max_distance=Window(129))
    with torch.no_grad():
        before, after = (given.run(filled(s, telling(spec))).logits for s in (spec, longer))
    assert (before - after).abs().max() > 1e-2


LABELLED = (
    "t5-small",
    "t5-v1.1-small",
    "bart-base",
    "opus-mt-en-de",
    "switch-base-8",
    "pegasus-large",
    "blenderbot-3b",
)


@pytest.mark.parametrize("name", LABELLED)
def test_labels_give_their_loss(name: str) -> None:
    """They shift labels and read -100 as padding; our batches are told what the decoder reads."""
    spec = shrink(preset(name).spec)
    both, given = pair(spec), inputs_for("right", spec)
    both.theirs.config.decoder_start_token_id = both.theirs.config.pad_token_id = 0
    assert given.source is not None
    assert given.source_real is not None
    labels = given.input_ids.masked_fill(~given.real, -100)
    read = torch.cat((torch.zeros(2, 1, dtype=torch.long), labels[:, :-1].clamp(min=0)), 1)
    expected = both.theirs(
        given.source,
        attention_mask=given.source_real.long(),
        labels=labels,
        decoder_attention_mask=given.real.long(),
    ).loss
    batch = PairBatch(*(t.numpy() for t in (given.source, given.source_real, read, given.real, labels)))
    each = Seq2SeqObjective(Seq2Seq(), spec)(LossContext(both.ours, both.ours.head(), torch.device("cpu")), batch).each
    mean = each[given.real].mean() if each.shape == labels.shape else each.sum() / int(given.real.sum())
    close(mean[None], expected[None])
    assert np.isfinite(expected.item())


def biased(spec: ModelSpec, bias: bool) -> ModelSpec:
    return spec.but(heads=(spec.heads[0].but(bias=bias),))


@pytest.mark.parametrize("name", ["bart-base", "opus-mt-en-de"])
@pytest.mark.parametrize("bias", [True, False])
def test_files_say_whether_the_logits_have_a_bias(name: str, bias: bool, tmp_path: Path) -> None:
    """Their class holds one always; where it is all zeros there is none, whatever the configuration says."""
    spec = biased(shrink(preset(name).spec), bias)
    both, given = pair(spec), inputs_for("plain", spec)
    both.theirs.save_pretrained(tmp_path)
    settings(tmp_path, add_bias_logits=False)
    model, _ = load(tmp_path)
    assert model.spec.heads[0].bias == bias
    with torch.no_grad():
        close(given.run(model).logits, given.run(both.ours).logits)


def untied(spec: ModelSpec) -> ModelSpec:
    return spec.but(heads=tuple(head.but(table=head.table and head.table.but(shared=None)) for head in spec.heads))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("hf_type", ["t5", "mt5"])
def test_files_say_whether_the_head_is_tied(hf_type: str, tied: bool, tmp_path: Path) -> None:
    """What transformers writes says that it is, always: its configuration ties whatever it is told."""
    spec = shrink(preset("mt5-small").spec)
    if tied:
        spec = changed(spec, TableSpec, shared="tokens")
    family, given = FAMILIES[hf_type], inputs_for("plain", spec)
    config = transformers.AutoConfig.for_model(hf_type, **family.to_config(spec))
    weights = telling(spec)
    named = dict(theirs_of(family.rows(spec), weights.__getitem__))
    kind = getattr(transformers, family.architecture)
    theirs = kind.from_pretrained(None, config=config, state_dict=named).eval()
    assert (theirs.lm_head.weight is theirs.shared.weight) == tied
    theirs.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is True
    model, _ = load(tmp_path)
    assert bool(model.spec.heads[0].tied) == tied
    with torch.no_grad():
        expected = theirs(given.source, decoder_input_ids=given.input_ids).logits
        close(given.run(model).logits, expected)


def test_the_released_spelling_of_version_1_1_is_read() -> None:
    """tie_word_embeddings: false says both: a table of the head's own, and logits that are not scaled."""
    base = {"model_type": "t5", "d_model": 512, "d_kv": 64, "num_heads": 6, "num_layers": 8, "d_ff": 1024}
    later = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "vocab_size": 32_128}
    spec = spec_of(FAMILIES, base | later, "config.json")[1]
    assert spec.but(context=512) == preset("t5-v1.1-small").spec
    first = {"d_model": 512, "num_heads": 8, "num_layers": 6, "d_ff": 2048, "n_positions": 512, "vocab_size": 32_128}
    assert spec_of(FAMILIES, base | first, "config.json")[1] == preset("t5-small").spec


@pytest.mark.parametrize(
    ("hf_type", "setting", "said"),
    [
        ("t5", {"feed_forward_proj": "gated-maxout"}, "feed_forward_proj = 'gated-maxout' is none of"),
        ("t5", {"dense_act_fn": "silu"}, "dense_act_fn = 'silu' is not computed here"),
        ("bart", {"normalize_before": True}, "normalize_before = True is not computed here"),
        ("bart", {"tie_word_embeddings": False}, "tie_word_embeddings = False is not computed here"),
        ("marian", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings = False is not"),
        ("switch_transformers", {"router_ignore_padding_tokens": True}, "router_ignore_padding_tokens = True is not"),
        ("t5", {"unheard_of": 3}, "unheard_of = 3 is unknown here"),
        ("longt5", {"encoder_attention_type": "global"}, "encoder_attention_type = 'global' is not computed here"),
        (
            "longt5",
            {"encoder_attention_type": "transient-global", "global_block_size": 12},
            "global_block_size = 12 is no power of two",
        ),
    ],
)
def test_settings_that_would_compute_something_else_are_refused(
    hf_type: str, setting: dict[str, Any], said: str
) -> None:
    name = {"t5": "t5-small", "bart": "bart-base", "marian": "opus-mt-en-de", "switch_transformers": "switch-base-8"}
    name["longt5"] = "long-t5-local-base"
    config = FAMILIES[hf_type].to_config(shrink(preset(name[hf_type]).spec))
    spec_of(FAMILIES, {"model_type": hf_type, **config}, "config.json")
    with pytest.raises(CheckpointError, match=said):
        spec_of(FAMILIES, {"model_type": hf_type, **config, **setting}, "config.json")


def test_an_answer_begins_where_the_configuration_says(tmp_path: Path) -> None:
    """T5's with padding, BART's with what closes a text: generation_config.json beside the tokenizer names it."""
    from anyformer.text import Tokenizer

    tokenizer = Tokenizer.train(["ein Hund, zwei Hunde"], 270)
    spec = changed(shrink(preset("t5-small").spec), TableSpec, rows=tokenizer.vocab_size)
    save(filled(spec, telling(spec)), tmp_path / "out", tokenizer)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["decoder_start_token_id"] == tokenizer.end_of_text == tokenizer.start_of_answer
    (tmp_path / "out" / "generation_config.json").write_text('{"decoder_start_token_id": 7}')
    _, loaded = load(tmp_path / "out")
    assert loaded is not None
    assert loaded.start_of_answer == 7


SIZES = {"vocab_size": 101, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 48}
SIZES |= {"decoder_ffn_dim": 40, "encoder_attention_heads": 4, "decoder_attention_heads": 2}
SIZES |= {"max_position_embeddings": 64, "pad_token_id": 1, "decoder_start_token_id": 2}
GIVEN: list[tuple[str, dict[str, Any]]] = [
    ("plbart", {}),
    ("plbart", {"scale_embedding": False}),
    ("mvp", {}),
    ("mvp", {"scale_embedding": True, "activation_function": "relu", "init_std": 0.05}),
    ("mbart", {"scale_embedding": True}),
    ("m2m_100", {}),
    ("m2m_100", {"pad_token_id": 3, "scale_embedding": False}),
    ("pegasus", {"activation_function": "relu", "scale_embedding": True}),
    ("bigbird_pegasus", {"block_size": 4, "num_random_blocks": 2}),
    (
        "bigbird_pegasus",
        {"attention_type": "original_full", "use_bias": True, "scale_embedding": False, "activation_function": "relu"},
    ),
    ("blenderbot", {"scale_embedding": True}),
]


@pytest.mark.parametrize(("hf_type", "settings"), GIVEN, ids=[f"{t} {i}" for i, (t, _) in enumerate(GIVEN)])
def test_every_class_of_barts_kin_is_read_as_it_is(
    hf_type: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its defaults spelled out mean the same to us; it computes the same to rounding, and its files hold this model."""
    config = transformers.AutoConfig.for_model(hf_type, **{**SIZES, **settings})
    ours = spec_of(FAMILIES, {"model_type": hf_type, **SIZES, **settings}, "config.json")[1]
    assert ours == spec_of(FAMILIES, config.to_dict(), "theirs")[1]
    assert not misfits(FAMILIES[hf_type], ours)[1]
    monkeypatch.setattr("tests.laws.parity.FAMILIES", {hf_type: FAMILIES[hf_type]})
    found = in_double(ours, inputs_for("right", ours), tmp_path)
    assert found.largest < rounding(ours)


def umt5() -> ModelSpec:
    """Return UMT5, shrunk, scaled and tied, which its released files are not."""
    spec = changed(shrink(preset("umt5-small").spec), TableSpec, shared="tokens")
    return changed(spec, HeadSpec, scale=ScaleSpec(power=-0.5))


@pytest.mark.parametrize("padded", ["plain", "right"])
def test_umt5_is_its_class_where_that_is_tied(padded: str, tmp_path: Path) -> None:
    spec = umt5()
    found = in_double(spec, inputs_for(padded, spec), tmp_path / "theirs")
    assert max(found.logits, found.hidden, found.gradients) < rounding(spec)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (RelativeBucketsSpec, {"shared": "one"}),
        (GELU, {"form": "erf"}),
    ],
)
def test_what_umt5_changes_is_seen(kind: type[Spec], fields: dict[str, Any]) -> None:
    spec = umt5()
    with pytest.raises(SpecError, match="no class of transformers computes"):
        fitting([FAMILIES["umt5"]], changed(spec, kind, **fields))


@pytest.mark.parametrize("scaled", [None, False, True])
def test_umt5_is_scaled_as_its_settings_say(scaled: bool | None, tmp_path: Path) -> None:
    """Released files say that the head is not tied and nothing of a scale, and mean none."""
    spec = shrink(preset("umt5-small").spec)
    save(filled(spec, telling(spec)), tmp_path, form="hf")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["tie_word_embeddings"] is config.pop("scale_decoder_outputs") is False
    said = {} if scaled is None else {"scale_decoder_outputs": scaled}
    (tmp_path / "config.json").write_text(json.dumps(config | said))
    theirs = transformers.UMT5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    given = inputs_for("plain", spec)
    found, _ = load(tmp_path)
    assert computed(found.spec) == computed(changed(spec, HeadSpec, scale=ScaleSpec(power=-0.5) if scaled else None))
    with torch.no_grad():
        close(given.run(found).logits, theirs_on(theirs, given, spec), FLOAT32)


def two_vocabularies() -> ModelSpec:
    """Return FSMT, shrunk, with a table for each side and one of the head's, and more words to read than to write."""
    spec = changed(shrink(preset("wmt19-en-de").spec), TableSpec, shared=None)
    assert spec.encoder is not None
    return spec.but(encoder=changed(spec.encoder, TableSpec, rows=Vocab(spec.vocab_size + 7)))


def test_a_vocabulary_for_each_side(tmp_path: Path) -> None:
    spec = two_vocabularies()
    assert parameters(spec).total == sum(p.numel() for p in build(spec, seed=0).parameters())
    found = in_double(spec, inputs_for("right", spec), tmp_path / "theirs")
    assert max(found.logits, found.hidden, found.gradients) < rounding(spec)
    said = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert said["src_vocab_size"] == said["tgt_vocab_size"] + 7
    with pytest.raises(CheckpointError, match=r"src_vocab_size = \d+ is not tgt_vocab_size = \d+, and one table"):
        spec_of(FAMILIES, said | {"tie_word_embeddings": True}, "config.json")
