"""Law: whatever one setting of a configuration is changed to, the model is that of transformers' class, or is refused.

A sample is drawn by the name of each type; among the slow tests all are tried.
"""

from __future__ import annotations

import json
import logging
import random
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from zlib import crc32

import pytest
import torch
import transformers

from anyformer.errors import AnyformerError, SpecError
from anyformer.families import FAMILIES
from anyformer.families.hf.mapping import computed, spec_of
from anyformer.hub import load, save
from anyformer.model import Transformer
from anyformer.spec import ModelSpec
from anyformer.spec.difference import differences
from tests.laws.inputs import inputs_for
from tests.laws.parity import InDouble, Margin
from tests.laws.tolerance import distance
from tests.laws.variations import Base, attention, base, changed, made, variations

TIED = 1e-12  # of scores that are chosen by, in float64: those of an indexer that are 0 are chosen in any order
NEAR = 1e-6  # in float64, of numbers that classes write with few digits; what is computed otherwise is a thousand times further
DRAWN = 2  # of the variations of a type, in `make test`
LEFT_OUT = 8  # of its settings, likewise
WITHOUT = {"mpnet"}  # no shrunk preset is of this class (tests/laws/references.py)
LEFT_TO_FILES = "heads"  # whether their table is that of the tokens, biases of logits
Outcome = Literal["equal", "refused", "theirs fails"]

every_type = pytest.mark.parametrize("hf_type", [kind for kind in FAMILIES if kind not in WITHOUT])


@contextmanager
def quiet() -> Iterator[None]:
    """Let transformers warn of settings that nobody would choose."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.logging.set_verbosity(level)


def based(hf_type: str) -> Base:
    found = base(hf_type)
    assert found is not None, f"no shrunk preset is of {hf_type}"
    return found


def apart(ours: Transformer, theirs: Any) -> float | None:
    """Return how far the answers lie apart; None where their class has none, or no number, or a choice is nearly a tie."""
    given, far = inputs_for("plain", ours.spec).fit_for(theirs, ours.spec), 0.0
    asked = given.comparable(ours.spec)
    try:
        each = list(given.references(theirs))
    except Exception:
        return None  # it fails in whatever way on settings that it does not check
    with Margin() as margin:
        found = given.run(ours, heads=[head.name for head in asked]).outputs
    if margin.least < TIED:
        return None
    for head in asked:
        expected = given.answers(each, head)
        if not expected.isfinite().all():
            return None
        far = max(far, distance(found[head.name], expected))
    return far


def refused(error: AnyformerError) -> Outcome:
    assert "\n" not in str(error)
    return "refused"


def outcome(small: Base, settings: Mapping[str, Any]) -> Outcome:
    """Say how a directory of theirs with these settings is read; fail where it is read, or written again, as another model."""
    with TemporaryDirectory() as name, InDouble(), torch.no_grad(), quiet():
        folder = Path(name)
        try:
            theirs = made(small, settings)
            theirs.save_pretrained(folder / "theirs")
        except Exception:
            return "theirs fails"
        said, meant = read(small, settings), read(small, theirs.config.to_dict())
        if said is not None and meant is not None:
            otherwise = [each for each in differences(meant, said) if not each[0].startswith(LEFT_TO_FILES)]
            assert not otherwise, f"as the class writes it, it is another model: {otherwise[0]}"
        try:
            ours, _ = load(folder / "theirs")
        except AnyformerError as refusal:
            return refused(refusal)
        far = apart(ours, theirs)
        if (
            far is None or ours.spec.context == 1
        ):  # the law's texts are longer, of which such a class says what comes of it
            return "theirs fails"
        assert far < NEAR, f"read, it is {far:.1e} apart"
        try:
            save(ours, folder / "ours", form="hf")
        except SpecError:
            return "equal"  # we hold it, and no class is told of it by what we write
        said = json.loads((folder / "ours" / "config.json").read_text())
        kind, config = said["architectures"][0], transformers.AutoConfig.from_pretrained(folder / "ours")
        ways = {"attn_implementation": attention(config), "experts_implementation": "eager", "dtype": torch.float64}
        back = getattr(transformers, kind).from_pretrained(folder / "ours", **ways).to(torch.float64).eval()
        far = apart(ours, back)
        assert far is not None, f"written for {kind}, it fails there"
        assert far < NEAR, f"written for {kind}, it is {far:.1e} apart there"
        return "equal"


def tried(hf_type: str, each: Iterable[tuple[str, Any]]) -> None:
    """Fail with all that is wrong of a type."""
    small, wrong = based(hf_type), list[str]()
    assert outcome(small, small.settings) == "equal"
    for name, value in each:
        try:
            outcome(small, changed(small, name, value))
        except Exception as error:
            wrong.append(f"{name} = {value!r}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)


def drawn(hf_type: str, each: list[Any], n: int) -> list[Any]:
    """Return some of a list, by the name of a type."""
    return random.Random(crc32(hf_type.encode())).sample(each, min(n, len(each)))


@pytest.mark.in_turn
@every_type
def test_some_settings_changed(hf_type: str) -> None:
    tried(hf_type, drawn(hf_type, variations(based(hf_type)), DRAWN))


@pytest.mark.slow
@every_type
def test_each_setting_changed(hf_type: str) -> None:
    tried(hf_type, variations(based(hf_type)))


# What was once read, or written, as another model, or refused without need.
FOUND: dict[str, tuple[str, dict[str, Any], Outcome]] = {
    "p-RoPE where a class rotates half of each head by default": (
        "glm",
        {"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e4}},
        "equal",
    ),
    "no window, written for a class that knows no null there": (
        "gemma3n_text",
        {"layer_types": ["full_attention"] * 10},
        "equal",
    ),
    "no window, written for a class that reads null as rotating": (
        "hy_v3",
        {"mlp_layer_types": ["sparse", "dense"]},
        "equal",
    ),
    "layers listed twice, as the class writes them": ("lfm2", {"full_attn_idxs": [0]}, "equal"),
    "a width of heads, of which a class turns as much": ("axk1", {"head_dim": 2}, "refused"),
    "the same of a class that turns a share of it": ("mistral4", {"head_dim": 4}, "refused"),
    "biases of attention, of its gate too": ("qwen3_5_text", {"attention_bias": True}, "equal"),
    "a share that turns, which the class passes over": ("bamba", {"partial_rotary_factor": 0.3}, "equal"),
    "a window's reach beside its width": ("modernbert-decoder", {"sliding_window": 3}, "equal"),
    "the same to both sides": ("modernbert", {"sliding_window": 3}, "equal"),
    "a length by another name, from which positions are stretched": (
        "bailing_hybrid",
        {"rope_parameters": {"rope_theta": 6e6, "rope_type": "dynamic", "factor": 2.0}},
        "equal",
    ),
    "an activation of short convolutions too": ("kimi_linear", {"hidden_act": "relu"}, "equal"),
    "the same beside KDA's decays": ("bailing_hybrid", {"hidden_act": "relu"}, "equal"),
    "a magnitude that a norm behind it takes away": (
        "llama4_text",
        {
            "rope_parameters": {
                "rope_theta": 5e5,
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
        "refused",
    ),
    "masks of a decoder that shall see later tokens": ("qwen2", {"is_causal": False}, "equal"),
    "the same where nothing says so": ("qwen2", {"is_causal": None}, "equal"),
    "the same of a decoder behind an encoder": ("bart", {"is_causal": False}, "equal"),
    "the same of a class whose masks are as they are": ("gpt_neo", {"is_causal": False}, "refused"),
    "windows to both sides, as EmbeddingGemma says them": (
        "gemma3_text",
        {"use_bidirectional_attention": True},
        "equal",
    ),
    "masks of a decoder, as they are": ("qwen2", {"is_causal": True}, "equal"),
    "masks of an encoder, as they are": ("bert", {"is_causal": False}, "equal"),
    # Of the class's kernels some hide later tokens then, others do not.
    "masks of an encoder that shall not see later tokens": ("bert", {"is_causal": True}, "refused"),
    "chunks that fill a text up to more than one of them": ("reformer", {"local_attn_chunk_length": 3}, "refused"),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_wrong(name: str) -> None:
    hf_type, settings, expected = FOUND[name]
    small = based(hf_type)
    ((setting, value),) = settings.items()
    assert outcome(small, changed(small, setting, value)) == expected


def read(small: Base, settings: Mapping[str, Any]) -> ModelSpec | None:
    """Return the model of settings; None for what is refused."""
    about = {"model_type": small.hf_type, "architectures": [small.kind]}
    try:
        found = spec_of(FAMILIES, {**settings, **about}, "config.json")[1]
    except AnyformerError:
        return None
    return computed(found).but(ahead=())  # layers that predict further are there where files hold them


# DBRX's class takes theta from beside the table in which released files say it: they are meant (families/hf/dbrx.py).
MEANT = {("dbrx", "rope_theta"), ("dbrx", "rope_parameters")}


def left_out(small: Base, names: Iterable[str]) -> None:
    """Fail where a setting that is not there is read as another than that of the class."""
    for name in names:
        if (small.hf_type, name) in MEANT:
            continue
        said = {each: value for each, value in small.settings.items() if each != name}
        with quiet():
            try:
                whole = small.config(said).to_dict()
            except Exception:
                continue
        found, expected = read(small, said), read(small, whole | said)
        assert found is None or expected is None or found == expected, f"{name}, left out, is not the default"


@pytest.mark.in_turn
@every_type
def test_some_settings_left_out(hf_type: str) -> None:
    left_out(based(hf_type), drawn(hf_type, [*based(hf_type).settings], LEFT_OUT))


@pytest.mark.slow
@every_type
def test_each_setting_left_out(hf_type: str) -> None:
    """Also of those alone that transformers writes, where an older spelling does not go before them."""
    small = based(hf_type)
    left_out(small, small.settings)
    whole = small.config(small.settings).to_dict()
    left_out(small._replace(settings=whole), [name for name in whole if name != "transformers_version"])


def test_a_feed_forward_left_out_is_gated_in_mt5() -> None:
    left_out(based("mt5"), ["feed_forward_proj"])
